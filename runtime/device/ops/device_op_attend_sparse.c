/* Attention over the keys that an indexer picks, on a device. Scores of some rows at a time go to
 * scratch, and what is picked of all rows to a list; then every row meets its own. A layer that
 * repeats an earlier one's picks finds them in that list.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "runtime/device/device_attn.h"

enum { SCORED_ROWS = 32 /* at a time */, SCORES = 0, PICK = 1 };

typedef struct sparse_state {
    kt_device_attn *attn; /* first: kt_device_attn_init looks for it */
    const kt_cuda_kernel *kernel;
    kt_config config;
    const kt_device_code *code;
    int32_t *picked; /* device [max_rows, topk] */
} sparse_state;

static const kt_cuda_kernel *find_index(const kt_node *n, const kt_cuda_target *target,
                                        kt_config *config) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        if (strcmp(k->name, "attn_index") != 0) continue;
        *config = kt_cuda_initial(k);
        config->value[0] = (int32_t)n->index.dim;
        if (k->refuse(config, target) ||
            k->shared_bytes(config, n->index.heads) > (size_t)target->shared_bytes)
            return NULL;
        return k;
    }
    return NULL;
}

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    kt_config config;

    if (ask->graph->planes[n->plane].v != 0) return "picked keys whose values have other rows";
    if (!find_index(n, ask->target, &config)) return "an indexer that attn_index has no code for";
    return kt_device_attn_refuse(ask, n);
}

static size_t scratch_of(const sparse_state *s, const kt_device_step *d) {
    return kt_device_attn_scratch(s->attn, d) +
           (size_t)(SCORED_ROWS * d->max_context) * sizeof(float);
}

/* Earlier layers' list serves: one layer runs after the other. */
static int32_t *find_picked(const kt_device_node *n, const kt_device_attn *attn) {
    const kt_device_node *first = n - (n->node - n->step->graph->nodes);

    for (const kt_device_node *e = first; e < n; e++) {
        const sparse_state *s = e->state;
        if (e->op && s && e->node->kind == KT_NODE_ATTEND_SPARSE && s->attn == attn)
            return s->picked;
    }
    return NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_device_step *d = n->step;
    const kt_index_rule *index = &n->node->index;
    sparse_state *s = kt_device_step_alloc(d, sizeof *s);
    void *picked;

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for sparse attention");
    s->kernel = find_index(n->node, kt_device_about(d->device)->target, &s->config);
    if (!s->kernel) return kt_fail(err, KT_E_UNSUPPORTED, "no device code for the indexer");
    KT_TRY(kt_device_step_code(d, s->kernel->name, &s->config, &s->code, err));
    KT_TRY(kt_device_attn_init(n, (int32_t)index->topk, &s->attn, err));
    s->picked = find_picked(n, s->attn);
    if (!s->picked) {
        const size_t bytes = (size_t)(d->max_rows * index->topk) * sizeof(int32_t);
        KT_TRY(kt_device_step_take(d, bytes, &picked, err));
        s->picked = picked;
    }
    kt_device_step_need(d, scratch_of(s, d));
    n->state = s;
    return KT_OK;
}

/* The longest context of rows [row, end). */
static int64_t longest_of(const kt_device_step *d, int64_t row, int64_t end) {
    int64_t longest = 0;

    for (int i = 0; i < d->n_spans; i++) {
        const kt_device_span *s = &d->host_span[i];
        int64_t last = (int64_t)s->first_row + s->rows;
        if (last > end) last = end;
        if (s->first_row >= end || last <= row) continue;
        if (s->position + last - s->first_row > longest)
            longest = s->position + last - s->first_row;
    }
    return longest;
}

static kt_status pick_rows(kt_device_node *n, const sparse_state *s, int64_t row, int64_t end,
                           kt_err *err) {
    const kt_device_step *d = n->step;
    const kt_index_rule *index = &n->node->index;
    const int keys = s->kernel->threads(&s->config) / 2; /* of a block */
    const int64_t longest = longest_of(d, row, end);
    const size_t shared = s->kernel->shared_bytes(&s->config, index->heads);
    const int64_t plane = d->pages.index_row[n->node->plane];
    const kt_attn_index call = {
        .q = n->in2.x + row * n->in2.ld,
        .ldq = n->in2.ld,
        .w = n->in3.x + row * n->in3.ld,
        .ldw = n->in3.ld,
        .k = {.rows = (const uint8_t *)(d->pages.index + plane * index->dim),
              .page = KT_ATTN_PAGE * index->dim * 2,
              .row = index->dim * 2},
        .position = d->position + row,
        .page = d->page,
        .span_of = d->span_of + row,
        .first_page = d->first_page,
        .score = (float *)((uint8_t *)d->scratch + kt_device_attn_scratch(s->attn, d)),
        .ld_score = d->max_context,
        .picked = s->picked + row * index->topk,
        .heads = (int32_t)index->heads,
        .topk = (int32_t)index->topk};

    if (longest <= index->topk) return KT_OK; /* these rows meet all their keys */
    KT_TRY(kt_device_put(n->step, s->code, SCORES, (int)((longest + keys - 1) / keys),
                         (int)(end - row), shared, &call, sizeof call, err));
    return kt_device_put(n->step, s->code, PICK, 1, (int)(end - row), shared, &call, sizeof call,
                         err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const sparse_state *s = n->state;
    const int64_t rows = n->step->rows;

    for (int64_t row = 0; row < rows && !n->node->index.repeats; row += SCORED_ROWS)
        KT_TRY(pick_rows(n, s, row, row + SCORED_ROWS < rows ? row + SCORED_ROWS : rows, err));
    return kt_device_attn_put(n, s->attn, NULL, s->picked, err);
}

const kt_device_op kt_device_op_attend_sparse = {
    .kind = KT_NODE_ATTEND_SPARSE, .refuse = refuse, .init = init, .enqueue = enqueue};
