/* Residual streams end as one row, on a device. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/stream_mix.h"

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    return kt_stream_mix_put(n, true, err);
}

const kt_device_op kt_device_op_hyper_end = {
    .kind = KT_NODE_HYPER_END, .init = kt_stream_mix_init, .enqueue = enqueue};
