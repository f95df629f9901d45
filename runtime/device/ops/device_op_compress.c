/* Windows of tokens are pooled to entries on a device (kernels/compress); what a window is not yet a
 * sequence keeps as a state. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/gather_calls.h"
#include "runtime/device/row_code.h"

typedef struct compress_state {
    kt_row_code code;
    const void *ape;
} compress_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    compress_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory to pool windows");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->ape, NULL, err));
    return kt_row_code_find(n->step, "entry_pool", NULL, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const compress_state *s = n->state;
    const kt_device_step *step = n->step;
    const kt_entry_pool call = {.values = n->in.x,
                                .gates = n->in2.x,
                                .ape = s->ape,
                                .out = n->out.x,
                                .spans = (const kt_state_span *)step->span,
                                .states = step->states + step->slot_at[n->node->slot],
                                .stride = step->state_floats,
                                .ldv = (int32_t)n->in.ld,
                                .ldg = (int32_t)n->in2.ld,
                                .ldo = (int32_t)n->out.ld,
                                .dim = (int32_t)n->node->size,
                                .halves = (int32_t)(n->in.width / n->node->size),
                                .ratio = (int32_t)n->node->entries.ratio};

    return kt_device_put(n->step, s->code.code, 0, kt_row_blocks(call.dim, s->code.threads),
                         step->n_spans, 0, &call, sizeof call, err);
}

const kt_device_op kt_device_op_compress = {
    .kind = KT_NODE_COMPRESS, .init = init, .enqueue = enqueue};
