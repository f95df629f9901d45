/* How p64 panels of block formats are built, as data: one description from which packing, the scalar
 * kernels and the vector kernels all follow. README.md of this folder has the table.
 *
 * A weight is   scale * value(code)  [ + minimum ],   value(code) = code - offset or from a table.
 *
 * A panel row's inputs come in blocks of `span`; a packed block holds for 64 rows
 *
 *     head       f16 d[64] if `scale` is KT_P64_S8 or KT_P64_NIBBLES, then f16 dmin[64] if `minimum` is
 *                KT_P64_MIN_U8 or KT_P64_MIN_NIBBLE
 *     runs       span / max(group, 32) of them:
 *       planes   max(group, 32) / 32 times 32 inputs: the high plane if there is one, then the low
 *       scales   [64] for each group of the run (two of them if group = 16, else one)
 *       minima   [64] likewise
 *
 * Blocks of KT_P64_IQ1 hold codes of points instead of planes, and scales before them: iq1.h.
 * Behind the blocks of a panel, if `scale` is KT_P64_E4M3, lie f32 factors [64] of its rows.
 *
 * A plane of b bits holds bits of 32 inputs x 64 rows in b lines of 256 bytes [64 rows][4 inputs].
 * The high plane comes first, so that a kernel which holds on to its few lines reads a panel as one
 * ascending stream.
 * The inputs go four by four: quad o (inputs 4o .. 4o + 3, o = 0..7) lies in line o mod b at bit
 * b * (o / b) of each byte. So one line, shifted and masked, yields 8 / b operands of a multiply-add of
 * four bytes, and all planes yield the same quads. The code is low | high << low_bits.
 * Every field is a multiple of 64 bytes, so fields stay aligned; rows of padding are zero bytes with
 * zero scales.
 *
 * Of formats with a grid (grid.h) a block of 256 inputs holds for 64 rows
 *
 *     head       f16 d[64]
 *     scales     [group][32]: of row r the low half of byte r, or the high half of byte r - 32
 *     more       [unit of 32 inputs][point][bit][8]: bits 8 and 9 of indices, of row r bit `place`
 *     units      of 32 inputs, as quarters of 8 inputs: a line of 64 indices for each point, the
 *                index of row r at byte `place` (kt_grid_place), then signs [quad][column][8]: of
 *                row 16 column + i and input 4 quad + j bit 4 i + j; set: negative
 *
 * They count as formats with codes of 8 bits, the weight + 64, which is what opening a unit yields.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_SPEC_H
#define KT_KERNELS_P64_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/inline.h"
#include "kt/problem.h"

typedef enum kt_p64_scale {
    KT_P64_BF16,    /* bfloat16 */
    KT_P64_F16,     /* IEEE half */
    KT_P64_E8M0,    /* byte e: 2^(e - 128); 255 = NaN. Half the OCP value: codes are doubled */
    KT_P64_S8,      /* signed byte times the block's d: exact in f32 (11 + 7 bits) */
    KT_P64_NIBBLES, /* byte: low half times d is the scale, high half belongs to the minimum */
    KT_P64_F32,
    KT_P64_ODD,  /* half a byte s: (2 s + 1) times the block's d times the grid's unit */
    KT_P64_E4M3, /* byte of 7 bits, E4M3 without sign (127 = 480), halved as codes are doubled; and
                  * a factor of the row */
    KT_P64_IQ1,  /* d / 8 times an odd number; codes are points' (iq1.h) */
} kt_p64_scale;

typedef enum kt_p64_minimum {
    KT_P64_MIN_NONE,
    KT_P64_MIN_F16,    /* + m */
    KT_P64_MIN_U8,     /* - dmin * byte */
    KT_P64_MIN_NIBBLE, /* - dmin * high half of the scale's byte */
    KT_P64_MIN_ZERO,   /* zero point, a byte: scale * (code - zero) */
    KT_P64_MIN_F32,    /* + m */
} kt_p64_minimum;

typedef enum kt_p64_values { KT_P64_LINEAR, KT_P64_IQ4, KT_P64_E2M1 } kt_p64_values;

/* Where codes are points of a grid: which (grid.h). */
typedef enum kt_p64_grid {
    KT_P64_NO_GRID,
    KT_P64_IQ2_XXS,
    KT_P64_IQ2_XS,
    KT_P64_IQ2_S,
    KT_P64_IQ3_XXS,
    KT_P64_IQ3_S,
    KT_P64_GRIDS
} kt_p64_grid;

typedef struct kt_p64_spec {
    int low, high; /* bits of the planes; low = 0: the format is not built of blocks */
    int span;      /* inputs of a block: 32 .. 256 */
    int group;     /* inputs per scale: 16, 32, 64, 128 or 256 */
    kt_p64_scale scale;
    kt_p64_minimum minimum;
    kt_p64_values values;
    int offset; /* of linear codes: up to 128 */
    kt_p64_grid grid;
} kt_p64_spec;

/* A constant for a constant format: vector kernels are compiled per spec. What takes a spec is
 * inlined before anything else happens, or clang holds it in memory and compiles the code for all
 * formats once for each. */
KT_INLINE kt_p64_spec kt_p64_spec_of(kt_weight_format format) {
    const kt_p64_spec none = {
        0, 0, 32, 32, KT_P64_BF16, KT_P64_MIN_NONE, KT_P64_LINEAR, 0, KT_P64_NO_GRID};
    kt_p64_spec s = none;

    switch (format) {
#define SPEC(id, low, high, span, group, scale, minimum, values, offset, grid) \
    case KT_W_##id:                                                            \
        s = (kt_p64_spec){low,                                                 \
                          high,                                                \
                          span,                                                \
                          group,                                               \
                          KT_P64_##scale,                                      \
                          KT_P64_MIN_##minimum,                                \
                          KT_P64_##values,                                     \
                          offset,                                              \
                          KT_P64_##grid};                                      \
        break;
        KT_PANEL_FORMATS(SPEC)
#undef SPEC
    default: break;
    }
    return s;
}

/* Sets of formats: whose codes are indices into grids, and those and the points of IQ1. */
#define KT_GRID_BIT(id, low, high, span, group, scale, minimum, values, offset, grid) \
    | (KT_P64_##grid ? KT_W_BIT(KT_W_##id) : 0)
#define KT_GRID_MASK (UINT64_C(0) KT_PANEL_FORMATS(KT_GRID_BIT))
#define KT_IQ1_BIT(id, low, high, span, group, scale, minimum, values, offset, grid) \
    | (KT_P64_##scale == KT_P64_IQ1 ? KT_W_BIT(KT_W_##id) : 0)
#define KT_POINT_MASK (KT_GRID_MASK KT_PANEL_FORMATS(KT_IQ1_BIT))

/* Value tables of 4-bit codes. E2M1 is doubled, so that it is whole numbers. */
static const int8_t kt_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t kt_e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* What a grid's indices are: inputs of a point, bits beyond eight. */
KT_INLINE int kt_grid_inputs(kt_p64_grid grid) {
    return grid == KT_P64_IQ3_XXS || grid == KT_P64_IQ3_S ? 4 : 8;
}
KT_INLINE int kt_grid_more_bits(kt_p64_grid grid) {
    if (grid == KT_P64_IQ2_S) return 2;
    return grid == KT_P64_IQ2_XS || grid == KT_P64_IQ3_S;
}
KT_INLINE int kt_grid_largest(kt_p64_grid grid) { /* magnitude */
    if (grid == KT_P64_IQ3_XXS) return 62;
    return grid == KT_P64_IQ3_S ? 15 : 43;
}
KT_INLINE float kt_grid_unit(kt_p64_grid grid) { /* no grid: IQ1 */
    return grid == KT_P64_IQ3_S ? 1.0f : grid == KT_P64_IQ3_XXS ? 0.25f : 0.125f;
}

/* In a unit of 32 inputs: bytes of a quarter, the line of point p, the signs of quad o. */
KT_INLINE size_t kt_grid_quarter_bytes(kt_p64_grid grid) {
    return 64 * (size_t)(8 / kt_grid_inputs(grid)) + 64;
}
KT_INLINE size_t kt_grid_unit_bytes(kt_p64_grid grid) {
    return 4 * kt_grid_quarter_bytes(grid);
}
KT_INLINE size_t kt_grid_line_at(kt_p64_grid grid, int p) {
    const int lines = 8 / kt_grid_inputs(grid);
    return (size_t)(p / lines) * kt_grid_quarter_bytes(grid) + 64 * (size_t)(p % lines);
}
KT_INLINE size_t kt_grid_signs_at(kt_p64_grid grid, int o) {
    return (size_t)(o / 2 + 1) * kt_grid_quarter_bytes(grid) - 64 + 32 * (size_t)(o % 2);
}

/* Of a unit: bits of indices beyond eight. */
KT_INLINE size_t kt_grid_more_bytes(kt_p64_grid grid) {
    return (size_t)(32 / kt_grid_inputs(grid) * kt_grid_more_bits(grid)) * 8;
}

/* Points of a grid: scales of a whole block stand before its units. */
KT_INLINE int kt_p64_has_front(kt_p64_spec s) {
    return s.grid || s.scale == KT_P64_IQ1;
}
/* Of a unit: bits of indices beyond eight; of IQ1_M which second points of groups are below. */
KT_INLINE size_t kt_p64_more_bytes(kt_p64_spec s) {
    if (s.scale == KT_P64_IQ1) return s.group == 16 ? 16 : 0;
    return kt_grid_more_bytes(s.grid);
}

/* Bytes of the parts, all for 64 rows. */
KT_INLINE size_t kt_p64_head_bytes(kt_p64_spec s) {
    size_t fields = s.scale == KT_P64_S8 || s.scale == KT_P64_NIBBLES || s.scale == KT_P64_ODD ||
                    s.scale == KT_P64_IQ1;
    fields += s.minimum == KT_P64_MIN_U8 || s.minimum == KT_P64_MIN_NIBBLE;
    return 128 * fields;
}
KT_INLINE size_t kt_p64_plane_bytes(kt_p64_spec s) { /* of 32 inputs, both planes */
    if (s.grid) return kt_grid_unit_bytes(s.grid);
    if (s.scale == KT_P64_IQ1) return 384;
    return 256 * (size_t)(s.low + s.high);
}
KT_INLINE size_t kt_p64_scale_bytes(kt_p64_spec s) { /* of one group */
    if (s.scale == KT_P64_F32) return 256;
    if (s.scale == KT_P64_ODD || s.scale == KT_P64_IQ1) return 32;
    return s.scale == KT_P64_BF16 || s.scale == KT_P64_F16 ? 128 : 64;
}
KT_INLINE size_t kt_p64_minimum_bytes(kt_p64_spec s) {
    if (s.minimum == KT_P64_MIN_F32) return 256;
    if (s.minimum == KT_P64_MIN_F16) return 128;
    return s.minimum == KT_P64_MIN_U8 || s.minimum == KT_P64_MIN_ZERO ? 64 : 0;
}
KT_INLINE int kt_p64_run_inputs(kt_p64_spec s) {
    return s.group > 32 ? s.group : 32;
}
KT_INLINE size_t kt_p64_run_bytes(kt_p64_spec s) {
    const int inputs = kt_p64_run_inputs(s);
    if (kt_p64_has_front(s)) return kt_p64_plane_bytes(s);
    return (size_t)(inputs / 32) * kt_p64_plane_bytes(s) +
           (size_t)(inputs / s.group) * (kt_p64_scale_bytes(s) + kt_p64_minimum_bytes(s));
}
/* What stands before the first run: the head, and of points scales and `more`. */
KT_INLINE size_t kt_p64_front_bytes(kt_p64_spec s) {
    if (!kt_p64_has_front(s)) return kt_p64_head_bytes(s);
    return kt_p64_head_bytes(s) + (size_t)(s.span / s.group) * kt_p64_scale_bytes(s) +
           (size_t)(s.span / 32) * kt_p64_more_bytes(s);
}
KT_INLINE size_t kt_p64_block_bytes(kt_p64_spec s) {
    return kt_p64_front_bytes(s) + (size_t)(s.span / kt_p64_run_inputs(s)) * kt_p64_run_bytes(s);
}

/* In a block: the run that holds input `in`, the scales of its groups, and of points what else its
 * unit has in front. */
KT_INLINE size_t kt_p64_run_at(kt_p64_spec s, int in) {
    return kt_p64_front_bytes(s) + (size_t)(in / kt_p64_run_inputs(s)) * kt_p64_run_bytes(s);
}
KT_INLINE size_t kt_p64_scales_at(kt_p64_spec s, int in) {
    if (kt_p64_has_front(s))
        return kt_p64_head_bytes(s) + (size_t)(in / 32 * 32 / s.group) * kt_p64_scale_bytes(s);
    return kt_p64_run_at(s, in) + (size_t)(kt_p64_run_inputs(s) / 32) * kt_p64_plane_bytes(s);
}
KT_INLINE size_t kt_p64_more_at(kt_p64_spec s, int in) {
    return kt_p64_scales_at(s, s.span) + (size_t)(in / 32) * kt_p64_more_bytes(s);
}
/* Factors of the rows, behind a panel's blocks. */
KT_INLINE size_t kt_p64_tail_bytes(kt_p64_spec s) {
    return s.scale == KT_P64_E4M3 ? 256 : 0;
}

#endif
