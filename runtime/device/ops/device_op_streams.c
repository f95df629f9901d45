/* Residual streams begin as copies of the embedding, on a device.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/row_code.h"

enum { BEGIN = 0 }; /* entry of hyper_streams.cu */

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory for residual streams");
    n->state = code;
    return kt_row_code_find(n->step, "hyper_streams", NULL, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const kt_streams_begin call = {.x = n->in.x,
                                   .out = n->out.x,
                                   .ldx = (int32_t)n->in.ld,
                                   .ldo = (int32_t)n->out.ld,
                                   .hidden = (int32_t)n->in.width,
                                   .count = (int32_t)n->node->streams.count,
                                   .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, code->code, BEGIN,
                         kt_row_blocks((int64_t)call.count * call.hidden, code->threads), call.rows,
                         code->kernel->shared_bytes(&code->config, 0), &call, sizeof call, err);
}

const kt_device_op kt_device_op_streams = {
    .kind = KT_NODE_STREAMS, .init = init, .enqueue = enqueue};
