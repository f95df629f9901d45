/* Ceiling of f32 multiply-adds on AVX-512: independent 512-bit VFMADD231PS.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

/* 16 instructions of 16 multiply-adds. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_16("vfmadd231ps", "zmm", 16, 17)::
                             : KT_PEAK_CLOBBERS, "xmm16", "xmm17");
    return (double)blocks * (16 * 16 * 2);
}

KT_VARIANT(peak_fma__avx512) = {
    .name = "peak_fma__avx512",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
