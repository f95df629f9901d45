/* FP8 and half weights times bfloat16 activations on AVX2, FMA and F16C. The panel kernels are in
 * kernels/p64/fp8x256.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/fp8x256.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_halves, KT_HALF_ROWS, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_halves, kt_swiglu_abf16_avx2, KT_HALF_ROWS, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_halves, KT_HALF_ROWS, NULL);
}

/* Rank 2: for few rows; wfloat_abf16 is the faster one from about 24 rows on (Zen 3). */
KT_P64_KERNEL(wf8f16_abf16, avx2, 5, 6, .weights = KT_HALF_MASK, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_F32, .bits = "half-chains256", .rank = 2,
              .accepts = kt_p64_accepts);
