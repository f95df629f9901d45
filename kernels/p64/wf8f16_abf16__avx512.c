/* FP8 and half weights times bfloat16 activations on AVX-512 without BF16. The tile is explained
 * in kernels/p64/fp8x512.h, that of many rows in floats512.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/floats512.h"

static void run_f8b128(kt_tile *t) {
    kt_tile_half_run(t, KT_W_FP8_B128);
}
static void run_f8c(kt_tile *t) {
    kt_tile_half_run(t, KT_W_FP8_CHANNEL);
}
static void run_f16(kt_tile *t) {
    kt_tile_half_run(t, KT_W_F16);
}

KT_FLOATS_MANY(FP8_B128, f8b128)
KT_FLOATS_MANY(FP8_CHANNEL, f8c)
KT_FLOATS_MANY(F16, f16)

static const kt_tile_kind kinds[] = {
    {run_f8b128, KT_W_FP8_B128, 3, many_f8b128, 0, 0},
    {run_f8c, KT_W_FP8_CHANNEL, 3, many_f8c, 0, 0},
    {run_f16, KT_W_F16, 3, many_f16, 0, 0},
};

static const int32_t rows[] = {3, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const int32_t many[] = {0, 16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 6}, {"prefetch", prefetch, 4, 0}, {"many", many, 3, 16}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(wf8f16_abf16, avx512, 4, 3,
              .weights = 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL | 1u << KT_W_F16,
              .acts = 1u << KT_A_BF16, .isa = KT_ISA_AVX512, .numerics = KT_NUM_F32,
              .bits = "half-fma512", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
