/* Products of INT4 in groups of 32, 64 and 128 with a8p activations on AVX-512 VNNI, for many
 * rows: each panel is rounded once more to 8 bits (kernels/p64/requant512.h), the order of work
 * is that of p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/requant512.h"

/* One copy of the multiplying loops for all formats. */
static __attribute__((noinline)) void multiply(kt_tile *t) {
    kt_tile_r8_rows(t);
}

KT_R8_TILE(INT4_G32, w4g32)
KT_R8_TILE(INT4_G64, w4g64)
KT_R8_TILE(INT4_G128, w4g128)

static const kt_tile_kind kinds[] = {
    KT_R8_KIND(INT4_G32, w4g32),
    KT_R8_KIND(INT4_G64, w4g64),
    KT_R8_KIND(INT4_G128, w4g128),
};

static const int32_t rows[] = {4, 6};
static const kt_param params[] = {{"rows", rows, 2, 6}};

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

/* One widened panel, of an expert's longer half. */
static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    const bool is_expert = problem->op == KT_OP_MOE_FFN;

    (void)config;
    return kt_r8_scratch_bytes(is_expert && problem->n > problem->k ? problem->n : problem->k);
}

KT_P64_KERNEL(w4groups_a8p_r8, avx512vnni, 3, 4,
              .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_REQUANT,
              .bits = "a8p-requant", .rank = 1, .params = params, .n_params = 1,
              .accepts = kt_r8_accepts, .workspace_bytes = workspace_bytes);
