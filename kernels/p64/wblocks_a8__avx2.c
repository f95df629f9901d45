/* Weights in blocks (INT4, INT8, GGUF) x INT8 activations on AVX2. The panel kernels are in
 * kernels/p64/p64_units.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_avx2.h"

#define KT_DOT_WIDE 0
#include "kernels/p64/p64_units.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_blocks, KT_UNIT_ROWS, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_blocks, kt_swiglu_a8_avx2, KT_UNIT_ROWS, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_blocks, KT_UNIT_ROWS, NULL);
}

KT_P64_KERNEL(wblocks_a8, avx2, 7, 8, .weights = KT_BLOCK_MASK, .acts = 1u << KT_A_INT8_G32,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_EXACT_INT32, .bits = "a8-blocks", .rank = 1,
              .accepts = kt_p64_accepts);
