/* RMSNorm of rows, sixteen lanes; the last lanes are masked, so that any row length is one path.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <math.h>

#include "kt/variant.h"

static inline __mmask16 lanes(int64_t left) {
    return left >= 16 ? (__mmask16)0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1u);
}

static void norm_row(const float *x, const float *w, float eps, float *y, int64_t k) {
    __m512 s[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                   _mm512_setzero_ps()};
    __m512 r16, v;
    float total;
    int64_t i = 0;

    for (; i + 64 <= k; i += 64)
        for (int j = 0; j < 4; j++) {
            v = _mm512_loadu_ps(x + i + 16 * j);
            s[j] = _mm512_fmadd_ps(v, v, s[j]);
        }
    for (int j = 0; j < 4; j++) {
        v = _mm512_maskz_loadu_ps(lanes(k - i - 16 * j), x + i + 16 * j);
        s[j] = _mm512_fmadd_ps(v, v, s[j]);
    }
    total =
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
    r16 = _mm512_set1_ps(1.0f / sqrtf(total / (float)k + eps));
    for (i = 0; i < k; i += 16) {
        __mmask16 m = lanes(k - i);
        v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r16);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++)
        norm_row(c->x + row * c->ldx, c->w, c->eps, c->y + row * c->ldy, c->k);
}

KT_VARIANT(rms_rows__avx512) = {
    .name = "rms_rows__avx512",
    .op = KT_OP_NORM,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "sums512",
    .version = 1,
    .layout = "",
    .rank = 1,
    .norm = norm,
};
