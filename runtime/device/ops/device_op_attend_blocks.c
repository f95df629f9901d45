/* Attention over the blocks of keys that an index picks for each kv head, on a device. Sequences that
 * see no more blocks than may be picked meet all of their keys where they lie; of the others each
 * row's keys and values are gathered. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/gathered_keys.h"
#include "runtime/device/device_index.h"

typedef struct blocks_state {
    kt_device_attn *attn; /* first: kt_device_attn_init looks for it */
    kt_device_gather *gather;
    kt_device_index index;
    int32_t *picked;   /* device [max_rows, heads, topk] */
    const float *sink; /* NULL = none */
} blocks_state;

static int64_t met_at_once(const kt_node *n) {
    return n->index.topk * n->index.block;
}

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const char *why = kt_device_attn_refuse(ask, n);

    if (ask->graph->planes[n->plane].v == 0) return "picked blocks of latent rows";
    return why ? why : kt_device_index_refuse(ask, &n->index);
}

/* Layers are of one kind; one runs after the other. */
static const blocks_state *find_shared(const kt_device_node *n, const kt_device_attn *attn) {
    const kt_device_node *first = n - (n->node - n->step->graph->nodes);

    for (const kt_device_node *e = first; e < n; e++) {
        const blocks_state *s = e->state;
        if (e->op && s && e->node->kind == n->node->kind && s->attn == attn) return s;
    }
    return NULL;
}

static kt_status make_shared(kt_device_node *n, blocks_state *s, kt_err *err) {
    kt_device_step *d = n->step;
    const kt_index_rule *index = &n->node->index;
    const size_t lists = (size_t)(d->max_rows * index->heads * index->topk);
    int64_t most = met_at_once(n->node);
    void *picked;

    if (most > d->max_context) most = d->max_context;
    KT_TRY(kt_device_step_take(d, lists * sizeof(int32_t), &picked, err));
    s->picked = picked;
    kt_device_step_need(d, kt_device_index_scratch(d, index, 1));
    return kt_device_gather_make(d, &s->attn->shape, most, &s->gather, err);
}

static kt_status init(kt_device_node *n, kt_err *err) {
    blocks_state *s = kt_device_step_alloc(n->step, sizeof *s);
    const blocks_state *shared;

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for attention over blocks");
    KT_TRY(kt_device_index_init(n->step, &n->node->index, &s->index, err));
    KT_TRY(kt_device_attn_init(n, 0, met_at_once(n->node), &s->attn, err));
    shared = find_shared(n, s->attn);
    if (shared)
        s->gather = shared->gather, s->picked = shared->picked;
    else
        KT_TRY(make_shared(n, s, err));
    n->state = s;
    return kt_device_attn_sinks(n, &s->sink, err);
}

static kt_status gather(kt_device_node *n, const kt_device_gather *g, const kt_gathered *to,
                        int64_t longest, kt_err *err) {
    const blocks_state *s = n->state;
    const kt_device_step *d = n->step;
    const int plane = n->node->plane;
    const kt_attn_kept k = kt_device_attn_kept(d, g->shape.cache, plane, 0);
    const kt_attn_kept v = kt_device_attn_kept(d, g->shape.cache, plane, 1);
    const kt_gather_blocks call = {.to = *to,
                                   .values_to = kt_gathered_values(g, to),
                                   .value_scale_to = kt_gathered_value_scales(g, to),
                                   .places = {d->position, d->span_of, d->first_page, d->page},
                                   .keys = k.rows,
                                   .values = v.rows,
                                   .scale = k.scale,
                                   .value_scale = v.scale,
                                   .head_rows = k.scale_head,
                                   .picked = s->picked,
                                   .heads = g->shape.kv_heads,
                                   .block = (int32_t)n->node->index.block,
                                   .topk = (int32_t)n->node->index.topk};

    return kt_device_put(n->step, g->code.code, KT_GATHER_BLOCKS, kt_gather_grid(g, longest),
                         to->rows * g->shape.kv_heads, 0, &call, sizeof call, err);
}

/* The row's own block is the last, and met as far as the row sees. */
static int64_t keys_of(const kt_node *n, const kt_device_span *span, int64_t position) {
    const int64_t block = n->index.block, topk = n->index.topk;

    if ((int64_t)span->position + span->rows <= met_at_once(n)) return 0;
    return position / block < topk ? position + 1 : (topk - 1) * block + position % block + 1;
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const blocks_state *s = n->state;
    const kt_index_rule *index = &n->node->index;
    const kt_attn_index call = {.q = n->in2.x,
                                .ldq = n->in2.ld,
                                .k = kt_device_index_keys(n->step, n->node->plane, index->dim),
                                .picked = s->picked,
                                .heads = (int32_t)index->heads,
                                .topk = (int32_t)index->topk,
                                .block = (int32_t)index->block,
                                .local = (int32_t)index->local};

    KT_TRY(kt_device_index_put(n->step, &s->index, &call, n->step->scratch, err));
    KT_TRY(kt_device_gather_attend(n, s->gather, keys_of, gather, s->sink, err));
    return kt_device_attn_put(n, s->attn, s->sink, NULL, err);
}

const kt_device_op kt_device_op_attend_blocks = {
    .kind = KT_NODE_ATTEND_BLOCKS, .refuse = refuse, .init = init, .enqueue = enqueue};
