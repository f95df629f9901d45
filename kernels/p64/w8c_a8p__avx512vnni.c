/* INT8 weights with a scale per channel times a8p activations on AVX-512 VNNI. The tiles are
 * explained in kernels/p64/biased512.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/biased512.h"

/* Dense products of four, eight or sixteen rows go as fours, not as threes and twos (6 to 33 %
 * faster), six as one block, not as two of three (12 to 14 %). */
static const kt_tile_kind dense = {
    kt_tile_w8c_biased_run, KT_W_INT8_CHANNEL, KT_BIASED_W8C_FULL_ROWS, NULL, KT_TILE_ROWS, 0};
static const kt_tile_kind expert = {
    kt_tile_w8c_biased_run, KT_W_INT8_CHANNEL, KT_BIASED_W8C_FULL_ROWS, NULL, 0, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 4, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &dense);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &expert, KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &expert);
}

KT_P64_KERNEL(w8c_a8p, avx512vnni, 7, 4, .weights = 1u << KT_W_INT8_CHANNEL,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI,
              .numerics = KT_NUM_EXACT_INT32, .bits = "a8p-groups", .rank = 1, .params = params,
              .n_params = 2, .accepts = kt_p64_accepts);
