/* The gated delta rule row by row on AVX-512: delta_rows.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_rows.h"

static void delta(const kt_delta_call *call) {
    walk(call);
}

KT_VARIANT(delta_rows__avx512) = {
    .name = "delta_rows__avx512",
    .op = KT_OP_DELTA,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "lanes512",
    .version = 2,
    .layout = "",
    .rank = 2,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .delta = delta,
};
