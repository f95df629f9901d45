/* f32 rows -> INT8 rows with a scale per 32 (KT_A_INT8_G32), one group in two vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/encode/encode_common.h"
#include "kernels/formats/acts.h"

static inline void encode_group(const float *x, int8_t *q, float *scale, int32_t *comp) {
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x0), clear),
                                   _mm512_and_si512(_mm512_castps_si512(x1), clear));
    float factor = kt_a8_group_scale((uint32_t)_mm512_reduce_max_epi32(top), scale);
    __m512i q0 = _mm512_setzero_si512(), q1 = q0;

    if (factor != 0.0f) {
        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, _mm512_set1_ps(factor)));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, _mm512_set1_ps(factor)));
    }
    *comp = -8 * _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(q1));
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

KT_VARIANT(a8_rows__avx512) = {
    .name = "a8_rows__avx512",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .accepts = kt_encode_accepts,
    .encode = encode,
};
