/* Rows as the cache holds them, on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_attn.h"
#include "runtime/device/row_code.h"

enum { PACK = 2 }; /* entry of rows_keep.cu */

static kt_status init(kt_device_node *n, kt_err *err) {
    const int32_t format = kt_device_attn_cache(n->step->plan->kv);
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to pack rows");
    n->state = code;
    return kt_row_code_find(n->step, "rows_keep", &format, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_rows_pack call = {.x = n->in.x,
                               .out = n->out.x,
                               .ldx = (int32_t)n->in.ld,
                               .ldo = (int32_t)n->out.ld,
                               .size = (int32_t)n->in.width,
                               .scale = (int32_t)n->out.width - 1,
                               .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, code->code, PACK, kt_row_blocks(call.rows, code->threads / 32), 1,
                         0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_pack_rows = {
    .kind = KT_NODE_PACK_ROWS, .init = init, .enqueue = enqueue};
