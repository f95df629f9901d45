/* Sixteen lanes at a time. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_pass.h"

#include <math.h>
#include <stddef.h>

#include "kernels/simd/exp512.h"

enum { BLOCK = KT_LOGIT_BLOCK };

static float maximum(const float *x) {
    __m512 a = _mm512_set1_ps(-INFINITY), b = a;

    for (int i = 0; i < BLOCK; i += 32) { /* NaN gives the second operand */
        a = _mm512_max_ps(_mm512_loadu_ps(x + i), a);
        b = _mm512_max_ps(_mm512_loadu_ps(x + i + 16), b);
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(a, b));
}

static double weigh(const float *x, const kt_logit_cut *cut, float *out) {
    const __m512 top = _mm512_set1_ps(cut->top), scale = _mm512_set1_ps(cut->scale);
    const __m512 least = _mm512_set1_ps(cut->least);
    __m512 w[BLOCK / 16];

    for (int i = 0; i < BLOCK / 16; i++) {
        const __m512 l = _mm512_loadu_ps(x + 16 * i);
        const __mmask16 counts = _mm512_cmp_ps_mask(l, least, _CMP_GE_OQ);
        w[i] = kt_exp_ps512(_mm512_mul_ps(_mm512_sub_ps(l, top), scale));
        w[i] = _mm512_maskz_mov_ps(counts, w[i]);
        if (out) _mm512_storeu_ps(out + 16 * i, w[i]);
    }
    w[0] = _mm512_add_ps(_mm512_add_ps(w[0], w[1]), _mm512_add_ps(w[2], w[3]));
    return (double)_mm512_reduce_add_ps(w[0]);
}

static double sum_over(const float *x, const float *w, float over, int64_t *equals) {
    const __m512 bound = _mm512_set1_ps(over);
    __m512 kept[BLOCK / 16];

    for (int i = 0; i < BLOCK / 16; i++) {
        const __m512 l = _mm512_loadu_ps(x + 16 * i);
        const __mmask16 counts = _mm512_cmp_ps_mask(l, bound, _CMP_GT_OQ);
        const __mmask16 same = _mm512_cmp_ps_mask(l, bound, _CMP_EQ_OQ);
        kept[i] = _mm512_maskz_loadu_ps(counts, w + 16 * i);
        *equals += __builtin_popcount(same);
    }
    kept[0] = _mm512_add_ps(_mm512_add_ps(kept[0], kept[1]), _mm512_add_ps(kept[2], kept[3]));
    return (double)_mm512_reduce_add_ps(kept[0]);
}

const kt_logit_pass kt_logit_pass_avx512 = {
    .maximum = maximum, .weigh = weigh, .sum_over = sum_over};
