/* Half weights x BF16 activations on AMX-BF16.
 * The tiles are explained in kernels/simd/amx_wide.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/amx_wide.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_wf16_amx);
}

KT_VARIANT(wf16_abf16_p64__amxbf16) = {
    .name = "wf16_abf16_p64__amxbf16",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_F16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512VBMI,
    .numerics = KT_NUM_F32,
    .bits = "f16-tiles",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
