/* Each head of a row by a matrix of its own on a device: the halves of absorbed latent attention.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/gemm_calls.h"
#include "runtime/device/device_product.h"

enum { TAILS = 1 }; /* entry of bf16_rows */

typedef struct heads_state {
    kt_device_gemm product;
    kt_device_kernel tails;
} heads_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    return kt_device_product_refuse(ask->graph->weights[n->weight].k);
}

static kt_status init(kt_device_node *n, kt_err *err) {
    const kt_weight *w = &n->step->graph->weights[n->node->weight];
    const kt_device_pick pick = {.weight = n->node->weight, .n = 1, .count = w->count};
    heads_state *h = kt_device_step_alloc(n->step, sizeof *h);

    if (!h) return kt_fail(err, KT_E_NOMEM, "no memory for products of heads");
    n->state = h;
    KT_TRY(kt_device_product_init(n->step, &pick, 0, &h->product, err));
    return kt_device_kernel_find(n->step, "bf16_rows", NULL, 0, &h->tails, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const heads_state *h = n->state;
    const kt_device_matrices *w = &h->product.w;
    const int64_t size = n->node->size, out_size = w->n + n->node->tail;
    const kt_device_gemm_call call = {.x = n->in.x,
                                      .y = n->out.x,
                                      .ldx = n->in.ld,
                                      .x_head = size,
                                      .ldy = n->out.ld,
                                      .y_head = out_size,
                                      .rows = n->step->rows};
    const kt_head_tails tails = {
        n->in.x + w->k,         n->out.x + w->n,       n->in.ld, n->out.ld, size, out_size,
        (int32_t)n->step->rows, (int32_t)n->node->tail};

    KT_TRY(kt_device_product_put(n->step, &h->product, &call, err));
    if (n->node->tail == 0) return KT_OK;
    return kt_device_kernel_put(n->step, &h->tails, TAILS, (int)w->count, (int)n->step->rows,
                                tails.width, &tails, sizeof tails, err);
}

const kt_device_op kt_device_op_linear_heads = {
    .kind = KT_NODE_LINEAR_HEADS, .refuse = refuse, .init = init, .enqueue = enqueue};
