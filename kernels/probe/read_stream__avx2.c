/* Ceiling of reading memory with one thread, 256-bit loads; the walk is explained in read_walk.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/probe/read_walk.h"

static void read_pair(const char *p, const char *q, size_t bytes, size_t ahead) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t o = 0; o < bytes; o += KT_READ_STEP) {
        if (ahead) kt_read_ask(p + o, q + o, ahead);
        for (size_t i = 0; i < KT_READ_STEP; i += sizeof a) {
            a = _mm256_or_si256(a, _mm256_loadu_si256((const void *)(p + o + i)));
            b = _mm256_or_si256(b, _mm256_loadu_si256((const void *)(q + o + i)));
        }
    }
    __asm__ volatile("" ::"x"(a), "x"(b));
}

static double probe(const kt_probe_call *call) {
    return kt_read_walk(call, read_pair);
}

KT_VARIANT(read_stream__avx2) = {
    .name = "read_stream__avx2",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 2,
    .layout = "",
    .params = kt_read_params,
    .n_params = 1,
    .probe = probe,
};
