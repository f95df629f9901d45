/* Ceiling of f32 multiply-adds on AVX2: independent 256-bit VFMADD231PS.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

/* 12 instructions of 8 multiply-adds. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_12("vfmadd231ps", "ymm", 12, 13)::: KT_PEAK_CLOBBERS);
    return (double)blocks * (12 * 8 * 2);
}

KT_VARIANT(peak_fma__avx2) = {
    .name = "peak_fma__avx2",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
