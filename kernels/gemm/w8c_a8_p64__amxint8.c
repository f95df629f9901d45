/* INT8 weights (scale per output channel) x INT8 activations on AMX-INT8 and AVX-512.
 * The tiles are explained in kernels/simd/p64_amx.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_amx.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_w8c_amx);
}

KT_VARIANT(w8c_a8_p64__amxint8) = {
    .name = "w8c_a8_p64__amxint8",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AMXINT8,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8-groups",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
