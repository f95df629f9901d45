/* Panels of floats on AVX-512 without BF16, for many rows: FMA in f32 on a chunk of the panel that
 * is widened to f32 once, in L1, for all rows.
 *
 * A tile of few rows widens weights and activations as it multiplies: for BF16 20 operations beside
 * 48 FMA, for FP8 more than FMA, and on Intel all of them share two ports. Here FMA has nothing but
 * loads beside it; what is left is to widen each weight once for up to 128 rows, and each
 * activation once for a panel.
 *
 * The sums of an output are added in the order of the tile of few rows, so a row has the same bits
 * whatever the number of rows: BF16 in the order of k; FP8 and halves even inputs and odd ones
 * apart, joined where a scale ends (fp8x512.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FLOATS512_H
#define KT_P64_FLOATS512_H

#include "kernels/p64/fp8x512.h"
#include "kernels/simd/bf16x512.h"

#define KT_FLOATS_CHUNK 64 /* inputs: 16 KiB of weights, half of the least L1 */

typedef struct kt_floats {
    /* Inputs of a chunk in the order in which they are added; `a` of one tile's rows after
     * another's. */
    _Alignas(64) float w[KT_FLOATS_CHUNK][KT_TILE_WIDTH];
    _Alignas(64) float a[KT_TILE_ROWS][KT_FLOATS_CHUNK];
    /* Sums over the even inputs, where they are apart. */
    _Alignas(64) float even[KT_MANY_ROWS * KT_TILE_WIDTH];
    int64_t i; /* the chunk: inputs [i, i + inputs) of the panel */
    int inputs;
    int is_first, is_last; /* of the inputs with one scale */
} kt_floats;

/* sum += the products of one input: `w` of 64 outputs, `a` of `rows` rows. */
KT_INLINE void kt_floats_input(const float *w, const float *a, const int rows,
                               __m512 sum[KT_TILE_ROWS][4]) {
    __m512 u[4];

    KT_IN_ORDER();
    KT_EACH (c, 4) u[c] = _mm512_load_ps(w + 16 * c);
    KT_EACH (r, rows) {
        const __m512 v = _mm512_set1_ps(a[KT_FLOATS_CHUNK * r]);
        KT_EACH (c, 4) sum[r][c] = _mm512_fmadd_ps(u[c], v, sum[r][c]);
    }
}

/* Of all the inputs of a chunk, in the order of k; of 32 the rows have the even ones before the odd
 * ones. */
KT_INLINE void kt_floats_pairs(const kt_floats *x, const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    const float *w = x->w[0];

    KT_ROLLED for (int j = 0; j < x->inputs; j += 2, w += 2 * KT_TILE_WIDTH) {
        const float *a = x->a[0] + (j & ~31) + (j & 31) / 2;
        kt_floats_input(w, a, rows, sum);
        kt_floats_input(w + KT_TILE_WIDTH, a + 16, rows, sum);
    }
}

/* Of its even or odd ones, which weights and rows have in order. */
KT_INLINE void kt_floats_half(const kt_floats *x, const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    const float *w = x->w[0], *a = x->a[0];

    KT_ROLLED for (int j = 0; j < x->inputs; j += 4, w += 2 * KT_TILE_WIDTH, a += 2) {
        kt_floats_input(w, a, rows, sum);
        kt_floats_input(w + KT_TILE_WIDTH, a + 1, rows, sum);
    }
}

/* --- what is widened ------------------------------------------------------------------------- */

/* BF16: `inputs` from the pair at `panel` on. */
static inline void kt_floats_open_bf16(kt_floats *x, const uint8_t *panel, int inputs) {
    for (int j = 0; j < inputs; j += 2, panel += 256)
        KT_EACH (c, 4) {
            const __m512i pair = _mm512_load_si512(panel + 64 * c);
            _mm512_store_ps(x->w[j] + 16 * c, kt_bf16_even512(pair));
            _mm512_store_ps(x->w[j + 1] + 16 * c, kt_bf16_odd512(pair));
        }
}

/* 16 rows of one input, then of another, from halves in the order of `apart`. */
KT_INLINE void kt_floats_of_halves(__m512i halves, __m512i apart, __m512 out[2]) {
    const __m512i both = _mm512_permutexvar_epi16(apart, halves);
    out[0] = kt_half_widen(both, 0);
    out[1] = kt_half_widen(both, 1);
}

/* FP8: of `inputs` from the quad at `panel` on the even or the odd ones, 2^-8 of their values.
 * Sixteen bytes hold four rows: two inputs of each, then their next two. */
static inline void kt_floats_open_fp8(kt_floats *x, const uint8_t *panel, int inputs,
                                      const int odd) {
    const __m512i apart =
        _mm512_set_epi16(31, 30, 29, 28, 23, 22, 21, 20, 15, 14, 13, 12, 7, 6, 5, 4, 27, 26, 25, 24,
                         19, 18, 17, 16, 11, 10, 9, 8, 3, 2, 1, 0);
    for (int j = 0; j < inputs / 2; j += 2, panel += 256)
        KT_EACH (c, 4) {
            const __m512i quad = _mm512_load_si512(panel + 64 * c);
            __m512 out[2];
            const __m512i codes = odd ? quad : _mm512_slli_epi16(quad, 8);
            kt_floats_of_halves(kt_half_of_fp8(codes), apart, out);
            _mm512_store_ps(x->w[j] + 16 * c, out[0]);
            _mm512_store_ps(x->w[j + 1] + 16 * c, out[1]);
        }
}

/* F16: likewise. */
static inline void kt_floats_open_f16(kt_floats *x, const uint8_t *panel, int inputs,
                                      const int odd) {
    const __m512i apart =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    for (int j = 0; j < inputs / 2; j++, panel += 256)
        KT_EACH (c, 4) {
            __m512 out[2];
            kt_floats_of_halves(_mm512_load_si512(panel + 64 * c), apart, out);
            _mm512_store_ps(x->w[j] + 16 * c, out[odd]);
        }
}

/* The chunk's activations of `rows` rows: of 32 the even ones, then the odd ones. */
KT_INLINE void kt_floats_rows_pairs(kt_floats *x, const uint8_t *const *a, const int rows) {
    KT_ROLLED for (int j = 0; j < x->inputs; j += 32) {
        KT_EACH (r, rows) {
            const __m512i pair = _mm512_load_si512(a[r] + 2 * (x->i + j));
            _mm512_store_ps(x->a[r] + j, kt_bf16_even512(pair));
            _mm512_store_ps(x->a[r] + j + 16, kt_bf16_odd512(pair));
        }
    }
}

/* Only the even or the odd ones. */
KT_INLINE void kt_floats_rows_half(kt_floats *x, const uint8_t *const *a, const int rows,
                                   const int odd) {
    KT_ROLLED for (int j = 0; j < x->inputs; j += 32) {
        KT_EACH (r, rows) {
            const __m512i pair = _mm512_load_si512(a[r] + 2 * (x->i + j));
            _mm512_store_ps(x->a[r] + j / 2, odd ? kt_bf16_odd512(pair) : kt_bf16_even512(pair));
        }
    }
}

/* Sums of `rows` rows as they lie at `from`, or none yet. */
KT_INLINE void kt_floats_begin(const float *from, int is_first, const int rows,
                               __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (r, rows) {
        KT_EACH (c, 4)
            sum[r][c] =
                is_first ? _mm512_setzero_ps() : _mm512_load_ps(from + KT_TILE_WIDTH * r + 16 * c);
    }
}

KT_INLINE void kt_floats_end(float *to, const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (r, rows) {
        KT_EACH (c, 4) _mm512_store_ps(to + KT_TILE_WIDTH * r + 16 * c, sum[r][c]);
    }
}

/* --- tiles ----------------------------------------------------------------------------------- */

/* What a tile of the chunk does with rows [row, row + rows) of t. */
KT_INLINE void kt_floats_tile_bf16(kt_tile *t, kt_floats *x, const int row, const int rows) {
    float *c = t->c + KT_TILE_WIDTH * row;
    __m512 sum[KT_TILE_ROWS][4];

    kt_floats_rows_pairs(x, t->a + row, rows);
    kt_floats_begin(c, x->is_first, rows, sum);
    kt_floats_pairs(x, rows, sum);
    kt_floats_end(c, rows, sum);
}

/* Even inputs first, odd ones in a second pass over the chunk, which joins them where the scale
 * ends. */
KT_INLINE void kt_floats_tile_half(kt_tile *t, kt_floats *x, const kt_weight_format format,
                                   const int odd, const int row, const int rows) {
    const int64_t block = kt_fp8_block(format, t->k), b = x->i / block;
    const __m512 power = _mm512_set1_ps(format == KT_W_F16 ? 1.0f : 256.0f);
    float *even = x->even + KT_TILE_WIDTH * row, *c = t->c + KT_TILE_WIDTH * row;
    __m512 sum[KT_TILE_ROWS][4];

    kt_floats_rows_half(x, t->a + row, rows, odd);
    kt_floats_begin(odd ? c : even, x->is_first, rows, sum);
    kt_floats_half(x, rows, sum);
    if (!odd || !x->is_last) {
        kt_floats_end(odd ? c : even, rows, sum);
        return;
    }
    KT_EACH (j, 4) {
        const uint8_t *scales = t->panel + (format == KT_W_F16 ? 128 : 64) * t->k;
        const __m512 scale = kt_fp8_scale(format, scales, b, j);
        KT_EACH (r, rows) {
            const int at = KT_TILE_WIDTH * r + 16 * j;
            const __m512 both = _mm512_add_ps(_mm512_load_ps(even + at), sum[r][j]);
            kt_fp8_join(c + at, _mm512_mul_ps(both, power), scale, b);
        }
    }
}

/* One tile; `format` and `odd` are constants, `rows` becomes one. */
#define KT_FLOATS_ROWS(tile, ...)          \
    switch (rows) {                        \
    case 1: tile(__VA_ARGS__, 1); return;  \
    case 2: tile(__VA_ARGS__, 2); return;  \
    case 3: tile(__VA_ARGS__, 3); return;  \
    case 4: tile(__VA_ARGS__, 4); return;  \
    case 5: tile(__VA_ARGS__, 5); return;  \
    default: tile(__VA_ARGS__, 6); return; \
    }

typedef void kt_floats_tile(kt_tile *t, kt_floats *x, int row, int rows);

/* All rows of t, in tiles of one size, then those of one row less. */
static inline void kt_floats_tiles(kt_tile *t, kt_floats *x, kt_floats_tile *tile) {
    const int tiles = (t->rows + KT_TILE_ROWS - 1) / KT_TILE_ROWS;
    const int least = t->rows / tiles, more = t->rows % tiles;

    for (int n = 0, row = 0; n < tiles; n++) {
        const int rows = least + (n < more);
        kt_tile_fetch_far(t);
        if (x->i + x->inputs == t->k) kt_tile_fetch_out(t, row, rows);
        tile(t, x, row, rows);
        row += rows;
    }
}

/* Chunks of at most `most` inputs in `passes` passes over the rows: the paces of what is fetched
 * meanwhile. */
static inline void kt_floats_set_paces(kt_tile *t, int most, int passes) {
    const int tiles = (t->rows + KT_TILE_ROWS - 1) / KT_TILE_ROWS;
    kt_tile_set_part(t, most / KT_TILE_STEP, passes * tiles, t->ahead.pace, t->rows_ahead.pace);
}

KT_INLINE void kt_floats_chunk(kt_floats *x, int64_t k, int64_t i, int most, int64_t block) {
    x->i = i;
    x->inputs = k - i < most ? (int)(k - i) : most;
    x->is_first = i % block == 0;
    x->is_last = (i + x->inputs) % block == 0 || i + x->inputs == k;
}

static inline void kt_floats_many_bf16(kt_tile *t, kt_floats_tile *tile) {
    const uintptr_t rows_pace = t->rows_ahead.pace;
    kt_floats x;

    kt_floats_set_paces(t, KT_FLOATS_CHUNK, 1);
    for (int64_t i = 0; i < t->k; i += KT_FLOATS_CHUNK) {
        kt_floats_chunk(&x, t->k, i, KT_FLOATS_CHUNK, t->k);
        kt_floats_open_bf16(&x, t->panel + 128 * i, x.inputs);
        kt_floats_tiles(t, &x, tile);
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

/* `tiles`: of the even inputs and of the odd ones. */
KT_INLINE void kt_floats_many_half(kt_tile *t, const kt_weight_format format,
                                   kt_floats_tile *const tiles[2]) {
    const int64_t block = kt_fp8_block(format, t->k);
    const int most = block < 2 * KT_FLOATS_CHUNK ? (int)block : 2 * KT_FLOATS_CHUNK;
    const uintptr_t rows_pace = t->rows_ahead.pace;
    kt_floats x;

    kt_floats_set_paces(t, most, 2);
    for (int64_t i = 0; i < t->k; i += most) {
        kt_floats_chunk(&x, t->k, i, most, block);
        KT_EACH (odd, 2) {
            if (format == KT_W_F16)
                kt_floats_open_f16(&x, t->panel + 128 * i, x.inputs, odd);
            else
                kt_floats_open_fp8(&x, t->panel + 64 * i, x.inputs, odd);
            kt_floats_tiles(t, &x, tiles[odd]);
        }
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace;
}

/* KT_FLOATS_MANY(FP8_B128, f8b128) defines many_f8b128 for a kt_tile_kind. */
#define KT_FLOATS_MANY(id, word)                                                                  \
    static                                                                                        \
        __attribute__((noinline)) void even_##word(kt_tile *t, kt_floats *x, int row, int rows) { \
        KT_FLOATS_ROWS(kt_floats_tile_half, t, x, KT_W_##id, 0, row)                              \
    }                                                                                             \
    static                                                                                        \
        __attribute__((noinline)) void odd_##word(kt_tile *t, kt_floats *x, int row, int rows) {  \
        KT_FLOATS_ROWS(kt_floats_tile_half, t, x, KT_W_##id, 1, row)                              \
    }                                                                                             \
    static void many_##word(kt_tile *t) {                                                         \
        static kt_floats_tile *const tiles[2] = {even_##word, odd_##word};                        \
        kt_floats_many_half(t, KT_W_##id, tiles);                                                 \
    }

#endif
