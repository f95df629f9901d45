/* f32 rows -> INT8 rows with a scale per 32 (KT_A_INT8_G32), one group in four vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/simd/encode256.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        int8_t *q = kt_encode_target(c, row);
        float *scale = kt_a8_scales_mut(q, c->k);
        int32_t *comp = kt_a8_comps_mut(q, c->k);
        for (int64_t g = 0; g < c->k / 32; g++)
            kt_a8_encode_group_256(x + 32 * g, q + 32 * g, scale + g, comp + g);
    }
}

KT_VARIANT(a8_rows__avx2) = {
    .name = "a8_rows__avx2",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
