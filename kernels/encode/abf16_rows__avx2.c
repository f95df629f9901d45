/* f32 rows -> bfloat16 rows, 16 at a time with integer rounding: the bits of kt_f32_to_bf16.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/encode/encode_common.h"

/* Eight bfloat16 as 32-bit integers. Adding 0x7fff plus the lowest kept bit carries exactly when
 * round-to-nearest-even rounds up; NaN must skip that, or its payload could carry into infinity. */
static inline __m256i round_bf16(__m256i u) {
    __m256i high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, is_nan);
}

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        uint16_t *out = kt_encode_target(c, row);
        for (int64_t i = 0; i < c->k; i += 16) {
            __m256i lo = round_bf16(_mm256_castps_si256(_mm256_loadu_ps(x + i)));
            __m256i hi = round_bf16(_mm256_castps_si256(_mm256_loadu_ps(x + i + 8)));
            __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(out + i), both);
        }
    }
}

KT_VARIANT(abf16_rows__avx2) = {
    .name = "abf16_rows__avx2",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .accepts = kt_encode_accepts,
    .encode = encode,
};
