/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_ref.h"

#include <math.h>

/* Two products and a sum of f32: at most two roundings of each term and denormal results. */
void kt_rope_ref_row(const kt_rope_call *call, int64_t row, double *want, double *bound) {
    const double u = 0x1p-24;
    int64_t half = call->rotary_dim / 2;
    const float *angle = call->cos_sin + (int64_t)call->positions[row] * call->rotary_dim;

    for (int64_t head = 0; head < call->heads; head++) {
        const float *x = call->x + row * call->ld + head * call->head_dim;
        double *y = want + head * call->head_dim, *b = bound + head * call->head_dim;
        for (int64_t i = 0; i < call->head_dim; i++) {
            y[i] = x[i];
            b[i] = 0.0; /* what is past rotary_dim must not change at all */
        }
        for (int64_t i = 0; i < half; i++) {
            int64_t first = call->interleaved ? 2 * i : i;
            int64_t second = call->interleaved ? 2 * i + 1 : i + half;
            double c = angle[i], s = angle[half + i], p = x[first], q = x[second];
            y[first] = p * c - q * s;
            y[second] = q * c + p * s;
            b[first] = 2.0 * u * (fabs(p * c) + fabs(q * s)) * 1.01 + 0x1p-148;
            b[second] = 2.0 * u * (fabs(q * c) + fabs(p * s)) * 1.01 + 0x1p-148;
        }
    }
}
