/* The gated delta rule in chunks of rows on plain C: delta_lanes.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_lanes.h"

static const int32_t sizes[] = {16, 32, 64};
static const kt_param params[] = {{"chunk", sizes, 3, 64}};

static void delta(const kt_delta_call *call) {
    walk(call, call->config->value[0]);
}

KT_VARIANT(delta_chunks__scalar) = {
    .name = "delta_chunks__scalar",
    .op = KT_OP_DELTA,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .delta = delta,
};
