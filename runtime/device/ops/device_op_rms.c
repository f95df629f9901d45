/* RMSNorm of rows on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { RMS = 0 }; /* entry of rows_norm.cu */

typedef struct rms_state {
    kt_row_code code;
    const void *w;
} rms_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    rms_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a norm");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, NULL, err));
    return kt_row_code_find(n->step, "rows_norm", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const rms_state *s = n->state;
    const kt_rows_norm call = {.x = n->in.x,
                               .w = s->w,
                               .y = n->out.x,
                               .ldx = (int32_t)n->in.ld,
                               .ldy = (int32_t)n->out.ld,
                               .k = (int32_t)n->in.width,
                               .pieces = 1,
                               .rows = (int32_t)n->step->rows,
                               .eps = (float)n->node->eps};

    return kt_device_put(n->step, s->code.code, RMS, call.rows, 1,
                         s->code.kernel->shared_bytes(&s->code.config, call.k), &call, sizeof call,
                         err);
}

const kt_device_op kt_device_op_rms = {.kind = KT_NODE_RMS, .init = init, .enqueue = enqueue};
