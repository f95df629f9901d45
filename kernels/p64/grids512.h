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

#include "kernels/p64/grids_open512.h"
#include "kernels/p64/points512.h"

/* kt_points_dot; words: kt_grid_words. */
KT_INLINE void kt_grid_dot_unit(const kt_p64_spec s, void *words, const kt_blocks_chunk *x,
                                const uint8_t *const a[], int u, const int rows,
                                kt_blocks_dots dot) {
    const kt_grid_words *g = words;
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
        kt_grid_words g = kt_grid_words_of(kt_p64_spec_of(KT_W_##id).grid);                  \
        kt_tile_points_run(t, kt_p64_spec_of(KT_W_##id), &g, kt_grid_dot_unit);              \
    }                                                                                        \
    KT_BLOCKS_MICRO(id, word)                                                                \
    static void many_##word(kt_tile *t) {                                                    \
        kt_tile_blocks_many(t, kt_p64_spec_of(KT_W_##id), kt_grid_open_chunk, micro_##word); \
    }

#endif
