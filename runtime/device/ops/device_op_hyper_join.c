/* Residual streams are mixed anew with the result of half a layer, on a device. Hidden states, where
 * they are asked for, are the mean of the streams. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/row_code.h"

enum { JOIN = 2 }; /* entry of hyper_streams.cu */

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_row_code *code = kt_device_step_alloc(n->step, sizeof *code);

    if (!code) return kt_fail(err, KT_E_NOMEM, "no memory to join residual streams");
    n->state = code;
    return kt_row_code_find(n->step, "hyper_streams", NULL, code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_row_code *code = n->state;
    const bool has_mean = n->step->wants_hidden && n->out.width;
    const kt_streams_join call = {.streams = n->in3.x,
                                  .y = n->in.x,
                                  .outputs = n->in2.x,
                                  .mean = has_mean ? n->out.x : NULL,
                                  .lds = (int32_t)n->in3.ld,
                                  .ldy = (int32_t)n->in.ld,
                                  .ldm = (int32_t)n->in2.ld,
                                  .ldmean = (int32_t)n->out.ld,
                                  .hidden = (int32_t)n->in.width,
                                  .count = (int32_t)n->node->streams.count,
                                  .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, code->code, JOIN, kt_row_blocks(call.hidden, code->threads),
                         call.rows, code->kernel->shared_bytes(&code->config, 0), &call,
                         sizeof call, err);
}

const kt_device_op kt_device_op_hyper_join = {
    .kind = KT_NODE_HYPER_JOIN, .init = init, .enqueue = enqueue};
