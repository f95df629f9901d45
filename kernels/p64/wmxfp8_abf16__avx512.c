/* MXFP8 weights times bfloat16 activations on AVX-512 without BF16.
 * The tile is explained in kernels/p64/fp8x512.h, that of many rows in floats512.h, the order of
 * work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/floats512.h"

static void run_tile(kt_tile *t) {
    kt_tile_half_run(t, KT_W_MXFP8);
}

KT_FLOATS_MANY(MXFP8, mxfp8)

static const kt_tile_kind kind = {run_tile, KT_W_MXFP8, 3, many_mxfp8, 0, 0};

static const int32_t rows[] = {3, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const int32_t many[] = {0, 16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 6}, {"prefetch", prefetch, 4, 0}, {"many", many, 3, 16}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(wmxfp8_abf16, avx512, 2, 2, .weights = 1u << KT_W_MXFP8, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX512, .numerics = KT_NUM_F32, .bits = "half-fma512", .rank = 1,
              .params = params, .n_params = 3, .accepts = kt_p64_accepts);
