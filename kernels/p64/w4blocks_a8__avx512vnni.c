/* 4-bit block formats (INT4 in groups of 64 and 128 or with zero points, Q4_0, Q4_1, IQ4_NL and
 * MXFP4) times int8 activations on AVX-512 VNNI. The tile is explained in kernels/p64/blocks512.h
 * and blocks512_tiles.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_TILE(INT4_G64, w4g64)
KT_BLOCKS_TILE(INT4_G128, w4g128)
KT_BLOCKS_TILE(INT4Z_G32, w4zg32)
KT_BLOCKS_TILE(INT4Z_G64, w4zg64)
KT_BLOCKS_TILE(INT4Z_G128, w4zg128)
KT_BLOCKS_TILE(Q4_0, q4_0)
KT_BLOCKS_TILE(Q4_1, q4_1)
KT_BLOCKS_TILE(IQ4_NL, iq4_nl)
KT_BLOCKS_TILE(MXFP4, mxfp4)

static const kt_tile_kind kinds[] = {
    KT_BLOCKS_KIND(INT4_G64, w4g64, 3),     KT_BLOCKS_KIND(INT4_G128, w4g128, 3),
    KT_BLOCKS_KIND(INT4Z_G32, w4zg32, 3),   KT_BLOCKS_KIND(INT4Z_G64, w4zg64, 3),
    KT_BLOCKS_KIND(INT4Z_G128, w4zg128, 3), KT_BLOCKS_KIND(Q4_0, q4_0, 3),
    KT_BLOCKS_KIND(Q4_1, q4_1, 3),          KT_BLOCKS_KIND(IQ4_NL, iq4_nl, 3),
    KT_BLOCKS_KIND(MXFP4, mxfp4, 3),
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

KT_P64_KERNEL(w4blocks_a8, avx512vnni, 4, 2,
              .weights = 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128 | 1u << KT_W_INT4Z_G32 |
                         1u << KT_W_INT4Z_G64 | 1u << KT_W_INT4Z_G128 | 1u << KT_W_Q4_0 |
                         1u << KT_W_Q4_1 | 1u << KT_W_IQ4_NL | 1u << KT_W_MXFP4,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 2,
              .accepts = kt_p64_accepts);
