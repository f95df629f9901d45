/* Sixteen floats, for loops that are written once for all widths: lanes_scalar.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_LANES512_H
#define KT_LINATTN_LANES512_H

#include <immintrin.h>
#include <math.h>

#include "kernels/simd/exp512.h"
#include "kernels/simd/unroll.h"

#define LANES 16
#define LANES_VEC __m512

KT_INLINE __m512 lanes_load(const float *p) {
    return _mm512_loadu_ps(p);
}
KT_INLINE void lanes_store(float *p, __m512 x) {
    _mm512_storeu_ps(p, x);
}
KT_INLINE __m512 lanes_set(float x) {
    return _mm512_set1_ps(x);
}
KT_INLINE __m512 lanes_add(__m512 a, __m512 b) {
    return _mm512_add_ps(a, b);
}
KT_INLINE __m512 lanes_mul(__m512 a, __m512 b) {
    return _mm512_mul_ps(a, b);
}
KT_INLINE __m512 lanes_fma(__m512 a, __m512 b, __m512 c) {
    return _mm512_fmadd_ps(a, b, c);
}
KT_INLINE __m512 lanes_fnma(__m512 a, __m512 b, __m512 c) {
    return _mm512_fnmadd_ps(a, b, c);
}
KT_INLINE __m512 lanes_exp(__m512 x) {
    return kt_exp_ps512(x);
}
KT_INLINE __m512 lanes_silu(__m512 x) {
    const __m512 e = kt_exp_ps512(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}
KT_INLINE float lanes_sum(__m512 x) {
    return _mm512_reduce_add_ps(x);
}

#endif
