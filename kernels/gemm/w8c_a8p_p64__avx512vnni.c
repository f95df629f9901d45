/* INT8 weights with a scale per channel times a8p activations on AVX-512 VNNI.
 * The tiles are explained in kernels/simd/biased512.h, the order of work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/biased512.h"

/* Four, eight or sixteen rows go as fours, not as threes and twos (6 to 33 % faster), six as one block, not as
 * two of three (12 to 14 %). */
static const kt_tile_kind kind = {kt_tile_w8c_biased_run, KT_W_INT8_CHANNEL,
                                  KT_BIASED_W8C_FULL_ROWS, NULL, KT_TILE_ROWS};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 2048};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 2, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

KT_VARIANT(w8c_a8p_p64__avx512vnni) = {
    .name = "w8c_a8p_p64__avx512vnni",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL,
    .acts = 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_AVX512VNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8p-groups",
    .version = 7,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 2,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
