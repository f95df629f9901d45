/* Tiles over whole panels of block formats, from the chunks of blocks512.h: a few rows straight
 * from the planes; Q6_K and Q3_K for many rows from chunks opened in L1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_BLOCKS512_TILES_H
#define KT_SIMD_BLOCKS512_TILES_H

#include "kernels/p64/blocks512.h"

KT_INLINE int kt_blocks_chunk_units(const kt_p64_spec s, const kt_blocks_chunk *x) {
    const int most = kt_blocks_units(s);
    return x->k - x->i < 32 * most ? (int)((x->k - x->i) / 32) : most;
}

/* --- a few rows ------------------------------------------------------------------------------- */

KT_INLINE void kt_tile_blocks(kt_tile *tile, const kt_p64_spec s, const int rows, const int cols,
                              const int col) {
    kt_blocks_chunk x = {.w = tile->panel, .k = tile->k, .c = tile->c};

    KT_EACH (r, rows) {
        x.a[r] = tile->a[r];
        KT_EACH (c, cols)
            _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c), _mm512_setzero_ps());
    }
    for (; x.i < x.k; x.i += 32 * x.units) {
        x.units = kt_blocks_chunk_units(s, &x);
        KT_EACH (r, rows)
            kt_blocks_row_open(s, x.a[r], x.k, x.i, x.units, x.rows.start[r], x.rows.sum[r]);
        kt_blocks_micro(s, &x, tile, rows, cols, col, 0);
        x.w += kt_blocks_chunk_bytes(s, x.units);
    }
    if (!kt_p64_tail_bytes(s)) return;
    KT_EACH (c, cols) { /* behind the blocks lie factors of the panel's rows */
        const __m512 factor = kt_load_f32x16(x.w + 64 * (col + c));
        KT_EACH (r, rows) {
            float *sum = tile->c + KT_TILE_WIDTH * r + 16 * (col + c);
            _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor));
        }
    }
}

/* Integer sums, halves of them, f32 sums and sums of minima of a row and column: registers. */
KT_INLINE int kt_blocks_registers(const kt_p64_spec s) {
    if (kt_blocks_is_apart(s)) return 2; /* from three rows on; see kt_blocks_add_halves */
    return kt_blocks_halves(s) + 1 + (kt_blocks_is_integer(s) && kt_blocks_has_minimum(s));
}

/* Up to so many rows hold all 64 panel rows in registers and read them in one pass of full
 * lines; more hold 32 at a time. */
KT_INLINE int kt_blocks_full_rows(const kt_p64_spec s) {
    return kt_blocks_registers(s) <= 2 && !kt_blocks_is_apart(s) ? 3 : 2;
}

KT_INLINE void kt_tile_blocks_rows(kt_tile *t, const kt_p64_spec s, const int rows) {
    if (rows <= kt_blocks_full_rows(s)) {
        kt_tile_blocks(t, s, rows, 4, 0);
        return;
    }
    for (int col = 0; col < 4; col += 2) kt_tile_blocks(t, s, rows, 2, col);
}

/* Up to six rows; four where a row takes more registers. */
KT_INLINE void kt_tile_blocks_run(kt_tile *t, const kt_p64_spec s) {
    switch (t->rows) {
    case 1: kt_tile_blocks_rows(t, s, 1); return;
    case 2: kt_tile_blocks_rows(t, s, 2); return;
    case 3: kt_tile_blocks_rows(t, s, 3); return;
    case 4: kt_tile_blocks_rows(t, s, 4); return;
    default: break;
    }
    if (kt_blocks_registers(s) > 2) return;
    if (t->rows == 5) kt_tile_blocks_rows(t, s, 5);
    if (t->rows == 6) kt_tile_blocks_rows(t, s, 6);
}

/* --- many rows -------------------------------------------------------------------------------- */

/* Scales of unit u of the block at w. */
KT_INLINE void kt_blocks_open_scales(const kt_p64_spec s, const uint8_t *w, int u,
                                     kt_blocks_open *x) {
    const uint8_t *scales = w + kt_blocks_scales_at(s, u);
    const int halves = kt_blocks_halves(s);

    KT_EACH (h, halves) {
        KT_EACH (c, 4)
            _mm512_store_si512(x->scale[halves * u + h] + 16 * c,
                               kt_blocks_integer_scale(s, scales + h * kt_p64_scale_bytes(s), c));
    }
}

/* Unpack the chunk at w: a block of a K-quant. */
KT_INLINE void kt_blocks_open_chunk(const kt_p64_spec s, const uint8_t *w, kt_blocks_open *x) {
    const __m512i table = kt_blocks_table(s);

    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        const uint8_t *high = w + kt_blocks_planes_at(s, u), *low = high + 256 * s.high;
        KT_ROLLED for (int c = 0; c < 4; c++) {
            KT_EACH (j, s.low) {
                const __m512i line = _mm512_load_si512(low + 256 * j + 64 * c);
                KT_EACH (t, 8 / s.low) {
                    const int o = j + s.low * t;
                    _mm512_store_si512(x->codes[u][o] + 64 * c,
                                       kt_blocks_codes(s, line, high + 64 * c, o, table));
                }
            }
        }
        kt_blocks_open_scales(s, w, u, x);
    }
}

/* Rows of a tile over an opened chunk, 32 panel rows at a time: sums of two halves and of
 * floats. */
#define KT_BLOCKS_OPEN_ROWS 4

typedef void kt_blocks_micro_run(const kt_blocks_chunk *x, int rows);

KT_INLINE void kt_blocks_micro_any(const kt_p64_spec s, const kt_blocks_chunk *x, int rows) {
    for (int col = 0; col < 4; col += 2) {
        if (rows == 1) kt_blocks_micro(s, x, NULL, 1, 2, col, 1);
        if (rows == 2) kt_blocks_micro(s, x, NULL, 2, 2, col, 1);
        if (rows == 3) kt_blocks_micro(s, x, NULL, 3, 2, col, 1);
        if (rows == 4) kt_blocks_micro(s, x, NULL, 4, 2, col, 1);
    }
}

/* Open the chunk at w: kt_blocks_open_chunk, or that of points. */
typedef void kt_blocks_opener(const kt_p64_spec s, const uint8_t *w, kt_blocks_open *x);

KT_INLINE void kt_tile_blocks_many(kt_tile *t, const kt_p64_spec s, kt_blocks_opener *opener,
                                   kt_blocks_micro_run *micro) {
    const int tiles = (t->rows + KT_BLOCKS_OPEN_ROWS - 1) / KT_BLOCKS_OPEN_ROWS;
    const uintptr_t pace = t->ahead.pace, rows_pace = t->rows_ahead.pace;
    kt_blocks_open open;
    kt_blocks_chunk x = {.w = t->panel, .open = &open, .k = t->k, .units = KT_CHUNK_UNITS};

    memset(t->c, 0, sizeof(float) * KT_TILE_WIDTH * (size_t)t->rows);
    for (; x.i < x.k; x.i += s.span, x.w += kt_p64_block_bytes(s)) {
        opener(s, x.w, &open);
        for (int b = 0; b < tiles; b++) {
            const int row = t->rows * b / tiles, rows = t->rows * (b + 1) / tiles - row;
            kt_tile_fetch_part(t, KT_CHUNK_UNITS, tiles, pace, rows_pace);
            if (x.i + s.span == x.k) kt_tile_fetch_out(t, row, rows);
            for (int r = 0; r < rows; r++) {
                x.a[r] = t->a[row + r];
                kt_blocks_row_open(s, x.a[r], x.k, x.i, x.units, x.rows.start[r], x.rows.sum[r]);
            }
            x.c = t->c + KT_TILE_WIDTH * row;
            micro(&x, rows);
        }
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

/* The tiles of one format: KT_BLOCKS_TILE(Q4_K, q4_k) defines run_q4_k. */
#define KT_BLOCKS_TILE(id, word)                          \
    static void run_##word(kt_tile *t) {                  \
        kt_tile_blocks_run(t, kt_p64_spec_of(KT_W_##id)); \
    }
#define KT_BLOCKS_KIND(id, word, full_rows) \
    { run_##word, KT_W_##id, full_rows, NULL, 0, 0 }

/* KT_BLOCKS_MANY(Q3_K, q3_k, q6_k) defines many_q3_k, which opens chunks for micro_q6_k: one
 * loop over opened chunks, KT_BLOCKS_MICRO(Q6_K, q6_k), serves all formats of a kind. */
#define KT_BLOCKS_MICRO(id, word)                                                            \
    static __attribute__((noinline)) void micro_##word(const kt_blocks_chunk *x, int rows) { \
        kt_blocks_micro_any(kt_p64_spec_of(KT_W_##id), x, rows);                             \
    }
#define KT_BLOCKS_MANY(id, word, kind)                                                         \
    static void many_##word(kt_tile *t) {                                                      \
        kt_tile_blocks_many(t, kt_p64_spec_of(KT_W_##id), kt_blocks_open_chunk, micro_##kind); \
    }
#define KT_BLOCKS_KIND_MANY(id, word, full_rows) \
    { run_##word, KT_W_##id, full_rows, many_##word, 0, 0 }

#endif
