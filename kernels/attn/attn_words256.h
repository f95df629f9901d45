/* Grouped-query attention with integer products of 16-bit words on 256-bit vectors.
 *
 *   line     a pair of words for each of 16 keys, or of 16 columns of values
 *   query    words, a step for each 128 scaled elements
 *   weight   of a block's keys, times the values' scales: words, a step for the block
 *
 * Both products are the same: broadcast pairs of rows times lines. A step is the largest magnitude
 * / 32767, and no less than what keeps the sum of all words' sizes within MOST_SUM: then the int32
 * sums of 128 products are exact whatever the lines have. Each becomes f32 once. Words are rounded
 * to the nearest.
 *
 * The including file defines what is declared first below: what lines are made of
 * (attn_words_int8.h, attn_words_bf16.h) and how words are multiplied (words_avx2.h, words_vnni.h):
 * dot_words is sum + a * b.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WORDS_256_H
#define KT_ATTN_WORDS_256_H

#include <math.h>

#include "kernels/attn/fetch_rows.h"
#include "kernels/attn/soften256.h"

#define TOP 32767.0f
#define LANES 16  /* keys or columns of a line */
#define GROUP 128 /* elements of a query that share a step */

KT_INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b);
/* The words of 16 elements in the order of turned keys. */
KT_INLINE __m256i in_pairs(__m256i words);
/* [groups, KT_ATTN_BLOCK] steps of the keys' elements; NULL = 1. */
KT_INLINE const float *key_steps(const kt_attn_part *t);
KT_INLINE const uint8_t *value_lines(const kt_attn_part *t);

static int64_t padded_to(int64_t d) {
    return (d + LANES - 1) / LANES * LANES;
}

static int64_t groups_of(int64_t d) {
    return (d + GROUP - 1) / GROUP;
}

/* Of numbers that are not negative; NaN counts as the largest. */
KT_INLINE float largest(__m256i bits) {
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1))));
}

KT_INLINE __m256i larger_size(__m256i top, __m256 x) {
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    return _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(x), size));
}

/* 16 numbers times `up`, to the nearest, as words in their order. */
KT_INLINE __m256i words_of(__m256 low, __m256 high, __m256 up) {
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(low, up)),
                                            _mm256_cvtps_epi32(_mm256_mul_ps(high, up)));
    return _mm256_permute4x64_epi64(both, 0xd8);
}

/* What a word stands for, of numbers of this size at most and this sum of sizes. A normal number,
 * so that the smallest ones do not fill their words, or not finite where one of them is not. */
KT_INLINE float step_of(float size, float sum) {
    float step = size * (1.0f / TOP);

#ifdef MOST_SUM
    if (step < sum * (1.0f / MOST_SUM)) step = sum * (1.0f / MOST_SUM);
#else
    (void)sum;
#endif
    return step < 0x1p-126f ? 0x1p-126f : step;
}

KT_INLINE float sum_of_sizes(__m256 sizes) {
    return sum8(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), sizes));
}

/* A query in scratch: words, then a step per group. Where these begin, in floats. */
static int64_t steps_at(int64_t d) {
    return padded_to(d) / 2;
}

static void load_query(const float *q, int64_t d, float scale, float *out) {
    int16_t *words = (int16_t *)(void *)out;

    for (int64_t x = 0; x < d; x += GROUP) {
        const int64_t n = d - x < GROUP ? d - x : GROUP;
        _Alignas(32) float scaled[GROUP] = {0.0f};
        __m256i top = _mm256_setzero_si256();
        float sum = 0.0f, step;
        for (int64_t i = 0; i < n; i++) {
            scaled[i] = q[x + i] * scale;
            sum += fabsf(scaled[i]);
        }
        for (int64_t i = 0; i < n; i += 8) top = larger_size(top, _mm256_load_ps(scaled + i));
        step = step_of(largest(top), sum);
        for (int64_t i = 0; i < n; i += LANES)
            _mm256_storeu_si256(
                (__m256i *)(void *)(words + x + i),
                in_pairs(words_of(_mm256_load_ps(scaled + i), _mm256_load_ps(scaled + i + 8),
                                  _mm256_set1_ps(1.0f / step))));
        out[steps_at(d) + x / GROUP] = step;
    }
}

/* ---- products ---- */

/* Rows of words, `pairs` of them, each row `stride` floats after the one before; and as many lines.
 * A row has a step for each `group` pairs, lines one for each lane (NULL = 1), those of the next
 * group KT_ATTN_BLOCK floats on. */
typedef struct factors {
    const float *words, *steps;
    const uint8_t *lines;
    const float *line_steps;
    int64_t stride, pairs, group;
} factors;

/* One line meets a pair of each row. */
KT_INLINE void add_pair(__m256i sum[4][2], const uint8_t *line, const float *words, int64_t stride,
                        const int nq) {
    const __m256i low = _mm256_load_si256((const __m256i *)(const void *)line);
    const __m256i high = _mm256_load_si256((const __m256i *)(const void *)(line + 32));

    KT_EACH (r, nq) {
        const __m256i pair = _mm256_castps_si256(_mm256_broadcast_ss(words + r * stride));
        sum[r][0] = dot_words(sum[r][0], low, pair);
        sum[r][1] = dot_words(sum[r][1], high, pair);
    }
}

/* total[r] += products of row r with the lines; nq is a constant at each call. */
KT_INLINE void add_products(__m256 total[4][2], const factors *f, fetch *ask, const int nq) {
    const int64_t stride = f->stride;
    const uint8_t *line = f->lines;
    const float *words = f->words;

    for (int64_t g = 0; g < f->pairs; g += f->group) {
        const int64_t n = f->pairs - g < f->group ? f->pairs - g : f->group;
        __m256i sum[4][2];
        fetch_rows(ask);
        KT_EACH (r, nq) {
            KT_EACH (c, 2) sum[r][c] = _mm256_setzero_si256();
        }
        for (int64_t i = 0; i < n; i++, line += 64, words++) add_pair(sum, line, words, stride, nq);
        KT_EACH (r, nq) {
            const int64_t at = g / f->group;
            const __m256 step = _mm256_set1_ps(f->steps[r * stride + at]);
            KT_EACH (c, 2) {
                __m256 product = _mm256_cvtepi32_ps(sum[r][c]);
                if (f->line_steps)
                    product = _mm256_mul_ps(
                        product, _mm256_loadu_ps(f->line_steps + at * KT_ATTN_BLOCK + 8 * c));
                total[r][c] = _mm256_fmadd_ps(step, product, total[r][c]);
            }
        }
    }
}

/* ---- scores ---- */

/* Of keys that are turned round, and of values. */
static size_t lines_bytes(int64_t d) {
    return (size_t)padded_to(d) * KT_ATTN_BLOCK * sizeof(int16_t);
}

KT_INLINE void score_rows(const kt_attn_part *t, int64_t i, fetch *ask, const int nq) {
    const int64_t d = t->k.d, line = padded_to(d) / 2 * 64;
    const float *q = t->q + i * t->ldq;
    factors f = {.words = q,
                 .steps = q + steps_at(d),
                 .lines = t->keys,
                 .line_steps = key_steps(t),
                 .stride = t->ldq,
                 .pairs = padded_to(d) / 2,
                 .group = GROUP / 2};
    float *s = t->s + i * KT_ATTN_LDS;

    for (int64_t j = 0; j < t->n_keys; j += LANES, f.lines += line) {
        __m256 total[4][2];
        KT_EACH (r, nq) {
            KT_EACH (c, 2) total[r][c] = _mm256_setzero_ps();
        }
        add_products(total, &f, ask, nq);
        KT_EACH (r, nq) {
            KT_EACH (c, 2) _mm256_storeu_ps(s + r * KT_ATTN_LDS + j + 8 * c, total[r][c]);
        }
        if (f.line_steps) f.line_steps += LANES;
    }
}

/* How many calls of score_rows, or passes of weigh over the queries, there are for n of them. */
static int64_t parts_of(int64_t n) {
    return n / 4 + n % 4 / 2 + n % 2;
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t lines = padded_to(t->n_keys) / LANES;
    fetch ask = fetch_from(&t->for_scores, parts_of(t->n) * lines * groups_of(t->k.d));
    int64_t i = 0;

    for (; i + 4 <= t->n; i += 4) score_rows(t, i, &ask, 4);
    for (; i + 2 <= t->n; i += 2) score_rows(t, i, &ask, 2);
    for (; i < t->n; i++) score_rows(t, i, &ask, 1);
}

/* ---- weights: the row becomes words and a step ---- */

#define STEP_AT KT_ATTN_BLOCK /* floats into the row, behind its weights */

/* Eight weights from j on times their scales; zeros where there is no key. */
KT_INLINE __m256 scaled_weights(const float *s, const float *scale, int64_t j, int64_t n_keys,
                                const int is_whole) {
    if (is_whole) return _mm256_mul_ps(_mm256_loadu_ps(s + j), _mm256_loadu_ps(scale + j));
    if (j >= n_keys) return _mm256_setzero_ps();
    return _mm256_mul_ps(_mm256_loadu_ps(s + j),
                         _mm256_maskload_ps(scale + j, first_lanes(n_keys - j)));
}

KT_INLINE void put_row(float *s, const float *scale, int64_t n_keys, const int is_whole) {
    __m256i top = _mm256_setzero_si256();
    __m256 w[KT_ATTN_BLOCK / 8], sum = _mm256_setzero_ps(), up;
    float step;

    KT_EACH (i, KT_ATTN_BLOCK / 8) {
        w[i] = scaled_weights(s, scale, 8 * i, n_keys, is_whole);
        top = larger_size(top, w[i]);
        sum = _mm256_add_ps(sum, w[i]);
    }
    step = step_of(largest(top), sum_of_sizes(sum));
    up = _mm256_set1_ps(1.0f / step);
    KT_EACH (i, KT_ATTN_BLOCK / 16)
        _mm256_storeu_si256((__m256i *)(void *)(s + 8 * i), words_of(w[2 * i], w[2 * i + 1], up));
    s[STEP_AT] = step;
}

KT_INLINE void end_weights(float *s, const float *scale, int64_t n_keys) {
    if (n_keys == KT_ATTN_BLOCK)
        put_row(s, scale, n_keys, 1);
    else
        put_row(s, scale, n_keys, 0);
}

/* ---- values ---- */

#define COLUMNS ((int64_t)KT_ATTN_BLOCK / 2 * 64) /* bytes of 16 columns of a block */

KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, fetch *ask, const int nq) {
    const float *s = t->s + i * KT_ATTN_LDS;
    const factors f = {.words = s,
                       .steps = s + STEP_AT,
                       .lines = value_lines(t) + x / 16 * COLUMNS,
                       .stride = KT_ATTN_LDS,
                       .pairs = (t->n_keys + 1) / 2,
                       .group = KT_ATTN_BLOCK / 2};
    const int64_t ldo = t->ldo;
    float *o = t->o + i * ldo + x;
    __m256 total[4][2];

    KT_EACH (r, nq) {
        const __m256 keep = _mm256_set1_ps(t->keep[i + r]);
        KT_EACH (c, 2) total[r][c] = _mm256_mul_ps(keep, _mm256_loadu_ps(o + r * ldo + 8 * c));
    }
    add_products(total, &f, ask, nq);
    KT_EACH (r, nq) {
        KT_EACH (c, 2) _mm256_storeu_ps(o + r * ldo + 8 * c, total[r][c]);
    }
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    fetch ask = fetch_from(&t->for_values, parts_of(t->n) * padded_to(t->v.d) / LANES);

    for (int64_t x = 0; x < t->v.d; x += LANES) {
        int64_t i = 0;
        for (; i + 4 <= t->n; i += 4) {
            if (x == 0 && i % 8 == 0) kt_attn_ask(t->ask, t->ask_eight);
            weigh_tile(t, i, x, &ask, 4);
        }
        for (; i + 2 <= t->n; i += 2) weigh_tile(t, i, x, &ask, 2);
        for (; i < t->n; i++) weigh_tile(t, i, x, &ask, 1);
    }
}

static const int32_t tile_queries[] = {32, 64, 128};
static const kt_param params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 128}};

/* Members of `inner` and of the descriptor that all have. */
#define WORDS_INNER                                                                    \
    .lanes = LANES, .load_query = load_query, .scores = scores, .weighs_ragged = true, \
    .ragged = 128, .weigh = weigh
#define WORDS_MEMBERS \
    .numerics = KT_NUM_ACTS16, .version = 1, .rank = 1, .params = params, .accepts = accepts_fours

#endif
