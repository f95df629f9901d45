/* Panel kernels on AMX-BF16 for weights that become bfloat16 without loss: E4M3 codes (wf8c,
 * wf8b128, wmxfp8) and halves (wf16), the latter as the sum of two bfloat16 (11 bits: the upper 8,
 * the rest).
 *
 * A chunk of 128 inputs of the panel is widened once into a scratch panel of wbf16's form for all rows of
 * the block. While tiles multiply one chunk, AVX-512 widens the next, a share of it per step. A step is
 * two tile rows by half the panel, or one tile row, if it is the last of an odd number, by all of it:
 * four sums either way.
 *
 * wf8b128 has a scale per chunk and per 32 panel rows, which is not a power of two: it multiplies the f32
 * sum of the chunk, one step behind the tiles so that no load waits for a tile's store. Elsewhere a sum
 * goes on from chunk to chunk. Sums are kept per tile, not per row: tiles that overlap (p64_amx.h) would
 * add to the rows they share twice.
 *
 * Scales of wmxfp8 are powers of two: a code times one is a bfloat16 number, but for results out of
 * the range of normal ones, so they go into the chunk and sums go on.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_AMX_WIDE_H
#define KT_SIMD_AMX_WIDE_H

#include "kernels/simd/fp8_table512.h"
#include "kernels/p64/p64_amx.h"

#define KT_WIDE_INPUTS 128               /* a chunk: the inputs of a block of wf8b128 */
#define KT_WIDE_ROWS (KT_AMX_BLOCK + 16) /* rows of all tiles, shared ones counted twice */

/* A chunk as wbf16: [planes][pairs of inputs][64 rows][2]. Only wf16 has a second plane. */
typedef struct kt_wide_chunk {
    _Alignas(64) uint8_t plane[2][128 * KT_WIDE_INPUTS];
} kt_wide_chunk;

typedef struct kt_wide_sums {
    _Alignas(64) float row[KT_WIDE_ROWS][64]; /* row r of tile b: b * height + r */
} kt_wide_sums;

/* Chunk i, tile row b (and b + 1 if tiles is 2), quarters [c, c + 4 / tiles) of the panel. */
typedef struct kt_wide_step {
    int64_t i;
    int b, tiles, c;
} kt_wide_step;

typedef struct kt_wide {
    const kt_p64_tile *t;
    kt_amx_rows x;
    kt_wide_chunk chunk[2]; /* chunk i is in [i & 1] */
    kt_wide_sums sums[2];   /* likewise, where chunks have scales; else all in [0] */
} kt_wide;

/* --- widening --------------------------------------------------------------------------------- */

/* Both bfloat16 of every lane times the lane's power of two. */
KT_INLINE __m512i kt_wide_scale(__m512i pair, __m512 power) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(even, power)), 16);
    return _mm512_or_si512(low,
                           _mm512_and_si512(_mm512_castps_si512(_mm512_mul_ps(odd, power)), upper));
}

/* exponents: of the quad's 32 inputs (wmxfp8), or NULL. */
KT_INLINE void kt_wide_fp8(const uint8_t *w, int quad, const __m512i tables[4],
                           const uint8_t *exponents, kt_wide_chunk *to) {
    for (int c = 0; c < 4; c++) {
        uint8_t *at = to->plane[0] + 512 * quad + 64 * c;
        __m512i pair[2];
        kt_fp8_widen(w + 256 * quad + 64 * c, tables, pair);
        if (exponents) {
            const __m512 power = kt_fp8_powers(exponents + 16 * c);
            pair[0] = kt_wide_scale(pair[0], power);
            pair[1] = kt_wide_scale(pair[1], power);
        }
        _mm512_store_si512(at, pair[0]);
        _mm512_store_si512(at + 256, pair[1]);
    }
}

/* The upper 16 bits of every lane. */
KT_INLINE void kt_wide_store(uint8_t *to, __m512 x) {
    const __m256i upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16));
    _mm256_store_si256((__m256i *)(void *)to, upper);
}

/* Sixteen halves as two bfloat16 each. Cutting off keeps infinity and NaN (made quiet by the conversion);
 * their rest is zero, since the difference would be NaN. */
KT_INLINE void kt_wide_halves(const uint8_t *w, uint8_t *upper, uint8_t *rest) {
    const __m512 x = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)w));
    const __m512 cut = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int32_t)0xffff0000u)));
    const __mmask16 finite = (__mmask16)~_mm512_fpclass_ps_mask(x, 0x99);

    kt_wide_store(upper, cut);
    kt_wide_store(rest, _mm512_maskz_sub_ps(finite, x, cut));
}

/* Share `part` of `parts` of the chunk of `inputs` inputs at w; of wmxfp8 its exponents lie at
 * `scales`. */
KT_INLINE void kt_wide_open(const kt_weight_format format, const uint8_t *w, const uint8_t *scales,
                            int inputs, int part, int parts, const __m512i tables[4],
                            kt_wide_chunk *to) {
    const int quads = inputs / 4;

    for (int q = quads * part / parts; q < quads * (part + 1) / parts; q++) {
        if (format != KT_W_F16) {
            kt_wide_fp8(w, q, tables, format == KT_W_MXFP8 ? scales + q / 8 * 64 : NULL, to);
            continue;
        }
        for (int at = 512 * q; at < 512 * (q + 1); at += 32)
            kt_wide_halves(w + at, to->plane[0] + at, to->plane[1] + at);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Where tile row b keeps quarter c of its sums. */
KT_INLINE float *kt_wide_sum(kt_wide *x, int64_t i, int b, int c) {
    return &x->sums[i & 1].row[b * x->x.height][16 * c];
}

KT_INLINE void kt_wide_two_rows(kt_wide *x, const kt_weight_format format, int inputs,
                                const kt_wide_step *s, int64_t slot) {
    const kt_amx_rows *r = &x->x;
    const uint8_t *a = r->base + kt_amx_first(r, s->b) * r->stride + 2 * KT_WIDE_INPUTS * s->i;
    const uint8_t *a2 = r->base + kt_amx_first(r, s->b + 1) * r->stride + 2 * KT_WIDE_INPUTS * s->i;
    float *out = kt_wide_sum(x, slot, s->b, s->c), *out2 = kt_wide_sum(x, slot, s->b + 1, s->c);

    if (format == KT_W_FP8_B128 || s->i == 0) {
        KT_AMX_ZERO(0);
        KT_AMX_ZERO(1);
        KT_AMX_ZERO(2);
        KT_AMX_ZERO(3);
    } else {
        KT_AMX_LOAD(0, out, 256);
        KT_AMX_LOAD(1, out + 16, 256);
        KT_AMX_LOAD(2, out2, 256);
        KT_AMX_LOAD(3, out2 + 16, 256);
    }
    for (int k = 0; k < inputs; k += 32) {
        KT_AMX_LOAD(4, a + 2 * k, r->stride);
        KT_AMX_LOAD(5, a2 + 2 * k, r->stride);
        for (int p = 0; p < (format == KT_W_F16 ? 2 : 1); p++) {
            const uint8_t *w = x->chunk[s->i & 1].plane[p] + 128 * k + 64 * s->c;
            KT_AMX_LOAD(6, w, 256);
            KT_AMX_DOT_BF16(0, 4, 6);
            KT_AMX_LOAD(7, w + 64, 256);
            KT_AMX_DOT_BF16(1, 4, 7);
            KT_AMX_DOT_BF16(2, 5, 6);
            KT_AMX_DOT_BF16(3, 5, 7);
        }
    }
    KT_AMX_STORE(0, out, 256);
    KT_AMX_STORE(1, out + 16, 256);
    KT_AMX_STORE(2, out2, 256);
    KT_AMX_STORE(3, out2 + 16, 256);
}

KT_INLINE void kt_wide_one_row(kt_wide *x, const kt_weight_format format, int inputs,
                               const kt_wide_step *s, int64_t slot) {
    const kt_amx_rows *r = &x->x;
    const uint8_t *a = r->base + kt_amx_first(r, s->b) * r->stride + 2 * KT_WIDE_INPUTS * s->i;
    float *out = kt_wide_sum(x, slot, s->b, 0);

    if (format == KT_W_FP8_B128 || s->i == 0) {
        KT_AMX_ZERO(0);
        KT_AMX_ZERO(1);
        KT_AMX_ZERO(2);
        KT_AMX_ZERO(3);
    } else {
        KT_AMX_LOAD(0, out, 256);
        KT_AMX_LOAD(1, out + 16, 256);
        KT_AMX_LOAD(2, out + 32, 256);
        KT_AMX_LOAD(3, out + 48, 256);
    }
    for (int k = 0; k < inputs; k += 32) {
        KT_AMX_LOAD(4, a + 2 * k, r->stride);
        for (int p = 0; p < (format == KT_W_F16 ? 2 : 1); p++) {
            const uint8_t *w = x->chunk[s->i & 1].plane[p] + 128 * k;
            KT_AMX_LOAD(6, w, 256);
            KT_AMX_DOT_BF16(0, 4, 6);
            KT_AMX_LOAD(7, w + 64, 256);
            KT_AMX_DOT_BF16(1, 4, 7);
            KT_AMX_LOAD(6, w + 128, 256);
            KT_AMX_DOT_BF16(2, 4, 6);
            KT_AMX_LOAD(7, w + 192, 256);
            KT_AMX_DOT_BF16(3, 4, 7);
        }
    }
    KT_AMX_STORE(0, out, 256);
    KT_AMX_STORE(1, out + 16, 256);
    KT_AMX_STORE(2, out + 32, 256);
    KT_AMX_STORE(3, out + 48, 256);
}

/* Add the sums of a step, times the scales of its chunk, to the block's rows, or write them. A tile that
 * overlaps the one before has its first rows from that one. */
KT_INLINE void kt_wide_join(kt_wide *x, const kt_weight_format format, const kt_wide_step *s,
                            int64_t slot) {
    const kt_p64_tile *t = x->t;
    const uint8_t *scales = t->panel + 64 * t->k;
    const int height = x->x.height, first = s->b * height, end = (s->b + s->tiles) * height;

    for (int c = s->c; c < s->c + 4 / s->tiles; c++) {
        __m512 scale = _mm512_set1_ps(1.0f);
        if (format == KT_W_FP8_CHANNEL)
            scale = _mm512_load_ps((const float *)(const void *)scales + 16 * c);
        if (format == KT_W_FP8_B128)
            scale = _mm512_set1_ps(((const float *)(const void *)scales)[2 * s->i + c / 2]);
        for (int r = first; r < end && r < x->x.rows; r++) {
            const int b = r / height, at = b * height + r - kt_amx_first(&x->x, b);
            const __m512 sum = _mm512_load_ps(&x->sums[slot & 1].row[at][16 * c]);
            float *to = t->tile + 64 * r + 16 * c;
            if (format == KT_W_FP8_B128 && s->i > 0)
                _mm512_store_ps(to, _mm512_fmadd_ps(sum, scale, _mm512_load_ps(to)));
            else
                _mm512_store_ps(to, _mm512_mul_ps(sum, scale));
        }
    }
}

/* Step `at` of a chunk. Pairs of tile rows take two steps, the last of an odd number one. */
KT_INLINE kt_wide_step kt_wide_step_at(const kt_amx_rows *x, int64_t i, int at) {
    const int b = at / 2 * 2;
    const kt_wide_step pair = {i, b, 2, 2 * (at % 2)}, single = {i, b, 1, 0};
    return b + 2 <= x->tiles ? pair : single;
}

KT_INLINE void kt_amx_tile_wide(const kt_p64_tile *t, const kt_weight_format format) {
    const int64_t chunks = (t->k + KT_WIDE_INPUTS - 1) / KT_WIDE_INPUTS;
    const size_t chunk_bytes = KT_WIDE_INPUTS * (format == KT_W_F16 ? 128 : 64);
    const int has_scales = format == KT_W_FP8_B128;
    kt_amx_config config = {.palette = 1};
    kt_wide_step last = {-1, 0, 0, 0};
    __m512i tables[4];
    kt_wide x;
    int steps;

    x.t = t;
    x.x = kt_amx_rows_of(t);
    steps = x.x.tiles / 2 * 2 + x.x.tiles % 2;
    kt_fp8_tables(tables);
    kt_amx_shape(&config, 0, 5, x.x.height, 64);
    kt_amx_shape(&config, 6, 7, 16, 64);
    KT_AMX_CONFIGURE(&config);
    for (int64_t i = -1; i < chunks; i++) {
        const int64_t next = i + 1, left = t->k - KT_WIDE_INPUTS * i;
        const int inputs = left < KT_WIDE_INPUTS ? (int)left : KT_WIDE_INPUTS;
        const int64_t next_left = t->k - KT_WIDE_INPUTS * next;
        const int next_inputs = next_left < KT_WIDE_INPUTS ? (int)next_left : KT_WIDE_INPUTS;

        for (int at = 0; at < steps; at++) {
            const kt_wide_step s = kt_wide_step_at(&x.x, i, at);
            if (i >= 0 && s.tiles == 2) kt_wide_two_rows(&x, format, inputs, &s, has_scales * i);
            if (i >= 0 && s.tiles == 1) kt_wide_one_row(&x, format, inputs, &s, has_scales * i);
            if (next < chunks)
                kt_wide_open(format, t->panel + (size_t)next * chunk_bytes,
                             t->panel + 64 * t->k + 64 * (KT_WIDE_INPUTS / 32) * next, next_inputs,
                             at, steps, tables, &x.chunk[next & 1]);
            if (last.i >= 0 && (has_scales || last.i == chunks - 1))
                kt_wide_join(&x, format, &last, has_scales * last.i);
            last = s;
        }
    }
    kt_wide_join(&x, format, &last, has_scales * last.i);
}

static __attribute__((noinline)) void kt_tile_wf8b128_amx(const kt_p64_tile *t) {
    kt_amx_tile_wide(t, KT_W_FP8_B128);
}
static __attribute__((noinline)) void kt_tile_wf8c_amx(const kt_p64_tile *t) {
    kt_amx_tile_wide(t, KT_W_FP8_CHANNEL);
}
static inline void kt_tile_wf8_amx(const kt_p64_tile *t) {
    if (t->weights == KT_W_FP8_B128)
        kt_tile_wf8b128_amx(t);
    else
        kt_tile_wf8c_amx(t);
}

static inline void kt_tile_wmxfp8_amx(const kt_p64_tile *t) {
    kt_amx_tile_wide(t, KT_W_MXFP8);
}

static inline void kt_tile_wf16_amx(const kt_p64_tile *t) {
    kt_amx_tile_wide(t, KT_W_F16);
}

#endif
