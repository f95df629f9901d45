/* Grouped-query attention over a BF16 or 8-bit cache with f32 arithmetic on AVX2, decode and
 * prefill alike.
 *
 * 16 bfloat16 are loaded as 8 dwords, a left shift by 16 gives the even elements and a mask the odd
 * ones; queries and sums are kept in that order (8 even, 8 odd, per 16). Two multiply-adds a cycle
 * that take four cycles want more than 8 sums, and at most two loads for each two: 4 queries x 3
 * keys are 12 dot products with one accumulator each, or 4 x 2, 2 x 4 and 1 x 8 where there are
 * fewer, and one tree over the lanes (+ 4, + 2, + 1) of several. Past the last key the tile reads
 * the last key again and its scores are ignored. Values meet 4 queries 24 columns at a time.
 *
 * Sizes of keys and of values are multiples of 4: loads of the last 16 elements are masked, and
 * masks are of dwords, two elements or four codes. SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/attn/soften256.h"
#include "kernels/simd/fma256.h"
#include "kernels/simd/fold256.h"

#define SCORES 8 /* of a tile of one or two queries */
#define MOST 12  /* of one of four queries: so many sums hide what a multiply-add takes */

/* is_last is a constant at each call. */
KT_INLINE __m256i load_up_to(const uint16_t *p, int64_t left, const int is_last) {
    return is_last ? load_last(p, left) : load_pairs(p);
}
/* The mask of odd elements, in memory: a tile of 12 sums has no register for it, and a compiler
 * that knows what it is stores sums for it instead. */
KT_INLINE const __m256i *odd_mask(void) {
    static const _Alignas(32)
        uint32_t upper[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                             0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    const void *at = upper;
    __asm__("" : "+r"(at));
    return at;
}
KT_INLINE __m256 odd(__m256i pairs, const __m256i *mask) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, *mask));
}

static void load_query(const float *q, int64_t d, float scale, float *out) {
    int64_t i = 0;
    for (; i + 16 <= d; i += 16)
        for (int64_t j = 0; j < 8; j++) {
            out[i + j] = q[i + 2 * j] * scale;
            out[i + 8 + j] = q[i + 2 * j + 1] * scale;
        }
    for (int64_t j = 0; i < d && j < 8; j++) {
        const int is_there = i + 2 * j < d;
        out[i + j] = is_there ? q[i + 2 * j] * scale : 0.0f;
        out[i + 8 + j] = is_there ? q[i + 2 * j + 1] * scale : 0.0f;
    }
}

/* The upper halves of the floats of even and odd elements, which is all there is of a code. */
KT_INLINE __m256i join(__m256 evens, __m256 odds) {
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(evens), 16),
                              _mm256_castps_si256(odds), 0xaa);
}

KT_INLINE __m256i widen_int8(__m128i x) {
    const __m256i w = _mm256_cvtepi8_epi16(x);
    return join(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 16), 16)),
                _mm256_cvtepi32_ps(_mm256_srai_epi32(w, 16)));
}

/* FP8 codes moved up by 7 are halves with 2^-8 of the value; NaN comes out as 480, which no
 * other code is. */
KT_INLINE __m256i widen_fp8(__m128i x) {
    const __m128i bits = _mm_set1_epi16((short)0xbf80);
    const __m128i even_halves = _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(x, 8), 1), bits);
    const __m128i odd_halves = _mm_and_si128(_mm_srai_epi16(x, 1), bits);
    const __m256 up = _mm256_set1_ps(256.0f);
    const __m256i w = join(_mm256_mul_ps(_mm256_cvtph_ps(even_halves), up),
                           _mm256_mul_ps(_mm256_cvtph_ps(odd_halves), up));
    const __m256i size = _mm256_and_si256(w, _mm256_set1_epi16(0x7fff));
    return _mm256_or_si256(w, _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x43f0)));
}

static void widen(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows from = *codes;

    for (int64_t j = 0; j < from.n; j++)
        for (int64_t i = 0; i < from.d; i += 16) {
            const uint8_t *at = from.at + j * from.ld + i;
            const __m128i x = load_codes(at, from.d - i);
            if (i % 64 == 0) kt_fetch_line(at + KT_ATTN_AHEAD * from.ld, from.is_near);
            _mm256_storeu_si256((__m256i *)(void *)(out + j * ldo + i),
                                from.cache == KT_W_INT8_CHANNEL ? widen_int8(x) : widen_fp8(x));
        }
}

/* 8 elements, the even ones or the odd ones of 16 from x on, of nq queries and nk keys. A query's
 * are loaded once for all keys: two loads a cycle are all there are for two multiply-adds. */
KT_INLINE void score_half(__m256 sum[MOST], const float *q, int64_t ldq,
                          const uint16_t *const key[SCORES], int64_t x, int64_t d, const int nq,
                          const int nk, const int is_odd, const int is_last) {
    const __m256i *const mask = odd_mask();
    __m256 k[SCORES];

    KT_EACH (i, nk) {
        const __m256i pairs = load_up_to(key[i] + x, d - x, is_last);
        k[i] = is_odd ? odd(pairs, mask) : even(pairs);
    }
    KT_EACH (r, nq) {
        const __m256 elements = _mm256_loadu_ps(q + r * ldq + x + 8 * is_odd);
        KT_EACH (i, nk) {
            const int at = r * nk + i;
            sum[at] = kt_fma_in_place256(elements, k[i], sum[at]);
        }
        KT_IN_ORDER(); /* 12 sums, 3 keys and a query are all registers: the next one waits */
    }
}

KT_INLINE void score_step(__m256 sum[MOST], const float *q, int64_t ldq,
                          const uint16_t *const key[SCORES], int64_t x, int64_t d, const int nq,
                          const int nk, const int is_last) {
    score_half(sum, q, ldq, key, x, d, nq, nk, 0, is_last);
    score_half(sum, q, ldq, key, x, d, nq, nk, 1, is_last);
}

/* Up to two scores behind those of the tile are overwritten: the next tile's, or room. */
KT_INLINE void store_scores(float *s, const __m256 sum[MOST], const int nq, const int nk) {
    if (nq == 1) _mm256_storeu_ps(s, kt_sum_lanes_256(sum, sum + 4, 4));
    for (int r = 0; r + 2 <= nq; r += 2, s += 2 * KT_ATTN_LDS) {
        const __m256 both = kt_sum_lanes_256(sum + r * nk, sum + (r + 1) * nk, nk);
        _mm_storeu_ps(s, _mm256_castps256_ps128(both));
        _mm_storeu_ps(s + KT_ATTN_LDS, _mm256_extractf128_ps(both, 1));
    }
}

/* nq queries from i on and nk keys from j on; are_all: there are so many, else the last one stands
 * for those past it. */
KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, int64_t j, const int nq, const int nk,
                          const int are_all) {
    const int64_t d = t->k.d, ldq = t->ldq;
    const float *q = t->q + i * ldq;
    const uint16_t *key[SCORES];
    __m256 sum[MOST];
    int64_t x = 0;

    KT_EACH (n, nk)
        key[n] = kt_attn_row(&t->k, are_all || j + n < t->n_keys ? j + n : t->n_keys - 1);
    KT_EACH (n, nq * nk) sum[n] = _mm256_setzero_ps();
    for (; x + 16 <= d; x += 16) score_step(sum, q, ldq, key, x, d, nq, nk, 0);
    if (x < d) score_step(sum, q, ldq, key, x, d, nq, nk, 1);
    store_scores(t->s + i * KT_ATTN_LDS + j, sum, nq, nk);
}

KT_INLINE void end_weights(float *s, const float *scale, int64_t n_keys) {
    for (int64_t j = 0; scale && j < n_keys; j++) s[j] *= scale[j];
}

/* The rows of the block to come when they lie one behind the other and are bfloat16, else NULL.
 * Fewer queries than four meet a block in so short a time that they look further ahead, by
 * kt_attn_fetch. */
static const char *joined_rows(const kt_attn_part *t, const kt_attn_next *next, int64_t d) {
    const bool is_joined = next->rows && next->ld == next->bytes && next->bytes > d;
    return is_joined && t->n >= 4 ? (const char *)next->rows : NULL;
}

/* Lines [at, at + n) of them, in the order that the core's own prefetchers follow. */
KT_INLINE void ask(const char *rows, int64_t at, int64_t n, int is_near) {
    for (int64_t i = at; i < at + n; i++) kt_fetch_line(rows + 64 * i, is_near);
}

/* A tile of values: vectors of 8 columns from the first-th on, of the queries from `query` on. A
 * vector holds the even or the odd ones of 16 columns, as load_query has them. */
typedef struct value_tile {
    int64_t query, first;
    const char *next; /* NULL, or the values to come, of which the tile asks for its own part */
    int is_asking;
} value_tile;

/* Key j meets nq queries and nv vectors. */
KT_INLINE void weigh_key(const kt_attn_rows *rows, const value_tile *at, const float *s, int64_t j,
                         __m256 sum[4][8], const int nq, const int nv, const int is_odd,
                         const int is_last) {
    const int64_t x = at->first / 2 * 16;
    const uint16_t *v = kt_attn_row(rows, j) + x;
    const __m256i *const mask = odd_mask();
    __m256 value[8];

    KT_EACH (c, nv) {
        const int pair = (c + is_odd) / 2;
        const __m256i pairs = load_up_to(v + 16 * pair, rows->d - x - 16 * pair, is_last);
        value[c] = (c + is_odd) % 2 ? odd(pairs, mask) : even(pairs);
    }
    KT_EACH (r, nq) {
        const __m256 p = _mm256_broadcast_ss(s + r * KT_ATTN_LDS + j);
        KT_EACH (c, nv) sum[r][c] = kt_fma_in_place256(p, value[c], sum[r][c]);
        KT_IN_ORDER(); /* as in score_half */
    }
}

/* With four keys from j on: lines of the values to come, or of the rows KT_ATTN_AHEAD behind. */
KT_INLINE void ask_values(const kt_attn_rows *rows, const value_tile *at, int64_t j, const int nv) {
    const int64_t x = at->first * 8;

    if (!at->next)
        kt_attn_fetch(rows, j, 4, x, x + 8 * nv, 32);
    else if (at->is_asking)
        ask(at->next,
            at->first / 2 * (KT_ATTN_BLOCK / 2) + at->first % 2 * (KT_ATTN_BLOCK / 4) + j * nv / 4,
            nv, rows->is_near);
}

/* nq queries x nv vectors of the tile, nq * nv <= 12; constants at each call: nq, nv, is_odd (the
 * first vector is one of odd columns), is_last (there are fewer columns). */
KT_INLINE void weigh_tile(const kt_attn_part *t, const value_tile *at, const int nq, const int nv,
                          const int is_odd, const int is_last) {
    const int64_t ldo = t->ldo, n_keys = t->n_keys, fours = n_keys / 4 * 4;
    const kt_attn_rows rows = t->v;
    const float *s = t->s + at->query * KT_ATTN_LDS, *keep = t->keep + at->query;
    float *o = t->o + at->query * ldo + 8 * at->first;
    __m256 sum[4][8];

    KT_EACH (r, nq) {
        KT_EACH (c, nv)
            sum[r][c] =
                _mm256_mul_ps(_mm256_set1_ps(keep[r]), _mm256_loadu_ps(o + r * ldo + 8 * c));
    }
    for (int64_t j = 0; j < fours; j += 4) {
        ask_values(&rows, at, j, nv);
        KT_ROLLED
        for (int u = 0; u < 4; u++) weigh_key(&rows, at, s, j + u, sum, nq, nv, is_odd, is_last);
    }
    for (int64_t j = fours; j < n_keys; j++)
        weigh_key(&rows, at, s, j, sum, nq, nv, is_odd, is_last);
    KT_EACH (r, nq) {
        KT_EACH (c, nv) _mm256_storeu_ps(o + r * ldo + 8 * c, sum[r][c]);
    }
}

/* 48 columns are two tiles of three vectors for four queries, whose 12 sums hide what a
 * multiply-add takes; one query meets 64 columns. */
KT_INLINE void weigh_queries(const kt_attn_part *t, int64_t i, int64_t x, int64_t width,
                             const char *next, const int nq) {
    value_tile at = {.query = i, .first = x / 8, .next = next, .is_asking = i == 0};

    if (nq == 4 && width == 48) {
        weigh_tile(t, &at, 4, 3, 0, 0);
        at.first += 3;
        weigh_tile(t, &at, 4, 3, 1, 0);
    } else if (nq == 1 && width == 64) {
        weigh_tile(t, &at, 1, 8, 0, 0);
    } else {
        for (; width >= 16; width -= 16, at.first += 2) weigh_tile(t, &at, nq, 2, 0, 0);
        if (width > 0) weigh_tile(t, &at, nq, 2, 0, 1);
    }
}

/* One, two or four queries at a time. */

/* Each four queries ask for their share of the keys to come, in equal doses: with the tile of nk
 * keys at j lines of `next` or, without that, of the rows KT_ATTN_AHEAD behind. Returns the line
 * after them. */
KT_INLINE int64_t ask_keys(const kt_attn_part *t, int64_t i, int64_t j, const char *next,
                           int64_t at, const int nk) {
    const int64_t fours = (t->n + 3) / 4;
    const int64_t lines = (t->for_scores.bytes * nk + 64 * fours - 1) / (64 * fours);

    if (!next)
        kt_attn_fetch(&t->k, j, nk, i / 4 * 32, t->k.d, fours * 32);
    else if (i % 4 == 0)
        ask(next, at, lines, t->for_scores.is_near);
    return at + lines;
}

/* Four queries meet three keys at a time, and two at the end unless that leaves one. */
KT_INLINE void score_keys(const kt_attn_part *t, int64_t i, const int nq) {
    const int64_t n_keys = t->n_keys, fours = (t->n + 3) / 4;
    const char *const next = joined_rows(t, &t->for_scores, t->k.d);
    const int nk = SCORES / nq;
    int64_t j = 0, at = i / 4 * ((t->for_scores.bytes * KT_ATTN_BLOCK / 64 + fours - 1) / fours);

    for (; nq == 4 && (n_keys - j == 3 || n_keys - j >= 5); j += 3) {
        at = ask_keys(t, i, j, next, at, 3);
        score_tile(t, i, j, 4, 3, 1);
    }
    for (; j < n_keys; j += nk) {
        at = ask_keys(t, i, j, next, at, nk);
        score_tile(t, i, j, nq, nk, 0);
    }
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t i = 0;
    for (; i + 4 <= t->n; i += 4) score_keys(t, i, 4);
    for (; i + 2 <= t->n; i += 2) score_keys(t, i, 2);
    for (; i < t->n; i++) score_keys(t, i, 1);
}

/* Columns in the outer loop: their values stay in L1 while all queries pass. */
static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t d = t->v.d, most = t->n >= 4 ? 48 : 64;
    const char *const next = joined_rows(t, &t->for_values, d);

    for (int64_t x = 0, width; x < d; x += width) {
        int64_t i = 0;
        width = d - x < most ? d - x : most;
        for (; i + 4 <= t->n; i += 4) weigh_queries(t, i, x, width, next, 4);
        for (; i < t->n; i++) weigh_queries(t, i, x, width, next, 1);
    }
}

static const kt_attn_inner inner = {.lanes = 16,
                                    .load_query = load_query,
                                    .widen = widen,
                                    .scores = scores,
                                    .soften_all = soften_all,
                                    .weighs_from_any = true,
                                    .weigh = weigh,
                                    .store_sums = store_halves};

KT_ATTN_VARIANT(bf16_online__avx2, .weights = KT_ATTN_CACHES, .isa = KT_ISA_AVX2,
                .numerics = KT_NUM_F32, .bits = "online256", .version = 4, .rank = 1,
                .params = kt_attn_params, .accepts = accepts_fours);
