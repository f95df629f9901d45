/* FP8 weights x BF16 activations on AMX-BF16.
 * The tiles are explained in kernels/simd/amx_wide.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/amx_wide.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_wf8_amx);
}

KT_VARIANT(wf8_abf16_p64__amxbf16) = {
    .name = "wf8_abf16_p64__amxbf16",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512VBMI,
    .numerics = KT_NUM_BF16_F32,
    .bits = "fp8-tiles",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
