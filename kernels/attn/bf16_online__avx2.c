/* Grouped-query attention over a BF16 or 8-bit cache with f32 arithmetic on AVX2, decode and
 * prefill alike.
 *
 * 16 bfloat16 are loaded as 8 dwords, a left shift by 16 gives the even elements and a mask the odd
 * ones; queries and sums are kept in that order (8 even, 8 odd, per 16). Scores come 8 dot products
 * at a time, as 4 queries x 2 keys, 2 x 4 or 1 x 8, with one accumulator each and one tree over the
 * lanes (+ 4, + 2, + 1) of all 8. Past the last key the tile reads the last key again and its
 * scores are ignored.
 *
 * Sizes of keys and of values are multiples of 4: loads of the last 16 elements are masked, and
 * masks are of dwords, two elements or four codes. SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "base/err.h"
#include "kernels/attn/attn_walk.h"
#include "kernels/simd/exp256.h"
#include "kernels/simd/unroll.h"

#define SCORES 8 /* of a tile, whatever its queries */

KT_INLINE __m256i load_pairs(const uint16_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
/* The first `left` elements, an even number; the others are zeros and not read. */
KT_INLINE __m256i load_last(const uint16_t *p, int64_t left) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)left / 2), lane);
    return _mm256_maskload_epi32((const int *)(const void *)p, mask);
}
/* is_last is a constant at each call. */
KT_INLINE __m256i load_up_to(const uint16_t *p, int64_t left, const int is_last) {
    return is_last ? load_last(p, left) : load_pairs(p);
}
KT_INLINE __m256 even(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
KT_INLINE __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
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

KT_INLINE __m128i load_codes(const uint8_t *p, int64_t left) {
    const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
    if (left >= 16) return _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm_maskload_epi32((const int *)(const void *)p,
                              _mm_cmpgt_epi32(_mm_set1_epi32((int32_t)left / 4), lane));
}

static void widen(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows from = *codes;

    for (int64_t j = 0; j < from.n; j++)
        for (int64_t i = 0; i < from.d; i += 16) {
            const uint8_t *at = from.at + j * from.ld + i;
            const __m128i x = load_codes(at, from.d - i);
            if (i % 64 == 0) __builtin_prefetch(at + KT_ATTN_AHEAD * from.ld, 0, 2);
            _mm256_storeu_si256((__m256i *)(void *)(out + j * ldo + i),
                                from.cache == KT_W_INT8_CHANNEL ? widen_int8(x) : widen_fp8(x));
        }
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    for (int64_t i = 0; i < d; i += 16)
        for (int64_t j = 0; j < 8 && i + 2 * j < d; j++) {
            out[i + 2 * j] = o[i + j] * factor;
            out[i + 2 * j + 1] = o[i + 8 + j] * factor;
        }
}

/* Lane 4 i + j of the result is the sum of the lanes of a[i + 2 j]. */
KT_INLINE __m256 sum_lanes(__m256 a[8]) {
    for (int i = 0; i < 4; i++) /* a[i] = 4 sums of each of a[2i], a[2i + 1] */
        a[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x20),
                             _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x31));
    for (int i = 0; i < 2; i++)
        a[i] = _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(a[0], a[1], 0x88), _mm256_shuffle_ps(a[0], a[1], 0xdd));
}

/* 16 elements from x on of nq queries and nk keys. */
KT_INLINE void score_step(__m256 sum[8], const float *q, int64_t ldq, const uint16_t *const key[8],
                          int64_t x, int64_t d, const int nq, const int nk, const int is_last) {
    for (int i = 0; i < nk; i++) {
        __m256i pairs = load_up_to(key[i] + x, d - x, is_last);
        __m256 a = even(pairs), b = odd(pairs);
        for (int r = 0; r < nq; r++) {
            int lane = r * nk + i, at = lane / 4 + 2 * (lane % 4);
            sum[at] = _mm256_fmadd_ps(_mm256_loadu_ps(q + r * ldq + x), a, sum[at]);
            sum[at] = _mm256_fmadd_ps(_mm256_loadu_ps(q + r * ldq + x + 8), b, sum[at]);
        }
    }
}

/* Row j of the tile's keys, or the last one: its scores are never looked at. */
KT_INLINE const uint16_t *key_or_last(const kt_attn_part *t, int64_t j) {
    return kt_attn_row(&t->k, j < t->n_keys ? j : t->n_keys - 1);
}

KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, int64_t j, const int nq) {
    const int nk = SCORES / nq;
    const int64_t d = t->k.d, ldq = t->ldq, lds = KT_ATTN_LDS;
    const float *q = t->q + i * ldq;
    const uint16_t *key[SCORES];
    float *s = t->s + i * lds;
    __m256 sum[SCORES], all;
    int64_t x = 0;

    for (int n = 0; n < nk; n++) key[n] = key_or_last(t, j + n);
    for (int n = 0; n < SCORES; n++) sum[n] = _mm256_setzero_ps();
    for (; x + 16 <= d; x += 16) score_step(sum, q, ldq, key, x, d, nq, nk, 0);
    if (x < d) score_step(sum, q, ldq, key, x, d, nq, nk, 1);
    all = sum_lanes(sum);
    if (nq == 1) _mm256_storeu_ps(s + j, all);
    if (nq == 2) {
        _mm_storeu_ps(s + j, _mm256_castps256_ps128(all));
        _mm_storeu_ps(s + lds + j, _mm256_extractf128_ps(all, 1));
    }
    if (nq == 4) {
        __m128 low = _mm256_castps256_ps128(all), high = _mm256_extractf128_ps(all, 1);
        _mm_storel_pi((__m64 *)(void *)(s + j), low);
        _mm_storeh_pi((__m64 *)(void *)(s + lds + j), low);
        _mm_storel_pi((__m64 *)(void *)(s + 2 * lds + j), high);
        _mm_storeh_pi((__m64 *)(void *)(s + 3 * lds + j), high);
    }
}

KT_INLINE float max8(__m256 v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

KT_INLINE float sum8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* Slots past the last key become -infinity first: their weight is exp(-infinity) = 0. */
static float soften(const kt_attn_part *t, int64_t query) {
    const int64_t n_keys = kt_attn_keys(t, query), end = (n_keys + 7) / 8 * 8;
    float *s = t->s + query * KT_ATTN_LDS, *stats = t->stats + 2 * query, top, keep;
    const float *k_scale = t->k_scale, *v_scale = t->v_scale;
    __m256 top8, sum = _mm256_setzero_ps();

    for (int64_t j = 0; k_scale && j < n_keys; j++) s[j] *= k_scale[j];
    for (int64_t j = n_keys; j < end; j++) s[j] = -__builtin_inff();
    top8 = _mm256_loadu_ps(s);
    for (int64_t j = 8; j < end; j += 8) top8 = _mm256_max_ps(top8, _mm256_loadu_ps(s + j));
    top = max8(top8);
    if (stats[0] > top) top = stats[0];
    for (int64_t j = 0; j < end; j += 8) {
        __m256 p = kt_exp_ps256(_mm256_sub_ps(_mm256_loadu_ps(s + j), _mm256_set1_ps(top)));
        _mm256_storeu_ps(s + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    for (int64_t j = 0; v_scale && j < n_keys; j++) s[j] *= v_scale[j];
    keep = _mm256_cvtss_f32(kt_exp_ps256(_mm256_set1_ps(stats[0] - top)));
    stats[0] = top;
    stats[1] = stats[1] * keep + sum8(sum);
    return keep;
}

/* The rows of the block to come when they lie one behind the other and are bfloat16, else NULL.
 * Fewer queries than four meet a block in so short a time that they look further ahead, by
 * kt_attn_fetch. */
static const char *joined_rows(const kt_attn_part *t, const kt_attn_next *next, int64_t d) {
    const bool is_joined = next->rows && next->ld == next->bytes && next->bytes > d;
    return is_joined && t->n >= 4 ? (const char *)next->rows : NULL;
}

/* Lines [at, at + n) of them, in the order that the core's own prefetchers follow. */
KT_INLINE void ask(const char *rows, int64_t at, int64_t n) {
    for (int64_t i = at; i < at + n; i++) __builtin_prefetch(rows + 64 * i, 0, 2);
}

/* nq queries from i on x nv * 16 columns from x on, or (is_last) what is left of them; constants at
 * each call: nq and nv, nq * nv <= 4, is_last. Each key asks for half a line of `next` per 16
 * columns, or, without that, for the row KT_ATTN_AHEAD behind. */
KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, const char *next,
                          const int nq, const int nv, const int is_last) {
    const int64_t lds = KT_ATTN_LDS, ldo = t->ldo, n_keys = t->n_keys, left = t->v.d - x;
    const kt_attn_rows rows = t->v;
    const float *s = t->s + i * lds;
    float *o = t->o + i * ldo + x;
    __m256 sum[4][8];

    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++)
            sum[r][c] =
                _mm256_mul_ps(_mm256_set1_ps(t->keep[i + r]), _mm256_loadu_ps(o + r * ldo + 8 * c));
    for (int64_t j = 0; j < n_keys; j++) {
        const uint16_t *v = kt_attn_row(&rows, j) + x;
        if (!next)
            kt_attn_fetch(&rows, j, 1, x, x + 16 * nv, 32);
        else if (i == 0 && j % 2 == 0)
            ask(next, (x / 16 * KT_ATTN_BLOCK + j * nv) / 2, nv);
        for (int c = 0; c < nv; c++) {
            __m256i pairs = load_up_to(v + 16 * c, left, is_last);
            __m256 a = even(pairs), b = odd(pairs);
            for (int r = 0; r < nq; r++) {
                __m256 p = _mm256_set1_ps(s[r * lds + j]);
                sum[r][2 * c] = _mm256_fmadd_ps(p, a, sum[r][2 * c]);
                sum[r][2 * c + 1] = _mm256_fmadd_ps(p, b, sum[r][2 * c + 1]);
            }
        }
    }
    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++) _mm256_storeu_ps(o + r * ldo + 8 * c, sum[r][c]);
}

KT_INLINE void weigh_columns(const kt_attn_part *t, int64_t i, const int nq) {
    const int64_t d = t->v.d;
    const char *const next = joined_rows(t, &t->next_v, d);
    int64_t x = 0;

    for (; nq == 1 && x + 64 <= d; x += 64) weigh_tile(t, i, x, next, nq, 4 / nq, 0);
    for (; x + 16 <= d; x += 16) weigh_tile(t, i, x, next, nq, 1, 0);
    if (x < d) weigh_tile(t, i, x, next, nq, 1, 1);
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    if (p->k % 4 != 0 || p->v % 4 != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "attention: %s size %lld, expected a multiple of 4",
                       p->k % 4 ? "head" : "value", (long long)(p->k % 4 ? p->k : p->v));
    return kt_attn_accepts(p, config, why);
}

/* One, two or four queries at a time. */

/* Each four queries fetch their share of the lines of keys to come. */
KT_INLINE void score_keys(const kt_attn_part *t, int64_t i, const int nq) {
    const int64_t fours = (t->n + 3) / 4, keys = SCORES / nq;
    const char *const next = joined_rows(t, &t->next_k, t->k.d);
    const int64_t lines = (t->next_k.bytes * keys + 64 * fours - 1) / (64 * fours);
    int64_t at = i / 4 * (KT_ATTN_BLOCK / keys) * lines;

    for (int64_t j = 0; j < t->n_keys; j += keys, at += lines) {
        if (!next)
            kt_attn_fetch(&t->k, j, keys, i / 4 * 32, t->k.d, fours * 32);
        else if (i % 4 == 0)
            ask(next, at, lines);
        score_tile(t, i, j, nq);
    }
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t i = 0;
    for (; i + 4 <= t->n; i += 4) score_keys(t, i, 4);
    for (; i + 2 <= t->n; i += 2) score_keys(t, i, 2);
    for (; i < t->n; i++) score_keys(t, i, 1);
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t i = 0;
    for (; i + 4 <= t->n; i += 4) weigh_columns(t, i, 4);
    for (; i < t->n; i++) weigh_columns(t, i, 1);
}

static const kt_attn_inner inner = {.lanes = 16,
                                    .load_query = load_query,
                                    .widen = widen,
                                    .scores = scores,
                                    .soften = soften,
                                    .weighs_from_any = true,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

KT_ATTN_VARIANT(bf16_online__avx2, .weights = KT_ATTN_CACHES, .isa = KT_ISA_AVX2,
                .numerics = KT_NUM_F32, .bits = "online256", .version = 3, .rank = 1,
                .params = kt_attn_params, .accepts = accepts);
