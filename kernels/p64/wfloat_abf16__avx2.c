/* F16 and FP8 weights x BF16 activations on AVX2 and FMA, sums in f32. The panel kernel and its
 * bounds are in kernels/p64/p64_avx2.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_avx2.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_wfloat_avx2, KT_BF16_BLOCK, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_wfloat_avx2, kt_swiglu_abf16_avx2, KT_BF16_BLOCK, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_wfloat_avx2, KT_BF16_BLOCK, NULL);
}

KT_P64_KERNEL(wfloat_abf16, avx2, 3, 4,
              .weights = 1u << KT_W_F16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL,
              .acts = 1u << KT_A_BF16, .isa = KT_ISA_AVX2, .numerics = KT_NUM_F32,
              .bits = "float-fma", .rank = 1, .accepts = kt_p64_accepts);
