/* The gated delta rule row by row on plain C: delta_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_lanes.h"

static void delta(const kt_delta_call *call) {
    walk(call, 0);
}

KT_VARIANT(delta_rows__scalar) = {
    .name = "delta_rows__scalar",
    .op = KT_OP_DELTA,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "plain",
    .version = 1,
    .layout = "",
    .rank = 2,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .delta = delta,
};
