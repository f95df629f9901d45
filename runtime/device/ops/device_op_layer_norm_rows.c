/* LayerNorm of rows on a device, in place. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { LAYER = 2 }; /* entry of rows_norm.cu */

typedef struct layer_norm_state {
    kt_row_code code;
    const void *w, *bias;
} layer_norm_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    layer_norm_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a LayerNorm");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, NULL, err));
    KT_TRY(kt_device_load_small(n->step, n->node->weight2, &s->bias, NULL, err));
    return kt_row_code_find(n->step, "rows_norm", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const layer_norm_state *s = n->state;
    const kt_rows_norm call = {.x = n->out.x,
                               .w = s->w,
                               .bias = s->bias,
                               .y = n->out.x,
                               .ldx = (int32_t)n->out.ld,
                               .ldy = (int32_t)n->out.ld,
                               .k = (int32_t)n->out.width,
                               .pieces = 1,
                               .rows = (int32_t)n->step->rows,
                               .eps = (float)n->node->eps};

    return kt_device_put(n->step, s->code.code, LAYER, call.rows, 1,
                         s->code.kernel->shared_bytes(&s->code.config, call.k), &call, sizeof call,
                         err);
}

const kt_device_op kt_device_op_layer_norm_rows = {
    .kind = KT_NODE_LAYER_NORM, .init = init, .enqueue = enqueue};
