/* The end on a device: norm of all rows, lm_head of those whose logits are asked for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/device_product.h"

enum { RMS = 0 }; /* entry of rows_norm */

typedef struct head_state {
    kt_device_gemm product;
    kt_device_kernel norm;
    const float *weight; /* of the norm */
} head_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_weight *w = &ask->graph->weights[n->weight];
    kt_run runs[KT_WEIGHT_PARTS];

    if (kt_weight_runs(w, ask->plan->quant, runs) != 1) return "lm_head is of several formats";
    return kt_device_product_refuse(w->k);
}

/* The model's own, where this one is of its draft head and both are of one matrix. */
static const head_state *twin_of(const kt_device_node *n) {
    const kt_graph *g = n->step->graph;
    const int node = (int)(n->node - g->nodes);
    const kt_device_node *own = n - (node - (g->main_nodes - 1));

    if (!g->draft_hidden || node < g->main_nodes || !own->op) return NULL;
    return own->node->weight == n->node->weight ? own->state : NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    const head_state *twin = twin_of(n);
    const kt_device_pick pick = {.weight = n->node->weight, .n = 1, .count = 1};
    head_state *h = kt_device_step_alloc(n->step, sizeof *h);
    kt_weight_format format;
    const void *weight;

    if (!h) return kt_fail(err, KT_E_NOMEM, "no memory for lm_head");
    n->state = h;
    if (twin)
        h->product = twin->product;
    else
        KT_TRY(kt_device_product_init(n->step, &pick, 0, &h->product, err));
    KT_TRY(kt_device_load_small(n->step, n->node->weight2, &weight, &format, err));
    h->weight = weight;
    return kt_device_kernel_find(n->step, "rows_norm", NULL, 0, &h->norm, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const head_state *h = n->state;
    kt_device_step *s = n->step;
    const kt_rows_norm norm = {.x = n->in.x,
                               .w = h->weight,
                               .y = n->out.x,
                               .ldx = (int32_t)n->in.ld,
                               .ldy = (int32_t)n->out.ld,
                               .k = (int32_t)n->in.width,
                               .pieces = 1,
                               .rows = (int32_t)s->rows,
                               .eps = (float)n->node->eps};
    const kt_device_gemm_call call = {.x = n->out.x,
                                      .x_row = s->out_row,
                                      .y = s->logits,
                                      .ldx = n->out.ld,
                                      .ldy = s->graph->numbers.vocab,
                                      .rows = s->n_out};

    if (s->n_out == 0 && !s->wants_hidden) return KT_OK;
    KT_TRY(
        kt_device_kernel_put(s, &h->norm, RMS, (int)s->rows, 1, norm.k, &norm, sizeof norm, err));
    return kt_device_product_put(s, &h->product, &call, err);
}

const kt_device_op kt_device_op_head = {
    .kind = KT_NODE_HEAD, .refuse = refuse, .init = init, .enqueue = enqueue};
