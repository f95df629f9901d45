/* Ceiling of 8-bit multiply-adds on AVX-512 VNNI: independent 512-bit VPDPBUSD.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

/* 16 instructions of 64 multiply-adds. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_16("vpdpbusd", "zmm", 16, 17)::
                             : KT_PEAK_CLOBBERS, "xmm16", "xmm17");
    return (double)blocks * (16 * 64 * 2);
}

KT_VARIANT(peak_dpbusd__avx512vnni) = {
    .name = "peak_dpbusd__avx512vnni",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512VNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
