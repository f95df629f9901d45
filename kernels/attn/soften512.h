/* Softmax of blocks of scores on AVX-512, four queries side by side: exponentials of one vector,
 * and the reduction of one row, wait for themselves most of the time. A query's numbers do not
 * depend on those beside it.
 *
 * The including file defines put_weights below: a row of scores becomes weights in the form that
 * its products want; returns their sum by lanes. What is left to do to four rows, or to one, is
 * end_weights, which it defines below if it defined END_WEIGHTS before.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_SOFTEN512_H
#define KT_ATTN_SOFTEN512_H

#include "kernels/attn/attn512.h"
#include "kernels/simd/exp512.h"

/* How a row's softmax goes; constants at each call. Of nv vectors, 2 or 4: those behind them have
 * no keys. is_whole: the row sees all keys of the block; is_scaled: keys and values have scales. */
typedef struct softening {
    int is_whole, is_scaled, nv;
} softening;

KT_INLINE __m512 put_weights(const kt_attn_part *t, float *s, int64_t n_keys, float top,
                             const softening how);
#ifdef END_WEIGHTS
KT_INLINE void end_weights(const kt_attn_part *t, int64_t query, const int nq);
#endif

/* Which of scores [16 i, 16 i + 16) of a row of n_keys are there. */
KT_INLINE __mmask16 seen(int64_t n_keys, const int i, const softening how) {
    return how.is_whole ? KT_ALL_LANES : kt_lanes512(n_keys - 16 * i);
}

/* Scores of a row, times the keys' scales; lowest where none is. */
KT_INLINE void load_scores(const kt_attn_part *t, const float *s, int64_t n_keys,
                           const softening how, __m512 v[4]) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());

    KT_EACH (i, how.nv) {
        const __mmask16 m = seen(n_keys, i, how);
        v[i] = _mm512_mask_loadu_ps(lowest, m, s + 16 * i);
        if (how.is_scaled)
            v[i] =
                _mm512_mask_mul_ps(lowest, m, v[i], _mm512_maskz_loadu_ps(m, t->k_scale + 16 * i));
    }
}

/* e^(x - top) of nv vectors, for weights that are rounded to at most 16 bits: 2^((x - top) log2 e),
 * exact enough for all but one in several thousand to round as e^(x - top) does. Far below they are
 * zero or denormal; NaN stays. */
KT_INLINE void exp_less(__m512 v[4], float top, const int nv) {
    const __m512 log2e = _mm512_set1_ps(KT_EXP_LOG2E), highest = _mm512_set1_ps(top);
    __m512 n[4], p[4];

    KT_EACH (i, nv) v[i] = _mm512_mul_ps(_mm512_sub_ps(v[i], highest), log2e);
    KT_EACH (i, nv) v[i] = _mm512_max_ps(_mm512_set1_ps(-150.0f), v[i]);
    KT_EACH (i, nv)
        n[i] = _mm512_roundscale_ps(v[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    KT_EACH (i, nv) v[i] = _mm512_sub_ps(v[i], n[i]);
    KT_EACH (i, nv)
        p[i] = _mm512_fmadd_ps(v[i], _mm512_set1_ps(KT_EXP2_C5), _mm512_set1_ps(KT_EXP2_C4));
    KT_EACH (i, nv) p[i] = _mm512_fmadd_ps(v[i], p[i], _mm512_set1_ps(KT_EXP2_C3));
    KT_EACH (i, nv) p[i] = _mm512_fmadd_ps(v[i], p[i], _mm512_set1_ps(KT_EXP2_C2));
    KT_EACH (i, nv) p[i] = _mm512_fmadd_ps(v[i], p[i], _mm512_set1_ps(KT_EXP2_C1));
    KT_EACH (i, nv) p[i] = _mm512_fmadd_ps(v[i], p[i], _mm512_set1_ps(1.0f));
    KT_EACH (i, nv) v[i] = _mm512_scalef_ps(p[i], n[i]);
}

/* The largest, or the sum, of the lanes of four vectors, by the tree that reduces one: lanes i and
 * i + 8, + 4, + 2, + 1. Lanes 4 r .. 4 r + 3 of the result belong to a[r]. */
#define REDUCE_FOUR(a, op)                                                                      \
    __extension__({                                                                             \
        __m512 x_ =                                                                             \
            op(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee)); \
        __m512 y_ =                                                                             \
            op(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee)); \
        x_ = op(_mm512_shuffle_f32x4(x_, y_, 0x88), _mm512_shuffle_f32x4(x_, y_, 0xdd));        \
        x_ = op(x_, _mm512_shuffle_ps(x_, x_, 0x4e));                                           \
        op(x_, _mm512_shuffle_ps(x_, x_, 0xb1));                                                \
    })

/* Lanes 0, 4, 8 and 12: what REDUCE_FOUR has of its four. */
KT_INLINE __m128 each_fourth(__m512 x) {
    const __m512i at = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(at, x));
}

/* nq queries from `query` on, 4 or 1. A factor of older sums is exp(0) = 1 where the maximum stays.
 */
KT_INLINE void soften_few(const kt_attn_part *t, int64_t query, const softening how, const int nq) {
    const __mmask8 both = (__mmask8)((1u << 2 * nq) - 1), rows = (__mmask8)((1u << nq) - 1);
    float *stats = t->stats + 2 * query, *s = t->s + query * KT_ATTN_LDS;
    const __m256 was = _mm256_maskz_loadu_ps(both, stats);
    const __m128 low = _mm256_castps256_ps128(was), high = _mm256_extractf128_ps(was, 1);
    const __m128 was_top = _mm_shuffle_ps(low, high, 0x88);
    __m128 top, sum, keep;
    __m512 most[4], total[4];
    int64_t n_keys[4];
    float tops[4];

    KT_EACH (r, nq) n_keys[r] = kt_attn_keys(t, query + r);
    KT_EACH (r, 4) {
        __m512 v[4];
        most[r] = most[0];
        if (r >= nq) continue;
        load_scores(t, s + r * KT_ATTN_LDS, n_keys[r], how, v);
        most[r] = _mm512_max_ps(v[0], v[1]);
        if (how.nv == 4) most[r] = _mm512_max_ps(most[r], _mm512_max_ps(v[2], v[3]));
    }
    top = _mm_max_ps(was_top, each_fourth(REDUCE_FOUR(most, _mm512_max_ps)));
    _mm_storeu_ps(tops, top);
    KT_EACH (r, 4) {
        total[r] = total[0];
        if (r < nq) total[r] = put_weights(t, s + r * KT_ATTN_LDS, n_keys[r], tops[r], how);
    }
    keep = _mm512_castps512_ps128(kt_exp_ps512(_mm512_castps128_ps512(_mm_sub_ps(was_top, top))));
    keep = _mm_mask_mov_ps(keep, _mm_cmp_ps_mask(was_top, top, _CMP_EQ_OQ), _mm_set1_ps(1.0f));
    sum = _mm_add_ps(_mm_mul_ps(_mm_shuffle_ps(low, high, 0xdd), keep),
                     each_fourth(REDUCE_FOUR(total, _mm512_add_ps)));
    _mm_mask_storeu_ps(t->keep + query, rows, keep);
    _mm256_mask_storeu_ps(stats, both,
                          _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_unpacklo_ps(top, sum)),
                                               _mm_unpackhi_ps(top, sum), 1));
#ifdef END_WEIGHTS
    end_weights(t, query, nq);
#endif
}

KT_INLINE void soften_rows(const kt_attn_part *t, const int is_scaled) {
    int64_t i = 0;

    for (; i + 4 <= t->n; i += 4) {
        if (kt_attn_keys(t, i) == KT_ATTN_BLOCK)
            soften_few(t, i, (softening){1, is_scaled, 4}, 4);
        else if (kt_attn_keys(t, i + 3) <= KT_ATTN_BLOCK / 2)
            soften_few(t, i, (softening){0, is_scaled, 2}, 4);
        else
            soften_few(t, i, (softening){0, is_scaled, 4}, 4);
    }
    for (; i < t->n; i++) soften_few(t, i, (softening){0, is_scaled, 4}, 1);
}

/* kt_attn_inner.soften_all */
static void soften_all(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;

    if (t->k_scale)
        soften_rows(t, 1);
    else
        soften_rows(t, 0);
}

#endif
