/* INT8 experts with a scale per channel and a8p activations on AVX-512 VNNI.
 * The tiles are explained in kernels/simd/biased512.h, the order of work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/biased512.h"

static const kt_tile_kind kind = {kt_tile_w8c_biased_run, KT_W_INT8_CHANNEL,
                                  KT_BIASED_W8C_FULL_ROWS, NULL, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 2048};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 2, 0}};

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_VARIANT(w8c_a8p_moe64__avx512vnni) = {
    .name = "w8c_a8p_moe64__avx512vnni",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_INT8_CHANNEL,
    .acts = 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_AVX512VNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8p-groups",
    .version = 4,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 2,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
