/* Eight floats, for loops that are written once for all widths: lanes_scalar.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_LANES256_H
#define KT_LINATTN_LANES256_H

#include <immintrin.h>
#include <math.h>

#include "kernels/simd/exp256.h"
#include "kernels/simd/unroll.h"

#define LANES 8
#define LANES_VEC __m256

KT_INLINE __m256 lanes_load(const float *p) {
    return _mm256_loadu_ps(p);
}
KT_INLINE void lanes_store(float *p, __m256 x) {
    _mm256_storeu_ps(p, x);
}
KT_INLINE __m256 lanes_set(float x) {
    return _mm256_set1_ps(x);
}
KT_INLINE __m256 lanes_add(__m256 a, __m256 b) {
    return _mm256_add_ps(a, b);
}
KT_INLINE __m256 lanes_mul(__m256 a, __m256 b) {
    return _mm256_mul_ps(a, b);
}
KT_INLINE __m256 lanes_fma(__m256 a, __m256 b, __m256 c) {
    return _mm256_fmadd_ps(a, b, c);
}
KT_INLINE __m256 lanes_fnma(__m256 a, __m256 b, __m256 c) {
    return _mm256_fnmadd_ps(a, b, c);
}
KT_INLINE __m256 lanes_exp(__m256 x) {
    return kt_exp_ps256(x);
}
KT_INLINE __m256 lanes_silu(__m256 x) {
    return _mm256_div_ps(x, kt_one_plus_exp_ps256(_mm256_sub_ps(_mm256_setzero_ps(), x)));
}
KT_INLINE float lanes_sum(__m256 x) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

#endif
