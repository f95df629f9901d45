/* w8g16m (INT8 with f32 scales and minima per 16 inputs) times int8 activations on AVX-512 VNNI.
 * The tile is explained in kernels/p64/blocks512.h and blocks512_tiles.h, the order of work in
 * p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/blocks512_tiles.h"

KT_BLOCKS_TILE(INT8_G16M, w8g16m)

static const kt_tile_kind kind = KT_BLOCKS_KIND(INT8_G16M, w8g16m, 2);

static const int32_t rows[] = {3, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const kt_param params[] = {{"rows", rows, 2, 6}, {"prefetch", prefetch, 4, 2048}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(w8g16m_a8, avx512vnni, 1, 1, .weights = 1u << KT_W_INT8_G16M,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 2,
              .accepts = kt_p64_accepts);
