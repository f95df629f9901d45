/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm/norm_ref.h"

#include <math.h>

static const double u = 0x1p-24;

/* The sum of k squares has relative error (k + 1) u at most, all terms being positive; the mean,
 * eps, root and reciprocal add four roundings, and the root halves what is below it; two
 * products follow. Squares below the normal range lose at most 2^-149 each, which counts against
 * mean + eps. */
static void normed(const kt_norm_call *call, const float *x, double *want, double *bound) {
    double sum = 0.0, mean, r, relative;

    for (int64_t i = 0; i < call->k; i++) sum += (double)x[i] * x[i];
    mean = sum / (double)call->k + (double)call->eps;
    r = 1.0 / sqrt(mean);
    relative = ((double)call->k + 3.0) * u / 2.0 + 4.0 * u + 0x1p-149 / mean;
    for (int64_t i = 0; i < call->k; i++) {
        want[i] = x[i] * r * call->w[i];
        bound[i] = relative * 1.01 * fabs(want[i]) + 0x1p-126 * (1.0 + fabs((double)call->w[i]));
    }
}

/* want and its bound, times above / (1 + e^-z). The exp's error is 2 u of what it adds to 1; the
 * sum, the quotient and the product round once each. From e^-z >= 2^128 on the quotient is 0, and
 * it may be flushed below 2^-126: that much of `above` is lost at most. */
static void gate(double z, double above, double *want, double *bound) {
    double sigmoid = 1.0 / (1.0 + exp(-z)), factor = fabs(above) * sigmoid;
    double lost = 5.0 * u * 1.01 * factor + 0x1p-126 * (fabs(above) + 1.0);

    *bound = (fabs(*want) + *bound) * lost + *bound * factor + 0x1p-126;
    *want *= above * sigmoid;
}

void kt_norm_ref_row(const kt_norm_call *call, int64_t row, double *want, double *bound) {
    const float *x = call->x + row * call->ldx;

    if (call->kind != KT_NORM_SIGMOID) normed(call, x, want, bound);
    for (int64_t i = 0; call->kind == KT_NORM_SIGMOID && i < call->k; i++) {
        want[i] = x[i];
        bound[i] = 0.0;
    }
    for (int64_t i = 0; call->kind != KT_NORM_RMS && i < call->k; i++) {
        double z = call->z[row * call->ldz + i];
        gate(z, call->kind == KT_NORM_SIGMOID ? 1.0 : z, want + i, bound + i);
    }
}
