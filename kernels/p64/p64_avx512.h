/* Panel kernels for AVX-512 without VNNI: rows of encoded activations times one p64 panel.
 *
 * The kernels of AVX2 with registers of twice the width and twice the number (p64_blocked.h): four rows
 * meet the whole panel of 64 rows in sixteen sums.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AVX512_H
#define KT_SIMD_P64_AVX512_H

#include "kernels/p64/words512.h"

/* Two products of a 4-bit code and an int8 are at most 2 * 15 * 127 = 3810: VPMADDUBSW does not
 * saturate, the 8 steps of a group fit int16 (30480) and widen once per group. */
KT_INLINE kt_vi kt_dot_first(kt_vi u, kt_vi q, kt_vi start) {
    (void)start;
    return _mm512_maddubs_epi16(u, q);
}
KT_INLINE kt_vi kt_dot_next(kt_vi sum, kt_vi u, kt_vi q) {
    return kt_v_keep(_mm512_add_epi16(sum, _mm512_maddubs_epi16(u, q)));
}
KT_INLINE kt_vi kt_dot_last(kt_vi sum, kt_vi start) {
    return _mm512_add_epi32(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)), start);
}

#define KT_DOT_APART 1
#include "kernels/p64/p64_blocked.h"

static inline void kt_tile_w4g32_avx512(const kt_p64_tile *t) {
    kt_tile_w4g32_blocked(t);
}

static inline void kt_tile_w8c_avx512(const kt_p64_tile *t) {
    kt_tile_w8c_words(t);
}

#endif
