/* Ceiling of reading memory with one thread, 256-bit loads.
 *
 * Two linear streams side by side: the hardware prefetchers stop at the end of a 4 KiB page and take a
 * few misses to follow the next one, and a second stream keeps the memory busy meanwhile. On Zen 4 this
 * is 3 to 10 % above one stream, with or without software prefetch; four streams gain nothing more.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kt/variant.h"

#define STEP_BYTES 256 /* of each stream per pass of the loop */

static double probe(const kt_probe_call *call) {
    size_t half = call->bytes / 2 / STEP_BYTES * STEP_BYTES;

    for (int64_t r = 0; r < call->repeats; r++) {
        const char *p = call->data, *q = p + half;
        __m256i a = _mm256_setzero_si256(), b = a;
        for (size_t o = 0; o < half; o += STEP_BYTES)
            for (size_t i = 0; i < STEP_BYTES; i += sizeof a) {
                a = _mm256_or_si256(a, _mm256_loadu_si256((const void *)(p + o + i)));
                b = _mm256_or_si256(b, _mm256_loadu_si256((const void *)(q + o + i)));
            }
        __asm__ volatile("" ::"x"(a), "x"(b));
    }
    return (double)call->repeats * 2 * (double)half;
}

KT_VARIANT(read_stream__avx2) = {
    .name = "read_stream__avx2",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
