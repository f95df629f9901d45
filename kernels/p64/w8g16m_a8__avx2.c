/* w8g16m (INT8 with f32 scales and minima per 16 inputs) times int8 activations on AVX2. The tile
 * is explained in kernels/p64/w8g16m_rows.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_avx2.h"

#define KT_DOT_WIDE 0
#include "kernels/p64/p64_units.h"
#include "kernels/simd/swiglu_avx2.h"
#include "kernels/p64/w8g16m_rows.h"

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_w8g16m, KT_BLOCK_ROWS, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_w8g16m, kt_swiglu_a8_avx2, KT_BLOCK_ROWS, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_w8g16m, KT_BLOCK_ROWS, NULL);
}

KT_P64_KERNEL(w8g16m_a8, avx2, 3, 3, .weights = 1u << KT_W_INT8_G16M, .acts = 1u << KT_A_INT8_G32,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_EXACT_INT32, .bits = "a8-blocks", .rank = 2,
              .accepts = kt_p64_accepts);
