/* Tiles of blocks with grids (formats/grid.h) on AVX-512 VBMI and VNNI: integer products, scales
 * and order of sums are those of K-quants (blocks512.h), codes come from grids_open512.h.
 *
 * One or two rows multiply the bytes as they are made, a unit's points being looked up once for all
 * 64 panel rows. More rows open a block of 256 inputs into L1 first, where the micro kernels of
 * opened chunks (blocks512_tiles.h) read it: making bytes takes longer than two rows' products.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_GRIDS512_H
#define KT_P64_GRIDS512_H

#include "kernels/p64/blocks512_tiles.h"
#include "kernels/p64/grids_open512.h"

/* Integer sums of unit u of the chunk. */
KT_INLINE void kt_grid_dot_unit(const kt_p64_spec s, const kt_grid_words *g,
                                const kt_blocks_chunk *x, const uint8_t *const a[], int u,
                                const int rows, kt_blocks_dots dot) {
    const uint8_t *unit = x->w + kt_blocks_planes_at(s, u);
    const uint8_t *more = x->w + kt_p64_more_at(s, 32 * u);
    const int quads = 8 / kt_blocks_halves(s); /* of a half */

    kt_grid_digits d;

    KT_EACH (o, 8) {
        __m512i of[2], v[4];
        if (o % kt_grid_batch(s.grid) == 0) d = kt_grid_digits_of(s.grid, g, unit, more, o);
        kt_grid_quad(s.grid, &d, o, of);
        KT_IN_ORDER();
        KT_EACH (c, 4) v[c] = kt_grid_bytes(s.grid, g, of, unit, o, c);
        kt_blocks_multiply(a, 32 * u + 4 * o, o / quads, rows, 4, v, dot);
    }
}

/* Integer sums of a unit: kt_grid_dot_unit, or that of IQ1, which takes no words. */
typedef void kt_points_dot(const kt_p64_spec s, const kt_grid_words *g, const kt_blocks_chunk *x,
                           const uint8_t *const a[], int u, const int rows, kt_blocks_dots dot);

/* A block of 256 inputs joins the sums. */
KT_INLINE void kt_points_block_rows(const kt_p64_spec s, const kt_grid_words *g,
                                    kt_points_dot *dot_unit, const kt_blocks_chunk *x,
                                    kt_tile *ahead, const int rows) {
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
        dot_unit(s, g, x, a, u, rows, dot);
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

KT_INLINE void kt_tile_points_rows(kt_tile *tile, const kt_p64_spec s, const kt_grid_words *g,
                                   kt_points_dot *dot_unit, const int rows) {
    kt_blocks_chunk x = {.w = tile->panel, .k = tile->k, .units = KT_CHUNK_UNITS, .c = tile->c};

    KT_EACH (r, rows) {
        x.a[r] = tile->a[r];
        KT_EACH (c, 4) _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * c, _mm512_setzero_ps());
    }
    for (; x.i < x.k; x.i += s.span, x.w += kt_p64_block_bytes(s)) {
        KT_EACH (r, rows)
            kt_blocks_row_open(s, x.a[r], x.k, x.i, x.units, x.rows.start[r], x.rows.sum[r]);
        kt_points_block_rows(s, g, dot_unit, &x, tile, rows);
    }
}

KT_INLINE void kt_tile_points_run(kt_tile *t, const kt_p64_spec s, const kt_grid_words *g,
                                  kt_points_dot *dot_unit) {
    if (t->rows == 1) kt_tile_points_rows(t, s, g, dot_unit, 1);
    if (t->rows == 2) kt_tile_points_rows(t, s, g, dot_unit, 2);
}

/* The opener of kt_tile_blocks_many. */
KT_INLINE void kt_grid_open_chunk(const kt_p64_spec s, const uint8_t *w, kt_blocks_open *x) {
    const kt_grid_words g = kt_grid_words_of(s.grid);

    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        kt_grid_open_unit(s.grid, &g, w + kt_blocks_planes_at(s, u), w + kt_p64_more_at(s, 32 * u),
                          0, 4, x->codes[u][0]);
        kt_blocks_open_scales(s, w, u, x);
    }
}

/* KT_GRID_TILES(IQ2_XXS, iq2_xxs) defines run_iq2_xxs and many_iq2_xxs. */
#define KT_GRID_TILES(id, word)                                                              \
    static void run_##word(kt_tile *t) {                                                     \
        const kt_grid_words g = kt_grid_words_of(kt_p64_spec_of(KT_W_##id).grid);            \
        kt_tile_points_run(t, kt_p64_spec_of(KT_W_##id), &g, kt_grid_dot_unit);              \
    }                                                                                        \
    KT_BLOCKS_MICRO(id, word)                                                                \
    static void many_##word(kt_tile *t) {                                                    \
        kt_tile_blocks_many(t, kt_p64_spec_of(KT_W_##id), kt_grid_open_chunk, micro_##word); \
    }

#endif
