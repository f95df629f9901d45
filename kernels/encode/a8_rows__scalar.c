/* f32 rows -> INT8 rows with a scale per 32 (KT_A_INT8_G32), plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/encode/encode_common.h"
#include "kernels/formats/acts.h"

/* Round to nearest even, |x| < 2^22: the sum has one unit in its last place, so the addition itself
 * rounds, and the integer sits in the low bits. */
static inline int32_t round_even(float x) {
    float shifted = x + 12582912.0f; /* 1.5 * 2^23 = 0x4b400000 */
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

static void encode_group(const float *x, int8_t *q, float *scale, int32_t *comp) {
    uint32_t max_bits = 0;
    int32_t sum = 0;
    float factor;

    for (int i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        u &= 0x7fffffffu;
        if (u > max_bits) max_bits = u;
    }
    factor = kt_a8_group_scale(max_bits, scale);
    *comp = 0;
    memset(q, 0, 32);
    if (factor == 0.0f) return;
    for (int i = 0; i < 32; i++) {
        int32_t code = round_even(x[i] * factor);
        q[i] = (int8_t)code;
        sum += code;
    }
    *comp = -8 * sum;
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

KT_VARIANT(a8_rows__scalar) = {
    .name = "a8_rows__scalar",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "",
    .accepts = kt_encode_accepts,
    .encode = encode,
};
