/* The ceiling of peak_maddubs_words__avx2 with 512-bit registers: for AVX-512 without VNNI.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

#define STEP(product, sum)                             \
    "vpmaddwd %%zmm15, %%zmm14, %%zmm" #product "\n\t" \
    "vpaddd %%zmm" #product ", %%zmm" #sum ", %%zmm" #sum "\n\t"

/* 7 products of 32 multiply-adds, each added to a sum of its own. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(STEP(0, 7) STEP(1, 8) STEP(2, 9) STEP(3, 10) STEP(4, 11) STEP(5, 12)
                             STEP(6, 13)::
                                 : KT_PEAK_CLOBBERS);
    return (double)blocks * (7 * 32 * 2);
}

KT_VARIANT(peak_maddubs_words__avx512) = {
    .name = "peak_maddubs_words__avx512",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
