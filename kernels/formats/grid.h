/* Blocks whose codes are indices into a grid: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
 *
 * A point of a grid is 8 magnitudes (IQ2) or 4 (IQ3); a block of 256 inputs holds an index of each
 * point, a sign of each input, scales s of four bits and an f16 d:
 *
 *     w = d * (2 s + 1) * unit * (+-magnitude)         unit 1/8 (IQ2), 1/4 (IQ3_XXS), 1 (IQ3_S)
 *
 * In panels (p64_spec.h) indices stay indices, and signs are eight bits for eight inputs also where
 * files hold seven and their parity. The functions here are those of the formats' files and of
 * kernels that look points up one by one; kernels/p64/grids512.h looks 64 up at once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GRID_H
#define KT_KERNELS_GRID_H

#include <string.h>

#include "kernels/formats/p64_spec.h"
#include "kernels/simd/unroll.h"

/* A grid. Constant data; all arrays are aligned to 64 bytes.
 *
 * low, high  of each point a byte: of IQ2 the 2-bit digits of magnitudes 0..3 and 4..7, of IQ3 two
 *            digits in the halves of a byte, of magnitudes 0 and 1, and of 2 and 3
 * point      the magnitudes of each point, 8 (IQ2) or 4 (IQ3) bytes
 * magnitude  of a digit */
typedef struct kt_grid {
    const uint8_t *low, *high, *point;
    int points;
    uint8_t magnitude[8];
} kt_grid;

/* NULL for KT_P64_NO_GRID. */
const kt_grid *kt_grid_of(kt_p64_grid grid);

/* One block of a row, taken apart. Bit j of sign i is of input 8 i + j. */
typedef struct kt_grid_block {
    uint16_t d; /* f16 bits */
    uint16_t index[64];
    uint8_t sign[32], scale[16];
} kt_grid_block;

/* Seven signs are stored; the eighth makes their number even. */
static inline uint8_t kt_grid_signs(uint32_t seven) {
    uint32_t parity = seven & 127;

    parity ^= parity >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (uint8_t)((seven & 127) | (parity & 1) << 7);
}

/* --- panels ----------------------------------------------------------------------------------- */

/* Where the index of panel row r lies in a line of 64: so that one qword holds two rows of each
 * column of 16, and a byte multishift makes eight bytes of two rows of them (IQ2); or so that
 * interleaving two such lines does (IQ3). The sum of what the column and what the pair of rows
 * adds; neither carries into the other's bits. */
KT_INLINE int kt_grid_column_place(kt_p64_grid grid, int column) {
    return kt_grid_inputs(grid) == 8 ? 2 * column : 8 * (column / 2) + 2 * (column % 2);
}
KT_INLINE int kt_grid_pair_place(kt_p64_grid grid, int pair) {
    return kt_grid_inputs(grid) == 8 ? 8 * pair : 16 * (pair / 2) + 4 * (pair % 2);
}
KT_INLINE int kt_grid_place(kt_p64_grid grid, int r) {
    return kt_grid_column_place(grid, r / 16) + kt_grid_pair_place(grid, r % 16 / 2) + r % 2;
}

/* Two magnitudes' points as words: four bytes of each go beside each other to out, and of points of
 * eight bytes the others to out + stride. */
KT_INLINE void kt_grid_put_two(const kt_p64_grid grid, const uint8_t *point, const int index[2],
                               uint8_t *out, size_t stride) {
    const size_t inputs = (size_t)kt_grid_inputs(grid);
    uint64_t first = 0, second = 0, both;

    memcpy(&first, point + inputs * (size_t)index[0], inputs);
    memcpy(&second, point + inputs * (size_t)index[1], inputs);
    both = (first & 0xffffffffu) | second << 32;
    memcpy(out, &both, 8);
    if (inputs == 4) return;
    both = first >> 32 | (second & ~(uint64_t)0xffffffffu);
    memcpy(out + stride, &both, 8);
}

/* Column `column` of 16 panel rows of a unit: the magnitudes of row i of it, inputs 4 o .. 4 o + 3,
 * go to out + stride * o + 4 * i. unit, more: its lines and the bits of its indices beyond
 * eight. */
KT_INLINE void kt_grid_magnitudes(const kt_p64_grid grid, const kt_grid *g, const uint8_t *unit,
                                  const uint8_t *more, int column, uint8_t *out, size_t stride) {
    const int inputs = kt_grid_inputs(grid), bits = kt_grid_more_bits(grid);
    const int place = kt_grid_column_place(grid, column), shift = place % 8;
    const uint8_t *point = g->point;

    for (int p = 0; p < 32 / inputs; p++, out += stride * (size_t)(inputs / 4), more += 8 * bits) {
        const uint8_t *line = unit + kt_grid_line_at(grid, p) + (size_t)place;
        KT_EACH (pair, 8) {
            const int from = kt_grid_pair_place(grid, pair);
            int index[2] = {line[from], line[from + 1]};
            KT_EACH (b, bits) {
                const int two = more[8 * b + place / 8 + from / 8] >> shift >> from % 8;
                index[0] |= (two & 1) << (8 + b);
                index[1] |= (two & 2) << (7 + b);
            }
            kt_grid_put_two(grid, point, index, out + 8 * pair, stride);
        }
    }
}

/* Eight bytes with the signs of column `column` in quad o: bit 4 i + j is of row i, input 4 o +
 * j. */
KT_INLINE const uint8_t *kt_grid_column_signs(kt_p64_grid grid, const uint8_t *unit, int o,
                                              int column) {
    return unit + kt_grid_signs_at(grid, o) + 8 * (size_t)column;
}

#endif
