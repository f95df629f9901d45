/* Weights in blocks, requantised to INT8, x INT8 activations on a common scale on AMX-INT8 and AVX-512.
 * The tiles are explained in kernels/simd/amx_planes.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/amx_planes.h"
KT_REQUANT_FORMATS(KT_PLANE_TILE)

static void tile(const kt_p64_tile *t) {
    switch (t->weights) {
        KT_REQUANT_FORMATS(KT_PLANE_CASE)
    default: return; /* accepts() lets no other format through */
    }
}

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, tile);
}

KT_VARIANT(wrequant8_a8planes_p64__amxint8) = {
    .name = "wrequant8_a8planes_p64__amxint8",
    .op = KT_OP_GEMM,
    .weights = 0u KT_REQUANT_FORMATS(KT_PLANE_BIT),
    .acts = 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_AMXINT8,
    .numerics = KT_NUM_REQUANT,
    .bits = "planes-requant",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = kt_plane_bytes,
    .gemm = gemm,
};
