/* IQ1_S and IQ1_M: weights of eight inputs are a point of a grid of 2048, each -1, 0 or 1, all of
 * them an eighth above or below.
 *
 * Files have eight bits of a point's index in one place and three in another. So have panels; per
 * unit of 32 inputs and for 64 rows:
 *
 *     points   [4][64] bytes: the low eight bits of the index of inputs 8 p .. 8 p + 7
 *     fields   [64] u16. IQ1_S: bits 3 p .. 3 p + 2 go on top of index p, bits 12 to 14 are the
 *              scale s, bit 15 says below. IQ1_M: bits 4 p .. 4 p + 2 go on top of index p, bit 4 p
 *              + 3 says below
 *     scales   IQ1_M alone: [64] bytes: s of the first 16 inputs in bits 0 to 2, of the others in 3
 *              to 5
 *
 *     w = d * (2 s + 1) / 8 * (8 * (digit - 1) + 1), or - 1 below; d is at the head of the block
 *
 * That number in brackets, plus 9, is the byte that kernels multiply: 8 * digit + 2, or + 0 below.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_IQ1_H
#define KT_KERNELS_IQ1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/formats/p64_spec.h"

enum { KT_IQ1_POINTS_COUNT = 2048, KT_IQ1_FIELDS = 256, KT_IQ1_SCALES = 384 };

/* By index: byte j has 8 * digit j in bits 3 and 4, and digit j + 4 two bits above. */
extern const uint32_t kt_iq1_words[KT_IQ1_POINTS_COUNT];

/* Bits of a field that belong to a point. */
static inline int kt_iq1_field_bits(kt_p64_spec s) {
    return s.group == 16 ? 4 : 3;
}

static inline unsigned kt_iq1_field(const uint8_t *unit, int r) {
    uint16_t field;
    memcpy(&field, unit + KT_IQ1_FIELDS + 2 * r, sizeof field);
    return field;
}

/* Is point p of a field below? */
static inline int kt_iq1_is_below(kt_p64_spec s, unsigned field, int p) {
    return (int)(field >> (s.group == 16 ? 4 * p + 3 : 15)) & 1;
}

/* 2 s + 1 of row r and half of the unit. */
static inline int kt_iq1_odd(kt_p64_spec s, const uint8_t *unit, int half, int r) {
    const unsigned scale = s.group == 16 ? (unsigned)unit[KT_IQ1_SCALES + r] >> 3 * half & 7
                                         : kt_iq1_field(unit, r) >> 12 & 7;
    return 2 * (int)scale + 1;
}

/* The bytes of inputs 8 p .. 8 p + 3 and of the next four, of rows first .. first + n - 1. */
static inline void kt_iq1_quads(kt_p64_spec s, const uint8_t *unit, int p, int first, int n,
                                uint32_t *even, uint32_t *odd) {
    for (int i = 0; i < n; i++) {
        const unsigned field = kt_iq1_field(unit, first + i);
        const unsigned index = unit[64 * p + first + i] | (field >> kt_iq1_field_bits(s) * p & 7)
                                                              << 8;
        const uint32_t word = kt_iq1_words[index];
        const uint32_t above = kt_iq1_is_below(s, field, p) ? 0 : 0x02020202;
        even[i] = (word & 0x18181818) | above;
        odd[i] = (word >> 2 & 0x18181818) | above;
    }
}

/* The f16 d of a plain IQ1_M block, whose bits lie apart. */
static inline uint16_t kt_iq1_m_d(const uint8_t *block) {
    unsigned d = 0;
    for (int i = 0; i < 4; i++) d |= (unsigned)block[49 + 2 * i] >> 4 << 4 * i;
    return (uint16_t)d;
}
static inline void kt_iq1_m_put_d(uint8_t *block, uint16_t d) {
    for (int i = 0; i < 4; i++)
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
}

#endif
