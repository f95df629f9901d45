/* INT8 weights (scale per output channel) x INT8 activations on AVX2. The panel kernel and its
 * bounds are in kernels/p64/p64_avx2.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_avx2.h"
#include "kernels/simd/swiglu_avx2.h"

static const int32_t floats[] = {0, 1};
static const kt_param params[] = {{"floats", floats, 2, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_words_how how = {.as_floats = call->config->value[0]};
    kt_rows_gemm(call, kt_tile_w8c_avx2, KT_BLOCK_ROWS, &how);
}

static void gate_up(const kt_moe_call *call) {
    kt_words_how how = {.as_floats = call->config->value[0]};
    kt_rows_gate_up(call, kt_tile_w8c_avx2, kt_swiglu_a8_avx2, KT_BLOCK_ROWS, &how);
}

static void down(const kt_moe_call *call) {
    kt_words_how how = {.as_floats = call->config->value[0]};
    kt_rows_down(call, kt_tile_w8c_avx2, KT_BLOCK_ROWS, &how);
}

KT_P64_KERNEL(w8c_a8, avx2, 5, 6, .weights = 1u << KT_W_INT8_CHANNEL, .acts = 1u << KT_A_INT8_G32,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_EXACT_INT32, .bits = "a8-groups", .rank = 1,
              .params = params, .n_params = 1, .accepts = kt_p64_accepts);
