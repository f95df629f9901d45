/* Blocks with grids (IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S) times int8 activations on AVX-512 VBMI
 * and VNNI. The tile is explained in kernels/p64/grids512.h and grids_open512.h, the order of work
 * in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/grids512.h"

KT_GRID_TILES(IQ2_XXS, iq2_xxs)
KT_GRID_TILES(IQ2_XS, iq2_xs)
KT_GRID_TILES(IQ2_S, iq2_s)
KT_GRID_TILES(IQ3_XXS, iq3_xxs)
KT_GRID_TILES(IQ3_S, iq3_s)

static const kt_tile_kind kinds[] = {
    KT_BLOCKS_KIND_MANY(IQ2_XXS, iq2_xxs, 2), KT_BLOCKS_KIND_MANY(IQ2_XS, iq2_xs, 2),
    KT_BLOCKS_KIND_MANY(IQ2_S, iq2_s, 2),     KT_BLOCKS_KIND_MANY(IQ3_XXS, iq3_xxs, 2),
    KT_BLOCKS_KIND_MANY(IQ3_S, iq3_s, 2),
};

static const int32_t rows[] = {2};
static const int32_t prefetch[] = {0, 4096};
static const int32_t many[] = {3};
static const kt_param params[] = {
    {"rows", rows, 1, 2}, {"prefetch", prefetch, 2, 4096}, {"many", many, 1, 3}};

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

KT_P64_KERNEL(wgrids_a8, avx512vbmi, 1, 1,
              .weights = KT_W_BIT(KT_W_IQ2_XXS) | KT_W_BIT(KT_W_IQ2_XS) | KT_W_BIT(KT_W_IQ2_S) |
                         KT_W_BIT(KT_W_IQ3_XXS) | KT_W_BIT(KT_W_IQ3_S),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512VNNI,
              .numerics = KT_NUM_EXACT_INT32, .bits = "a8-blocks512", .rank = 1, .params = params,
              .n_params = 3, .accepts = kt_p64_accepts);
