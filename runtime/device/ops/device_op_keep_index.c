/* Index keys go to the pages of a device, as BF16. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { PAGE = 64 /* tokens */ };

static kt_status init(kt_device_node *n, kt_err *err) {
    static const int32_t format = KT_KEPT_BF16;
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to keep index keys");
    n->state = code;
    return kt_row_code_find(n->step, "rows_keep", &format, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_device_step *s = n->step;
    const kt_device_pages *pages = &s->pages;
    const int64_t dim = n->in.width;
    uint16_t *to = pages->index + pages->index_row[n->node->plane] * dim;
    const kt_rows_keep call = {
        .x = n->in.x,
        .places = {s->position, s->span_of, s->first_page, s->page},
        .kept = {.to = (uint8_t *)to, .page_stride = PAGE * dim * 2, .row_bytes = dim * 2},
        .ldx = (int32_t)n->in.ld,
        .heads = 1,
        .size = (int32_t)dim,
        .rows = (int32_t)s->rows};

    return kt_device_put(n->step, code->code, 0, 1, call.rows, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_keep_index = {
    .kind = KT_NODE_KEEP_INDEX, .init = init, .enqueue = enqueue};
