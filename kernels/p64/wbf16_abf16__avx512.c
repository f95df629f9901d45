/* bfloat16 weights times bfloat16 activations with f32 multiply-adds on AVX-512. The tile is
 * explained in kernels/simd/bf16x512.h, the order of work in p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/simd/bf16x512.h"
#include "kernels/p64/p64_ops512.h"

static const kt_tile_kind kind = {kt_tile_fmabf16_run, KT_W_BF16, 6, NULL, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 6, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(wbf16_abf16, avx512, 5, 4, .weights = 1u << KT_W_BF16, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX512, .numerics = KT_NUM_F32, .bits = "bf16-fma", .rank = 1,
              .params = params, .n_params = 2, .accepts = kt_p64_accepts);
