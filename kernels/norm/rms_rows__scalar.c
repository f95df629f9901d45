/* RMSNorm and gates of rows, plain C: four partial sums, so that the compiler may keep a vector of
 * them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>

#include "kt/variant.h"

static float inverse_rms(const float *x, float eps, int64_t k) {
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int64_t i = 0;

    for (; i + 4 <= k; i += 4)
        for (int j = 0; j < 4; j++) s[j] += x[i + j] * x[i + j];
    for (; i < k; i++) s[0] += x[i] * x[i];
    return 1.0f / sqrtf(((s[0] + s[1]) + (s[2] + s[3])) / (float)k + eps);
}

static void rms_row(const float *x, const float *w, float eps, float *y, int64_t k) {
    float r = inverse_rms(x, eps, k);
    for (int64_t i = 0; i < k; i++) y[i] = x[i] * r * w[i];
}

/* y = x * numerator / (1 + e^-z), where the numerator of silu is z and that of sigmoid is 1. */
static void gate_row(const float *x, const float *z, bool is_silu, float *y, int64_t k) {
    for (int64_t i = 0; i < k; i++) y[i] = x[i] * ((is_silu ? z[i] : 1.0f) / (1.0f + expf(-z[i])));
}

static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = c->x + row * c->ldx;
        float *y = c->y + row * c->ldy;
        if (c->kind != KT_NORM_SIGMOID) rms_row(x, c->w, c->eps, y, c->k);
        if (c->kind == KT_NORM_RMS_SILU) gate_row(y, c->z + row * c->ldz, true, y, c->k);
        if (c->kind == KT_NORM_SIGMOID) gate_row(x, c->z + row * c->ldz, false, y, c->k);
    }
}

KT_VARIANT(rms_rows__scalar) = {
    .name = "rms_rows__scalar",
    .op = KT_OP_NORM,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "plain",
    .version = 1,
    .layout = "",
    .rank = 1,
    .norm = norm,
};
