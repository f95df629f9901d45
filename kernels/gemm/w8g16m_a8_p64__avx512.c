/* w8g16m (INT8 with f32 scales and minima per 16 inputs) times int8 activations on AVX-512.
 * The tile is explained in kernels/simd/w8g16m_rows.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avx512.h"

#define KT_DOT_WIDE 0
#include "kernels/simd/p64_units.h"
#include "kernels/simd/w8g16m_rows.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_w8g16m, &walk);
}

KT_VARIANT(w8g16m_a8_p64__avx512) = {
    .name = "w8g16m_a8_p64__avx512",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_G16M,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-blocks",
    .version = 1,
    .layout = "p64",
    .rank = 2,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
