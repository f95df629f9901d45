/* f32 rows -> bfloat16 rows, 16 at a time. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/simd/encode512.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        uint16_t *out = kt_encode_target(c, row);
        for (int64_t i = 0; i < c->k; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(out + i),
                                kt_bf16_round512(_mm512_loadu_ps(x + i)));
    }
}

KT_VARIANT(abf16_rows__avx512) = {
    .name = "abf16_rows__avx512",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "abf16",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
