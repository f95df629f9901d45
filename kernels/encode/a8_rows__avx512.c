/* f32 rows -> INT8 rows with a scale per 32 (KT_A_INT8_G32), four groups at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/simd/encode512.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        int8_t *q = kt_encode_target(c, row);
        float *scale = kt_a8_scales_mut(q, c->k);
        int32_t *comp = kt_a8_comps_mut(q, c->k);
        int64_t g = 0;
        for (; g + 4 <= c->k / 32; g += 4) {
            __m512 v[4][2];
            KT_EACH (i, 4)
                KT_EACH (j, 2) v[i][j] = _mm512_loadu_ps(x + 32 * (g + i) + 16 * j);
            kt_a8_store_groups512(v, (uint8_t *)q + 32 * g, 32, scale + g, comp + g, sizeof *scale);
        }
        for (; g < c->k / 32; g++)
            kt_a8_store_group512(_mm512_loadu_ps(x + 32 * g), _mm512_loadu_ps(x + 32 * g + 16),
                                 q + 32 * g, scale + g, comp + g);
    }
}

KT_VARIANT(a8_rows__avx512) = {
    .name = "a8_rows__avx512",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
