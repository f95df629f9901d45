/* Points of grids (formats/grid.h), 64 at once, with AVX-512 VBMI: from the indices and signs of a
 * unit of 32 inputs to bytes, weight + 64, in lines of [64 rows][4 inputs].
 *
 *   look up     the bytes of 64 indices in tables of 256 to 1024: VPERMI2B for each 128 of them,
 *               and a blend for each bit beyond seven. One table holds the digits of the first half
 *               of each point, one those of the second.
 *   spread      digits to bytes: the places of rows in a line (kt_grid_place) are such that each
 *               qword holds two rows of each column of 16, and VPMULTISHIFTQB with the column's
 *               offsets makes eight bytes of two rows, each with its digit lowest. IQ3 has two
 *               bytes a row: VPUNPCK*BW puts them side by side before.
 *   value       VPERMB of the lowest bits; its table repeats what other bits are. Magnitudes of IQ3_S
 *               are 2 digit + 1: the spread leaves a digit one bit up, and VPTERNLOGD keeps that
 *               and sets the other bits.
 *   sign        128 - byte where the mask of the column's 64 signs says so.
 *
 * So 64 weights of IQ2_XXS take half a VPERMI2B, a quarter of a blend, and three operations.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_GRIDS_OPEN512_H
#define KT_P64_GRIDS_OPEN512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/formats/grid.h"
#include "kernels/simd/unroll.h"

/* Magnitudes + 64 by digit of IQ2 and IQ3_XXS, repeated: what else is in a byte does not count. */
static const uint8_t kt_grid_values[2][16] = {
    {72, 89, 107, 64, 72, 89, 107, 64, 72, 89, 107, 64, 72, 89, 107, 64},
    {68, 76, 84, 92, 100, 108, 116, 126, 68, 76, 84, 92, 100, 108, 116, 126},
};

/* What is the same for all units of a grid. Tables of up to 512 points are held here. */
typedef struct kt_grid_words {
    const uint8_t *low, *high;
    __m512i table[2][8];
    __m512i value, twice_zero; /* of magnitudes, but of IQ3_S; 128 */
    __m512i column[4];         /* offsets of their digits */
} kt_grid_words;

KT_INLINE int kt_grid_points(const kt_p64_grid grid) {
    return 256 << kt_grid_more_bits(grid);
}

KT_INLINE kt_grid_words kt_grid_words_of(const kt_p64_grid grid) {
    const int up = grid == KT_P64_IQ3_S; /* bits that a digit is left above the lowest */
    const kt_grid *g = kt_grid_of(grid);
    kt_grid_words x = {.low = g->low, .high = g->high};

    if (kt_grid_points(grid) <= 512) {
        KT_EACH (i, kt_grid_points(grid) / 64) {
            x.table[0][i] = _mm512_load_si512(g->low + 64 * i);
            x.table[1][i] = _mm512_load_si512(g->high + 64 * i);
        }
    }
    x.value = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)kt_grid_values[grid == KT_P64_IQ3_XXS]));
    x.twice_zero = _mm512_set1_epi8((char)128);
    KT_EACH (c, 4) {
        const long long two_rows = kt_grid_inputs(grid) == 8
                                       ? 0x0e0c0a0806040200 + c * 0x1010101010101010
                                       : 0x1c1814100c080400 + c % 2 * 0x2020202020202020;
        x.column[c] = _mm512_sub_epi8(_mm512_set1_epi64(two_rows), _mm512_set1_epi8((char)up));
    }
    return x;
}

KT_INLINE __mmask64 kt_grid_mask(const uint8_t *bits) {
    uint64_t mask;
    memcpy(&mask, bits, sizeof mask);
    return mask;
}

/* --- looking up ------------------------------------------------------------------------------- */

/* n lines of indices: bit 7, and what is beyond. */
typedef struct kt_grid_lines {
    __m512i index[4];
    __mmask64 top[4], more[4][2];
} kt_grid_lines;

KT_INLINE void kt_grid_load(const kt_p64_grid grid, const uint8_t *unit, const uint8_t *more,
                            const int first, const int n, kt_grid_lines *x) {
    const int bits = kt_grid_more_bits(grid);

    KT_EACH (i, n) {
        x->index[i] = _mm512_load_si512(unit + kt_grid_line_at(grid, first + i));
        x->top[i] = _mm512_movepi8_mask(x->index[i]);
        KT_EACH (b, bits) x->more[i][b] = kt_grid_mask(more + 8 * (bits * (first + i) + b));
    }
}

/* 256 entries, of which bits 0 to 7 choose one. */
KT_INLINE __m512i kt_grid_look_up256(const __m512i table[4], __m512i index, __mmask64 top) {
    return _mm512_mask_blend_epi8(top, _mm512_permutex2var_epi8(table[0], index, table[1]),
                                  _mm512_permutex2var_epi8(table[2], index, table[3]));
}

/* Table `half` (digits of the first inputs of a point, or of the others) at n lines of indices. */
KT_INLINE void kt_grid_look_up(const kt_p64_grid grid, const kt_grid_words *g, const int half,
                               const kt_grid_lines *x, const int n, __m512i out[]) {
    const __m512i *table = g->table[half];

    if (kt_grid_points(grid) == 1024) { /* more than registers hold: each part for all lines */
        const uint8_t *from = half ? g->high : g->low;
        KT_EACH (part, 4) {
            const __m512i t[4] = {_mm512_load_si512(from + 256 * part),
                                  _mm512_load_si512(from + 256 * part + 64),
                                  _mm512_load_si512(from + 256 * part + 128),
                                  _mm512_load_si512(from + 256 * part + 192)};
            KT_EACH (i, n) {
                const __m512i v = kt_grid_look_up256(t, x->index[i], x->top[i]);
                const __mmask64 here = part == 3   ? _kand_mask64(x->more[i][0], x->more[i][1])
                                       : part == 2 ? x->more[i][1]
                                                   : x->more[i][0];
                out[i] = part ? _mm512_mask_mov_epi8(out[i], here, v) : v;
            }
        }
        return;
    }
    KT_EACH (i, n) {
        out[i] = kt_grid_look_up256(table, x->index[i], x->top[i]);
        if (kt_grid_points(grid) == 512)
            out[i] = _mm512_mask_blend_epi8(x->more[i][0], out[i],
                                            kt_grid_look_up256(table + 4, x->index[i], x->top[i]));
    }
}

/* --- a unit ----------------------------------------------------------------------------------- */

/* Digits of four lines of indices at most. */
typedef struct kt_grid_digits {
    __m512i low[4], high[4];
} kt_grid_digits;

/* Quads (4 inputs) whose points are looked up together: a table of 256 stays in registers, of
 * larger ones each part is loaded once for four lines. */
KT_INLINE int kt_grid_batch(const kt_p64_grid grid) {
    if (kt_grid_points(grid) == 256) return 2;
    return kt_grid_inputs(grid) == 8 ? 8 : 4;
}

KT_INLINE kt_grid_digits kt_grid_digits_of(const kt_p64_grid grid, const kt_grid_words *g,
                                           const uint8_t *unit, const uint8_t *more,
                                           const int quad) {
    const int a_line = kt_grid_inputs(grid) / 4, n = kt_grid_batch(grid) / a_line;
    kt_grid_digits d;
    kt_grid_lines x;

    kt_grid_load(grid, unit, more, quad / a_line, n, &x);
    kt_grid_look_up(grid, g, 0, &x, n, d.low);
    kt_grid_look_up(grid, g, 1, &x, n, d.high);
    return d;
}

/* Of quad o: the bytes that columns 0 and 1, and columns 2 and 3, are spread from. */
KT_INLINE void kt_grid_quad(const kt_p64_grid grid, const kt_grid_digits *d, const int o,
                            __m512i of[2]) {
    const int i = o % kt_grid_batch(grid);

    if (kt_grid_inputs(grid) == 8) {
        of[0] = of[1] = i % 2 ? d->high[i / 2] : d->low[i / 2];
    } else {
        of[0] = _mm512_unpacklo_epi8(d->low[i], d->high[i]);
        of[1] = _mm512_unpackhi_epi8(d->low[i], d->high[i]);
    }
}

/* Magnitudes + 64 of digits; what else is in their bytes does not count. */
KT_INLINE __m512i kt_grid_values_at(const kt_p64_grid grid, const kt_grid_words *g, __m512i digit) {
    if (grid != KT_P64_IQ3_S) return _mm512_permutexvar_epi8(digit, g->value);
    return _mm512_ternarylogic_epi32(digit, _mm512_set1_epi8(2 * 7), _mm512_set1_epi8(64 + 1),
                                     0xea); /* a & b | c */
}

/* Column c of quad o, whose digits are d: weights + 64. */
KT_INLINE __m512i kt_grid_bytes(const kt_p64_grid grid, const kt_grid_words *g, const __m512i d[2],
                                const uint8_t *unit, const int o, const int c) {
    const __mmask64 minus = kt_grid_mask(kt_grid_column_signs(grid, unit, o, c));
    const __m512i digit = _mm512_multishift_epi64_epi8(g->column[c], d[c / 2]);
    const __m512i v = kt_grid_values_at(grid, g, digit);
    return _mm512_mask_sub_epi8(v, minus, g->twice_zero, v);
}

/* Columns [first, end) of a unit: [quads][64 rows][4]. */
KT_INLINE void kt_grid_open_unit(const kt_p64_grid grid, const kt_grid_words *g,
                                 const uint8_t *unit, const uint8_t *more, const int first,
                                 const int end, uint8_t *out) {
    kt_grid_digits d;
    __m512i of[2];

    KT_EACH (o, 8) {
        if (o % kt_grid_batch(grid) == 0) d = kt_grid_digits_of(grid, g, unit, more, o);
        kt_grid_quad(grid, &d, o, of);
        KT_EACH (c, 4) {
            if (c < first || c >= end) continue;
            _mm512_store_si512(out + 256 * o + 64 * c, kt_grid_bytes(grid, g, of, unit, o, c));
        }
    }
}

#endif
