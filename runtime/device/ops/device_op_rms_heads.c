/* RMSNorm of each head of a row on a device, in place. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { HEADS = 1 }; /* entry of rows_norm.cu */

typedef struct rms_heads_state {
    kt_row_code code;
    const void *w; /* NULL = ones */
} rms_heads_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    rms_heads_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a norm of heads");
    n->state = s;
    if (n->node->weight >= 0)
        KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, NULL, err));
    return kt_row_code_find(n->step, "rows_norm", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const rms_heads_state *s = n->state;
    const kt_rows_norm call = {.x = n->out.x,
                               .w = s->w,
                               .y = n->out.x,
                               .ldx = (int32_t)n->out.ld,
                               .ldy = (int32_t)n->out.ld,
                               .k = (int32_t)n->node->size,
                               .pieces = (int32_t)(n->out.width / n->node->size),
                               .rows = (int32_t)n->step->rows,
                               .eps = (float)n->node->eps};

    return kt_device_put(n->step, s->code.code, HEADS,
                         kt_row_blocks((int64_t)call.rows * call.pieces, s->code.threads / 32), 1,
                         s->code.kernel->shared_bytes(&s->code.config, call.k), &call, sizeof call,
                         err);
}

const kt_device_op kt_device_op_rms_heads = {
    .kind = KT_NODE_RMS_HEADS, .init = init, .enqueue = enqueue};
