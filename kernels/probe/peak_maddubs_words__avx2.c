/* Ceiling of multiply-adds of 8-bit codes on AVX2, where VPMADDUBSW would saturate: as 16-bit words, VPMADDWD
 * into a 32-bit sum. This is what the w8c kernel is measured against (kernels/p64/p64_blocked.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

#define STEP(product, sum)                             \
    "vpmaddwd %%ymm15, %%ymm14, %%ymm" #product "\n\t" \
    "vpaddd %%ymm" #product ", %%ymm" #sum ", %%ymm" #sum "\n\t"

/* 7 products of 16 multiply-adds, each added to a sum of its own. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(STEP(0, 7) STEP(1, 8) STEP(2, 9) STEP(3, 10) STEP(4, 11) STEP(5, 12)
                             STEP(6, 13)::
                                 : KT_PEAK_CLOBBERS);
    return (double)blocks * (7 * 16 * 2);
}

KT_VARIANT(peak_maddubs_words__avx2) = {
    .name = "peak_maddubs_words__avx2",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
