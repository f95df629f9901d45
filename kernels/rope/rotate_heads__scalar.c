/* Rotary position embedding, plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kt/variant.h"

/* Pairs (i, i + half). */
static void rotate_halves(float *x, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* Pairs (2i, 2i + 1). */
static void rotate_pairs(float *x, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

static void rope(const kt_rope_call *c) {
    int64_t half = c->rotary_dim / 2;
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *cosine = c->cos_sin + (int64_t)c->positions[row] * c->rotary_dim;
        for (int64_t head = 0; head < c->heads; head++) {
            float *x = c->x + row * c->ld + head * c->head_dim;
            if (c->interleaved)
                rotate_pairs(x, cosine, cosine + half, half);
            else
                rotate_halves(x, cosine, cosine + half, half);
        }
    }
}

KT_VARIANT(rotate_heads__scalar) = {
    .name = "rotate_heads__scalar",
    .op = KT_OP_ROPE,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .rope = rope,
};
