/* Fused expert: BF16 weights x BF16 activations with LIBXSMM's small GEMM (see the gemm variant).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/swiglu_scalar.h"
#include "kernels/gemm/tile_libs.h"

static const int32_t blocks[] = {16, 32, 64};
static const kt_param params[] = {{"block", blocks, 3, 32}};

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    const int64_t longest = problem->k > problem->n ? problem->k : problem->n;
    return kt_libxsmm_scratch_bytes(config->value[0], longest);
}

static void gate_up(const kt_moe_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_gate_up_rows(call, kt_libxsmm_tile, kt_swiglu_abf16_scalar, &walk);
}

static void down(const kt_moe_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_down_rows(call, kt_libxsmm_tile, &walk);
}

KT_VARIANT(wbf16_abf16_moe64_libxsmm__lib) = {
    .name = "wbf16_abf16_moe64_libxsmm__lib",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_BF16_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 2,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = kt_libxsmm_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .workspace_bytes = workspace_bytes,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
