/* What the AVX-512 variants of attention share: masks, and a row's softmax.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_512_H
#define KT_ATTN_512_H

#include <immintrin.h>

#include "kernels/attn/attn_walk.h"
#include "kernels/simd/exp512.h"
#include "kernels/simd/tile512.h"

/* The first `left` elements, as many as there are. */
KT_INLINE __mmask64 mask64(int64_t left) {
    return left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
}
KT_INLINE __mmask32 mask32(int64_t left) {
    return left >= 32 ? (__mmask32)0xffffffffu : (__mmask32)((1u << left) - 1u);
}
KT_INLINE __mmask16 mask16(int64_t left) {
    return left >= 16 ? (__mmask16)0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1u);
}

/* kt_attn_inner.soften with the weights in v, 16 each, zeros past the last key that the query sees.
 * The scales of values multiply what was summed. */
KT_INLINE float soften512(const kt_attn_part *t, int64_t query, __m512 v[4]) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    const float *s = t->s + query * KT_ATTN_LDS;
    float *stats = t->stats + 2 * query, top, keep;
    const int64_t n_keys = kt_attn_keys(t, query);
    __mmask16 m[4];
    __m512 total;

    KT_EACH (i, 4) {
        m[i] = mask16(n_keys - 16 * i);
        v[i] = _mm512_mask_loadu_ps(lowest, m[i], s + 16 * i);
        if (t->k_scale)
            v[i] = _mm512_mask_mul_ps(lowest, m[i], v[i],
                                      _mm512_maskz_loadu_ps(m[i], t->k_scale + 16 * i));
    }
    top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3])));
    if (stats[0] > top) top = stats[0];
    KT_EACH (i, 4)
        v[i] = _mm512_maskz_mov_ps(m[i], kt_exp_ps512(_mm512_sub_ps(v[i], _mm512_set1_ps(top))));
    total = _mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3]));
    if (t->v_scale)
        KT_EACH (i, 4) v[i] = _mm512_mul_ps(v[i], _mm512_maskz_loadu_ps(m[i], t->v_scale + 16 * i));
    /* exp(0) is exactly 1; after the first blocks the maximum hardly ever moves */
    keep = stats[0] == top ? 1.0f : _mm512_cvtss_f32(kt_exp_ps512(_mm512_set1_ps(stats[0] - top)));
    stats[0] = top;
    stats[1] = stats[1] * keep + _mm512_reduce_add_ps(total);
    return keep;
}

/* Where the sums of queries begin: those so far times what keeps of them, 32 columns from x on. */
KT_INLINE void begin_sums(const kt_attn_part *t, int64_t i, int64_t x, __m512 sum[][2],
                          const int nq) {
    const int64_t ldo = t->ldo;
    const float *o = t->o + i * ldo + x;

    KT_EACH (r, nq) {
        const __m512 keep = _mm512_set1_ps(t->keep[i + r]);
        KT_EACH (c, 2) sum[r][c] = _mm512_mul_ps(keep, _mm512_load_ps(o + r * ldo + 16 * c));
    }
}
KT_INLINE void end_sums(const kt_attn_part *t, int64_t i, int64_t x, __m512 sum[][2],
                        const int nq) {
    const int64_t ldo = t->ldo;
    float *o = t->o + i * ldo + x;

    KT_EACH (r, nq) {
        KT_EACH (c, 2) _mm512_store_ps(o + r * ldo + 16 * c, sum[r][c]);
    }
}

#endif
