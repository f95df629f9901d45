/* MXFP8 weights times bfloat16 activations on AVX2, FMA and F16C.
 * The panel kernels are in kernels/p64/fp8x256.h, SwiGLU in kernels/simd/swiglu_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/fp8x256.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_halves, &walk);
}

static void gate_up(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_gate_up_rows(call, kt_tile_halves, kt_swiglu_abf16_avx2, &walk);
}

static void down(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_HALF_ROWS * 64];
    const kt_walk walk = {.block = KT_HALF_ROWS, .tile = tile};
    kt_p64_down_rows(call, kt_tile_halves, &walk);
}

KT_P64_KERNEL(wmxfp8_abf16, avx2, 2, 2, .weights = 1u << KT_W_MXFP8, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_F32, .bits = "half-chains256", .rank = 1,
              .accepts = kt_p64_accepts);
