/* Fused expert: INT4 weights (bfloat16 scale per 32 inputs) x INT8 activations on AVX-VNNI (256 bits).
 * The panel kernel and its bounds are in kernels/simd/p64_avxvnni.h, SwiGLU in kernels/simd/swiglu_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avxvnni.h"
#include "kernels/simd/swiglu_avx2.h"

static void gate_up(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gate_up_rows(call, kt_tile_w4g32_avxvnni, kt_swiglu_a8_avx2, &walk);
}

static void down(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_down_rows(call, kt_tile_w4g32_avxvnni, &walk);
}

KT_VARIANT(w4g32_a8_moe64__avxvnni) = {
    .name = "w4g32_a8_moe64__avxvnni",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVXVNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-groups",
    .version = 3,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
