/* Eight lanes at a time. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_pass.h"

#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "kernels/simd/exp_poly.h"

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

/* exp(x) for x <= 0: kt_exp_ps256 without what larger arguments and denormal results need, the same
 * bits down to exp(-87), which is over the smallest normal number, and 0 below. */
static __m256 exp8(__m256 x) {
    const __m256 lowest = _mm256_set1_ps(-87.0f);
    const __m256 is_seen = _mm256_cmp_ps(x, lowest, _CMP_GT_OQ);
    __m256 n, r, p;
    __m256i power;

    x = _mm256_max_ps(x, lowest); /* NaN becomes -87 */
    n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(KT_EXP_LOG2E)),
                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(KT_EXP_LN2_HIGH), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(KT_EXP_LN2_LOW), r);
    p = _mm256_set1_ps(KT_EXP_P4);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P0));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_and_ps(is_seen, _mm256_add_ps(p, _mm256_set1_ps(1.0f)));
    power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

static double weigh(const float *x, const kt_logit_cut *cut, float *out) {
    const __m256 top = _mm256_set1_ps(cut->top), scale = _mm256_set1_ps(cut->scale);
    const __m256 least = _mm256_set1_ps(cut->least);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

    for (int i = 0; i < BLOCK; i += 8) {
        const __m256 l = _mm256_loadu_ps(x + i);
        const __m256 w = _mm256_and_ps(_mm256_cmp_ps(l, least, _CMP_GE_OQ),
                                       exp8(_mm256_mul_ps(_mm256_sub_ps(l, top), scale)));
        sum[i / 8 % 2] = _mm256_add_ps(sum[i / 8 % 2], w);
        if (out) _mm256_storeu_ps(out + i, w);
    }
    return (double)sum_of_lanes(_mm256_add_ps(sum[0], sum[1]));
}

static double sum_over(const float *x, const float *w, float over, int64_t *equals) {
    const __m256 bound = _mm256_set1_ps(over);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    uint32_t same = 0;

    for (int i = 0; i < BLOCK; i += 8) {
        const __m256 l = _mm256_loadu_ps(x + i);
        const __m256 counts = _mm256_cmp_ps(l, bound, _CMP_GT_OQ);
        const __m256 equal = _mm256_cmp_ps(l, bound, _CMP_EQ_OQ);
        sum[i / 8 % 2] =
            _mm256_add_ps(sum[i / 8 % 2], _mm256_and_ps(counts, _mm256_loadu_ps(w + i)));
        same += (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps(equal));
    }
    *equals += same;
    return (double)sum_of_lanes(_mm256_add_ps(sum[0], sum[1]));
}

const kt_logit_pass kt_logit_pass_avx2 = {.maximum = maximum, .weigh = weigh, .sum_over = sum_over};
