/* INT8 weights (scale per output channel) x INT8 activations on AVX-VNNI (256 bits). The panel
 * kernel and its bounds are in kernels/p64/p64_avxvnni.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_avxvnni.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_w8c_avxvnni, KT_BLOCK_ROWS, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_w8c_avxvnni, kt_swiglu_a8_avx2, KT_BLOCK_ROWS, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_w8c_avxvnni, KT_BLOCK_ROWS, NULL);
}

KT_P64_KERNEL(w8c_a8, avxvnni, 2, 3, .weights = 1u << KT_W_INT8_CHANNEL,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVXVNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-groups", .rank = 1, .accepts = kt_p64_accepts);
