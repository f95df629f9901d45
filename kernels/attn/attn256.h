/* What the variants of attention on AVX2 share: the ends of rows, which are loaded by dwords, two
 * elements of BF16 or four codes. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_256_H
#define KT_ATTN_256_H

#include <immintrin.h>

#include "base/err.h"
#include "kernels/attn/attn_walk.h"
#include "kernels/simd/unroll.h"

/* Which of 8 lanes are the first n. */
KT_INLINE __m256i first_lanes(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
}

/* The first `left` codes, a multiple of four; the others are zeros and not read. */
KT_INLINE __m128i load_codes(const uint8_t *p, int64_t left) {
    const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
    if (left >= 16) return _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm_maskload_epi32((const int *)(const void *)p,
                              _mm_cmpgt_epi32(_mm_set1_epi32((int32_t)left / 4), lane));
}

/* 16 elements of BF16, and the even ones of them as floats. */
KT_INLINE __m256i load_pairs(const uint16_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
/* The first `left` elements, an even number; the others are zeros and not read. */
KT_INLINE __m256i load_last(const uint16_t *p, int64_t left) {
    return _mm256_maskload_epi32((const int *)(const void *)p, first_lanes(left / 2));
}
KT_INLINE __m256 even(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

/* Sums that lie as 8 even and 8 odd columns of each 16, times `factor`. */
static inline void store_halves(const float *o, int64_t d, float factor, float *out) {
    for (int64_t i = 0; i < d; i += 16)
        for (int64_t j = 0; j < 8 && i + 2 * j < d; j++) {
            out[i + 2 * j] = o[i + j] * factor;
            out[i + 2 * j + 1] = o[i + 8 + j] * factor;
        }
}

/* Descriptor member of a variant that loads so. */
static inline kt_status accepts_fours(const kt_problem *p, const kt_config *config, kt_err *why) {
    if (p->k % 4 != 0 || p->v % 4 != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "attention: %s size %lld, expected a multiple of 4",
                       p->k % 4 ? "head" : "value", (long long)(p->k % 4 ? p->k : p->v));
    return kt_attn_accepts(p, config, why);
}

#endif
