/* Ceiling of bfloat16 multiply-adds on tiles: TDPBF16PS with a tile load for each product
 * (peak_tiles.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_tiles.h"

/* A product is 16 x 16 sums of 32 multiply-adds. */
static double probe(const kt_probe_call *call) {
    const int64_t blocks = call->repeats * KT_PEAK_BLOCKS;
    kt_peak_operands operands;

    kt_peak_fill(&operands, KT_PEAK_BF16_KEEP, KT_PEAK_BF16_SET);
    kt_peak_configure();
    KT_PEAK_TILES(KT_AMX_DOT_BF16, &operands, blocks)
    KT_AMX_RELEASE();
    return (double)blocks * (KT_PEAK_PRODUCTS * 16 * 16 * 32 * 2);
}

KT_VARIANT(peak_tdpbf16__amxbf16) = {
    .name = "peak_tdpbf16__amxbf16",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AMXBF16,
    .numerics = KT_NUM_BF16_F32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
