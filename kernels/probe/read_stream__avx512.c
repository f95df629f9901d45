/* Ceiling of reading memory with one thread, 512-bit loads.
 *
 * Two linear streams side by side: the hardware prefetchers stop at the end of a 4 KiB page and take a
 * few misses to follow the next one, and a second stream keeps the memory busy meanwhile. Measured on
 * Zen 4: 3 to 10 % above one stream, with or without software prefetch; four streams gain nothing more,
 * and streams 256 MiB apart lose a third (they meet in the same memory banks), hence the span.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kt/variant.h"

#define STEP_BYTES ((size_t)256)      /* of each stream per pass of the loop */
#define SPAN_BYTES ((size_t)64 << 20) /* halved between the two streams */

static void read_pair(const char *p, const char *q, size_t bytes) {
    __m512i a = _mm512_setzero_si512(), b = a;
    for (size_t o = 0; o < bytes; o += STEP_BYTES)
        for (size_t i = 0; i < STEP_BYTES; i += sizeof a) {
            a = _mm512_or_si512(a, _mm512_loadu_si512((const void *)(p + o + i)));
            b = _mm512_or_si512(b, _mm512_loadu_si512((const void *)(q + o + i)));
        }
    __asm__ volatile("" ::"v"(a), "v"(b));
}

static double probe(const kt_probe_call *call) {
    size_t total = call->bytes / (2 * STEP_BYTES) * (2 * STEP_BYTES);

    for (int64_t r = 0; r < call->repeats; r++)
        for (size_t at = 0, span; at < total; at += span) {
            const char *p = (const char *)call->data + at;
            span = total - at < SPAN_BYTES ? total - at : SPAN_BYTES;
            read_pair(p, p + span / 2, span / 2);
        }
    return (double)call->repeats * (double)total;
}

KT_VARIANT(read_stream__avx512) = {
    .name = "read_stream__avx512",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .probe = probe,
};
