/* SwiGLU of one activation group with AVX2, written as encoded activations.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_SWIGLU_AVX2_H
#define KT_SIMD_SWIGLU_AVX2_H

#include "kernels/simd/encode256.h"
#include "kernels/simd/exp256.h"
#include "kt/problem.h"

/* The clamps' operand order lets NaN through. */
static inline __m256 kt_glu_256(__m256 gate, __m256 up, const kt_glu_rule *glu) {
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 steep = gate;

    if (glu->kind != KT_GLU_SILU) {
        const __m256 limit = _mm256_set1_ps(glu->limit), low = _mm256_set1_ps(-glu->limit);
        steep = gate = _mm256_min_ps(limit, gate);
        up = _mm256_max_ps(low, _mm256_min_ps(limit, up));
    }
    if (glu->kind == KT_GLU_OAI) {
        steep = _mm256_mul_ps(gate, _mm256_set1_ps(glu->alpha));
        up = _mm256_add_ps(up, one);
    }
    steep = kt_exp_ps256(_mm256_sub_ps(_mm256_setzero_ps(), steep));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, steep)), up);
}

/* For 32 channels: gate sums in tile[0..31], up sums in tile[32..63]. */
static inline void kt_swiglu_256(const float *tile, float out[32], const kt_glu_rule *glu) {
    for (int j = 0; j < 32; j += 8)
        _mm256_storeu_ps(
            out + j, kt_glu_256(_mm256_loadu_ps(tile + j), _mm256_loadu_ps(tile + 32 + j), glu));
}

static inline void kt_swiglu_a8_avx2(const float *tile, void *h, int64_t n, int64_t p,
                                     const kt_glu_rule *glu) {
    float product[32];
    kt_swiglu_256(tile, product, glu);
    kt_a8_encode_group_256(product, (int8_t *)h + 32 * p, kt_a8_scales_mut(h, n) + p,
                           kt_a8_comps_mut(h, n) + p);
}

static inline void kt_swiglu_a8p_avx2(const float *tile, void *h, int64_t n, int64_t p,
                                      const kt_glu_rule *glu) {
    float x[32];
    kt_swiglu_256(tile, x, glu);
    kt_a8p_store_group_256(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), h, n, 2 * p);
    kt_a8p_store_group_256(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24), h, n, 2 * p + 1);
}

static inline void kt_swiglu_abf16_avx2(const float *tile, void *h, int64_t n, int64_t p,
                                        const kt_glu_rule *glu) {
    float product[32];
    uint16_t *out = (uint16_t *)h + 32 * p;
    (void)n;
    kt_swiglu_256(tile, product, glu);
    kt_bf16_store_256(out, _mm256_loadu_ps(product), _mm256_loadu_ps(product + 8));
    kt_bf16_store_256(out + 16, _mm256_loadu_ps(product + 16), _mm256_loadu_ps(product + 24));
}

#endif
