/* Experts in FP8 and half with bfloat16 activations on AVX2, FMA and F16C.
 * The panel kernels are in kernels/simd/fp8x256.h, SwiGLU in kernels/simd/swiglu_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/fp8x256.h"
#include "kernels/simd/swiglu_avx2.h"

static void gate_up(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_gate_up_rows(call, kt_tile_halves, kt_swiglu_abf16_avx2, &walk);
}

static void down(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_down_rows(call, kt_tile_halves, &walk);
}

KT_VARIANT(wf8f16_abf16_moe64__avx2) = {
    .name = "wf8f16_abf16_moe64__avx2",
    .op = KT_OP_MOE_FFN,
    .weights = KT_HALF_MASK,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "half-fma256",
    .version = 5,
    .layout = "p64",
    .rank = 2, /* for few rows; wfloat_abf16 is the faster one from 16 rows on */
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
