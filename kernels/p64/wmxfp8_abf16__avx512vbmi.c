/* MXFP8 weights times bfloat16 activations on AVX-512 with VBMI and BF16.
 * The tile is explained in kernels/p64/fp8x512.h, the order of work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/fp8x512.h"

static void run_few(kt_tile *t) {
    kt_tile_fp8_bf16_run(t, KT_W_MXFP8);
}

static __attribute__((noinline)) void tiles(kt_tile *t, kt_fp8_chunk *x, int row, int count,
                                            int rows) {
    kt_fp8_tiles_any(t, x, KT_W_MXFP8, row, count, rows);
}

static void run_many(kt_tile *t) {
    kt_tile_fp8_many(t, KT_W_MXFP8, tiles);
}

static const kt_tile_kind kind = {run_few, KT_W_MXFP8, 5, run_many, 0, 0};

static const int32_t rows[] = {3, 5};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const int32_t many[] = {16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 5}, {"prefetch", prefetch, 4, 0}, {"many", many, 2, 16}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(wmxfp8_abf16, avx512vbmi, 1, 1, .weights = 1u << KT_W_MXFP8, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16, .numerics = KT_NUM_BF16_F32,
              .bits = "fp8-dot", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
