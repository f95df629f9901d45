/* f32 rows -> bfloat16 rows, 16 at a time with integer rounding: the bits of kt_f32_to_bf16.
 * VCVTNE2PS2BF16 is not used: it flushes denormals, and all encoders must agree.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/encode/encode_common.h"

/* Why this rounds right: see abf16_rows__avx2.c. */
static inline __m256i round_bf16(__m512i u) {
    __m512i high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i out = _mm512_srli_epi32(up, 16);
    out = _mm512_mask_or_epi32(out, is_nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(out);
}

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        uint16_t *out = kt_encode_target(c, row);
        for (int64_t i = 0; i < c->k; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(out + i),
                                round_bf16(_mm512_loadu_si512(x + i)));
    }
}

KT_VARIANT(abf16_rows__avx512) = {
    .name = "abf16_rows__avx512",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .accepts = kt_encode_accepts,
    .encode = encode,
};
