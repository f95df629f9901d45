/* exp of 16 floats for AVX-512 files (softmax, SiLU). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_EXP512_H
#define KT_KERNELS_EXP512_H

#include <immintrin.h>

/* e^x with relative error below 2^-23 for normal results (polynomial 3.1e-9, the rest rounding);
 * denormal results are rounded once more. x < -104 gives 0, x > 89 infinity, NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 p(r) with p of degree 4, fitted for
 * the smallest largest relative error. The clamp keeps infinities out of the reduction; its operand
 * order lets NaN through. */
static inline __m512 kt_exp_ps512(__m512 x) {
    __m512 n, r, p;

    x = _mm512_min_ps(_mm512_set1_ps(89.0f), x);
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
    n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e43p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c61p-29f), r);
    p = _mm512_set1_ps(0x1.6a242fp-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.1239e3p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5558f1p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555491p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.fffffcp-2f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

#endif
