/* The gated delta rule in chunks of rows on AVX-512: delta_chunks.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_chunks.h"

static const int32_t sizes[] = {SHORT, LONG};
static const kt_param params[] = {{"chunk", sizes, 2, SHORT}};

static void delta(const kt_delta_call *call) {
    walk(call);
}

KT_VARIANT(delta_chunks__avx512) = {
    .name = "delta_chunks__avx512",
    .op = KT_OP_DELTA,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 2,
    .layout = "",
    .rank = 3,
    .params = params,
    .n_params = 1,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .delta = delta,
};
