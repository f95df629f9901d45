/* IQ1_S and IQ1_M: weights of eight inputs are a point of a grid of 2048, each -1, 0 or 1, all of
 * them an eighth above or below.
 *
 * Files have an index of eleven bits for a point, which says nothing about the point: to look it up
 * takes the whole grid. Panels have a code of twelve bits that two small tables take apart, 64
 * points at once where bytes can be permuted: a key of eight bits and a rank of four,
 *
 *     digits of the first four inputs   kt_iq1_first[key]
 *     digits of the other four          kt_iq1_last[(kt_iq1_at[key] + rank) % KT_IQ1_LAST]
 *
 * so that of a point with given first digits the last ones stand in one of the windows of 16 that
 * its keys open in the second table. The tables were found by annealing; each of the 2048 points has
 * a code, and the other 2048 codes are never packed.
 *
 * A block of 256 inputs holds for 64 rows
 *
 *     head     f16 d[64]
 *     scales   [group][32]: of row r the low half of byte r, or the high half of byte r - 32: s in
 *              bits 0 to 2; bit 3 says below: of all points of the unit (IQ1_S), or of the first
 *              point of the group (IQ1_M)
 *     more     IQ1_M alone: [group][8]: bit r of 64 says below of the group's second point
 *     units    of 32 inputs: keys [4][64] of inputs 8 p .. 8 p + 7, then ranks [2][64]: of point 2 i
 *              in the low half, of point 2 i + 1 in the high; of row r at byte kt_iq1_place(r)
 *
 *     w = d * (2 s + 1) / 8 * (8 * (digit - 1) + 1), or - 1 below
 *
 * That number in brackets, plus 9, is the byte that kernels multiply: 8 * digit + 2, or + 0 below.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_IQ1_H
#define KT_KERNELS_IQ1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/formats/p64_spec.h"

enum { KT_IQ1_POINTS_COUNT = 2048, KT_IQ1_CODES = 4096, KT_IQ1_RANKS = 256, KT_IQ1_LAST = 128 };

/* By index of files: the code, rank lowest. By code: byte j has 8 * digit j in bits 3 and 4, and
 * digit j + 4 two bits above. */
extern const uint16_t kt_iq1_codes[KT_IQ1_POINTS_COUNT];
extern const uint32_t kt_iq1_words[KT_IQ1_CODES];
/* Four digits of two bits, the lowest first; aligned to 64 bytes. */
extern const uint8_t kt_iq1_first[256], kt_iq1_at[256], kt_iq1_last[KT_IQ1_LAST];

/* Where a panel holds a unit. */
typedef struct kt_iq1_unit {
    const uint8_t *lines, *scales, *more;
} kt_iq1_unit;

KT_INLINE kt_iq1_unit kt_iq1_unit_at(kt_p64_spec s, const uint8_t *block, int in) {
    const kt_iq1_unit unit = {block + kt_p64_run_at(s, in), block + kt_p64_scales_at(s, in),
                              block + kt_p64_more_at(s, in)};
    return unit;
}

/* The place of row r in a line: one qword holds two rows of each column of 16, of which a byte
 * multishift makes eight bytes. */
static inline int kt_iq1_place(int r) {
    return 2 * (r / 16) + 8 * (r % 16 / 2) + r % 2;
}

static inline unsigned kt_iq1_code(const uint8_t *lines, int p, int r) {
    const int place = kt_iq1_place(r);
    return (unsigned)lines[64 * p + place] << 4 |
           (lines[KT_IQ1_RANKS + 64 * (p / 2) + place] >> 4 * (p % 2) & 15);
}

/* Is point p of row r below? */
KT_INLINE int kt_iq1_is_below(kt_p64_spec s, const kt_iq1_unit *unit, int p, int r) {
    const uint8_t *scales = unit->scales + (s.group == 16 ? p / 2 * 32 : 0);
    if (s.group == 16 && p % 2) return unit->more[p / 2 * 8 + r / 8] >> r % 8 & 1;
    return scales[r % 32] >> (r / 32 * 4 + 3) & 1;
}

/* 2 s + 1 of row r and half of the unit. */
static inline int kt_iq1_odd(const kt_iq1_unit *unit, int half, int r) {
    return 2 * (unit->scales[32 * half + r % 32] >> r / 32 * 4 & 7) + 1;
}

/* The bytes of inputs 8 p .. 8 p + 3 and of the next four, of rows first .. first + n - 1, both
 * multiples of 8. Two rows lie side by side (kt_iq1_place); what differs between eights is looked
 * up before, and nobody predicts what is below: no branches. */
KT_INLINE void kt_iq1_quads(const kt_p64_spec s, const kt_iq1_unit *unit, int p, int first, int n,
                            uint32_t *even, uint32_t *odd) {
    const uint8_t *lines = unit->lines;

    for (int r = first; r < first + n; r += 8, even += 8, odd += 8) {
        const int place = kt_iq1_place(r), rank_shift = 4 * (p % 2);
        const uint8_t *key = lines + 64 * p + place;
        const uint8_t *rank = lines + KT_IQ1_RANKS + 64 * (p / 2) + place;
        uint64_t below = 0; /* a byte each, in its lowest bit */
        if (s.group == 16 && p % 2) {
            for (int i = 0; i < 8; i++)
                below |= (uint64_t)(unit->more[p / 2 * 8 + r / 8] >> i & 1) << 8 * i;
        } else {
            memcpy(&below, unit->scales + (s.group == 16 ? p / 2 * 32 : 0) + r % 32, 8);
            below = below >> (r / 32 * 4 + 3) & 0x0101010101010101;
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const int at = 8 * (i / 2) + i % 2;
            const unsigned code = (unsigned)key[at] << 4 | (rank[at] >> rank_shift & 15);
            const uint32_t word = kt_iq1_words[code];
            const uint32_t above = 0x02020202 * (1u - (uint32_t)(below >> 8 * i & 1));
            even[i] = (word & 0x18181818) | above;
            odd[i] = (word >> 2 & 0x18181818) | above;
        }
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
