/* Softmax of blocks of scores on AVX2, eight queries at a time. The including file defines
 * end_weights below: a row of weights, floats in the order of the keys and zeros from n_keys to the
 * next multiple of 8, times the values' scales (NULL = 1), in the form that its products want.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_SOFTEN256_H
#define KT_ATTN_SOFTEN256_H

#include "kernels/attn/attn256.h"
#include "kernels/simd/exp256.h"

KT_INLINE void end_weights(float *s, const float *scale, int64_t n_keys);

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

/* A query's scores: the least of those in whole vectors of keys, and the vector with those left
 * over, whose other lanes are -infinity: their weight is exp(-infinity) = 0. */
typedef struct query_scores {
    float *s;
    int64_t n_keys, whole;
    __m256 least, rest;
    float top; /* largest of these and of the blocks before */
} query_scores;

/* n scores, times the keys' scales unless that is NULL. -infinity joins in a register: a load waits
 * long for narrower stores in its place. */
KT_INLINE __m256 first_scores(const float *s, const float *scale, int64_t n) {
    const __m256i is_key = first_lanes(n);
    __m256 x = _mm256_loadu_ps(s);

    if (scale) x = _mm256_mul_ps(x, _mm256_maskload_ps(scale, is_key));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(is_key));
}

KT_INLINE query_scores scores_of(const kt_attn_part *t, int64_t query) {
    const float *k_scale = t->k_scale, before = t->stats[2 * query];
    query_scores x = {.s = t->s + query * KT_ATTN_LDS, .n_keys = kt_attn_keys(t, query)};
    __m256 top;

    x.whole = x.n_keys / 8 * 8;
    x.rest = top =
        first_scores(x.s + x.whole, k_scale ? k_scale + x.whole : NULL, x.n_keys - x.whole);
    x.least = _mm256_set1_ps(__builtin_inff());
    for (int64_t j = 0; j < x.whole; j += 8) {
        __m256 s = _mm256_loadu_ps(x.s + j);
        if (k_scale) {
            s = _mm256_mul_ps(s, _mm256_loadu_ps(k_scale + j));
            _mm256_storeu_ps(x.s + j, s);
        }
        x.least = _mm256_min_ps(x.least, s);
        top = _mm256_max_ps(top, s);
    }
    x.top = max8(top);
    if (before > x.top) x.top = before;
    return x;
}

/* Scores of whole vectors become weights; is_normal: none is more than 86 below the largest. */
KT_INLINE __m256 whole_weights(const query_scores *x, const int is_normal) {
    __m256 sum = _mm256_setzero_ps();

    for (int64_t j = 0; j < x->whole; j += 8) {
        const __m256 s = _mm256_sub_ps(_mm256_loadu_ps(x->s + j), _mm256_set1_ps(x->top));
        const __m256 p = is_normal ? kt_exp_normal_ps256(s) : kt_exp_ps256(s);
        _mm256_storeu_ps(x->s + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    return sum;
}

/* The query's scores become weights; returns their sum. */
KT_INLINE float weights_of(const kt_attn_part *t, const query_scores *x) {
    const __m256 top = _mm256_set1_ps(x->top), lowest = _mm256_sub_ps(x->least, top);
    __m256 sum;

    if (_mm256_movemask_ps(_mm256_cmp_ps(lowest, _mm256_set1_ps(-86.0f), _CMP_GE_OQ)) == 0xff)
        sum = whole_weights(x, 1);
    else
        sum = whole_weights(x, 0);
    if (x->whole < x->n_keys) {
        const __m256 p = kt_exp_ps256(_mm256_sub_ps(x->rest, top));
        _mm256_storeu_ps(x->s + x->whole, p);
        sum = _mm256_add_ps(sum, p);
    }
    end_weights(x->s, t->v_scale, x->n_keys);
    return sum8(sum);
}

/* Up to eight queries: the factors of their older sums are one exponential, and none waits for the
 * largest score of the one before. */
KT_INLINE void soften_some(const kt_attn_part *t, int64_t first, int64_t n) {
    float *stats = t->stats + 2 * first, *keep = t->keep + first;
    float past[8] = {0.0f}, factor[8];
    query_scores x[8];

    for (int64_t i = 0; i < n; i++) {
        x[i] = scores_of(t, first + i);
        past[i] = stats[2 * i] - x[i].top;
    }
    _mm256_storeu_ps(factor, kt_exp_ps256(_mm256_loadu_ps(past)));
    for (int64_t i = 0; i < n; i++) {
        keep[i] = factor[i];
        stats[2 * i] = x[i].top;
        stats[2 * i + 1] = stats[2 * i + 1] * factor[i] + weights_of(t, &x[i]);
    }
}

/* kt_attn_inner.soften_all */
static void soften_all(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;

    for (int64_t i = 0; i < t->n; i += 8) soften_some(t, i, t->n - i < 8 ? t->n - i : 8);
}

#endif
