/* out *= sigmoid(in) on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { GATE = 1 }; /* entry of rows_misc.cu */

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory for a gate");
    n->state = code;
    return kt_row_code_find(n->step, "rows_misc", NULL, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_rows_gate call = {.x = n->out.x,
                               .gate = n->in.x,
                               .ldx = (int32_t)n->out.ld,
                               .ldg = (int32_t)n->in.ld,
                               .width = (int32_t)n->out.width,
                               .gate_width = (int32_t)n->in.width,
                               .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, code->code, GATE, kt_row_blocks(call.width, code->threads),
                         call.rows, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_sigmoid_gate = {
    .kind = KT_NODE_GATE, .init = init, .enqueue = enqueue};
