/* Causal convolution of channels on a device. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

_Static_assert(sizeof(kt_state_span) == sizeof(kt_device_span) &&
                   offsetof(kt_state_span, from) == offsetof(kt_device_span, from) &&
                   offsetof(kt_state_span, to) == offsetof(kt_device_span, to),
               "spans are read by kernels");

typedef struct device_conv_state {
    kt_row_code code;
    const void *w;
} device_conv_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    (void)ask;
    if (n->size != 2 && n->size != 3 && n->size != 4 && n->size != 8)
        return "a convolution of other than 2, 3, 4 or 8 taps";
    return n->in.value == n->out.value ? "a convolution in place" : NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    device_conv_state *s = kt_device_step_alloc(n->step, sizeof *s);
    const int32_t taps = (int32_t)n->node->size;

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a convolution");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, NULL, err));
    return kt_row_code_find(n->step, "conv", &taps, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const device_conv_state *s = n->state;
    const kt_device_step *step = n->step;
    const kt_conv_rows call = {.x = n->in.x,
                               .w = s->w,
                               .y = n->out.x,
                               .spans = (const kt_state_span *)step->span,
                               .span = step->span_of,
                               .states = step->states + step->slot_at[n->node->slot],
                               .stride = step->state_floats,
                               .ldx = (int32_t)n->in.ld,
                               .ldy = (int32_t)n->out.ld,
                               .channels = (int32_t)n->in.width,
                               .rows = (int32_t)step->rows};

    return kt_device_put(n->step, s->code.code, 0, kt_row_blocks(call.channels, s->code.threads),
                         kt_row_blocks(call.rows, s->code.config.value[1]), 0, &call, sizeof call,
                         err);
}

const kt_device_op kt_device_op_conv = {
    .kind = KT_NODE_CONV, .refuse = refuse, .init = init, .enqueue = enqueue};
