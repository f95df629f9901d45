/* Fused expert: BF16 weights x BF16 activations on AVX2 and FMA, sums in f32.
 * The panel kernel and its bounds are in kernels/simd/p64_avx2.h, SwiGLU in kernels/simd/swiglu_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avx2.h"
#include "kernels/simd/swiglu_avx2.h"

static void gate_up(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BF16_BLOCK * 64];
    const kt_walk walk = {.block = KT_BF16_BLOCK, .tile = tile};
    kt_p64_gate_up_rows(call, kt_tile_wbf16_avx2, kt_swiglu_abf16_avx2, &walk);
}

static void down(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BF16_BLOCK * 64];
    const kt_walk walk = {.block = KT_BF16_BLOCK, .tile = tile};
    kt_p64_down_rows(call, kt_tile_wbf16_avx2, &walk);
}

KT_VARIANT(wbf16_abf16_moe64__avx2) = {
    .name = "wbf16_abf16_moe64__avx2",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "bf16-fma",
    .version = 5,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
