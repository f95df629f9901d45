/* Rows of words to lines of words, with SSE2, which every x86-64 has.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_TURN_H
#define KT_KERNELS_P64_TURN_H

#include <emmintrin.h>

/* Four words of four rows: v[i] becomes word i of all rows. */
static inline __attribute__((always_inline)) void kt_turn_words(__m128i v[4]) {
    const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]);
    const __m128i c = _mm_unpackhi_epi32(v[0], v[1]), d = _mm_unpackhi_epi32(v[2], v[3]);

    v[0] = _mm_unpacklo_epi64(a, b);
    v[1] = _mm_unpackhi_epi64(a, b);
    v[2] = _mm_unpacklo_epi64(c, d);
    v[3] = _mm_unpackhi_epi64(c, d);
}

#endif
