/* exp of 8 floats for AVX2 files (softmax, SiLU). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_EXP256_H
#define KT_KERNELS_EXP256_H

#include <immintrin.h>

#include "kernels/simd/exp_poly.h"

/* 2^n for integers -126 <= n <= 127. */
static inline __m256 kt_pow2_ps256(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* e^x = e^r 2^n, n whole, for x of moderate size: e^r and n. */
static inline __m256 kt_exp_parts_ps256(__m256 x, __m256 *n) {
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(KT_EXP_LOG2E)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(whole, _mm256_set1_ps(KT_EXP_LN2_HIGH), x), p;

    r = _mm256_fnmadd_ps(whole, _mm256_set1_ps(KT_EXP_LN2_LOW), r);
    p = _mm256_set1_ps(KT_EXP_P4);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KT_EXP_P0));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    *n = whole;
    return _mm256_add_ps(p, _mm256_set1_ps(1.0f));
}

/* e^x: the polynomial, error and edge cases of kt_exp_ps512. 2^n is applied in two halves, so that
 * neither leaves the normal range while the product may. */
static inline __m256 kt_exp_ps256(__m256 x) {
    __m256 n, p;
    __m256i whole, half;

    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    p = kt_exp_parts_ps256(x, &n);
    whole = _mm256_cvtps_epi32(n);
    half = _mm256_srai_epi32(whole, 1);
    p = _mm256_mul_ps(p, kt_pow2_ps256(half));
    return _mm256_mul_ps(p, kt_pow2_ps256(_mm256_sub_epi32(whole, half)));
}

/* p 2^n where both p and the result are normal numbers: n joins the exponent as it is. A NaN among
 * n becomes 2^31, which leaves a NaN among p as it is. */
static inline __m256 kt_scaled_ps256(__m256 p, __m256 n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

/* e^x, to the bit, for x of -86 to 0 or NaN. */
static inline __m256 kt_exp_normal_ps256(__m256 x) {
    __m256 n;
    const __m256 p = kt_exp_parts_ps256(x, &n);
    return kt_scaled_ps256(p, n);
}

/* 1 + e^x, to the bit: what is lost where e^x is below 2^-124 is lost in the sum. Half of e^x is a
 * normal number, and twice that overflows where e^x does. */
static inline __m256 kt_one_plus_exp_ps256(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 n, p;

    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-86.0f), x);
    p = kt_exp_parts_ps256(x, &n);
    p = kt_scaled_ps256(p, _mm256_sub_ps(n, one));
    return _mm256_add_ps(one, _mm256_add_ps(p, p));
}

#endif
