/* Queries, weights and values as pairs of BF16, which VDPBF16PS and tiles multiply (AVX-512).
 *
 * Queries are scaled and rounded to BF16 once. Weights are rounded to BF16, and the rounded ones
 * are also summed, so that they add up to one. Interleaving two keys' values makes pairs, in the
 * order that the shuffle has (columns 0-3, 8-11, 16-19, 24-27 of 32, then the others), which
 * store_sums undoes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_PAIRS512_H
#define KT_ATTN_PAIRS512_H

#include "kernels/attn/soften512.h"
#include "kernels/simd/bf16x512.h"

/* As assembler, since not every including file is compiled for BF16. */
KT_INLINE __m512i to_bf16(__m512 low, __m512 high) {
    __m512i pairs;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(high), "v"(low));
    return pairs;
}

/* The scratch row begins with the head as BF16, zeros up to a multiple of 32. */
static void load_query(const float *q, int64_t d, float scale, float *out) {
    const __m512 s = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < d; i += 32) {
        __m512 low = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(kt_lanes512(d - i), q + i));
        __m512 high = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(kt_lanes512(d - i - 16), q + i + 16));
        _mm512_store_si512(out + i / 2, to_bf16(low, high));
    }
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 a = _mm512_mul_ps(f, _mm512_load_ps(o + i));
        __m512 b = _mm512_mul_ps(f, _mm512_load_ps(o + i + 16));
        _mm512_mask_storeu_ps(out + i, kt_lanes512(d - i), _mm512_permutex2var_ps(a, first, b));
        _mm512_mask_storeu_ps(out + i + 16, kt_lanes512(d - i - 16),
                              _mm512_permutex2var_ps(a, second, b));
    }
}

/* ---- weights: the row of scores becomes 64 BF16 numbers at its beginning ---- */

/* With scales of values the weights are rounded after these multiply them: then the plain ones are
 * summed. Conversion takes denormal numbers as zero. */
KT_INLINE __m512 put_weights(const kt_attn_part *t, float *s, int64_t n_keys, float top,
                             const softening how) {
    __m512 v[4], sum = _mm512_setzero_ps();

    load_scores(t, s, n_keys, how, v);
    exp_less(v, top, how.nv);
    KT_EACH (i, how.nv) {
        const __mmask16 m = seen(n_keys, i, how);
        if (!how.is_scaled) continue;
        sum = _mm512_add_ps(sum, v[i]);
        v[i] = _mm512_mul_ps(v[i], _mm512_maskz_loadu_ps(m, t->v_scale + 16 * i));
    }
    KT_EACH (i, how.nv / 2) {
        const __m512i weights = to_bf16(v[2 * i], v[2 * i + 1]);
        _mm512_store_si512(s + 16 * i, weights);
        if (how.is_scaled) continue;
        sum = _mm512_add_ps(sum, _mm512_add_ps(kt_bf16_even512(weights), kt_bf16_odd512(weights)));
    }
    return sum;
}

/* ---- values ---- */

/* Two keys' values of 32 columns as pairs: columns 0-3, 8-11, .., then the others. */
KT_INLINE void pair_values(__m512i a, __m512i b, __m512i pair[2]) {
    pair[0] = _mm512_unpacklo_epi16(a, b);
    pair[1] = _mm512_unpackhi_epi16(a, b);
}

#endif
