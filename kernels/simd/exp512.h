/* exp of 16 floats for AVX-512 files (softmax, SiLU). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_EXP512_H
#define KT_KERNELS_EXP512_H

#include <immintrin.h>

#include "kernels/simd/exp_poly.h"

/* e^x with relative error below 2^-23 for normal results, denormal ones rounded once more.
 * x < -104 gives 0, x > 89 infinity, NaN stays NaN.
 *
 * The clamp keeps infinities out of the reduction; its operand order lets NaN through. */
static inline __m512 kt_exp_ps512(__m512 x) {
    __m512 n, r, p;

    x = _mm512_min_ps(_mm512_set1_ps(89.0f), x);
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
    n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(KT_EXP_LOG2E)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(KT_EXP_LN2_HIGH), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(KT_EXP_LN2_LOW), r);
    p = _mm512_set1_ps(KT_EXP_P4);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KT_EXP_P3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KT_EXP_P2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KT_EXP_P1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KT_EXP_P0));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

#endif
