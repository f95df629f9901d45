/* RMSNorm and gates of rows, eight lanes; four sums in flight hide the FMA latency. The second pass
 * reads the row from L1.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/simd/exp256.h"
#include "kernels/simd/unroll.h"
#include "kt/variant.h"

static inline float sum8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

static float inverse_rms(const float *x, float eps, int64_t k) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    float tail = 0.0f;
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
    return 1.0f / sqrtf(tail / (float)k + eps);
}

/* Eight results at y; `left` of them when that is fewer. kind is a constant at each call. */
KT_INLINE void eight(const float *x, const float *w, const float *z, __m256 r, float *y,
                     int64_t left, kt_norm_kind kind) {
    const __m256i count = _mm256_set1_epi32(left < 8 ? (int)left : 8);
    const __m256i m = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const bool whole = left >= 8;
    __m256 v = whole ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, m);

    if (kind != KT_NORM_SIGMOID)
        v = _mm256_mul_ps(_mm256_mul_ps(v, r),
                          whole ? _mm256_loadu_ps(w) : _mm256_maskload_ps(w, m));
    if (kind != KT_NORM_RMS) {
        __m256 one = _mm256_set1_ps(1.0f);
        __m256 g = whole ? _mm256_loadu_ps(z) : _mm256_maskload_ps(z, m);
        __m256 e = kt_one_plus_exp_ps256(_mm256_sub_ps(_mm256_setzero_ps(), g));
        v = _mm256_mul_ps(v, _mm256_div_ps(kind == KT_NORM_SIGMOID ? one : g, e));
    }
    if (whole)
        _mm256_storeu_ps(y, v);
    else
        _mm256_maskstore_ps(y, m, v);
}

/* RMSNorm goes by four: the speed of so short a loop depends on the address it comes to lie at. */
KT_INLINE void row8(const float *x, const float *w, const float *z, float scale, float *y,
                    int64_t k, kt_norm_kind kind) {
    const __m256 r = _mm256_set1_ps(scale);
    int64_t i = 0;

    for (; kind == KT_NORM_RMS && i + 32 <= k; i += 32)
        for (int j = 0; j < 32; j += 8) eight(x + i + j, w + i + j, z, r, y + i + j, 8, kind);
    for (; i + 8 <= k; i += 8) eight(x + i, w + i, z + i, r, y + i, 8, kind);
    if (i < k) eight(x + i, w + i, z + i, r, y + i, k - i, kind);
}

/* What a kind does not read is x. */
static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = c->x + row * c->ldx;
        const float *z = c->kind == KT_NORM_RMS ? x : c->z + row * c->ldz;
        float *y = c->y + row * c->ldy;
        float r = c->kind == KT_NORM_SIGMOID ? 1.0f : inverse_rms(x, c->eps, c->k);
        if (c->kind == KT_NORM_RMS)
            row8(x, c->w, z, r, y, c->k, KT_NORM_RMS);
        else if (c->kind == KT_NORM_RMS_SILU)
            row8(x, c->w, z, r, y, c->k, KT_NORM_RMS_SILU);
        else
            row8(x, x, z, r, y, c->k, KT_NORM_SIGMOID);
    }
}

KT_VARIANT(rms_rows__avx2) = {
    .name = "rms_rows__avx2",
    .op = KT_OP_NORM,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "sums256",
    .version = 2,
    .layout = "",
    .rank = 1,
    .norm = norm,
};
