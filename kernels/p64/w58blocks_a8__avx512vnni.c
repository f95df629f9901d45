/* 5- and 8-bit block formats (Q5_0, Q5_1, Q8_0 and INT8 in groups of 128) times int8 activations
 * on AVX-512 VNNI. The tile is explained in kernels/p64/blocks512.h and blocks512_tiles.h, the
 * order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_TILE(Q5_0, q5_0)
KT_BLOCKS_TILE(Q5_1, q5_1)
KT_BLOCKS_TILE(Q8_0, q8_0)
KT_BLOCKS_TILE(INT8_G128, w8g128)

static const kt_tile_kind kinds[] = {
    KT_BLOCKS_KIND(Q5_0, q5_0, 3),
    KT_BLOCKS_KIND(Q5_1, q5_1, 3),
    KT_BLOCKS_KIND(Q8_0, q8_0, 3),
    KT_BLOCKS_KIND(INT8_G128, w8g128, 3),
};

static const int32_t rows[] = {3, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const kt_param params[] = {{"rows", rows, 2, 6}, {"prefetch", prefetch, 4, 0}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(w58blocks_a8, avx512vnni, 4, 2,
              .weights = 1u << KT_W_Q5_0 | 1u << KT_W_Q5_1 | 1u << KT_W_Q8_0 | 1u << KT_W_INT8_G128,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 2,
              .accepts = kt_p64_accepts);
