/* Rows of keys and values go to the pages of a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_heads.h"
#include "runtime/device/row_code.h"

static kt_status init(kt_device_node *n, kt_err *err) {
    const int32_t format = kt_device_kept_format(n->step);
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to keep keys and values");
    n->state = code;
    return kt_row_code_find(n->step, "rows_keep", &format, code, err);
}

static kt_status put(kt_device_node *n, int which, const kt_device_view *from, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_device_step *s = n->step;
    const kt_plane *plane = &s->graph->planes[n->node->plane];
    const kt_rows_keep call = {.x = from->x,
                               .places = {s->position, s->span_of, s->first_page, s->page},
                               .kept = kt_device_kept_heads(n, which),
                               .ldx = (int32_t)from->ld,
                               .heads = (int32_t)plane->heads,
                               .size = (int32_t)(from->width / plane->heads),
                               .rows = (int32_t)s->rows};

    return kt_device_put(n->step, code->code, 0, kt_row_blocks(call.heads, code->threads / 32),
                         call.rows, 0, &call, sizeof call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    KT_TRY(put(n, 0, &n->in, err));
    return n->in2.width ? put(n, 1, &n->in2, err) : KT_OK;
}

const kt_device_op kt_device_op_keep = {.kind = KT_NODE_KEEP, .init = init, .enqueue = enqueue};
