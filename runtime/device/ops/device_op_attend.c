/* Attention over what was kept, on a device. Latent attention goes absorbed for any number of rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_attn.h"

typedef struct attend_state {
    kt_device_attn *attn; /* first: kt_device_attn_init looks for it */
    const float *sink;    /* NULL = none */
} attend_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    attend_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for attention");
    KT_TRY(kt_device_attn_init(n, 0, 0, &s->attn, err));
    n->state = s;
    return kt_device_attn_sinks(n, &s->sink, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const attend_state *s = n->state;
    return kt_device_attn_put(n, s->attn, s->sink, NULL, err);
}

const kt_device_op kt_device_op_attend = {
    .kind = KT_NODE_ATTEND, .refuse = kt_device_attn_refuse, .init = init, .enqueue = enqueue};
