/* Attention over the keys that an indexer picks, on a device. What is picked of all rows goes to a
 * list; then every row meets its own. A layer that repeats an earlier one's picks finds them in that
 * list. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_attn.h"
#include "runtime/device/device_index.h"

typedef struct sparse_state {
    kt_device_attn *attn; /* first: kt_device_attn_init looks for it */
    kt_device_index index;
    int32_t *picked;   /* device [max_rows, topk] */
    const float *sink; /* NULL = none */
} sparse_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const char *why;

    if (ask->graph->planes[n->plane].v != 0) return "picked keys whose values have other rows";
    why = kt_device_index_refuse(ask, &n->index);
    return why ? why : kt_device_attn_refuse(ask, n);
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
    KT_TRY(kt_device_index_init(d, index, &s->index, err));
    KT_TRY(kt_device_attn_init(n, (int32_t)index->topk, 0, &s->attn, err));
    s->picked = find_picked(n, s->attn);
    if (!s->picked) {
        const size_t bytes = (size_t)(d->max_rows * index->topk) * sizeof(int32_t);
        KT_TRY(kt_device_step_take(d, bytes, &picked, err));
        s->picked = picked;
    }
    kt_device_step_need(d,
                        kt_device_attn_scratch(s->attn, d) + kt_device_index_scratch(d, index, 1));
    n->state = s;
    return kt_device_attn_sinks(n, &s->sink, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const sparse_state *s = n->state;
    const kt_device_step *d = n->step;
    const kt_index_rule *index = &n->node->index;
    const kt_attn_index call = {.q = n->in2.x,
                                .ldq = n->in2.ld,
                                .w = n->in3.x,
                                .ldw = n->in3.ld,
                                .k = kt_device_index_keys(d, n->node->plane, index->dim),
                                .picked = s->picked,
                                .heads = (int32_t)index->heads,
                                .topk = (int32_t)index->topk};

    if (!index->repeats)
        KT_TRY(kt_device_index_put(n->step, &s->index, &call,
                                   (uint8_t *)d->scratch + kt_device_attn_scratch(s->attn, d),
                                   err));
    return kt_device_attn_put(n, s->attn, s->sink, s->picked, err);
}

const kt_device_op kt_device_op_attend_sparse = {
    .kind = KT_NODE_ATTEND_SPARSE, .refuse = refuse, .init = init, .enqueue = enqueue};
