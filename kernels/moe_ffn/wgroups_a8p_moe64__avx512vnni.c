/* Experts of INT4 in groups of 32, 64 and 128 or INT8 in groups of 128 with a8p activations on AVX-512 VNNI.
 * The tiles are explained in kernels/simd/biased512.h, the order of work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/biased512.h"

KT_BIASED_TILE(INT4_G32, w4g32)
KT_BIASED_TILE(INT4_G64, w4g64)
KT_BIASED_TILE(INT4_G128, w4g128)
KT_BIASED_TILE(INT8_G128, w8g128)

static const kt_tile_kind kinds[] = {
    KT_BIASED_KIND(INT4_G32, w4g32),
    KT_BIASED_KIND(INT4_G64, w4g64),
    KT_BIASED_KIND(INT4_G128, w4g128),
    KT_BIASED_KIND(INT8_G128, w8g128),
};

static const int32_t rows[] = {2, 4};
static const int32_t prefetch[] = {0, 2048};
static const kt_param params[] = {{"rows", rows, 2, KT_BIASED_ROWS}, {"prefetch", prefetch, 2, 0}};

static const kt_tile_kind *kind(const kt_moe_call *call) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, call->problem->weights);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call), KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call));
}

KT_VARIANT(wgroups_a8p_moe64__avx512vnni) = {
    .name = "wgroups_a8p_moe64__avx512vnni",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128 |
               1u << KT_W_INT8_G128,
    .acts = 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_AVX512VNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8p-groups",
    .version = 5,
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
