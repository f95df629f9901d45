/* Fused expert: BF16 weights x BF16 activations on AMX-BF16.
 * The tiles are explained in kernels/simd/p64_amx.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/p64_amx.h"
#include "kernels/simd/swiglu_avx2.h"

static void gate_up(const kt_moe_call *call) {
    kt_amx_gate_up(call, kt_tile_wbf16_amx, kt_swiglu_abf16_avx2);
}

static void down(const kt_moe_call *call) {
    kt_amx_down(call, kt_tile_wbf16_amx);
}

KT_VARIANT(wbf16_abf16_moe64__amxbf16) = {
    .name = "wbf16_abf16_moe64__amxbf16",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512VBMI,
    .numerics = KT_NUM_BF16_F32,
    .bits = "bf16-tiles",
    .version = 2,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .workspace_bytes = kt_amx_gather_bytes,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
