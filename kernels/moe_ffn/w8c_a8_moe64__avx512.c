/* Fused expert: INT8 weights (scale per output channel) x INT8 activations on AVX-512 without VNNI.
 * The panel kernel and its bounds are in kernels/simd/p64_avx512.h, SwiGLU in kernels/simd/swiglu_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avx512.h"
#include "kernels/simd/swiglu_avx2.h"

static const int32_t floats[] = {0, 1};
static const kt_param params[] = {{"floats", floats, 2, 0}};

static void gate_up(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    kt_words_how how = {.as_floats = call->config->value[0]};
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile, .context = &how};
    kt_p64_gate_up_rows(call, kt_tile_w8c_avx512, kt_swiglu_a8_avx2, &walk);
}

static void down(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    kt_words_how how = {.as_floats = call->config->value[0]};
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile, .context = &how};
    kt_p64_down_rows(call, kt_tile_w8c_avx512, &walk);
}

KT_VARIANT(w8c_a8_moe64__avx512) = {
    .name = "w8c_a8_moe64__avx512",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_INT8_CHANNEL,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-groups",
    .version = 4,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
