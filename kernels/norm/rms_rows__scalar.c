/* RMSNorm of rows, plain C: four partial sums, so that the compiler may keep a vector of them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kt/variant.h"

static void norm_row(const float *x, const float *w, float eps, float *y, int64_t k) {
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f}, r;
    int64_t i = 0;

    for (; i + 4 <= k; i += 4)
        for (int j = 0; j < 4; j++) s[j] += x[i + j] * x[i + j];
    for (; i < k; i++) s[0] += x[i] * x[i];
    r = 1.0f / sqrtf(((s[0] + s[1]) + (s[2] + s[3])) / (float)k + eps);
    for (i = 0; i < k; i++) y[i] = x[i] * r * w[i];
}

static void norm(const kt_norm_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++)
        norm_row(c->x + row * c->ldx, c->w, c->eps, c->y + row * c->ldy, c->k);
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
