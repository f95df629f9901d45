/* Rows of keys and values go to the pages of a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { PAGE = 64 /* tokens */ };

/* A format of pages, as the kernel counts them. */
static int32_t format_of(kt_weight_format format) {
    if (format == KT_W_INT8_CHANNEL) return KT_KEPT_INT8;
    return format == KT_W_FP8_CHANNEL ? KT_KEPT_FP8 : KT_KEPT_BF16;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    const int32_t format = format_of(n->step->plan->kv);
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to keep keys and values");
    n->state = code;
    return kt_row_code_find(n->step, "rows_keep", &format, code, err);
}

static kt_status put(kt_device_node *n, int which, const kt_device_view *from, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_device_step *s = n->step;
    const kt_device_pages *pages = &s->pages;
    const kt_plane *plane = &s->graph->planes[n->node->plane];
    const int64_t rows_of_head = pages->n * PAGE;
    const int64_t first =
        pages->plane_row[n->node->plane] + which * pages->shape.kv_heads * rows_of_head;
    const int64_t row = pages->shape.head_dim * (pages->scales ? 1 : 2);
    const kt_rows_keep call = {.x = from->x,
                               .places = {s->position, s->span_of, s->first_page, s->page},
                               .to = pages->rows + first * row,
                               .scale = pages->scales ? pages->scales + first : NULL,
                               .head_stride = rows_of_head * row,
                               .page_stride = PAGE * row,
                               .scale_head_stride = rows_of_head,
                               .scale_page_stride = PAGE,
                               .ldx = (int32_t)from->ld,
                               .heads = (int32_t)plane->heads,
                               .size = (int32_t)(from->width / plane->heads),
                               .row_bytes = (int32_t)row,
                               .rows = (int32_t)s->rows};

    return kt_device_put(n->step, code->code, 0, kt_row_blocks(call.heads, code->threads / 32),
                         call.rows, 0, &call, sizeof call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    KT_TRY(put(n, 0, &n->in, err));
    return n->in2.width ? put(n, 1, &n->in2, err) : KT_OK;
}

const kt_device_op kt_device_op_keep = {.kind = KT_NODE_KEEP, .init = init, .enqueue = enqueue};
