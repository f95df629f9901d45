/* INT4 weights (bfloat16 scale per 32 inputs) x INT8 activations on AMX-INT8 and AVX-512. The
 * tiles are explained in kernels/p64/p64_amx.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_amx.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_w4g32_amx);
}

static void gate_up(const kt_moe_call *call) {
    kt_amx_gate_up(call, kt_tile_w4g32_amx, kt_swiglu_a8_avx2);
}

static void down(const kt_moe_call *call) {
    kt_amx_down(call, kt_tile_w4g32_amx);
}

KT_P64_KERNEL_APART(w4g32_a8, amxint8, (.version = 1),
                    (.version = 2, .workspace_bytes = kt_amx_gather_bytes),
                    .weights = 1u << KT_W_INT4_G32, .acts = 1u << KT_A_INT8_G32,
                    .isa = KT_ISA_AMXINT8, .numerics = KT_NUM_EXACT_INT32, .bits = "a8-groups",
                    .rank = 1, .accepts = kt_p64_accepts);
