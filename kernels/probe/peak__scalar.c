/* Ceiling of f32 multiply-adds on plain x86-64: SSE2 multiplies and adds, which is what the compiler
 * makes of the scalar kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

#define STEP(product, sum)                  \
    "movaps %%xmm15, %%xmm" #product "\n\t" \
    "mulps %%xmm14, %%xmm" #product "\n\t"  \
    "addps %%xmm" #product ", %%xmm" #sum "\n\t"

/* 7 products of 4 lanes, each added to a sum of its own. */
static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(STEP(0, 7) STEP(1, 8) STEP(2, 9) STEP(3, 10) STEP(4, 11) STEP(5, 12)
                             STEP(6, 13)::
                                 : KT_PEAK_CLOBBERS);
    return (double)blocks * (7 * 4 * 2);
}

KT_VARIANT(peak__scalar) = {
    .name = "peak__scalar",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
