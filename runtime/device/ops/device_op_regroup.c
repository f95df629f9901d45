/* Columns that lie group by group, sorted by part, on a device.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { REGROUP = 3 }; /* entry of rows_misc.cu */

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    (void)ask;
    return n->in.value == n->out.value ? "columns would be sorted in place" : NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to sort columns");
    n->state = code;
    return kt_row_code_find(n->step, "rows_misc", NULL, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const int64_t *part = n->node->parts;
    const kt_rows_regroup call = {
        .x = n->in.x,
        .out = n->out.x,
        .ldx = (int32_t)n->in.ld,
        .ldo = (int32_t)n->out.ld,
        .groups = (int32_t)n->node->groups,
        .rows = (int32_t)n->step->rows,
        .parts = {(int32_t)part[0], (int32_t)part[1], (int32_t)part[2], (int32_t)part[3]}};

    return kt_device_put(
        n->step, code->code, REGROUP,
        kt_row_blocks(n->node->groups * (part[0] + part[1] + part[2] + part[3]), code->threads),
        call.rows, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_regroup = {
    .kind = KT_NODE_REGROUP, .refuse = refuse, .init = init, .enqueue = enqueue};
