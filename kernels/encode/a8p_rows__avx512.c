/* f32 rows -> INT8 rows with a power-of-two scale per 16 (KT_A_INT8_G16P2), two groups at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/simd/encode512.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        void *out = kt_encode_target(c, row);
        for (int64_t g = 0; g < c->k / 16; g += 2)
            kt_a8p_store_groups512(_mm512_loadu_ps(x + 16 * g), _mm512_loadu_ps(x + 16 * g + 16),
                                   out, c->k, g);
    }
}

KT_VARIANT(a8p_rows__avx512) = {
    .name = "a8p_rows__avx512",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8p",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
