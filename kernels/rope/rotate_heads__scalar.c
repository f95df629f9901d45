/* Rotary position embedding, plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_walk.h"

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
    kt_rope_walk(c, rotate_halves, rotate_pairs);
}

KT_VARIANT(rotate_heads__scalar) = {
    .name = "rotate_heads__scalar",
    .op = KT_OP_ROPE,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "plain",
    .version = 1,
    .layout = "",
    .rank = 1,
    .rope = rope,
};
