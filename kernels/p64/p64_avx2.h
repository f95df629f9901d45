/* Panel kernels for AVX2: rows of encoded activations times one p64 panel (64 output rows).
 *
 * Each function fills one kt_p64_tile. A quarter of the panel's 64 rows, two registers of eight, meets
 * four activation rows at a time (p64_blocked.h); BF16 is here. The sums of a row run over k in
 * ascending order whatever `rows` is.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AVX2_H
#define KT_SIMD_P64_AVX2_H

#include "kernels/p64/words256.h"

/* A sum of 16-bit parts has no start: kt_dot_last adds it. */
KT_INLINE kt_vi kt_dot_begin(kt_vi start) {
    (void)start;
    return kt_v_each_int(0);
}

/* VPMADDUBSW adds two products of a 4-bit code and an int8: at most 2 * 15 * 127 = 3810, so the 8
 * steps of a group fit int16 (30480) and widen once per group. */
KT_INLINE kt_vi kt_dot_first(kt_vi u, kt_vi q, kt_vi start) {
    (void)start;
    return _mm256_maddubs_epi16(u, q);
}
KT_INLINE kt_vi kt_dot_next(kt_vi sum, kt_vi u, kt_vi q) {
    return kt_v_keep(_mm256_add_epi16(sum, _mm256_maddubs_epi16(u, q)));
}
KT_INLINE kt_vi kt_dot_last(kt_vi sum, kt_vi start) {
    return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), start);
}

#define KT_DOT_APART 1
#include "kernels/p64/p64_blocked.h"

static inline void kt_tile_w4g32_avx2(const kt_p64_tile *t) {
    kt_tile_w4g32_blocked(t);
}

static inline void kt_tile_w8c_avx2(const kt_p64_tile *t) {
    kt_tile_w8c_words(t);
}

#endif
