/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/conv_ref.h"

#include <math.h>

static double input(const kt_conv_call *c, int64_t channel, int64_t row) {
    if (row >= 0) return c->x[row * c->ldx + channel];
    return c->state[(c->problem->k - 1 + row) * c->problem->n + channel];
}

/* taps products and sums: off by d = 2 taps u of their magnitudes. |silu'| <= 1.1; its own
 * exponential (2^-22), sum and quotient add 2^-21. What is below 2^-126 may vanish. */
void kt_conv_ref(const kt_conv_call *c, int64_t channel, int64_t step, double *want,
                 double *bound) {
    const double u = 0x1p-24;
    int64_t taps = c->problem->k;

    for (int64_t row = 0; row < c->rows; row++) {
        double sum = 0.0, size = 0.0, y;
        for (int64_t j = 0; j < taps; j++) {
            double x = c->w[j * c->problem->n + channel] * input(c, channel, row - (taps - 1) + j);
            sum += x;
            size += fabs(x);
        }
        y = sum / (1.0 + exp(-sum));
        want[row * step] = y;
        bound[row * step] = 1.1 * 2.0 * (double)taps * u * size + 0x1p-21 * fabs(y) + 0x1p-125;
    }
}
