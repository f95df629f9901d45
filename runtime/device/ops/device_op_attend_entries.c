/* Attention over the last tokens and over entries that stand for several tokens each, in one softmax
 * with a sink per head, on a device. A row's keys are gathered; the ring of the last tokens is
 * brought up to date when all rows are done. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/compress/entries.h"
#include "runtime/device/gathered_keys.h"

typedef struct attend_entries_state {
    kt_device_gather *gather; /* of all nodes that meet as many keys */
    const void *sink;
    kt_entry_layout layout;
} attend_entries_state;

static kt_attn_shape shape_of(const kt_node *n, kt_weight_format format) {
    const kt_attention *a = &n->attention;

    return (kt_attn_shape){.heads = (int32_t)a->heads,
                           .kv_heads = 1,
                           .k = (int32_t)a->k,
                           .v = (int32_t)a->v,
                           .cache = kt_device_attn_cache(format),
                           .is_shared = true};
}

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_attn_shape shape = shape_of(n, ask->kv.format);

    if (n->in3.width && ask->graph->width[n->in3.value] != n->index.topk)
        return "lists of picked entries that do not follow each other";
    return kt_device_gather_refuse(ask, &shape);
}

static kt_device_gather *find_shared(const kt_device_node *n) {
    const kt_device_node *first = n - (n->node - n->step->graph->nodes);

    for (const kt_device_node *e = first; e < n; e++)
        if (e->op && e->state && e->node->kind == n->node->kind &&
            e->node->entries.ratio == n->node->entries.ratio &&
            e->node->in3.width == n->node->in3.width)
            return ((const attend_entries_state *)e->state)->gather;
    return NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_device_step *d = n->step;
    const kt_attn_shape shape = shape_of(n->node, d->plan->kv);
    attend_entries_state *s = kt_device_step_alloc(d, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for attention over entries");
    s->gather = find_shared(n);
    if (!s->gather)
        KT_TRY(kt_device_gather_make(d, &shape, kt_node_most_keys(n->node, d->max_context),
                                     &s->gather, err));
    n->state = s;
    if (n->node->plane >= 0) s->layout = kt_device_entry_layout(d, n->node->plane);
    return kt_device_load_small(d, n->node->weight, &s->sink, NULL, err);
}

/* The last tokens, and the entries that a row sees or may pick. */
static int64_t keys_of(const kt_node *n, const kt_device_span *span, int64_t position) {
    const int64_t window = n->entries.window, seen = kt_entries_of(position + 1, n->entries.ratio);
    const int64_t tokens = position + 1 < window ? position + 1 : window;

    (void)span;
    return tokens + (n->in3.width && seen > n->index.topk ? n->index.topk : seen);
}

static kt_status gather(kt_device_node *n, const kt_device_gather *g, const kt_gathered *to,
                        int64_t longest, kt_err *err) {
    const attend_entries_state *s = n->state;
    const kt_device_step *d = n->step;
    const kt_entry_rule *rule = &n->node->entries;
    const uint8_t *base = rule->ratio ? d->pages.entries + s->layout.at : NULL;
    const kt_gather_entries call = {
        .to = *to,
        .places = {d->position, d->span_of, d->first_page, d->page},
        .packed = n->in2.x,
        .spans = (const kt_state_span *)d->span,
        .states = d->states + d->slot_at[n->node->slot],
        .stride = d->state_floats,
        .ldp = n->in2.ld,
        .entries = base,
        .scales =
            base && to->scale ? (const float *)(const void *)(base + s->layout.scales_at) : NULL,
        .page_bytes = (int64_t)d->pages.shape.entry_bytes,
        .picked = n->in3.width ? (const int32_t *)(const void *)n->in3.x : NULL,
        .ldpicked = (int32_t)n->in3.ld,
        .window = (int32_t)rule->window,
        .ratio = (int32_t)rule->ratio,
        .floats = (int32_t)n->in2.width,
        .topk = (int32_t)n->node->index.topk};

    return kt_device_put(n->step, g->code.code, KT_GATHER_ENTRIES, kt_gather_grid(g, longest),
                         to->rows, 0, &call, sizeof call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const attend_entries_state *s = n->state;
    const kt_device_step *d = n->step;
    const kt_keep_ring ring = {.packed = n->in2.x,
                               .spans = (const kt_state_span *)d->span,
                               .states = d->states + d->slot_at[n->node->slot],
                               .stride = d->state_floats,
                               .ldp = n->in2.ld,
                               .window = (int32_t)n->node->entries.window,
                               .floats = (int32_t)n->in2.width};

    KT_TRY(kt_device_gather_attend(n, s->gather, keys_of, gather, s->sink, err));
    return kt_device_put(n->step, s->gather->code.code, KT_GATHER_RING,
                         kt_row_blocks(ring.window, s->gather->code.threads / 32), d->n_spans, 0,
                         &ring, sizeof ring, err);
}

const kt_device_op kt_device_op_attend_entries = {
    .kind = KT_NODE_ATTEND_ENTRIES, .refuse = refuse, .init = init, .enqueue = enqueue};
