/* Ceiling of reading memory with one thread, 128-bit loads of plain x86-64; the walk is explained in read_walk.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <emmintrin.h>

#include "kernels/probe/read_walk.h"

static void read_pair(const char *p, const char *q, size_t bytes, size_t ahead) {
    __m128i a = _mm_setzero_si128(), b = a;
    for (size_t o = 0; o < bytes; o += KT_READ_STEP) {
        if (ahead) kt_read_ask(p + o, q + o, ahead);
        for (size_t i = 0; i < KT_READ_STEP; i += sizeof a) {
            a = _mm_or_si128(a, _mm_loadu_si128((const void *)(p + o + i)));
            b = _mm_or_si128(b, _mm_loadu_si128((const void *)(q + o + i)));
        }
    }
    __asm__ volatile("" ::"x"(a), "x"(b));
}

static double probe(const kt_probe_call *call) {
    return kt_read_walk(call, read_pair);
}

KT_VARIANT(read_stream__scalar) = {
    .name = "read_stream__scalar",
    .op = KT_OP_PROBE,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 2,
    .layout = "",
    .params = kt_read_params,
    .n_params = 1,
    .probe = probe,
};
