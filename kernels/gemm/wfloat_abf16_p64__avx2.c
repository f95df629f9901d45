/* F16 and FP8 weights x BF16 activations on AVX2 and FMA, sums in f32.
 * The panel kernel and its bounds are in kernels/simd/p64_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avx2.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BF16_BLOCK * 64];
    const kt_walk walk = {.block = KT_BF16_BLOCK, .tile = tile};
    kt_p64_gemm(call, kt_tile_wfloat_avx2, &walk);
}

KT_VARIANT(wfloat_abf16_p64__avx2) = {
    .name = "wfloat_abf16_p64__avx2",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_F16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "float-fma",
    .version = 3,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
