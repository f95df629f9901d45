/* What the kernels of IQ1 (formats/iq1.h) on AVX-512 share: where a unit is, and what is added to
 * the digits of a point above.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_IQ1_512_H
#define KT_P64_IQ1_512_H

#include "kernels/p64/blocks512_tiles.h"

KT_INLINE kt_iq1_unit kt_iq1_unit512(const kt_p64_spec s, const uint8_t *block, int u) {
    const kt_iq1_unit unit = {block + kt_blocks_planes_at(s, u), block + kt_blocks_scales_at(s, u),
                              block + kt_p64_more_at(s, 32 * u)};
    return unit;
}

/* Of point p and rows 16 c to 16 c + 15: twos in the four bytes of a row above, zeros below. */
KT_INLINE __m512i kt_iq1_above512(const kt_p64_spec s, const kt_iq1_unit *unit, const int p,
                                  const int c) {
    const int two = 0x02020202;
    const __m512i by_nibble =
        _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, two, two, two, two, two, two, two, two);

    if (s.group == 16 && p % 2) {
        uint16_t below;
        memcpy(&below, unit->more + p / 2 * 8 + 2 * c, sizeof below);
        return _mm512_maskz_mov_epi32((__mmask16)~below, _mm512_set1_epi32(two));
    }
    return _mm512_permutexvar_epi32(
        kt_blocks_nibbles(unit->scales + (s.group == 16 ? p / 2 * 32 : 0), c), by_nibble);
}

/* Digits to bytes: those that are in bits 3 and 4. */
KT_INLINE __m512i kt_iq1_bytes512(__m512i digits, __m512i above) {
    return _mm512_ternarylogic_epi32(digits, _mm512_set1_epi8(0x18), above, 0xea); /* a & b | c */
}

#endif
