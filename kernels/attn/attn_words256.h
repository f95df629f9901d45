/* Grouped-query attention over an INT8 cache with integer products of 16-bit words on 256-bit vectors: codes, by
 * queries and weights rounded to 16 bits.
 *
 *   query    step = largest magnitude of 128 scaled elements / 32767
 *   weight   times the value's scale, step = largest of the block / 32767
 *
 * Both to the nearest. int32 sums of 128 products are exact (below 2^30); each becomes f32 once.
 *
 * A block of keys is turned round, once for all queries of the tile: lines of 16 keys, a pair of elements each. Of
 * values a line has a pair of keys for each of 16 columns. Both products are then the same: broadcast pairs of rows
 * times lines. The including file defines dot_words below: sum + a * b, two products of words to each int32.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WORDS_256_H
#define KT_ATTN_WORDS_256_H

#include "kernels/attn/fetch_rows.h"
#include "kernels/attn/soften256.h"

KT_INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b);

#define TOP 32767.0f
#define LANES 16  /* keys or columns of a line */
#define GROUP 128 /* elements of a query that share a step */

static int64_t padded_to(int64_t d) {
    return (d + LANES - 1) / LANES * LANES;
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

/* The pairs in which turned keys have their elements: of each four, 0 and 2, 1 and 3. */
KT_INLINE __m256i in_pairs(__m256i words) {
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
}

/* Of numbers of this size at most, which may be NaN: what brings them to words, and back. Both are
 * normal numbers: the smallest sizes do not fill their words. */
KT_INLINE float to_words(float size) {
    return size < 0x1p-111f ? 0x1p126f : TOP / size;
}
KT_INLINE float from_words(float size) {
    return size < 0x1p-111f ? 0x1p-126f : size / TOP;
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
        float size;
        for (int64_t i = 0; i < n; i++) scaled[i] = q[x + i] * scale;
        for (int64_t i = 0; i < n; i += 8) top = larger_size(top, _mm256_load_ps(scaled + i));
        size = largest(top);
        for (int64_t i = 0; i < n; i += LANES)
            _mm256_storeu_si256(
                (__m256i *)(void *)(words + x + i),
                in_pairs(words_of(_mm256_load_ps(scaled + i), _mm256_load_ps(scaled + i + 8),
                                  _mm256_set1_ps(to_words(size)))));
        out[steps_at(d) + x / GROUP] = from_words(size);
    }
}

/* ---- products ---- */

/* Rows of words, `pairs` of them, each row `stride` floats after the one before; and as many lines.
 * A row has a step for each `group` pairs. */
typedef struct factors {
    const float *words, *steps;
    const uint8_t *lines;
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
            const __m256 step = _mm256_set1_ps(f->steps[r * stride + g / f->group]);
            KT_EACH (c, 2)
                total[r][c] = _mm256_fmadd_ps(step, _mm256_cvtepi32_ps(sum[r][c]), total[r][c]);
        }
    }
}

/* 16 bytes become words of one line's half. */
KT_INLINE void put_words(uint8_t *to, __m128i codes) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_cvtepi8_epi16(codes));
}

/* ---- scores ---- */

static size_t keys_bytes(int64_t d) {
    return (size_t)padded_to(d) * KT_ATTN_BLOCK * sizeof(int16_t);
}

/* Elements [x, x + 16) of keys j and j + 4. Keys past the last repeat it; their scores are never
 * looked at. is_whole: all of them are there. */
KT_INLINE __m256i load_two(const kt_attn_rows *k, int64_t j, int64_t x, const int is_whole) {
    const int64_t low = is_whole || j < k->n ? j : k->n - 1;
    const int64_t high = is_whole || j + 4 < k->n ? j + 4 : k->n - 1;
    const int64_t left = is_whole ? 16 : k->d - x;
    const __m128i first = load_codes(k->at + low * k->ld + x, left);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first),
                                   load_codes(k->at + high * k->ld + x, left), 1);
}

/* Four codes of each of eight keys to two lines: the first and the third, the second and the fourth. */
KT_INLINE void put_fours(uint8_t *to, __m256i fours) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_srai_epi16(_mm256_slli_epi16(fours, 8), 8));
    _mm256_store_si256((__m256i *)(void *)(to + 64), _mm256_srai_epi16(fours, 8));
}

/* Elements [x, x + 16) of eight keys from j on, to their half of eight lines. */
KT_INLINE void turn_8(const kt_attn_rows *k, int64_t j, int64_t x, uint8_t *to,
                      const int is_whole) {
    __m256i a[4], b[4];

    KT_EACH (i, 4) a[i] = load_two(k, j + i, x, is_whole);
    KT_EACH (i, 2) { /* b[i]: fours 0 and 1 of keys 2 i and 2 i + 1, b[2 + i]: 2 and 3 */
        b[i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 + i] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    KT_EACH (i, 2) {
        put_fours(to + 256 * i, _mm256_unpacklo_epi64(b[2 * i], b[2 * i + 1]));
        put_fours(to + 256 * i + 128, _mm256_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    }
}

static void load_keys(const kt_attn_part *t, void *keys) {
    const kt_attn_rows k = t->k;
    uint8_t *to = keys;

    for (int64_t j = 0; j < k.n; j += LANES)
        for (int64_t x = 0; x < k.d; x += 16, to += 512)
            for (int64_t half = 0; half < 2; half++)
                if (k.n - j >= LANES && k.d - x >= 16)
                    turn_8(&k, j + 8 * half, x, to + 32 * half, 1);
                else
                    turn_8(&k, j + 8 * half, x, to + 32 * half, 0);
}

KT_INLINE void score_rows(const kt_attn_part *t, int64_t i, fetch *ask, const int nq) {
    const int64_t d = t->k.d, line = padded_to(d) / 2 * 64;
    const float *q = t->q + i * t->ldq;
    factors f = {.words = q,
                 .steps = q + steps_at(d),
                 .lines = t->keys,
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
    }
}

/* How many calls of score_rows, or passes of weigh over the queries, there are for n of them. */
static int64_t parts_of(int64_t n) {
    return n / 4 + n % 4 / 2 + n % 2;
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t groups = (t->k.d + GROUP - 1) / GROUP;
    fetch ask = fetch_from(&t->next_k, parts_of(t->n) * ((t->n_keys + LANES - 1) / LANES) * groups);
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
    __m256 w[KT_ATTN_BLOCK / 8], up;
    float size;

    KT_EACH (i, KT_ATTN_BLOCK / 8) {
        w[i] = scaled_weights(s, scale, 8 * i, n_keys, is_whole);
        top = larger_size(top, w[i]);
    }
    size = largest(top);
    up = _mm256_set1_ps(to_words(size));
    KT_EACH (i, KT_ATTN_BLOCK / 16)
        _mm256_storeu_si256((__m256i *)(void *)(s + 8 * i), words_of(w[2 * i], w[2 * i + 1], up));
    s[STEP_AT] = from_words(size);
}

KT_INLINE void end_weights(float *s, const float *scale, int64_t n_keys) {
    if (n_keys == KT_ATTN_BLOCK)
        put_row(s, scale, n_keys, 1);
    else
        put_row(s, scale, n_keys, 0);
}

/* ---- values ---- */

#define COLUMNS ((int64_t)KT_ATTN_BLOCK / 2 * 64) /* bytes of 16 columns of a block */

/* Zeros where there is no key. */
static void interleave(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows from = *codes;
    const __m128i none = _mm_setzero_si128();

    (void)ldo;
    for (int64_t x = 0; x < from.d; x += 16) {
        uint8_t *to = (uint8_t *)out + x / 16 * COLUMNS;
        for (int64_t j = 0; j < from.n; j += 2, to += 64) {
            const uint8_t *at = from.at + j * from.ld + x;
            const __m128i a = load_codes(at, from.d - x);
            const __m128i b = j + 1 < from.n ? load_codes(at + from.ld, from.d - x) : none;
            put_words(to, _mm_unpacklo_epi8(a, b));
            put_words(to + 32, _mm_unpackhi_epi8(a, b));
        }
    }
}

KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, fetch *ask, const int nq) {
    const float *s = t->s + i * KT_ATTN_LDS;
    const factors f = {.words = s,
                       .steps = s + STEP_AT,
                       .lines = t->v.at + x / 16 * COLUMNS,
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
    fetch ask = fetch_from(&t->next_v, parts_of(t->n) * padded_to(t->v.d) / LANES);

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

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    for (int64_t x = 0; x < d; x++) out[x] = o[x] * factor;
}

static const kt_attn_inner inner = {.lanes = LANES,
                                    .load_query = load_query,
                                    .widen = interleave,
                                    .keys_bytes = keys_bytes,
                                    .load_keys = load_keys,
                                    .loads_codes = true,
                                    .scores = scores,
                                    .soften_all = soften_all,
                                    .weighs_ragged = true,
                                    .ragged = 128,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

static const int32_t tile_queries[] = {32, 64, 128};
static const kt_param params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 64}};

#define WORDS_MEMBERS                                                                             \
    .weights = 1u << KT_W_INT8_CHANNEL, .numerics = KT_NUM_ACTS16, .bits = "words", .version = 1, \
    .rank = 1, .params = params, .accepts = accepts_fours

#endif
