/* RMSNorm of rows, eight lanes; four sums in flight hide the FMA latency. The second pass reads
 * the row from L1.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <math.h>

#include "kt/variant.h"

static inline float sum8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

static void norm_row(const float *x, const float *w, float eps, float *y, int64_t k) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, r8;
    float tail = 0.0f, r;
    int64_t i = 0;

    for (; i + 32 <= k; i += 32) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        __m256 c = _mm256_loadu_ps(x + i + 16), d = _mm256_loadu_ps(x + i + 24);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
        s2 = _mm256_fmadd_ps(c, c, s2);
        s3 = _mm256_fmadd_ps(d, d, s3);
    }
    for (; i < k; i++) tail += x[i] * x[i];
    tail += sum8(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
    r = 1.0f / sqrtf(tail / (float)k + eps);
    r8 = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= k; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), r8),
                                              _mm256_loadu_ps(w + i)));
    for (; i < k; i++) y[i] = x[i] * r * w[i];
}

static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++)
        norm_row(c->x + row * c->ldx, c->w, c->eps, c->y + row * c->ldy, c->k);
}

KT_VARIANT(rms_rows__avx2) = {
    .name = "rms_rows__avx2",
    .op = KT_OP_NORM,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "sums256",
    .version = 1,
    .layout = "",
    .rank = 1,
    .norm = norm,
};
