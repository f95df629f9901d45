/* Few rows times one p64 panel in vectors of 32 bytes: each group is read once, as it lies.
 *
 * With few rows a panel is used up as fast as it arrives, and what surrounds the products counts:
 * broadcasts of activations, the ends of groups, loops. So up to four rows meet as many columns
 * at once as there are registers for sums, with one row the whole panel: eight vectors share all
 * of it. The including file defines words, products and rows (p64_blocked.h); sums of a row and
 * their order are its own.
 *
 * Lines are loaded by a loop, not by copies of its body: prefetchers tell streams apart by the
 * instruction. Each line asks for its share of what comes KT_FEW_AHEAD bytes later.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FEW_H
#define KT_P64_FEW_H

#define KT_FEW_AHEAD 2048
#define KT_FEW_COLUMNS(rows) ((rows) == 1 ? 8 : (rows) == 2 ? 4 : 2) /* vectors at a time */

/* How codes are multiplied: nibbles and bytes by kt_dot_*, words (even and odd bytes apart) by
 * VPMADDWD. */
typedef enum kt_few_kind { KT_FEW_NIBBLES, KT_FEW_BYTES, KT_FEW_WORDS } kt_few_kind;

/* Up to four rows of a tile. */
typedef struct kt_few_rows {
    const uint8_t *q[KT_MICRO_ROWS];
    const float *scale[KT_MICRO_ROWS];
    const int32_t *comp[KT_MICRO_ROWS];
    float *sums;                                   /* of the first row */
    _Alignas(32) uint8_t words[KT_MICRO_ROWS][64]; /* a group's even, then its odd bytes */
} kt_few_rows;

KT_INLINE kt_few_rows kt_few_open(const kt_p64_tile *t, int row, const int rows) {
    kt_few_rows x = {.sums = t->tile + 64 * row};

    KT_EACH (r, rows) {
        x.q[r] = t->a[row + r];
        x.scale[r] = kt_a8_scales(t->a[row + r], t->k);
        x.comp[r] = kt_a8_comps(t->a[row + r], t->k);
    }
    return x;
}

/* Share i of n of the lines that are KT_FEW_AHEAD bytes behind a group of `bytes`. */
KT_INLINE void kt_few_fetch(const uint8_t *group, const int bytes, int i, const int n) {
    const uint8_t *share = group + KT_FEW_AHEAD + bytes / n * i;
    KT_EACH (line, (bytes / n + 63) / 64)
        _mm_prefetch((const char *)share + 64 * line, _MM_HINT_T0);
}

/* Where the sum of row r of group g starts. */
KT_INLINE kt_vi kt_few_start(const kt_few_rows *x, const kt_few_kind kind, int64_t g, int r) {
    return kt_v_each_int((kind == KT_FEW_NIBBLES ? 1 : 16) * x->comp[r][g]);
}

/* A line of the panel and what it is multiplied with, `at` inputs into the rows: four inputs, or
 * with nibbles these and four that are 16 on. */
KT_INLINE void kt_few_line(const kt_few_rows *x, const kt_few_kind kind, const int rows,
                           const int columns, const uint8_t *line, int64_t at,
                           kt_vi sum[KT_MICRO_ROWS][8]) {
    kt_vi first[8], second[8];

    KT_EACH (r, rows) {
        const uint8_t *from = kind == KT_FEW_WORDS ? x->words[r] + at % 32 : x->q[r] + at;
        const kt_vi q = kt_v_each(from);
        kt_vi q2 = q;
        if (kind == KT_FEW_NIBBLES) q2 = kt_v_each(from + 16);
        if (kind == KT_FEW_WORDS) q2 = kt_v_each(from + 32);
        KT_EACH (c, columns) {
            kt_vi *to = &sum[r][c];
            if (r == 0) {
                first[c] = kt_v_load(line + KT_V_BYTES * c);
                second[c] = kind == KT_FEW_NIBBLES ? kt_v_high_nibbles(first[c])
                            : kind == KT_FEW_WORDS ? kt_v_odd_bytes(first[c])
                                                   : first[c];
                if (kind == KT_FEW_NIBBLES) first[c] = kt_v_low_nibbles(first[c]);
                if (kind == KT_FEW_WORDS) first[c] = kt_v_even_bytes(first[c]);
            }
            if (kind == KT_FEW_WORDS) {
                *to = kt_v_add32(*to, kt_v_madd16(first[c], q));
                *to = kt_v_add32(*to, kt_v_madd16(second[c], q2));
                continue;
            }
            *to = kt_dot_next(*to, first[c], q);
            if (kind == KT_FEW_NIBBLES) *to = kt_dot_next(*to, second[c], q2);
        }
    }
}

/* The integer sums of group g join the f32 sums of `columns` vectors from byte `at` of a line on.
 */
KT_INLINE void kt_few_add(const kt_few_rows *x, const kt_few_kind kind, const int rows,
                          const int columns, int64_t g, const uint8_t *scales, int at,
                          kt_vi sum[KT_MICRO_ROWS][8]) {
    KT_EACH (c, columns) {
        kt_vf w_scale = kt_v_each_float(0);
        if (kind == KT_FEW_NIBBLES) w_scale = kt_v_load_bf16(scales + at / 2 + KT_V_BYTES / 2 * c);
        KT_EACH (r, rows) {
            float *to = x->sums + 64 * r + at / 4 + KT_V_BYTES / 4 * c;
            const kt_vi start = kt_few_start(x, kind, g, r);
            const kt_vi whole =
                kind == KT_FEW_WORDS ? kt_v_add32(sum[r][c], start) : kt_dot_last(sum[r][c], start);
            kt_vf scale = kt_v_each_float(x->scale[r][g]);
            if (kind == KT_FEW_NIBBLES) scale = kt_v_mul(w_scale, scale);
            kt_v_store_floats(to, kt_v_fma(kt_v_to_float(whole), scale, kt_v_load_floats(to)));
        }
    }
}

KT_INLINE void kt_few_panel(const kt_p64_tile *t, const kt_few_kind kind, int row, const int rows) {
    const int columns = KT_FEW_COLUMNS(rows), width = KT_V_BYTES * columns;
    const int lines = kind == KT_FEW_NIBBLES ? 4 : 8, pieces = 256 / width * lines;
    const int bytes = kind == KT_FEW_NIBBLES ? KT_P64_W4G32_BYTES : KT_P64_CODES8_BYTES;
    kt_few_rows x = kt_few_open(t, row, rows);
    const uint8_t *w = t->panel;

    for (int64_t g = 0; g < t->k / 32; g++, w += bytes) {
        if (kind == KT_FEW_WORDS) {
            KT_EACH (r, rows) kt_widen_group(x.q[r] + 32 * g, 0, x.words[r]);
        }
        for (int at = 0; at < 256; at += width) {
            kt_vi sum[KT_MICRO_ROWS][8];
            KT_EACH (r, rows) {
                KT_EACH (c, columns) {
                    sum[r][c] = kind == KT_FEW_WORDS ? kt_v_each_int(0)
                                                     : kt_dot_begin(kt_few_start(&x, kind, g, r));
                }
            }
            KT_ROLLED for (int i = 0; i < lines; i++) {
                kt_few_fetch(w, bytes, at / width * lines + i, pieces);
                kt_few_line(&x, kind, rows, columns, w + 256 * i + at, 32 * g + 4 * i, sum);
            }
            kt_few_add(&x, kind, rows, columns, g, w + KT_P64_CODES4_BYTES, at, sum);
        }
    }
}

/* All rows of the tile. */
KT_INLINE void kt_few_tile(const kt_p64_tile *t, const kt_few_kind kind) {
    int row = 0;

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; row + 4 <= t->rows; row += 4) kt_few_panel(t, kind, row, 4);
    switch (t->rows - row) {
    case 1: kt_few_panel(t, kind, row, 1); return;
    case 2: kt_few_panel(t, kind, row, 2); return;
    case 3: kt_few_panel(t, kind, row, 3); return;
    default: return;
    }
}

#endif
