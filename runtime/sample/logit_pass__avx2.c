/* Eight lanes at a time. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_pass.h"

#include <math.h>
#include <stddef.h>

#include "kernels/simd/exp256.h"

enum { BLOCK = KT_LOGIT_BLOCK };

static float maximum(const float *x) {
    __m256 a = _mm256_set1_ps(-INFINITY), b = a;
    __m128 m;

    for (int i = 0; i < BLOCK; i += 16) { /* NaN gives the second operand */
        a = _mm256_max_ps(_mm256_loadu_ps(x + i), a);
        b = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), b);
    }
    a = _mm256_max_ps(a, b);
    m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static float sum_of_lanes(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

static double weigh(const float *x, const kt_logit_cut *cut, float *out) {
    const __m256 top = _mm256_set1_ps(cut->top), scale = _mm256_set1_ps(cut->scale);
    const __m256 least = _mm256_set1_ps(cut->least);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

    for (int i = 0; i < BLOCK; i += 8) {
        const __m256 l = _mm256_loadu_ps(x + i);
        const __m256 w = _mm256_and_ps(_mm256_cmp_ps(l, least, _CMP_GE_OQ),
                                       kt_exp_ps256(_mm256_mul_ps(_mm256_sub_ps(l, top), scale)));
        sum[i / 8 % 2] = _mm256_add_ps(sum[i / 8 % 2], w);
        if (out) _mm256_storeu_ps(out + i, w);
    }
    return (double)sum_of_lanes(_mm256_add_ps(sum[0], sum[1]));
}

const kt_logit_pass kt_logit_pass_avx2 = {.maximum = maximum, .weigh = weigh};
