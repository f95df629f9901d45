/* Few rows times a p64 panel of a block format in vectors of 32 bytes: codes go from the panel's
 * line to their products in registers, where more rows take them from scratch.
 * The including file defines the formats' parts (p64_units.h).
 *
 * Eight sums are held at a time, or four in formats whose products need sums beside those of their
 * group. The sums of a row and their order are those of more rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FEW_UNITS_H
#define KT_P64_FEW_UNITS_H

/* A unit as up to four rows meet it. */
typedef struct kt_few_unit {
    const uint8_t *linear; /* about here; what lies KT_FEW_AHEAD bytes on is asked for */
    kt_unit_fields f;
    const uint8_t *q[KT_MICRO_ROWS];     /* 32 activations */
    const uint8_t *a16[KT_MICRO_ROWS];   /* as words */
    const int32_t *start[KT_MICRO_ROWS]; /* of each half */
    const int32_t *mid[KT_MICRO_ROWS];   /* of int16 sums about a centre, from quad 2 i on */
    const float *minimum[KT_MICRO_ROWS];
    float a_scale[KT_MICRO_ROWS];
    float *sums; /* of the first row */
} kt_few_unit;

/* Sums of each row, of vectors side by side. */
typedef struct kt_few_sums {
    kt_vi v[KT_MICRO_ROWS][8];
} kt_few_sums;

/* Vectors at a time. Eight sums about a centre over a whole unit (Q5) take 1.1 times as long as
 * twice four of half a unit (Zen 3), but six of three rows less than three; eight of words gain
 * only where four rows share what is opened. */
KT_INLINE int kt_few_unit_columns(const kt_unit_kind kind, const int rows) {
    const int whole = kind.chain == 8 / kind.halves && !(kind.centre && kind.halves == 1);
    const int sums = whole || (!kind.chain && rows == 4) ? 8 : 4;
    return rows == 1 ? sums : rows == 2 ? sums / 2 : rows == 3 ? 2 : sums / 4;
}

/* Bytes of a unit with all that belongs to it. */
KT_INLINE int kt_few_unit_bytes(const kt_p64_spec s) {
    return (int)(kt_p64_block_bytes(s) * 32 / (size_t)s.span);
}

/* Where the sum of row r and of one vector of panel rows, the first of which is `row`, starts in
 * half h. */
KT_INLINE kt_vi kt_few_unit_start(const kt_p64_spec s, const kt_unit_kind kind,
                                  const kt_few_unit *x, const int r, const int h, int row) {
    const uint8_t *zeros = x->f.minima + (size_t)h * kt_p64_minimum_bytes(s);
    kt_vi start;

    if (!kt_unit_starts(kind, 1)) return kt_v_each_int(0);
    start = kt_v_each(x->start[r] + h);
    return kind.extra == KT_EXTRA_ZERO ? kt_v_madd16(kt_v_load_u8(zeros + row), start) : start;
}

/* Quads [first, first + count) join the sums as bytes, `at` bytes into the lines. */
KT_INLINE void kt_few_unit_chains(const kt_p64_spec s, const kt_unit_kind kind,
                                  const kt_few_unit *x, const int rows, const int first,
                                  const int count, int at, kt_few_sums *sum) {
    const int columns = kt_few_unit_columns(kind, rows);
    kt_few_sums part;

    KT_EACH (j, count) {
        const int o = first + j, in_chain = j % kind.chain;
        kt_vi q[KT_MICRO_ROWS];
        KT_EACH (r, rows) q[r] = kt_v_each_now(x->q[r] + 4 * o);
        if (columns == 8 && o % 2 == 0) kt_few_fetch(x->linear, kt_few_unit_bytes(s), o / 2, 4);
        KT_EACH (c, columns) {
            const kt_vi code = kt_unit_quad(s, x->f.planes + at + KT_V_BYTES * c, o);
            KT_EACH (r, rows) {
                kt_vi *to = &part.v[r][c], *whole = &sum->v[r][c];
                if (in_chain == 0 && kind.centre) *to = kt_v_each(x->mid[r] + o / 2);
                *to = in_chain || kind.centre ? kt_dot_next(*to, code, q[r])
                                              : kt_dot_first(code, q[r], *whole);
                if (in_chain == kind.chain - 1) *whole = kt_dot_last(*to, *whole);
            }
        }
    }
}

/* The same as words. */
KT_INLINE void kt_few_unit_words(const kt_p64_spec s, const kt_unit_kind kind, const kt_few_unit *x,
                                 const int rows, const int first, const int count, int at,
                                 kt_few_sums *sum) {
    const int columns = kt_few_unit_columns(kind, rows);

    KT_EACH (j, count) {
        const int o = first + j;
        kt_vi even[KT_MICRO_ROWS], odd[KT_MICRO_ROWS];
        KT_EACH (r, rows) {
            even[r] = kt_v_each_now(x->a16[r] + 4 * o);
            odd[r] = kt_v_each_now(x->a16[r] + 32 + 4 * o);
        }
        KT_EACH (c, columns) {
            const kt_vi code = kt_unit_quad(s, x->f.planes + at + KT_V_BYTES * c, o);
            const kt_vi even_code = kt_v_even_bytes(code), odd_code = kt_v_odd_bytes(code);
            KT_EACH (r, rows) {
                kt_vi *to = &sum->v[r][c];
                *to = kt_v_add32(*to, kt_v_madd16(even_code, even[r]));
                *to = kt_v_add32(*to, kt_v_madd16(odd_code, odd[r]));
            }
        }
    }
}

/* Half h of the unit, scaled, joins the f32 sums of one vector, whose first panel row is `row`. */
KT_INLINE void kt_few_unit_add(const kt_p64_spec s, const kt_unit_kind kind, const kt_few_unit *x,
                               const int rows, const int h, int row, const int column,
                               const kt_few_sums *sum) {
    const uint8_t *scales = x->f.scales + (size_t)h * kt_p64_scale_bytes(s);
    const uint8_t *minima = x->f.minima + (size_t)h * kt_p64_minimum_bytes(s);
    const kt_vf scale = kt_unit_scale(s, x->f.head, scales, row);
    kt_vf minimum = scale;

    if (kind.extra == KT_EXTRA_MINIMUM)
        minimum = kt_unit_minimum(s, x->f.head, scales, minima, row);
    KT_EACH (r, rows) {
        float *to = x->sums + 64 * r + row;
        kt_vf y = kt_v_fma(kt_v_to_float(sum->v[r][column]),
                           kt_v_mul(scale, kt_v_each_float(x->a_scale[r])), kt_v_load_floats(to));
        if (kind.extra == KT_EXTRA_MINIMUM)
            y = kt_v_fma(minimum, kt_v_each_float(x->minimum[r][h]), y);
        kt_v_store_floats(to, y);
    }
}

/* What asks for less than eight columns asks once a half, for 400 to 800 bytes if it is one row. */
KT_INLINE void kt_few_unit_all(const kt_p64_spec s, const kt_few_unit *x, const int rows) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const int quads = 8 / kind.halves, columns = kt_few_unit_columns(kind, rows);

    for (int at = 0, share = 0; at < 256; at += KT_V_BYTES * columns)
        KT_EACH (h, kind.halves) {
            const int row = at / 4;
            kt_few_sums sum;
            if (columns < 8)
                kt_few_fetch(x->linear, kt_few_unit_bytes(s), share++, kind.halves * 8 / columns);
            KT_EACH (r, rows) {
                KT_EACH (c, columns) {
                    sum.v[r][c] = kt_few_unit_start(s, kind, x, r, h, row + KT_V_BYTES / 4 * c);
                }
            }
            if (kind.chain)
                kt_few_unit_chains(s, kind, x, rows, quads * h, quads, at, &sum);
            else
                kt_few_unit_words(s, kind, x, rows, quads * h, quads, at, &sum);
            KT_IN_ORDER();
            KT_EACH (c, columns)
                kt_few_unit_add(s, kind, x, rows, h, row + KT_V_BYTES / 4 * c, c, &sum);
        }
}

/* Rows [first, first + rows). */
KT_INLINE_UNROLLED void kt_few_units_rows(const kt_p64_tile *t, const kt_p64_spec s, int first,
                                          const int rows, kt_unit_rows *opened) {
    kt_few_unit x = {.sums = t->tile + 64 * first};

    KT_EACH (r, rows) {
        x.a16[r] = opened->a16 + KT_WORDS_STRIDE * (first + r);
        x.start[r] = opened->start[first + r];
        x.mid[r] = opened->mid[first + r];
        x.minimum[r] = opened->sums[first + r];
    }
    for (int64_t i = 0; i < t->k / 32; i++) {
        kt_unit_rows_open(s, t, i, 1, 1, opened);
        x.f = kt_unit_fields_of(s, t->panel, i);
        KT_EACH (r, rows) {
            x.q[r] = (const uint8_t *)t->a[first + r] + 32 * i;
            x.a_scale[r] = kt_a8_scales(t->a[first + r], t->k)[i];
        }
        x.linear = t->panel + (size_t)i * (size_t)kt_few_unit_bytes(s);
        kt_few_unit_all(s, &x, rows);
    }
}

#include "kernels/p64/p64_few_points.h"

/* More rows have points looked up into scratch. Two passes of four lose to it where opening a code
 * takes more than a shift and a mask, and seven rows where four sums are held: a ninth of the time
 * with IQ4_XS. */
KT_INLINE int kt_takes_few(const kt_p64_spec s, int rows) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const int most = KT_DIRECT_ROWS - (kind.chain == 8 / kind.halves ? 1 : 2);
    const int is_plain = s.values == KT_P64_LINEAR && !s.high && kind.halves == 1;

    if (s.grid) return rows == 1;
    if (s.scale == KT_P64_IQ1) return 0;
    if (KT_DOT_APART && is_plain && s.low == 4) return rows <= 12;
    if (KT_DOT_APART && is_plain && s.low == 8) return rows <= 8;
    return rows <= most;
}

/* All rows of the tile, four at a time: each four read the panel. */
KT_INLINE void kt_few_units(const kt_p64_tile *t, const kt_p64_spec s) {
    kt_unit_rows opened;
    int row = 0;

    if (s.grid) {
        kt_few_points_row(t, s);
        return;
    }
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; row + KT_MICRO_ROWS <= t->rows; row += KT_MICRO_ROWS)
        kt_few_units_rows(t, s, row, KT_MICRO_ROWS, &opened);
    switch (t->rows - row) {
    case 1: kt_few_units_rows(t, s, row, 1, &opened); return;
    case 2: kt_few_units_rows(t, s, row, 2, &opened); return;
    case 3: kt_few_units_rows(t, s, row, 3, &opened); return;
    default: return;
    }
}

#endif
