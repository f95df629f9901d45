/* f32 rows -> bfloat16 rows, 16 at a time with integer rounding: the bits of kt_f32_to_bf16.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/simd/encode256.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        uint16_t *out = kt_encode_target(c, row);
        for (int64_t i = 0; i < c->k; i += 16)
            kt_bf16_store_256(out + i, _mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8));
    }
}

KT_VARIANT(abf16_rows__avx2) = {
    .name = "abf16_rows__avx2",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "abf16",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
