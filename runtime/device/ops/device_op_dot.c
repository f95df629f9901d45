/* The gate of a shared expert on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { DOT = 2 }; /* entry of rows_misc.cu */

typedef struct dot_state {
    kt_row_code code;
    const void *w;
} dot_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    dot_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for the gate of a shared expert");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, NULL, err));
    return kt_row_code_find(n->step, "rows_misc", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const dot_state *s = n->state;
    const kt_rows_dot call = {.x = n->in.x,
                              .w = s->w,
                              .out = n->out.x,
                              .ldx = (int32_t)n->in.ld,
                              .ldo = (int32_t)n->out.ld,
                              .width = (int32_t)n->in.width,
                              .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, s->code.code, DOT, kt_row_blocks(call.rows, s->code.threads / 32),
                         1, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_dot = {.kind = KT_NODE_DOT, .init = init, .enqueue = enqueue};
