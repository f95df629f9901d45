/* Panel kernels of the block formats (formats/p64_spec.h) for vectors of any width.
 *
 * The including file has included p64_blocked.h. The including file defines KT_DOT_WIDE too: 1 if the
 * sums of kt_dot_* are int32 and hold any bytes, 0 if they are int16.
 *
 * A chunk of a slice of the panel is taken apart once for all rows of the block, unit by unit of 32
 * inputs: codes as unsigned bytes, eight steps of four inputs; scales, and minima or zero points, in
 * f32 and int32. A micro kernel then knows nothing of the format but its kind:
 *
 *     y += (scale * a_scale) * (sum u q - offset * S)          S = sum q of the group
 *     y += minimum * (a_scale * S)                             formats with a minimum
 *          sum u q - zero * S                                  zero points: 16 bits by 16 bits, exact
 *
 * The offset and S depend on the row alone, so both are prepared per row: where a sum starts, and the
 * factor of the minimum. Words in scratch have the offset taken off instead. With groups of 16 a
 * unit is two halves with scales and sums of their own.
 *
 * Where sums are int16, as many steps are added before they widen as cannot overflow: 8 for codes to
 * 15. Of larger ones the sum is taken about a code in their middle: it starts at minus that centre
 * times the sum of its q, wraps as it pleases, and ends exact where sum |u - centre| |q| fits. That is
 * 4 steps of codes to 63 (8 * 32 * 127 = 32512), 8 to 31, 2 of points of IQ2 (4 * 43 * 127). A product
 * must not saturate (2 * 126 * 127 = 32004); larger codes are multiplied as 16-bit words.
 *
 * Points of grids (formats/grid.h) and of IQ1 are looked up one by one, once for all rows of a block.
 * Vectors make their indices, and bytes of what was looked up; what lies between takes as many loads
 * and stores, and no other instruction.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_UNITS_H
#define KT_SIMD_P64_UNITS_H

#include "kernels/formats/grid.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64_spec.h"

typedef enum kt_unit_extra { KT_NO_EXTRA, KT_EXTRA_MINIMUM, KT_EXTRA_ZERO } kt_unit_extra;

/* What a micro kernel is compiled for. */
typedef struct kt_unit_kind {
    int halves; /* groups per unit: 1, or 2 of 16 inputs */
    int chain;  /* steps of four inputs in one sum; 0 = 16-bit words */
    kt_unit_extra extra;
    int centre; /* are int16 sums taken about a code in the middle? */
} kt_unit_kind;

#define KT_UNITS KT_CHUNK_GROUPS /* units of a chunk; half as many of words */

typedef struct kt_units {
    const kt_p64_tile *tile;
    const uint8_t *codes; /* [unit][8 steps] slices of bytes, or [unit][8][even, odd] of words */
    const float *scale;   /* [unit][half] slices */
    const float *minimum; /* likewise */
    const int32_t *zero;  /* likewise */
    const int32_t *start; /* [row][2 * KT_UNITS]: what the int32 sum begins with, or -S for zeros */
    const int32_t *mid;   /* [row][4 * KT_UNITS]: likewise two int16 sums (kt_unit_rows) */
    const float *a_scale; /* [row][KT_UNITS] */
    const float *sums;    /* [row][2 * KT_UNITS]: a_scale * S */
    const uint8_t *a16;   /* widened rows (kt_widen_rows) */
    int64_t unit;         /* first unit of the chunk */
    int units, row, slice;
    float *out; /* the micro kernel's sums */
} kt_units;

/* --- formats -------------------------------------------------------------------------------- */

/* The largest code as an unsigned byte, and what is subtracted from it. */
KT_INLINE int kt_unit_largest(const kt_p64_spec s) {
    if (s.grid) return 126; /* 64 + 62 */
    if (s.scale == KT_P64_IQ1) return 18;
    if (s.values == KT_P64_IQ4) return 240;
    if (s.values == KT_P64_E2M1) return 24;
    return (1 << (s.low + s.high)) - 1;
}
KT_INLINE int kt_unit_offset(const kt_p64_spec s) {
    if (s.values == KT_P64_IQ4) return 127;
    return s.values == KT_P64_E2M1 ? 12 : s.offset;
}

/* A code in the middle of all, and how far from it they go. */
KT_INLINE int kt_unit_centre(const kt_p64_spec s) {
    if (s.grid) return 64;
    return s.scale == KT_P64_IQ1 ? 9 : (kt_unit_largest(s) + 1) / 2;
}
KT_INLINE int kt_unit_spread(const kt_p64_spec s) {
    return s.grid ? kt_grid_largest(s.grid) : kt_unit_centre(s);
}

KT_INLINE kt_unit_kind kt_unit_kind_of(const kt_p64_spec s) {
    const int largest = kt_unit_largest(s), halves = s.group < 32 ? 2 : 1;
    const int fit = 32767 / (2 * 127 * kt_unit_spread(s)); /* steps about the centre */
    kt_unit_kind kind = {halves, 0, KT_NO_EXTRA, 0};

    if (s.minimum == KT_P64_MIN_ZERO) kind.extra = KT_EXTRA_ZERO;
    if (s.minimum == KT_P64_MIN_F16 || s.minimum == KT_P64_MIN_U8 ||
        s.minimum == KT_P64_MIN_NIBBLE || s.minimum == KT_P64_MIN_F32)
        kind.extra = KT_EXTRA_MINIMUM;
    if (KT_DOT_WIDE) {
        kind.chain = 8 / halves;
    } else if (2 * 127 * largest * (8 / halves) <= 32767) {
        kind.chain = 8 / halves;
    } else if (largest <= 126) {
        kind.chain = fit >= 8 / halves ? 8 / halves : 2;
        kind.centre = 1;
    }
    return kind;
}

/* Quad o of the planes as bytes. */
KT_INLINE kt_vi kt_unit_quad(const kt_p64_spec s, const uint8_t *planes, const int o) {
    static const uint8_t iq4[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                    128, 140, 152, 165, 180, 196, 216, 240};
    static const uint8_t e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    kt_vi v = kt_v_load(planes + 256 * s.high + 256 * (o % s.low));

    if (o / s.low) v = kt_v_shift_right(v, s.low * (o / s.low));
    if (s.low < 8) v = kt_v_mask_bytes(v, (1 << s.low) - 1);
    if (s.high) {
        const int high = s.high ? s.high : 1;
        const int right = high * (o / high) - s.low; /* to where they stand in a code */
        kt_vi h = kt_v_load(planes + 256 * (o % high));
        h = right > 0 ? kt_v_shift_right(h, right) : right < 0 ? kt_v_shift_left(h, -right) : h;
        v = kt_v_or(v, kt_v_mask_bytes(h, ((1 << high) - 1) << s.low));
    }
    if (s.values == KT_P64_IQ4) v = kt_v_look_up(iq4, v);
    if (s.values == KT_P64_E2M1) v = kt_v_look_up(e2m1, v);
    return v;
}

/* 2 s + 1, s the low or high halves of bytes, or what `mask` leaves of them. */
KT_INLINE kt_vi kt_unit_odd(const uint8_t *bytes, int is_high, const int mask) {
    const kt_vi v = kt_v_load_u8(bytes);
    const kt_vi s = kt_v_mask_bytes(is_high ? kt_v_shift_right(v, 4) : v, mask);
    return kt_v_or(kt_v_shift_left(s, 1), kt_v_each_int(1));
}

/* Scales of one vector of panel rows, the first of which is `row`. */
KT_INLINE kt_vf kt_unit_scale(const kt_p64_spec s, const uint8_t *head, const uint8_t *field,
                              int row) {
    switch (s.scale) {
    case KT_P64_BF16: return kt_v_load_bf16(field + 2 * row);
    case KT_P64_F16: return kt_v_load_f16(field + 2 * row);
    case KT_P64_F32: return kt_v_load_floats((const float *)(const void *)field + row);
    case KT_P64_E8M0: return kt_v_load_e8m0(field + row);
    case KT_P64_E4M3: return kt_v_load_e4m3(field + row);
    case KT_P64_S8:
        return kt_v_mul(kt_v_load_f16(head + 2 * row), kt_v_to_float(kt_v_load_s8(field + row)));
    case KT_P64_ODD:
    case KT_P64_IQ1:
        return kt_v_mul(
            kt_v_load_f16(head + 2 * row),
            kt_v_mul(kt_v_each_float(kt_grid_unit(s.grid)),
                     kt_v_to_float(kt_unit_odd(field + row % 32, row / 32, s.grid ? 15 : 7))));
    default:
        return kt_v_mul(kt_v_load_f16(head + 2 * row),
                        kt_v_to_float(kt_v_mask_bytes(kt_v_load_u8(field + row), 15)));
    }
}

KT_INLINE kt_vf kt_unit_minimum(const kt_p64_spec s, const uint8_t *head, const uint8_t *scales,
                                const uint8_t *minima, int row) {
    kt_vf byte;
    if (s.minimum == KT_P64_MIN_F16) return kt_v_load_f16(minima + 2 * row);
    if (s.minimum == KT_P64_MIN_F32)
        return kt_v_load_floats((const float *)(const void *)minima + row);
    if (s.minimum == KT_P64_MIN_U8)
        byte = kt_v_to_float(kt_v_load_u8(minima + row));
    else
        byte = kt_v_to_float(kt_v_mask_bytes(kt_v_shift_right(kt_v_load_u8(scales + row), 4), 15));
    return kt_v_mul(kt_v_mul(kt_v_load_f16(head + 128 + 2 * row), byte), kt_v_each_float(-1.0f));
}

/* Where unit i (32 inputs) of a panel has its fields. */
typedef struct kt_unit_fields {
    const uint8_t *head, *planes, *scales, *minima;
    const uint8_t *more; /* kt_p64_more_at, of points */
} kt_unit_fields;

KT_INLINE kt_unit_fields kt_unit_fields_of(const kt_p64_spec s, const uint8_t *panel, int64_t i) {
    const int inputs = kt_p64_run_inputs(s), in_block = (int)(32 * i % s.span);
    const int in_run = in_block % inputs;
    kt_unit_fields f;

    f.head = panel + (size_t)(32 * i / s.span) * kt_p64_block_bytes(s);
    f.planes = f.head + kt_p64_run_at(s, in_block);
    f.scales = f.head + kt_p64_scales_at(s, in_block);
    f.more = kt_p64_has_front(s) ? f.head + kt_p64_more_at(s, in_block) : NULL;
    f.minima = f.scales + (size_t)(inputs / s.group) * kt_p64_scale_bytes(s);
    f.planes += (size_t)(in_run / 32) * kt_p64_plane_bytes(s);
    return f;
}

/* Bytes of a unit to fetch ahead: its planes; f32 scales and minima behind them, which are a
 * third. */
KT_INLINE int kt_unit_fetched(const kt_p64_spec s) {
    return (int)(s.scale == KT_P64_F32 ? kt_p64_run_bytes(s) : kt_p64_plane_bytes(s));
}

/* Scratch of a slice. */
typedef struct kt_unit_slice {
    _Alignas(64) uint8_t codes[KT_UNITS * 8 * KT_SLICE_BYTES];
    _Alignas(64) float scale[KT_UNITS][2][KT_SLICE_ROWS];
    _Alignas(64) float minimum[KT_UNITS][2][KT_SLICE_ROWS];
    _Alignas(64) int32_t zero[KT_UNITS][2][KT_SLICE_ROWS];
    const uint8_t *points; /* kt_unit_points_of */
} kt_unit_slice;

/* The points of a format's grid, or NULL. */
KT_INLINE const uint8_t *kt_unit_points_of(const kt_p64_spec s) {
    return s.grid ? kt_grid_of(s.grid)->point : NULL;
}

KT_INLINE void kt_unit_codes(const kt_p64_spec s, const kt_unit_kind kind, const uint8_t *planes,
                             uint8_t *out) {
    const kt_vi minus = kt_v_each_int((int)(-(uint32_t)kt_unit_offset(s) % 65536 * 65537));

    KT_EACH (o, 8) {
        KT_EACH (c, KT_V_COLUMNS) {
            const kt_vi v = kt_unit_quad(s, planes + KT_V_BYTES * c, o);
            if (kind.chain) {
                kt_v_store(out + KT_SLICE_BYTES * o + KT_V_BYTES * c, v);
            } else {
                uint8_t *to = out + 2 * KT_SLICE_BYTES * o + KT_V_BYTES * c;
                kt_v_store(to, kt_v_add16(kt_v_even_bytes(v), minus));
                kt_v_store(to + KT_SLICE_BYTES, kt_v_add16(kt_v_odd_bytes(v), minus));
            }
        }
    }
}

/* 64 + magnitudes with their signs. */
KT_INLINE void kt_unit_put_signed(const uint8_t *signs, kt_vi v, uint8_t *out) {
    kt_v_store(out, kt_v_add_signed(kt_v_each_int(0x40404040), v, signs));
}

/* Twos in the bytes of the rows whose points p are above. */
KT_INLINE kt_vi kt_unit_iq1_above(const kt_p64_spec s, const kt_unit_fields *f, const int p,
                                  int row) {
    const uint8_t *scales = f->scales + (s.group == 16 ? p / 2 * 32 : 0) + row % 32;
    kt_vi v;

    if (s.group == 16 && p % 2) {
        v = kt_v_clear_lanes(f->more + p / 2 * 8 + row / 8);
    } else {
        v = kt_v_load_u8(scales);
        v = kt_v_mask_bytes(row / 32 ? kt_v_shift_right(v, 7) : kt_v_shift_right(v, 3), 1);
        v = kt_v_add32(v, kt_v_each_int(-1));
    }
    return kt_v_mask_bytes(v, 2);
}

/* Words of kt_iq1_words as two quads of bytes. */
KT_INLINE void kt_unit_put_iq1(kt_vi v, kt_vi above, uint8_t *to) {
    kt_v_store(to, kt_v_or(kt_v_mask_bytes(v, 0x18), above));
    kt_v_store(to + KT_SLICE_BYTES, kt_v_or(kt_v_mask_bytes(kt_v_shift_right(v, 2), 0x18), above));
}

#if KT_V_BYTES == 32
#include "kernels/p64/points256.h"
#else

/* Indices of a grid's points p, a vector of rows, the first of which is `row` (kt_grid_place). */
KT_INLINE kt_vi kt_unit_indices(const kt_p64_grid grid, const kt_unit_fields *f, const int p,
                                int row) {
    const int bits = kt_grid_more_bits(grid), step = kt_grid_pair_place(grid, 1);
    const int at = kt_grid_column_place(grid, row / 16);
    const uint8_t *more = f->more + 8 * bits * p + row % 16 / 2;
    kt_vi v = kt_v_pairs(f->planes + kt_grid_line_at(grid, p) + row % 16 * 4, step, at);

    KT_EACH (b, 3) { /* clang unrolls no loop that never turns */
        if (b < bits)
            v = kt_v_or(v, kt_v_shift_left(kt_v_bit_pairs(more + 8 * b, step, at), 8 + b));
    }
    return v;
}

/* Points of eight inputs. Rows 0, 1, 4, 5 ... of a vector lie behind each other, and then the
 * others, so that one shuffle has four inputs of each. */
KT_INLINE void kt_unit_points8(const kt_p64_spec s, const kt_unit_fields *f, const uint8_t *points,
                               int slice, uint8_t *out) {
    enum { LANES = KT_V_BYTES / 4, POINTS = 4 * KT_SLICE_ROWS };
    _Alignas(64) uint32_t index[POINTS];
    _Alignas(64) uint64_t point[POINTS];
    const int row = KT_SLICE_ROWS * slice;

    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS)
            kt_v_store((uint8_t *)(index + KT_SLICE_ROWS * p + LANES * c),
                       kt_unit_indices(s.grid, f, p, row + LANES * c));
    }
    for (int i = 0; i < POINTS; i += LANES) {
        KT_EACH (j, LANES) {
            const int to = j % 4 / 2 * (LANES / 2) + j / 4 * 2 + j % 2;
            memcpy(point + i + to, points + 8 * (size_t)index[i + j], 8);
            KT_IN_ORDER(); /* or the compiler gathers */
        }
    }
    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS) {
            const uint8_t *at = (const uint8_t *)(point + KT_SLICE_ROWS * p + LANES * c);
            const kt_vi a = kt_v_load(at), b = kt_v_load(at + KT_V_BYTES);
            uint8_t *to = out + 2 * KT_SLICE_BYTES * p + KT_V_BYTES * c;
            const int column = row / 16 + LANES / 16 * c;
            kt_unit_put_signed(kt_grid_column_signs(s.grid, f->planes, 2 * p, column),
                               kt_v_firsts(a, b), to);
            kt_unit_put_signed(kt_grid_column_signs(s.grid, f->planes, 2 * p + 1, column),
                               kt_v_seconds(a, b), to + KT_SLICE_BYTES);
        }
    }
}

/* Points of four inputs. */
KT_INLINE void kt_unit_points4(const kt_p64_spec s, const kt_unit_fields *f, const uint8_t *points,
                               int slice, uint8_t *out) {
    enum { LANES = KT_V_BYTES / 4, POINTS = 8 * KT_SLICE_ROWS };
    _Alignas(64) uint32_t index[POINTS], word[POINTS];
    const int row = KT_SLICE_ROWS * slice;

    KT_EACH (p, 8) {
        KT_EACH (c, KT_V_COLUMNS)
            kt_v_store((uint8_t *)(index + KT_SLICE_ROWS * p + LANES * c),
                       kt_unit_indices(s.grid, f, p, row + LANES * c));
    }
    for (int i = 0; i < POINTS; i += 8) {
        KT_EACH (j, 4) {
            uint32_t two[2];
            uint64_t both;
            memcpy(two, points + 4 * (size_t)index[i + 2 * j], 4);
            memcpy(two + 1, points + 4 * (size_t)index[i + 2 * j + 1], 4);
            both = two[0] | (uint64_t)two[1] << 32;
            memcpy(word + i + 2 * j, &both, sizeof both);
            KT_IN_ORDER();
        }
    }
    KT_EACH (o, 8) {
        KT_EACH (c, KT_V_COLUMNS) {
            const int at = KT_SLICE_ROWS * o + LANES * c;
            kt_unit_put_signed(
                kt_grid_column_signs(s.grid, f->planes, o, row / 16 + LANES / 16 * c),
                kt_v_load((const uint8_t *)(word + at)), out + 4 * at);
        }
    }
}

/* Codes of points p of IQ1, a vector of rows, the first of which is `row` (kt_iq1_place). */
KT_INLINE kt_vi kt_unit_iq1_codes(const uint8_t *lines, const int p, int row) {
    const uint8_t *key = lines + 64 * p + row % 16 * 4;
    const uint8_t *rank = lines + KT_IQ1_RANKS + p / 2 * 64 + row % 16 * 4;
    kt_vi ranks = kt_v_pairs(rank, 8, row / 16 * 2);

    if (p % 2) ranks = kt_v_shift_right(ranks, 4);
    return kt_v_or(kt_v_shift_left(kt_v_pairs(key, 8, row / 16 * 2), 4),
                   kt_v_mask_bytes(ranks, 15));
}

/* The points of IQ1 as bytes. Codes are put together and words taken apart by vectors; between
 * these a load for each code and each word, and a store for two, are all that is done. */
KT_INLINE void kt_unit_codes_iq1(const kt_p64_spec s, const kt_unit_fields *f, int slice,
                                 uint8_t *out) {
    enum { LANES = KT_V_BYTES / 4, POINTS = 4 * KT_SLICE_ROWS };
    _Alignas(64) uint32_t code[POINTS], word[POINTS];
    const int row = KT_SLICE_ROWS * slice;
    kt_vi above[KT_V_COLUMNS];

    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS)
            kt_v_store((uint8_t *)(code + KT_SLICE_ROWS * p + LANES * c),
                       kt_unit_iq1_codes(f->planes, p, row + LANES * c));
    }
    for (int i = 0; i < POINTS; i += 8) {
        KT_EACH (j, 4) {
            const uint64_t low = kt_iq1_words[code[i + 2 * j]];
            const uint64_t both = (uint64_t)kt_iq1_words[code[i + 2 * j + 1]] << 32 | low;
            memcpy(word + i + 2 * j, &both, sizeof both);
            KT_IN_ORDER(); /* or the compiler gathers */
        }
    }
    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS) {
            const kt_vi v = kt_v_load((const uint8_t *)(word + KT_SLICE_ROWS * p + LANES * c));
            uint8_t *to = out + 2 * KT_SLICE_BYTES * p + KT_V_BYTES * c;
            if (p == 0 || s.group == 16) above[c] = kt_unit_iq1_above(s, f, p, row + LANES * c);
            kt_unit_put_iq1(v, above[c], to);
        }
    }
}

#endif

/* Take apart unit i of a panel, as unit u of the scratch. */
KT_INLINE void kt_unit_open(const kt_p64_spec s, const uint8_t *panel, int64_t i, int slice,
                            kt_unit_slice *x, int u) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const kt_unit_fields f = kt_unit_fields_of(s, panel, i);
    const size_t unit_bytes = (size_t)(kind.chain ? 8 : 16) * KT_SLICE_BYTES;

    if (s.scale == KT_P64_IQ1)
        kt_unit_codes_iq1(s, &f, slice, x->codes + (size_t)u * unit_bytes);
    else if (s.grid && kt_grid_inputs(s.grid) == 8)
        kt_unit_points8(s, &f, x->points, slice, x->codes + (size_t)u * unit_bytes);
    else if (s.grid)
        kt_unit_points4(s, &f, x->points, slice, x->codes + (size_t)u * unit_bytes);
    else
        kt_unit_codes(s, kind, f.planes + KT_SLICE_BYTES * slice,
                      x->codes + (size_t)u * unit_bytes);
    for (int h = 0; h < kind.halves; h++) {
        const uint8_t *scales = f.scales + (size_t)h * kt_p64_scale_bytes(s);
        const uint8_t *minima = f.minima + (size_t)h * kt_p64_minimum_bytes(s);
        for (int j = 0; j < KT_SLICE_ROWS; j += KT_V_BYTES / 4) {
            const int row = KT_SLICE_ROWS * slice + j;
            kt_v_store_floats(&x->scale[u][h][j], kt_unit_scale(s, f.head, scales, row));
            if (kind.extra == KT_EXTRA_MINIMUM)
                kt_v_store_floats(&x->minimum[u][h][j],
                                  kt_unit_minimum(s, f.head, scales, minima, row));
            if (kind.extra == KT_EXTRA_ZERO)
                kt_v_store((uint8_t *)&x->zero[u][h][j], kt_v_load_u8(minima + row));
        }
    }
}

#include "kernels/p64/p64_unit_rows.h"

/* --- the micro kernel ----------------------------------------------------------------------- */

/* Where the sum of row r and vector c starts in half h of unit u. */
KT_INLINE kt_vi kt_unit_start(const kt_units *x, const kt_unit_kind kind, int u, int h, int r,
                              int c) {
    kt_vi start;
    if (!kt_unit_starts(kind, 0)) return kt_v_each_int(0);
    start = kt_v_each(&x->start[r * 2 * KT_UNITS + 2 * u + h]);
    if (kind.extra != KT_EXTRA_ZERO) return start;
    return kt_v_madd16(
        kt_v_load((const uint8_t *)(x->zero + (2 * u + h) * KT_SLICE_ROWS) + KT_V_BYTES * c),
        start);
}

/* Steps [first, first + kind.chain) of unit u join sum; `fresh` if it is to be begun. */
KT_INLINE void kt_unit_chain(const kt_units *x, const uint8_t *const q[KT_MICRO_ROWS],
                             const int rows, const kt_unit_kind kind, int u, int h, const int first,
                             const int fresh, kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS]) {
    const uint8_t *w = x->codes + ((size_t)u * 8 + (size_t)first) * KT_SLICE_BYTES;
    const int at = 32 * u + 4 * first;
    kt_vi part[KT_MICRO_ROWS][KT_V_COLUMNS], code[KT_V_COLUMNS];

    KT_EACH (r, rows) {
        KT_EACH (c, KT_V_COLUMNS) {
            if (kind.centre) part[r][c] = kt_v_each(&x->mid[r * 4 * KT_UNITS + 4 * u + first / 2]);
        }
    }
    KT_EACH (i, kind.chain) {
        KT_IN_ORDER();
        KT_EACH (c, KT_V_COLUMNS) code[c] = kt_v_load(w + KT_SLICE_BYTES * i + KT_V_BYTES * c);
        if (i > 0 || kind.centre) {
            kt_dot_step(q, at + 4 * i, code, rows, part);
            continue;
        }
        KT_EACH (r, rows) {
            const kt_vi first_q = kt_v_each(q[r] + at);
            KT_EACH (c, KT_V_COLUMNS) {
                part[r][c] = kt_dot_first(code[c], first_q,
                                          fresh ? kt_unit_start(x, kind, u, h, r, c) : sum[r][c]);
            }
        }
    }
    KT_IN_ORDER();
    KT_EACH (r, rows) {
        KT_EACH (c, KT_V_COLUMNS) {
            sum[r][c] =
                kt_dot_last(part[r][c], fresh ? kt_unit_start(x, kind, u, h, r, c) : sum[r][c]);
        }
    }
}

/* All steps of half h of unit u, as words: of four inputs first the even ones, then the odd
 * ones. */
KT_INLINE void kt_unit_words(const kt_units *x, const int rows, const kt_unit_kind kind, int u,
                             const int h, kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS]) {
    const int steps = 16 / kind.halves;
    const uint8_t *w = x->codes + ((size_t)u * 16 + (size_t)(steps * h)) * KT_SLICE_BYTES;
    const uint8_t *a = x->a16 + u * 64 + 2 * steps * h;

    KT_EACH (i, steps) {
        kt_vi code[KT_V_COLUMNS];
        KT_IN_ORDER();
        KT_EACH (c, KT_V_COLUMNS) code[c] = kt_v_load(w + KT_SLICE_BYTES * i + KT_V_BYTES * c);
        kt_words_step(a + 32 * (i % 2) + 4 * (i / 2), code, rows, 0, NULL, i > 0, sum);
    }
    KT_IN_ORDER();
}

/* Add the scaled sums of half h of unit u. */
KT_INLINE void kt_unit_add(const kt_units *x, const int rows, const kt_unit_kind kind, int u, int h,
                           kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS]) {
    const int field = (2 * u + h) * KT_SLICE_ROWS;
    kt_vf scale[KT_V_COLUMNS], minimum[KT_V_COLUMNS];

    KT_EACH (c, KT_V_COLUMNS) {
        scale[c] = kt_v_load_floats(x->scale + field + KT_V_BYTES / 4 * c);
        if (kind.extra == KT_EXTRA_MINIMUM)
            minimum[c] = kt_v_load_floats(x->minimum + field + KT_V_BYTES / 4 * c);
    }
    KT_EACH (r, rows) {
        const kt_vf a_scale = kt_v_each_float(x->a_scale[r * KT_UNITS + u]);
        KT_EACH (c, KT_V_COLUMNS) {
            float *to = x->out + 64 * r + KT_V_BYTES / 4 * c;
            kt_vf y = kt_v_load_floats(to);
            y = kt_v_fma(kt_v_to_float(sum[r][c]), kt_v_mul(scale[c], a_scale), y);
            if (kind.extra == KT_EXTRA_MINIMUM)
                y = kt_v_fma(minimum[c], kt_v_each_float(x->sums[r * 2 * KT_UNITS + 2 * u + h]), y);
            kt_v_store_floats(to, y);
        }
    }
}

/* Works on copies: nothing that is stored can then be one of the pointers. */
KT_INLINE_UNROLLED void kt_micro_units(const kt_units *units, const int rows,
                                       const kt_unit_kind kind) {
    const kt_p64_tile *t = units->tile;
    kt_units x = *units;
    const uint8_t *q[KT_MICRO_ROWS];

    KT_EACH (r, rows) q[r] = (const uint8_t *)t->a[x.row + r] + 32 * x.unit;
    x.out = t->tile + 64 * x.row + KT_SLICE_ROWS * x.slice;
    x.start += x.row * 2 * KT_UNITS;
    x.mid += x.row * 4 * KT_UNITS;
    x.a_scale += x.row * KT_UNITS;
    x.sums += x.row * 2 * KT_UNITS;
    x.a16 += x.row * KT_WORDS_STRIDE;
    for (int u = 0; u < x.units; u++) {
        kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS];
        if (!kind.chain) {
            KT_EACH (h, kind.halves) {
                kt_unit_words(&x, rows, kind, u, h, sum);
                kt_unit_add(&x, rows, kind, u, h, sum);
            }
            continue;
        }
        KT_EACH (h, kind.halves) {
            const int steps = 8 / kind.halves;
            KT_EACH (i, steps / kind.chain) {
                kt_unit_chain(&x, q, rows, kind, u, h, h * steps + i * kind.chain, i == 0, sum);
            }
            kt_unit_add(&x, rows, kind, u, h, sum);
        }
    }
}

/* Rows of a micro kernel: registers hold four with one sum each, or two of int16 and two of int32. */
KT_INLINE int kt_unit_micro_rows(const kt_unit_kind kind) {
    return kind.chain && kind.chain * kind.halves < 8 ? KT_MICRO_ROWS / 2 : KT_MICRO_ROWS;
}

/* All rows of the block. */
KT_INLINE void kt_rows_units(kt_units *x, const kt_unit_kind kind) {
    const int most = kt_unit_micro_rows(kind);
    for (x->row = 0; x->row + most <= x->tile->rows; x->row += most) kt_micro_units(x, most, kind);
    switch (x->tile->rows - x->row) {
    case 1: kt_micro_units(x, 1, kind); return;
    case 2:
        if (most > 2) kt_micro_units(x, 2, kind);
        return;
    case 3:
        if (most > 2) kt_micro_units(x, 3, kind);
        return;
    default: return;
    }
}

/* One copy of the micro kernels for each kind, whatever the number of formats. */
#define KT_UNITS_OF_KIND(name, ...)                                      \
    static __attribute__((noinline)) void kt_units_##name(kt_units *x) { \
        const kt_unit_kind kind = {__VA_ARGS__};                         \
        kt_rows_units(x, kind);                                          \
    }
KT_UNITS_OF_KIND(8, 1, 8, KT_NO_EXTRA, 0)
KT_UNITS_OF_KIND(8_zero, 1, 8, KT_EXTRA_ZERO, 0)
KT_UNITS_OF_KIND(4_4, 2, 4, KT_NO_EXTRA, 0)
KT_UNITS_OF_KIND(8_minimum, 1, 8, KT_EXTRA_MINIMUM, 0)
KT_UNITS_OF_KIND(4_4_minimum, 2, 4, KT_EXTRA_MINIMUM, 0)
#if !KT_DOT_WIDE
KT_UNITS_OF_KIND(mid_8, 1, 8, KT_NO_EXTRA, 1)
KT_UNITS_OF_KIND(mid_8_minimum, 1, 8, KT_EXTRA_MINIMUM, 1)
KT_UNITS_OF_KIND(mid_4_4, 2, 4, KT_NO_EXTRA, 1)
KT_UNITS_OF_KIND(mid_2, 1, 2, KT_NO_EXTRA, 1)
KT_UNITS_OF_KIND(mid_2_2, 2, 2, KT_NO_EXTRA, 1)
KT_UNITS_OF_KIND(words, 1, 0, KT_NO_EXTRA, 0)
KT_UNITS_OF_KIND(words_2_minimum, 2, 0, KT_EXTRA_MINIMUM, 0)
#endif
#undef KT_UNITS_OF_KIND

KT_INLINE void kt_units_run(kt_units *x, const kt_unit_kind kind) {
    const int minimum = kind.extra == KT_EXTRA_MINIMUM;
#if !KT_DOT_WIDE
    if (kind.chain == 0) {
        minimum ? kt_units_words_2_minimum(x) : kt_units_words(x);
        return;
    }
    if (kind.chain == 2) {
        kind.halves == 2 ? kt_units_mid_2_2(x) : kt_units_mid_2(x);
        return;
    }
    if (kind.centre && kind.halves == 2) {
        kt_units_mid_4_4(x);
        return;
    }
    if (kind.centre) {
        minimum ? kt_units_mid_8_minimum(x) : kt_units_mid_8(x);
        return;
    }
#endif
    if (kind.halves == 2)
        minimum ? kt_units_4_4_minimum(x) : kt_units_4_4(x);
    else if (kind.extra == KT_EXTRA_ZERO)
        kt_units_8_zero(x);
    else
        minimum ? kt_units_8_minimum(x) : kt_units_8(x);
}

#if KT_V_BYTES == 32
#include "kernels/p64/p64_few_units.h"
#endif

/* --- a tile --------------------------------------------------------------------------------- */

/* Finished sums times the factors of their rows, which lie behind the blocks. */
KT_INLINE void kt_units_finish(const kt_p64_tile *t, const kt_p64_spec s) {
    const uint8_t *tail = t->panel + (size_t)(t->k / s.span) * kt_p64_block_bytes(s);
    const float *factors = (const float *)(const void *)tail;

    for (int r = 0; r < t->rows && kt_p64_tail_bytes(s) > 0; r++)
        for (int j = 0; j < 64; j += KT_V_BYTES / 4) {
            float *sum = t->tile + 64 * r + j;
            kt_v_store_floats(sum, kt_v_mul(kt_v_load_floats(sum), kt_v_load_floats(factors + j)));
        }
}

KT_INLINE_UNROLLED void kt_tile_units(const kt_p64_tile *t, const kt_p64_spec s) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const int64_t units = t->k / 32;
    const int most = t->rows < KT_DIRECT_ROWS ? 1 : kind.chain ? KT_UNITS : KT_UNITS / 2;
    kt_unit_slice slice;
    kt_unit_rows rows;
    kt_units x = {.tile = t,
                  .codes = slice.codes,
                  .scale = slice.scale[0][0],
                  .minimum = slice.minimum[0][0],
                  .zero = slice.zero[0][0],
                  .start = rows.start[0],
                  .mid = rows.mid[0],
                  .a_scale = rows.a_scale[0],
                  .sums = rows.sums[0],
                  .a16 = rows.a16};

#if KT_V_BYTES == 32
    if (kt_takes_few(s, t->rows)) {
        kt_few_units(t, s);
        kt_units_finish(t, s);
        return;
    }
#endif
    slice.points = kt_unit_points_of(s);
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.unit < units; x.unit += x.units) {
        x.units = units - x.unit < most ? (int)(units - x.unit) : most;
        kt_unit_rows_open(s, t, x.unit, x.units, 0, &rows);
        kt_fetch_next(t, kt_unit_fields_of(s, t->panel, x.unit).planes,
                      kt_unit_fetched(s) * x.units);
        if (most == 1)
            kt_fetch_group(kt_unit_fields_of(s, t->panel, x.unit).planes, kt_unit_fetched(s));
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            for (int u = 0; u < x.units; u++)
                kt_unit_open(s, t->panel, x.unit + u, x.slice, &slice, u);
            kt_units_run(&x, kind);
        }
    }
    kt_units_finish(t, s);
}

/* The formats of kt_tile_blocks. */
#define KT_BLOCK_BIT(id) | KT_W_BIT(KT_W_##id)
#define KT_BLOCK_MASK (UINT64_C(0) KT_BLOCK_FORMATS(KT_BLOCK_BIT))

#define KT_BLOCK_TILE(id)                                                      \
    static __attribute__((noinline)) void kt_tile_##id(const kt_p64_tile *t) { \
        kt_tile_units(t, kt_p64_spec_of(KT_W_##id));                           \
    }
KT_BLOCK_FORMATS(KT_BLOCK_TILE)

#define KT_BLOCK_CASE(id) \
    case KT_W_##id: kt_tile_##id(t); return;
static inline void kt_tile_blocks(const kt_p64_tile *t) {
    switch (t->weights) {
        KT_BLOCK_FORMATS(KT_BLOCK_CASE)
    default: return; /* accepts() lets no other format through */
    }
}

#endif
