/* MXFP8 weights times bfloat16 activations on AMX-BF16.
 * The tiles are explained in kernels/p64/amx_wide.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/amx_wide.h"
#include "kernels/simd/swiglu_avx2.h"

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_wmxfp8_amx);
}

static void gate_up(const kt_moe_call *call) {
    kt_amx_gate_up(call, kt_tile_wmxfp8_amx, kt_swiglu_abf16_avx2);
}

static void down(const kt_moe_call *call) {
    kt_amx_down(call, kt_tile_wmxfp8_amx);
}

KT_P64_KERNEL_APART(wmxfp8_abf16, amxbf16, (.version = 1),
                    (.version = 1, .workspace_bytes = kt_amx_gather_bytes),
                    .weights = 1u << KT_W_MXFP8, .acts = 1u << KT_A_BF16,
                    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512VBMI, .numerics = KT_NUM_BF16_F32,
                    .bits = "fp8-tiles", .rank = 1, .accepts = kt_p64_accepts);
