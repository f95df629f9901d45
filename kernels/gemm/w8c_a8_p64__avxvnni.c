/* INT8 weights (scale per output channel) x INT8 activations on AVX-VNNI (256 bits).
 * The panel kernel and its bounds are in kernels/simd/p64_avxvnni.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_avxvnni.h"

static void gemm(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_w8c_avxvnni, &walk);
}

KT_VARIANT(w8c_a8_p64__avxvnni) = {
    .name = "w8c_a8_p64__avxvnni",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVXVNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-groups",
    .version = 2,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
