/* Matrices of one input on a device: to a value of their own or to the residual.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_product.h"

/* One product for each run of the weight (kt_weight_runs). */
typedef struct linear_state {
    kt_device_gemm product[KT_WEIGHT_PARTS];
    kt_run run[KT_WEIGHT_PARTS];
    int n;
} linear_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const char *why = kt_device_weight_refuse(ask, n->weight);

    return why ? why : kt_device_product_refuse(ask->graph->weights[n->weight].k);
}

static kt_status init(kt_device_node *n, kt_err *err) {
    const kt_weight *w = &n->step->graph->weights[n->node->weight];
    linear_state *l = kt_device_step_alloc(n->step, sizeof *l);

    if (!l) return kt_fail(err, KT_E_NOMEM, "no memory for a matrix product");
    n->state = l;
    l->n = kt_weight_runs(w, n->step->plan->quant, l->run);
    for (int i = 0; i < l->n; i++) {
        const kt_device_pick pick = {
            .weight = n->node->weight, .first = l->run[i].first, .n = l->run[i].n, .count = 1};
        KT_TRY(kt_device_product_init(n->step, &pick, i, &l->product[i], err));
    }
    return KT_OK;
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const linear_state *l = n->state;

    for (int i = 0; i < l->n; i++) {
        const bool is_encoded =
            i > 0 && kt_device_gemm_shares_rows(&l->product[i - 1], &l->product[i], n->step->rows);
        const kt_device_gemm_call call = {.x = n->in.x,
                                          .y = n->out.x + l->run[i].at,
                                          .ldx = n->in.ld,
                                          .ldy = n->out.ld,
                                          .rows = n->step->rows,
                                          .accumulate = n->node->accumulate,
                                          .is_encoded = is_encoded};
        KT_TRY(kt_device_product_put(n->step, &l->product[i], &call, err));
    }
    return KT_OK;
}

const kt_device_op kt_device_op_linear = {
    .kind = KT_NODE_LINEAR, .refuse = refuse, .init = init, .enqueue = enqueue};
