/* Many rows of codes in bytes on AVX-512 VNNI: three rows by 64 outputs over 256 inputs that lie in
 * L1.
 *
 * Six rows by 32 outputs take eight loads for every twelve VPDPBUSD and read the panel from L2,
 * half of it for each six rows. That is what Zen 4 runs best. Ice Lake loads 1.37 vectors of 512
 * bits a cycle and multiplies two, and what it fetches from memory waits for the same buffers as
 * what comes from L2: there three rows by 64 outputs, with seven loads, are faster, and twice as
 * much panel a row costs nothing if a chunk of it stays in L1 while all rows pass over it.
 *
 * A row's sums lie in the result tile between chunks. They are added in the order of the other
 * tiles, so a row has the same bits whatever the number of rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_WIDE512_H
#define KT_P64_WIDE512_H

#include "kernels/p64/p64_ops512.h"
#include "kernels/p64/vnni512.h"

#define KT_WIDE_ROWS 3
#define KT_WIDE_CHUNK 256 /* inputs: 16 KiB of codes, half of the least L1 */
#define KT_WIDE_GROUPS (KT_WIDE_CHUNK / 32)

typedef struct kt_wide_span {
    const uint8_t *w; /* codes of the chunk: lines as in w8c */
    /* With scales of groups: 64 floats for each 32 inputs, 64-byte aligned; codes are 8 more than
     * their values. Without: NULL, and codes are 128 more. */
    const float *scales;
    /* At the chunk's end sums are multiplied with these 64 numbers, 64-byte aligned; NULL = not. */
    const uint8_t *multipliers;
    int64_t i; /* the chunk: inputs [i, i + 32 * groups) */
    int groups;
    /* Where the sums of a tile's groups start. */
    _Alignas(32) int32_t start[KT_WIDE_ROWS][KT_WIDE_GROUPS];
} kt_wide_span;

/* What a tile of rows sees of a chunk. */
typedef struct kt_wide_rows {
    const uint8_t *a[KT_WIDE_ROWS]; /* codes of the rows from the chunk on */
    int64_t scales;                 /* bytes from there to the scale of the chunk's first group */
    int32_t (*start)[KT_WIDE_GROUPS];
} kt_wide_rows;

KT_INLINE void kt_wide_open_rows(kt_wide_rows *x, const kt_tile *t, kt_wide_span *chunk, int row,
                                 const int has_scales, const int rows) {
    const int64_t k = t->k, i = chunk->i;
    const __mmask8 in = (__mmask8)((1u << chunk->groups) - 1);

    x->scales = k + i / 8 - i;
    x->start = chunk->start;
    KT_EACH (r, rows) {
        const uint8_t *a = t->a[row + r];
        const __m256i comps = _mm256_maskz_loadu_epi32(in, a + k + k / 8 + i / 8);
        x->a[r] = a + i;
        _mm256_store_si256((__m256i *)(void *)x->start[r],
                           has_scales ? comps : _mm256_slli_epi32(comps, 4));
    }
}

/* sums += scale * exact integer dot product, of group g of row r. */
KT_INLINE void kt_wide_join(const kt_wide_span *chunk, const kt_wide_rows *x, int g,
                            const int has_scales, const int r, __m512i dot[KT_WIDE_ROWS][4],
                            __m512 sum[KT_WIDE_ROWS][4]) {
    const __m512 scale = _mm512_set1_ps(kt_load_f32(x->a[r] + x->scales + 4 * g));

    KT_EACH (c, 4) {
        __m512 s = scale;
        if (has_scales) s = _mm512_mul_ps(_mm512_load_ps(chunk->scales + 64 * g + 16 * c), s);
        sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), s, sum[r][c]);
    }
}

/* A quad of all outputs, in registers: gcc 12 would load them anew for each row. */
KT_INLINE void kt_wide_quad(const uint8_t *w, __m512i u[4]) {
    KT_IN_ORDER();
    KT_EACH (c, 4) {
        u[c] = _mm512_load_si512(w + 64 * c);
        KT_SETTLE(u[c]);
    }
}

/* 32 inputs. The group before joins the sums when a row's new group begins, a quad of all other
 * rows after its last product: nothing that waits for its operands takes room in the schedulers
 * from the products behind it. */
KT_INLINE void kt_wide_group(const kt_wide_span *chunk, const kt_wide_rows *x, int g,
                             const int joins, const int has_scales, const int rows,
                             __m512i dot[KT_WIDE_ROWS][4], __m512 sum[KT_WIDE_ROWS][4]) {
    const uint8_t *w = chunk->w + KT_P64_CODES8_BYTES * g;
    __m512i u[4];

    kt_wide_quad(w, u);
    KT_EACH (r, rows) {
        const __m512i q = _mm512_set1_epi32(kt_load_i32(x->a[r] + 32 * g));
        const __m512i start = _mm512_set1_epi32(x->start[r][g]);
        if (joins) kt_wide_join(chunk, x, g - 1, has_scales, r, dot, sum);
        KT_EACH (c, 4) dot[r][c] = kt_dpbusd512(start, u[c], q);
        KT_IN_ORDER();
    }
    KT_ROLLED for (int j = 1; j < 8; j++) {
        kt_wide_quad(w + 256 * j, u);
        KT_EACH (r, rows) {
            const __m512i q = _mm512_set1_epi32(kt_load_i32(x->a[r] + 32 * g + 4 * j));
            KT_EACH (c, 4) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
        }
    }
}

/* Rows [row, row + rows) of t, which of the first chunk begin at nothing. */
KT_INLINE void kt_wide_tile(const kt_tile *t, kt_wide_span *chunk, int row, const int has_scales,
                            const int rows) {
    float *to = t->c + KT_TILE_WIDTH * row;
    __m512i dot[KT_WIDE_ROWS][4];
    __m512 sum[KT_WIDE_ROWS][4];
    kt_wide_rows x;

    kt_wide_open_rows(&x, t, chunk, row, has_scales, rows);
    KT_EACH (r, rows) {
        KT_EACH (c, 4)
            sum[r][c] =
                chunk->i ? _mm512_load_ps(to + KT_TILE_WIDTH * r + 16 * c) : _mm512_setzero_ps();
    }
    kt_wide_group(chunk, &x, 0, 0, has_scales, rows, dot, sum);
    KT_ROLLED for (int g = 1; g < chunk->groups; g++)
        kt_wide_group(chunk, &x, g, 1, has_scales, rows, dot, sum);
    KT_EACH (r, rows) kt_wide_join(chunk, &x, chunk->groups - 1, has_scales, r, dot, sum);
    if (chunk->multipliers) {
        KT_EACH (c, 4) {
            const __m512 m = _mm512_load_ps(chunk->multipliers + 64 * c);
            KT_EACH (r, rows) sum[r][c] = _mm512_mul_ps(sum[r][c], m);
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, 4) _mm512_store_ps(to + KT_TILE_WIDTH * r + 16 * c, sum[r][c]);
    }
}

/* `count` tiles of `rows` rows from `row` on. */
KT_INLINE void kt_wide_tiles(kt_tile *t, kt_wide_span *chunk, int row, int count,
                             const int has_scales, const int rows) {
    const int is_last = chunk->i + 32 * chunk->groups == t->k;

    KT_ROLLED for (int end = row + rows * count; row < end; row += rows) {
        kt_tile_fetch_far(t);
        if (is_last) kt_tile_fetch_out(t, row, rows);
        kt_wide_tile(t, chunk, row, has_scales, rows);
    }
}

/* To be called from a function of its own. All rows: tiles of one size, then those of one row less,
 * since sizes in turn cost a mispredicted branch each. */
KT_INLINE void kt_wide_chunk(kt_tile *t, kt_wide_span *chunk, const int has_scales) {
    const int tiles = (t->rows + KT_WIDE_ROWS - 1) / KT_WIDE_ROWS;
    const int least = t->rows / tiles, more = t->rows % tiles;
    int row = 0;

    for (int rows = least + 1; rows >= least; rows--) {
        const int count = rows > least ? more : tiles - more;
        if (rows == 1) kt_wide_tiles(t, chunk, row, count, has_scales, 1);
        if (rows == 2) kt_wide_tiles(t, chunk, row, count, has_scales, 2);
        if (rows == 3) kt_wide_tiles(t, chunk, row, count, has_scales, 3);
        row += rows * count;
    }
}

/* The paces of what is fetched meanwhile become those of a tile of a chunk. */
static inline void kt_wide_set_paces(kt_tile *t) {
    const int tiles = (t->rows + KT_WIDE_ROWS - 1) / KT_WIDE_ROWS;
    kt_tile_set_part(t, KT_WIDE_GROUPS, tiles, t->ahead.pace, t->rows_ahead.pace);
}

#endif
