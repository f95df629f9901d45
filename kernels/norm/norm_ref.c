/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm/norm_ref.h"

#include <math.h>

/* The sum of k squares has relative error (k + 1) u at most, all terms being positive; the mean, eps,
 * root and reciprocal add four roundings, and the root halves what is below it; two products follow.
 * Squares below the normal range lose at most 2^-149 each, which counts against mean + eps. */
void kt_norm_ref_row(const kt_norm_call *call, int64_t row, double *want, double *bound) {
    const double u = 0x1p-24;
    const float *x = call->x + row * call->ldx;
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
