/* The ceiling of peak_maddubs__avx2 with 512-bit registers: for AVX-512 without VNNI.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/peak_block.h"
#include "kt/variant.h"

static double probe(const kt_probe_call *call) {
    int64_t blocks = call->repeats * KT_PEAK_BLOCKS;

    for (int64_t i = 0; i < blocks; i++)
        __asm__ volatile(KT_PEAK_WIDENED("zmm")::: KT_PEAK_CLOBBERS);
    return (double)blocks * (KT_PEAK_WIDENED_PRODUCTS * 64 * 2);
}

KT_VARIANT(peak_maddubs__avx512) = {
    .name = "peak_maddubs__avx512",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 2,
    .layout = "",
    .probe = probe,
};
