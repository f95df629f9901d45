/* Residual streams of hyper-connections on a device: what HYPER_MIX and HYPER_END share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STREAM_MIX_H
#define KT_RUNTIME_STREAM_MIX_H

#include "runtime/device/device_op.h"

/* Loads the node's weights and codes to n->state, and asks for scratch. */
kt_status kt_stream_mix_init(kt_device_node *n, kt_err *err);
/* Launches that make one row of the streams n->in, and (not is_end) leave behind it what HYPER_JOIN
 * wants. */
kt_status kt_stream_mix_put(kt_device_node *n, bool is_end, kt_err *err);

#endif
