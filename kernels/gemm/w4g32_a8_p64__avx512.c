/* INT4 weights (bfloat16 scale per 32 inputs) x INT8 activations on AVX-512 without VNNI.
 * The panel kernel and its bounds are in kernels/simd/p64_avx512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avx512.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_w4g32_avx512, &walk);
}

KT_VARIANT(w4g32_a8_p64__avx512) = {
    .name = "w4g32_a8_p64__avx512",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-groups",
    .version = 3,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
