/* Rows of an 8-bit cache to BF16 on AVX-512, exactly. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WIDEN512_H
#define KT_ATTN_WIDEN512_H

#include "kernels/attn/attn512.h"

/* An integer below 256 is exact in BF16: the upper half of its float. */
static inline __m512i kt_widen_int8(__m256i codes) {
    const __m512i w = _mm512_cvtepi8_epi16(codes);
    const __m512 even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 16), 16));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(w, 16));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                   _mm512_castps_si512(odd));
}

/* E4M3 e, m has the BF16 bits (e + 120) << 7 | m << 4, but for the subnormal ones, m * 2^-9, and NaN: their
 * low five bits, 0 to 7 and 31, index a table. Moved to the top of a word and one step on, NaN wraps to 0 and
 * so the nine are the smallest. */
static inline __m512i kt_widen_fp8(__m256i codes) {
    static const _Alignas(64) uint16_t special[32] = {0,      0x3b00, 0x3b80, 0x3bc0,       0x3c00,
                                                      0x3c20, 0x3c40, 0x3c60, [31] = 0x7fc0};
    const __m512i w = _mm512_cvtepi8_epi16(codes), top = _mm512_set1_epi16((short)0x8000);
    const __m512i next = _mm512_add_epi16(_mm512_slli_epi16(w, 9), _mm512_set1_epi16(1 << 9));
    const __mmask32 is_special = _mm512_cmple_epu16_mask(next, _mm512_set1_epi16(8 << 9));
    __m512i size = _mm512_and_si512(_mm512_slli_epi16(w, 4), _mm512_set1_epi16(0x7f0));

    size = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
    size = _mm512_mask_permutexvar_epi16(size, is_special, w, _mm512_load_si512(special));
    return _mm512_ternarylogic_epi32(size, w, top, 0xf8); /* size | (w & top) */
}

/* kt_attn_inner.widen; zeros up to the next multiple of 32. */
static inline void kt_widen512(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows from = *codes;

    for (int64_t j = 0; j < from.n; j++)
        for (int64_t i = 0; i < from.d; i += 32) {
            const __m256i x =
                _mm256_maskz_loadu_epi8(mask32(from.d - i), from.at + j * from.ld + i);
            if (i % 64 == 0)
                kt_fetch_line(from.at + (KT_ATTN_AHEAD + j) * from.ld + i, from.is_near);
            _mm512_storeu_si512(out + j * ldo + i, from.cache == KT_W_INT8_CHANNEL
                                                       ? kt_widen_int8(x)
                                                       : kt_widen_fp8(x));
        }
}

#endif
