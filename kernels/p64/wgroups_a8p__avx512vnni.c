/* INT4 in groups of 32, 64 and 128 times a8p activations on AVX-512 VNNI. The tiles are explained
 * in kernels/p64/biased512.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/biased512.h"

KT_BIASED_TILE(INT4_G32, w4g32)
KT_BIASED_TILE(INT4_G64, w4g64)
KT_BIASED_TILE(INT4_G128, w4g128)

static const kt_tile_kind kinds[] = {
    KT_BIASED_KIND(INT4_G32, w4g32),
    KT_BIASED_KIND(INT4_G64, w4g64),
    KT_BIASED_KIND(INT4_G128, w4g128),
};

static const int32_t rows[] = {2, 4};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const kt_param params[] = {{"rows", rows, 2, KT_BIASED_ROWS}, {"prefetch", prefetch, 4, 0}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(wgroups_a8p, avx512vnni, 4, 5,
              .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI,
              .numerics = KT_NUM_EXACT_INT32, .bits = "a8p-groups", .rank = 1, .params = params,
              .n_params = 2, .accepts = kt_p64_accepts);
