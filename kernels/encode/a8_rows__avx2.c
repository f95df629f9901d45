/* f32 rows -> INT8 rows with a scale per 32 (KT_A_INT8_G32), one group in four vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/encode/encode_common.h"
#include "kernels/formats/acts.h"

static inline __m256i magnitude(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static inline uint32_t largest(__m256i v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

static inline int32_t sum(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

static inline void encode_group(const float *x, int8_t *q, float *scale, int32_t *comp) {
    __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8);
    __m256 x2 = _mm256_loadu_ps(x + 16), x3 = _mm256_loadu_ps(x + 24);
    __m256i top = _mm256_max_epi32(_mm256_max_epi32(magnitude(x0), magnitude(x1)),
                                   _mm256_max_epi32(magnitude(x2), magnitude(x3)));
    float factor = kt_a8_group_scale(largest(top), scale);
    __m256i bytes = _mm256_setzero_si256();

    *comp = 0;
    if (factor != 0.0f) {
        __m256 f = _mm256_set1_ps(factor);
        __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(x0, f));
        __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(x1, f));
        __m256i q2 = _mm256_cvtps_epi32(_mm256_mul_ps(x2, f));
        __m256i q3 = _mm256_cvtps_epi32(_mm256_mul_ps(x3, f));
        *comp = -8 * sum(_mm256_add_epi32(_mm256_add_epi32(q0, q1), _mm256_add_epi32(q2, q3)));
        /* The packs work per 128-bit lane and leave dwords 0 4 1 5 2 6 3 7. */
        bytes = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
}

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        int8_t *q = kt_encode_target(c, row);
        float *scale = kt_a8_scales_mut(q, c->k);
        int32_t *comp = kt_a8_comps_mut(q, c->k);
        for (int64_t g = 0; g < c->k / 32; g++)
            encode_group(x + 32 * g, q + 32 * g, scale + g, comp + g);
    }
}

KT_VARIANT(a8_rows__avx2) = {
    .name = "a8_rows__avx2",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .accepts = kt_encode_accepts,
    .encode = encode,
};
