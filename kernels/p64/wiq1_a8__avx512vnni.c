/* IQ1_S and IQ1_M (indices into a grid of ternary points) times int8 activations on AVX-512 VNNI. A
 * chunk is opened in L1 for any number of rows: looking points up takes longer than what follows.
 * The tile is explained in kernels/p64/blocks512.h and blocks512_tiles.h, the order of work in
 * p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_MICRO(IQ1_S, iq1_s)
KT_BLOCKS_MICRO(IQ1_M, iq1_m)
KT_BLOCKS_MANY(IQ1_S, iq1_s, iq1_s)
KT_BLOCKS_MANY(IQ1_M, iq1_m, iq1_m)

/* Never taken: `many` has every number of rows. */
static void run_none(kt_tile *t) {
    (void)t;
}

static const kt_tile_kind kinds[] = {{run_none, KT_W_IQ1_S, 2, many_iq1_s, 0},
                                     {run_none, KT_W_IQ1_M, 2, many_iq1_m, 0}};

static const int32_t rows[] = {4};
static const int32_t prefetch[] = {0};
static const int32_t many[] = {1};
static const kt_param params[] = {
    {"rows", rows, 1, 4}, {"prefetch", prefetch, 1, 0}, {"many", many, 1, 1}};

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

KT_P64_KERNEL(wiq1_a8, avx512vnni, 1, 1, .weights = KT_W_BIT(KT_W_IQ1_S) | KT_W_BIT(KT_W_IQ1_M),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
