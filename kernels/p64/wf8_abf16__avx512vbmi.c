/* FP8 weights times bfloat16 activations on AVX-512 with VBMI and BF16. The tile is explained in
 * kernels/p64/fp8x512.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/fp8x512.h"

static void run_f8b128(kt_tile *t) {
    kt_tile_fp8_bf16_run(t, KT_W_FP8_B128);
}
static void run_f8c(kt_tile *t) {
    kt_tile_fp8_bf16_run(t, KT_W_FP8_CHANNEL);
}

static __attribute__((noinline)) void tiles_f8b128(kt_tile *t, kt_fp8_chunk *x, int row, int count,
                                                   int rows) {
    kt_fp8_tiles_any(t, x, KT_W_FP8_B128, row, count, rows);
}
static __attribute__((noinline)) void tiles_f8c(kt_tile *t, kt_fp8_chunk *x, int row, int count,
                                                int rows) {
    kt_fp8_tiles_any(t, x, KT_W_FP8_CHANNEL, row, count, rows);
}
static void many_f8b128(kt_tile *t) {
    kt_tile_fp8_many(t, KT_W_FP8_B128, tiles_f8b128);
}
static void many_f8c(kt_tile *t) {
    kt_tile_fp8_many(t, KT_W_FP8_CHANNEL, tiles_f8c);
}

static const kt_tile_kind kinds[] = {
    {run_f8b128, KT_W_FP8_B128, 5, many_f8b128, 0, 0},
    {run_f8c, KT_W_FP8_CHANNEL, 5, many_f8c, 0, 0},
};

static const int32_t rows[] = {3, 5};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const int32_t many[] = {16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 5}, {"prefetch", prefetch, 4, 0}, {"many", many, 2, 16}};

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

KT_P64_KERNEL(wf8_abf16, avx512vbmi, 6, 5, .weights = 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL,
              .acts = 1u << KT_A_BF16, .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16,
              .numerics = KT_NUM_BF16_F32, .bits = "fp8-dot", .rank = 1, .params = params,
              .n_params = 3, .accepts = kt_p64_accepts);
