/* exp of 8 floats for AVX2 files (softmax, SiLU). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_EXP256_H
#define KT_KERNELS_EXP256_H

#include <immintrin.h>

#include "kernels/simd/exp_poly.h"

/* 2^n for integers -126 <= n <= 127. */
static inline __m256 kt_pow2_ps256(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* e^r 2^n = e^x for x of moderate size: r, n and e^r. */
static inline __m256 kt_exp_parts_ps256(__m256 x, __m256i *n) {
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
    *n = _mm256_cvtps_epi32(whole);
    return _mm256_add_ps(p, _mm256_set1_ps(1.0f));
}

/* e^x: the polynomial, error and edge cases of kt_exp_ps512. 2^n is applied in two halves, so that
 * neither leaves the normal range while the product may. */
static inline __m256 kt_exp_ps256(__m256 x) {
    __m256 p;
    __m256i whole, half;

    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    p = kt_exp_parts_ps256(x, &whole);
    half = _mm256_srai_epi32(whole, 1);
    p = _mm256_mul_ps(p, kt_pow2_ps256(half));
    return _mm256_mul_ps(p, kt_pow2_ps256(_mm256_sub_epi32(whole, half)));
}

/* The same, to the bit, for x of -86 to 0 or NaN: the result is a normal number, whose exponent n
 * joins as it is. */
static inline __m256 kt_exp_normal_ps256(__m256 x) {
    __m256i n;
    const __m256 p = kt_exp_parts_ps256(x, &n);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
}

#endif
