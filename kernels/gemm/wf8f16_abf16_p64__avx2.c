/* FP8 and half weights times bfloat16 activations on AVX2, FMA and F16C.
 * The panel kernels are in kernels/simd/fp8x256.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/fp8x256.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_halves, &walk);
}

KT_VARIANT(wf8f16_abf16_p64__avx2) = {
    .name = "wf8f16_abf16_p64__avx2",
    .op = KT_OP_GEMM,
    .weights = KT_HALF_MASK,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "half-fma256",
    .version = 4,
    .layout = "p64",
    .rank = 2, /* for few rows; wfloat_abf16 is the faster one from 16 rows on */
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
