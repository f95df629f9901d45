/* INT8 and INT4 weights, their codes as they are, x INT8 activations on a common scale on AMX-INT8
 * and AVX-512. The tiles are explained in kernels/p64/amx_planes.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/amx_planes.h"
#include "kernels/simd/swiglu_avx2.h"

KT_EXACT_FORMATS(KT_PLANE_TILE)

static void tile(const kt_p64_tile *t) {
    switch (t->weights) {
        KT_EXACT_FORMATS(KT_PLANE_CASE)
    default: return; /* accepts() lets no other format through */
    }
}

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, tile);
}

static void gate_up(const kt_moe_call *call) {
    if (call->problem->acts == KT_A_INT8_G32)
        kt_amx_gate_up(call, tile, kt_swiglu_a8_avx2);
    else
        kt_amx_gate_up(call, tile, kt_swiglu_a8p_avx2);
}

static void down(const kt_moe_call *call) {
    kt_amx_down(call, tile);
}

KT_P64_KERNEL(w48_a8planes, amxint8, 1, 2, .weights = 0u KT_EXACT_FORMATS(KT_PLANE_BIT),
              .acts = 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AMXINT8,
              .numerics = KT_NUM_ACTS16, .bits = "planes", .rank = 1, .accepts = kt_p64_accepts,
              .workspace_bytes = kt_plane_bytes);
