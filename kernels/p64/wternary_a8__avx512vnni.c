/* Ternary weights in two bits with a scale per 256 inputs (TQ2_0, TQ1_0) times int8 activations on
 * AVX-512 VNNI. The tile is explained in kernels/p64/blocks512.h and blocks512_tiles.h, the order
 * of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_TILE(TQ2_0, tq2_0)

static const kt_tile_kind kinds[] = {
    KT_BLOCKS_KIND(TQ2_0, tq2_0, 3), KT_BLOCKS_KIND(TQ1_0, tq2_0, 3), /* the same panels */
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

KT_P64_KERNEL(wternary_a8, avx512vnni, 1, 1, .weights = KT_W_BIT(KT_W_TQ2_0) | KT_W_BIT(KT_W_TQ1_0),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 2,
              .accepts = kt_p64_accepts);
