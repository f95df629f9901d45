/* bfloat16 multiply-adds on AVX-512.
 *
 * A 32-bit lane holds the pair (2i, 2i + 1). VDPBF16PS adds both products to an f32 lane; without
 * it the even element is the lane shifted up by 16, the odd one the lane with the low half
 * cleared, and two FMA do the same.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_BF16X512_H
#define KT_KERNELS_BF16X512_H

#include "kernels/simd/tile512.h"

KT_INLINE __m512 kt_bf16_even512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}
/* By a mask register: a vector of ones would be one register too many for the largest tile. */
KT_INLINE __m512 kt_bf16_odd512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi16(0xaaaaaaaau, pair));
}

/* 16 bfloat16 -> f32 */
KT_INLINE __m512 kt_load_bf16x16(const uint8_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

KT_INLINE void kt_tile_store(const kt_tile *t, const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (r, rows) {
        KT_EACH (c, 4) _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * c, sum[r][c]);
    }
}

#if defined(__AVX512BF16__)
KT_INLINE __m512 kt_dpbf16_512(__m512 sum, __m512i a, __m512i b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
#endif

#endif
