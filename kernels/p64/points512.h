/* Tiles of few rows over blocks of points, of one grid (grids512.h) or of IQ1, on AVX-512 VNNI:
 * integer products, scales and order of sums are those of K-quants (blocks512.h). Bytes of a unit are
 * multiplied as they are made, its points being looked up once for all 64 panel rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_POINTS512_H
#define KT_P64_POINTS512_H

#include "kernels/p64/blocks512_tiles.h"

/* Integer sums of unit u of the chunk. What `words` is, the format's kernel knows. */
typedef void kt_points_dot(const kt_p64_spec s, void *words, const kt_blocks_chunk *x,
                           const uint8_t *const a[], int u, const int rows, kt_blocks_dots dot);

/* A block of 256 inputs joins the sums. */
KT_INLINE void kt_points_block_rows(const kt_p64_spec s, void *words, kt_points_dot *dot_unit,
                                    const kt_blocks_chunk *x, kt_tile *ahead, const int rows) {
    __m512 part[KT_TILE_ROWS][4], low[KT_TILE_ROWS][4];
    const uint8_t *a[KT_TILE_ROWS];

    KT_EACH (r, rows) {
        a[r] = x->a[r] + x->i;
        KT_EACH (c, 4) part[r][c] = _mm512_setzero_ps();
    }
    for (size_t at = 0; at < kt_p64_front_bytes(s); at += 64) kt_blocks_touch(x->w + at);
    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        kt_blocks_dots dot;
        kt_tile_fetch_far(ahead);
        KT_EACH (h, 2) {
            if (h < kt_blocks_halves(s)) kt_blocks_begin(s, x, u, h, rows, 4, dot);
        }
        dot_unit(s, words, x, a, u, rows, dot);
        kt_blocks_scale_unit(s, x, a, u, rows, 4, 0, 0, dot, part, low);
    }
    KT_EACH (c, 4) {
        const __m512 factor = kt_blocks_factor(s, x->w, c);
        KT_EACH (r, rows) {
            float *to = x->c + KT_TILE_WIDTH * r + 16 * c;
            _mm512_store_ps(to, _mm512_fmadd_ps(part[r][c], factor, _mm512_load_ps(to)));
        }
    }
}

KT_INLINE void kt_tile_points_rows(kt_tile *tile, const kt_p64_spec s, void *words,
                                   kt_points_dot *dot_unit, const int rows) {
    kt_blocks_chunk x = {.w = tile->panel, .k = tile->k, .units = KT_CHUNK_UNITS, .c = tile->c};

    KT_EACH (r, rows) {
        x.a[r] = tile->a[r];
        KT_EACH (c, 4) _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * c, _mm512_setzero_ps());
    }
    for (; x.i < x.k; x.i += s.span, x.w += kt_p64_block_bytes(s)) {
        KT_EACH (r, rows)
            kt_blocks_row_open(s, x.a[r], x.k, x.i, x.units, x.rows.start[r], x.rows.sum[r]);
        kt_points_block_rows(s, words, dot_unit, &x, tile, rows);
    }
}

KT_INLINE void kt_tile_points_run(kt_tile *t, const kt_p64_spec s, void *words,
                                  kt_points_dot *dot_unit) {
    if (t->rows == 1) kt_tile_points_rows(t, s, words, dot_unit, 1);
    if (t->rows == 2) kt_tile_points_rows(t, s, words, dot_unit, 2);
}

#endif
