/* Weights in blocks (INT4, INT8, GGUF) x INT8 activations on AMX-INT8 and AVX-512.
 * The tiles are explained in kernels/simd/amx_units.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/amx_units.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_wblocks_amx);
}

KT_VARIANT(wblocks_a8_p64__amxint8) = {
    .name = "wblocks_a8_p64__amxint8",
    .op = KT_OP_GEMM,
    .weights = KT_BLOCK_MASK,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AMXINT8,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-blocks",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
