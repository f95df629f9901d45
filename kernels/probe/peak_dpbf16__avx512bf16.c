/* Ceiling of bfloat16 multiply-adds: independent 512-bit VDPBF16PS.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

/* 16 instructions of 32 multiply-adds. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_16("vdpbf16ps", "zmm", 16, 17)::
                             : KT_PEAK_CLOBBERS, "xmm16", "xmm17");
    return (double)blocks * (16 * 32 * 2);
}

KT_VARIANT(peak_dpbf16__avx512bf16) = {
    .name = "peak_dpbf16__avx512bf16",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
