/* Panel kernels for AVX2: FP8 E4M3 (wf8c, wf8b128, wmxfp8) and half (wf16) weights with abf16
 * activations.
 *
 * A code moved up by 7 is a half with 2^-8 of its value, subnormals included: bytes to the top of
 * words, an arithmetic shift by 1, the doubled sign bit masked out, the NaN codes set apart.
 * VCVTPH2PS widens eight of them: four panel rows with a pair of inputs each, which meet the
 * activations' pair. Even and odd inputs are summed apart over 64 inputs, then joined, scaled and
 * added to the tile. Halves take the same way from VCVTPH2PS on. A block's 128 inputs are two such
 * runs with one scale; of wmxfp8 a run is a block of 32.
 *
 * One row decodes as it goes; more rows decode a slice of 16 panel rows into L1 once. Both add the
 * same products in the same order, so a row's bits do not depend on the rows beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FP8X256_H
#define KT_SIMD_FP8X256_H

#include <immintrin.h>
#include <string.h>

#include "kernels/p64/p64_glue.h"

#define KT_HALF_ROWS 24 /* rows of a tile: their activations of a run take 6 KiB of L1 */
#define KT_HALF_RUN 64  /* inputs */

/* One pair of inputs of 16 panel rows: four rows to a vector. */
typedef struct kt_half_pair {
    __m256 w[4];
} kt_half_pair;

KT_INLINE void kt_half_widen(__m256i words, __m256 *w) {
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
}

/* One step up from the NaN codes bit 14 comes on: it is set for them, and makes halves that are NaN. */
KT_INLINE __m256i kt_half_of_fp8(__m256i words) {
    const __m256i half =
        _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xbf80));
    const __m256i above = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
    return _mm256_or_si256(half, _mm256_and_si256(above, _mm256_set1_epi16(0x4000)));
}

/* Four inputs of the slice at w: two pairs. */
KT_INLINE void kt_half_decode(kt_weight_format format, const uint8_t *w, kt_half_pair pair[2]) {
    const __m256i zero = _mm256_setzero_si256();

    for (int c = 0; c < 2; c++) {
        const __m256i x = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c));
        if (format == KT_W_F16) {
            kt_half_widen(x, pair[0].w + 2 * c);
            kt_half_widen(_mm256_load_si256((const __m256i *)(const void *)(w + 256 + 32 * c)),
                          pair[1].w + 2 * c);
            continue;
        }
        kt_half_widen(kt_half_of_fp8(_mm256_unpacklo_epi8(zero, x)), pair[0].w + 2 * c);
        kt_half_widen(kt_half_of_fp8(_mm256_unpackhi_epi8(zero, x)), pair[1].w + 2 * c);
    }
}

typedef struct kt_half_run {
    kt_weight_format format;
    const uint8_t *panel; /* the slice, at the run's first input */
    const float *stored;  /* or the same decoded: [pairs][4][8] */
    const float *a;       /* [rows][KT_HALF_RUN] */
    int inputs;           /* of the run: a multiple of 32 */
    __m256 scale[2];      /* of 2 x 8 panel rows, 2^8 included but for wmxfp8 */
    float *out;           /* sums of the slice, 64 floats from row to row */
} kt_half_run;

/* A pair of inputs at a. Three rows leave one register of sixteen for the weights: they come one vector
 * at a time. */
KT_INLINE void kt_half_multiply(const float *w, const float *a, const int rows, __m256 sum[3][4]) {
    __m256 x[3];

    KT_EACH (r, rows) {
        x[r] = _mm256_castpd_ps(
            _mm256_broadcast_sd((const double *)(const void *)(a + KT_HALF_RUN * r)));
    }
    KT_EACH (v, 4) {
        const __m256 w_v = _mm256_load_ps(w + 8 * v);
        KT_IN_ORDER();
        KT_EACH (r, rows) sum[r][v] = _mm256_fmadd_ps(w_v, x[r], sum[r][v]);
    }
}

/* The same from registers: for one row. */
KT_INLINE void kt_half_multiply_pair(const kt_half_pair *p, const float *a, __m256 sum[4]) {
    const __m256 x = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)a));
    KT_EACH (v, 4) sum[v] = _mm256_fmadd_ps(p->w[v], x, sum[v]);
}

/* Add the slice's products over the run to out: up to three rows of stored weights, or one row that
 * decodes as it goes. */
KT_INLINE void kt_half_micro(const kt_half_run *run, const int rows, const int is_stored) {
    const int quad_bytes = run->format == KT_W_F16 ? 512 : 256;
    __m256 sum[3][4];

    KT_EACH (r, rows) {
        KT_EACH (v, 4) sum[r][v] = _mm256_setzero_ps();
    }
    for (int i = 0; i < run->inputs; i += 4) {
        if (is_stored) {
            kt_half_multiply(run->stored + 16 * i, run->a + i, rows, sum);
            kt_half_multiply(run->stored + 16 * i + 32, run->a + i + 2, rows, sum);
        } else {
            kt_half_pair pair[2];
            kt_half_decode(run->format, run->panel + i / 4 * quad_bytes, pair);
            kt_half_multiply_pair(&pair[0], run->a + i, sum[0]);
            kt_half_multiply_pair(&pair[1], run->a + i + 2, sum[0]);
        }
    }
    KT_EACH (r, rows) {
        for (int c = 0; c < 2; c++) {
            float *out = run->out + 64 * r + 8 * c;
            __m256 joined = _mm256_hadd_ps(sum[r][2 * c], sum[r][2 * c + 1]); /* 0 1 4 5 2 3 6 7 */
            joined = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(joined), 0xd8));
            if (run->format == KT_W_MXFP8) /* its scales may be too large to hold this, too */
                joined = _mm256_mul_ps(joined, _mm256_set1_ps(256.0f));
            _mm256_store_ps(out, _mm256_fmadd_ps(joined, run->scale[c], _mm256_load_ps(out)));
        }
    }
}

static inline void kt_half_rows(kt_half_run run, int rows) {
    for (; rows > 0; rows -= 3, run.a += 3 * KT_HALF_RUN, run.out += 3 * 64) {
        if (rows >= 3) kt_half_micro(&run, 3, 1);
        if (rows == 2) kt_half_micro(&run, 2, 1);
        if (rows == 1) kt_half_micro(&run, 1, 1);
    }
}

KT_INLINE void kt_half_store(const kt_half_run *run, float *stored) {
    const int quad_bytes = run->format == KT_W_F16 ? 512 : 256;
    for (int i = 0; i < run->inputs; i += 4) {
        kt_half_pair pair[2];
        kt_half_decode(run->format, run->panel + i / 4 * quad_bytes, pair);
        KT_EACH (p, 2) {
            KT_EACH (v, 4) _mm256_store_ps(stored + 16 * i + 32 * p + 8 * v, pair[p].w[v]);
        }
    }
}

/* 2^(e - 127) of eight exponents; of 0 the subnormal number. */
KT_INLINE __m256 kt_half_powers(const uint8_t *exponents) {
    const __m256i e =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)exponents));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
}

/* Scales of the slice's rows for a run that starts at input i. */
KT_INLINE void kt_half_scales(kt_half_run *run, const uint8_t *scales, int64_t i, int slice) {
    const float *s = (const float *)(const void *)scales;
    const __m256 power = _mm256_set1_ps(256.0f);

    for (int c = 0; c < 2; c++) {
        run->scale[c] = _mm256_set1_ps(1.0f);
        if (run->format == KT_W_FP8_CHANNEL)
            run->scale[c] = _mm256_mul_ps(_mm256_load_ps(s + 16 * slice + 8 * c), power);
        if (run->format == KT_W_FP8_B128)
            run->scale[c] = _mm256_mul_ps(_mm256_set1_ps(s[i / 128 * 2 + slice / 2]), power);
        if (run->format == KT_W_MXFP8)
            run->scale[c] = kt_half_powers(scales + 2 * i + 16 * slice + 8 * c);
    }
}

KT_INLINE void kt_half_acts(const kt_p64_tile *t, int64_t k, int inputs, float *a) {
    for (int r = 0; r < t->rows; r++)
        for (int j = 0; j < inputs; j += 8) {
            const void *from = (const uint8_t *)t->a[r] + 2 * (k + j);
            const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
            _mm256_store_ps(a + KT_HALF_RUN * r + j, _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
        }
}

KT_INLINE void kt_tile_half_avx2(const kt_p64_tile *t, const kt_weight_format format) {
    const int input_bytes = format == KT_W_F16 ? 128 : 64;
    const int run_inputs = format == KT_W_MXFP8 ? 32 : KT_HALF_RUN;
    _Alignas(64) float a[KT_HALF_ROWS * KT_HALF_RUN], stored[16 * KT_HALF_RUN];

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += run_inputs) {
        kt_half_run run = {.format = format, .stored = stored, .a = a};
        run.inputs = t->k - k < run_inputs ? (int)(t->k - k) : run_inputs;
        /* Slices are read a line in four, which hardware prefetchers do not follow. */
        for (int line = 0; line < run_inputs * input_bytes; line += 64)
            _mm_prefetch((const char *)t->panel + (k + KT_HALF_RUN) * input_bytes + line,
                         _MM_HINT_T0);
        kt_half_acts(t, k, run.inputs, a);
        for (int slice = 0; slice < 4; slice++) {
            run.panel = t->panel + k * input_bytes + 64 * slice;
            run.out = t->tile + 16 * slice;
            kt_half_scales(&run, t->panel + 64 * t->k, k, slice);
            if (t->rows == 1) {
                kt_half_micro(&run, 1, 0);
                continue;
            }
            kt_half_store(&run, stored);
            kt_half_rows(run, t->rows);
        }
    }
}

static inline void kt_tile_halves(const kt_p64_tile *t) {
    if (t->weights == KT_W_F16)
        kt_tile_half_avx2(t, KT_W_F16);
    else if (t->weights == KT_W_FP8_B128)
        kt_tile_half_avx2(t, KT_W_FP8_B128);
    else if (t->weights == KT_W_MXFP8)
        kt_tile_half_avx2(t, KT_W_MXFP8);
    else
        kt_tile_half_avx2(t, KT_W_FP8_CHANNEL);
}

#define KT_HALF_MASK (1u << KT_W_F16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL)

#endif
