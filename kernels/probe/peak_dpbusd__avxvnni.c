/* Ceiling of 8-bit multiply-adds on AVX-VNNI: independent 256-bit VPDPBUSD in its VEX form.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

/* 12 instructions of 32 multiply-adds. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_12("%{vex%} vpdpbusd", "ymm", 12, 13)::: KT_PEAK_CLOBBERS);
    return (double)blocks * (12 * 32 * 2);
}

KT_VARIANT(peak_dpbusd__avxvnni) = {
    .name = "peak_dpbusd__avxvnni",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVXVNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
