/* Ceiling of 8-bit multiply-adds on tiles: TDPBUSD with a tile load for each product
 * (peak_tiles.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_tiles.h"

/* A product is 16 x 16 sums of 64 multiply-adds. Sums wrap around, as the instruction has it. */
static double probe(const kt_probe_call *call) {
    const int64_t blocks = call->repeats * KT_PEAK_BLOCKS;
    kt_peak_operands operands;

    kt_peak_fill(&operands, KT_PEAK_INT8_KEEP, KT_PEAK_INT8_SET);
    kt_peak_configure();
    KT_PEAK_TILES(KT_AMX_DOT_US8, &operands, blocks)
    KT_AMX_RELEASE();
    return (double)blocks * (KT_PEAK_PRODUCTS * 16 * 16 * 64 * 2);
}

KT_VARIANT(peak_tdpbusd__amxint8) = {
    .name = "peak_tdpbusd__amxint8",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AMXINT8,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
