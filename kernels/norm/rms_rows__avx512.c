/* RMSNorm and gates of rows, sixteen lanes. Only what a row ends with is loaded under a mask
 * (row_ends512.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <math.h>

#include "kernels/simd/exp512.h"
#include "kernels/simd/row_ends512.h"
#include "kernels/simd/unroll.h"
#include "kt/variant.h"

static float inverse_rms(const float *x, float eps, int64_t k) {
    __m512 s[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                   _mm512_setzero_ps()};
    __m512 v;
    float total;
    int64_t i = 0;

    for (; i + 64 <= k; i += 64)
        for (int j = 0; j < 4; j++) {
            v = _mm512_loadu_ps(x + i + 16 * j);
            s[j] = _mm512_fmadd_ps(v, v, s[j]);
        }
    for (int j = 0; j < 4; j++) {
        v = kt_load_lanes512(x + i + 16 * j, kt_lanes512(k - i - 16 * j));
        s[j] = _mm512_fmadd_ps(v, v, s[j]);
    }
    total =
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
    return 1.0f / sqrtf(total / (float)k + eps);
}

/* The lanes m of sixteen results at y. kind, and m where it is all of them, are constants. */
KT_INLINE void sixteen(const float *x, const float *w, const float *z, __m512 r, float *y,
                       __mmask16 m, kt_norm_kind kind) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 v = kt_load_lanes512(x, m);

    if (kind != KT_NORM_SIGMOID) v = _mm512_mul_ps(_mm512_mul_ps(v, r), kt_load_lanes512(w, m));
    if (kind != KT_NORM_RMS) {
        __m512 g = kt_load_lanes512(z, m);
        __m512 e = kt_exp_ps512(_mm512_sub_ps(_mm512_setzero_ps(), g));
        __m512 above = kind == KT_NORM_SIGMOID ? one : g;
        v = _mm512_mul_ps(v, _mm512_div_ps(above, _mm512_add_ps(one, e)));
    }
    kt_store_lanes512(y, m, v);
}

KT_INLINE void row16(const float *x, const float *w, const float *z, float scale, float *y,
                     int64_t k, kt_norm_kind kind) {
    const __m512 r = _mm512_set1_ps(scale);
    int64_t i = 0;

    for (; i + 16 <= k; i += 16) sixteen(x + i, w + i, z + i, r, y + i, KT_ALL_LANES, kind);
    if (i < k) sixteen(x + i, w + i, z + i, r, y + i, kt_lanes512(k - i), kind);
}

/* What a kind does not read is x. */
static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = c->x + row * c->ldx;
        const float *z = c->kind == KT_NORM_RMS ? x : c->z + row * c->ldz;
        float *y = c->y + row * c->ldy;
        float r = c->kind == KT_NORM_SIGMOID ? 1.0f : inverse_rms(x, c->eps, c->k);
        if (c->kind == KT_NORM_RMS)
            row16(x, c->w, z, r, y, c->k, KT_NORM_RMS);
        else if (c->kind == KT_NORM_RMS_SILU)
            row16(x, c->w, z, r, y, c->k, KT_NORM_RMS_SILU);
        else
            row16(x, x, z, r, y, c->k, KT_NORM_SIGMOID);
    }
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
