/* A vector added to every row on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { BIAS = 0 }; /* entry of rows_misc.cu */

typedef struct bias_state {
    kt_row_code code;
    const void *bias; /* NULL = the model has none */
} bias_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    bias_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a bias");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->bias, NULL, err));
    return kt_row_code_find(n->step, "rows_misc", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const bias_state *s = n->state;
    const kt_rows_bias call = {
        n->out.x, s->bias, (int32_t)n->out.ld, (int32_t)n->out.width, (int32_t)n->step->rows, 0};

    if (!s->bias) return KT_OK;
    return kt_device_put(n->step, s->code.code, BIAS, kt_row_blocks(call.width, s->code.threads),
                         call.rows, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_bias = {.kind = KT_NODE_BIAS, .init = init, .enqueue = enqueue};
