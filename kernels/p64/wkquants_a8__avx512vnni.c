/* K-quants (Q2_K to Q6_K and IQ4_XS) times int8 activations on AVX-512 VNNI. The tile is explained
 * in kernels/p64/blocks512.h and blocks512_tiles.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_TILE(Q2_K, q2_k)
KT_BLOCKS_TILE(Q3_K, q3_k)
KT_BLOCKS_TILE(Q4_K, q4_k)
KT_BLOCKS_TILE(Q5_K, q5_k)
KT_BLOCKS_TILE(Q6_K, q6_k)
KT_BLOCKS_TILE(IQ4_XS, iq4_xs)
KT_BLOCKS_MICRO(Q6_K, q6_k)
KT_BLOCKS_MANY(Q3_K, q3_k, q6_k)
KT_BLOCKS_MANY(Q6_K, q6_k, q6_k)

static const kt_tile_kind kinds[] = {
    KT_BLOCKS_KIND(Q2_K, q2_k, 2),      KT_BLOCKS_KIND_MANY(Q3_K, q3_k, 2),
    KT_BLOCKS_KIND(Q4_K, q4_k, 2),      KT_BLOCKS_KIND(Q5_K, q5_k, 2),
    KT_BLOCKS_KIND_MANY(Q6_K, q6_k, 2), KT_BLOCKS_KIND(IQ4_XS, iq4_xs, 3),
};

static const int32_t rows[] = {2, 4};
static const int32_t prefetch[] = {0, 8192};
static const int32_t many[] = {16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 4}, {"prefetch", prefetch, 2, 0}, {"many", many, 2, 16}};

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

KT_P64_KERNEL(wkquants_a8, avx512vnni, 4, 2,
              .weights = 1u << KT_W_Q2_K | 1u << KT_W_Q3_K | 1u << KT_W_Q4_K | 1u << KT_W_Q5_K |
                         1u << KT_W_Q6_K | 1u << KT_W_IQ4_XS,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
