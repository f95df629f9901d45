/* One row times a p64 panel of a block format in vectors of 32 bytes: codes go from the panel's line
 * to their product in registers, where more rows take them from scratch. The including file defines
 * the formats' parts (p64_units.h). A unit of 32 inputs meets eight vectors at once if its products need no sums beside
 * those of its group, else four. The sums and their order are those of more rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FEW_UNITS_H
#define KT_P64_FEW_UNITS_H

/* A unit as one row meets it. */
typedef struct kt_few_unit {
    const uint8_t *linear; /* about here; what lies KT_FEW_AHEAD bytes on is asked for */
    kt_unit_fields f;
    const uint8_t *q;   /* its 32 activations */
    const uint8_t *a16; /* as words */
    const int32_t *start;
    const float *sums;
    float a_scale;
} kt_few_unit;

/* Bytes of a unit with all that belongs to it. */
KT_INLINE int kt_few_unit_bytes(const kt_p64_spec s) {
    return (int)(kt_p64_block_bytes(s) * 32 / (size_t)s.span);
}

/* Where the sum of one vector of panel rows, the first of which is `row`, starts in half h. */
KT_INLINE kt_vi kt_few_unit_start(const kt_p64_spec s, const kt_unit_kind kind,
                                  const kt_few_unit *x, const int h, int row) {
    const kt_vi start = kt_v_each(x->start + h);
    const uint8_t *zeros = x->f.minima + (size_t)h * kt_p64_minimum_bytes(s);

    return kind.extra == KT_EXTRA_ZERO ? kt_v_madd16(kt_v_load_u8(zeros + row), start) : start;
}

/* Quads [first, first + count) join the sums as bytes, `at` bytes into the lines. */
KT_INLINE void kt_few_unit_chains(const kt_p64_spec s, const kt_unit_kind kind,
                                  const kt_few_unit *x, const int columns, const int first,
                                  const int count, int at, kt_vi sum[8]) {
    kt_vi part[8];

    KT_EACH (j, count) {
        const int o = first + j, in_chain = j % kind.chain;
        const kt_vi q = kt_v_each_now(x->q + 4 * o);
        if (columns == 8 && o % 2 == 0) kt_few_fetch(x->linear, kt_few_unit_bytes(s), o / 2, 4);
        KT_EACH (c, columns) {
            const kt_vi code = kt_unit_quad(s, x->f.planes + at + KT_V_BYTES * c, o);
            part[c] = in_chain ? kt_dot_next(part[c], code, q) : kt_dot_first(code, q, sum[c]);
            if (in_chain == kind.chain - 1) sum[c] = kt_dot_last(part[c], sum[c]);
        }
    }
}

/* The same as words. */
KT_INLINE void kt_few_unit_words(const kt_p64_spec s, const kt_few_unit *x, const int columns,
                                 const int first, const int count, int at, kt_vi sum[8]) {
    KT_EACH (j, count) {
        const int o = first + j;
        const kt_vi even = kt_v_each_now(x->a16 + 4 * o);
        const kt_vi odd = kt_v_each_now(x->a16 + 32 + 4 * o);
        KT_EACH (c, columns) {
            const kt_vi code = kt_unit_quad(s, x->f.planes + at + KT_V_BYTES * c, o);
            sum[c] = kt_v_add32(sum[c], kt_v_madd16(kt_v_even_bytes(code), even));
            sum[c] = kt_v_add32(sum[c], kt_v_madd16(kt_v_odd_bytes(code), odd));
        }
    }
}

/* Half h of the unit, scaled, joins the f32 sums of panel rows `row` and on. */
KT_INLINE void kt_few_unit_add(const kt_p64_spec s, const kt_unit_kind kind, const kt_few_unit *x,
                               const int h, int row, kt_vi sum, float *sums) {
    const uint8_t *scales = x->f.scales + (size_t)h * kt_p64_scale_bytes(s);
    const uint8_t *minima = x->f.minima + (size_t)h * kt_p64_minimum_bytes(s);
    const kt_vf scale =
        kt_v_mul(kt_unit_scale(s, x->f.head, scales, row), kt_v_each_float(x->a_scale));
    kt_vf y = kt_v_fma(kt_v_to_float(sum), scale, kt_v_load_floats(sums + row));

    if (kind.extra == KT_EXTRA_MINIMUM)
        y = kt_v_fma(kt_unit_minimum(s, x->f.head, scales, minima, row),
                     kt_v_each_float(x->sums[h]), y);
    kt_v_store_floats(sums + row, y);
}

KT_INLINE void kt_few_unit_all(const kt_p64_spec s, const kt_few_unit *x, float *sums) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const int quads = 8 / kind.halves, columns = kind.chain == quads ? 8 : 4;

    for (int at = 0, share = 0; at < 256; at += KT_V_BYTES * columns)
        KT_EACH (h, kind.halves) {
            kt_vi sum[8];
            if (columns == 4)
                kt_few_fetch(x->linear, kt_few_unit_bytes(s), share++, 2 * kind.halves);
            KT_EACH (c, columns)
                sum[c] = kt_few_unit_start(s, kind, x, h, at / 4 + KT_V_BYTES / 4 * c);
            if (kind.chain)
                kt_few_unit_chains(s, kind, x, columns, quads * h, quads, at, sum);
            else
                kt_few_unit_words(s, x, columns, quads * h, quads, at, sum);
            KT_IN_ORDER();
            KT_EACH (c, columns)
                kt_few_unit_add(s, kind, x, h, at / 4 + KT_V_BYTES / 4 * c, sum[c], sums);
        }
}

KT_INLINE_UNROLLED void kt_few_units(const kt_p64_tile *t, const kt_p64_spec s) {
    kt_unit_rows rows;
    kt_few_unit x = {.a16 = rows.a16, .start = rows.start[0], .sums = rows.sums[0]};

    memset(t->tile, 0, sizeof(float) * 64);
    for (int64_t i = 0; i < t->k / 32; i++) {
        kt_unit_rows_open(s, t, i, 1, &rows);
        x.f = kt_unit_fields_of(s, t->panel, i);
        x.q = (const uint8_t *)t->a[0] + 32 * i;
        x.a_scale = kt_a8_scales(t->a[0], t->k)[i];
        x.linear = t->panel + (size_t)i * (size_t)kt_few_unit_bytes(s);
        kt_few_unit_all(s, &x, t->tile);
    }
}

#endif
