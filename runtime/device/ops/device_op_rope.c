/* Rotary embedding of heads on a device, in place. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory for a rotary embedding");
    n->state = code;
    return kt_row_code_find(n->step, "rows_rope", NULL, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_rope_rule *rule = &n->step->graph->rotations[n->node->rotation];
    const kt_rows_rope call = {.x = n->out.x,
                               .cos_sin = n->step->cos_sin[n->node->rotation],
                               .position = n->step->position,
                               .ld = (int32_t)n->out.ld,
                               .heads = (int32_t)(n->out.width / n->node->size),
                               .head_dim = (int32_t)n->node->size,
                               .rotary_dim = (int32_t)rule->rotary_dim,
                               .rows = (int32_t)n->step->rows,
                               .is_interleaved = rule->interleaved,
                               .is_inverse = n->node->is_inverse};

    return kt_device_put(n->step, code->code, 0,
                         kt_row_blocks((int64_t)call.heads * call.rotary_dim / 2, code->threads),
                         call.rows, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_rope = {.kind = KT_NODE_ROPE, .init = init, .enqueue = enqueue};
