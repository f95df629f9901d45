/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm/layer_norm.h"

#include <math.h>
#include <stdbool.h>

/* The mean of x - shift, or of its square. The compiler may make vectors of the four sums. */
static double mean_of(const float *x, int64_t k, double shift, bool is_squared) {
    double s[4] = {0.0, 0.0, 0.0, 0.0};
    int64_t i = 0;

    for (; i + 4 <= k; i += 4)
        for (int j = 0; j < 4; j++) {
            double v = x[i + j] - shift;
            s[j] += is_squared ? v * v : v;
        }
    for (; i < k; i++) s[0] += is_squared ? (x[i] - shift) * (x[i] - shift) : x[i] - shift;
    return ((s[0] + s[1]) + (s[2] + s[3])) / (double)k;
}

/* The variance comes from the differences: mean(x^2) - mean^2 would cancel. */
void kt_layer_norm_rows(const kt_norm_call *call, const float *bias) {
    for (int64_t row = call->row_begin; row < call->row_end; row++) {
        const float *x = call->x + row * call->ldx;
        float *y = call->y + row * call->ldy;
        double mean = mean_of(x, call->k, 0.0, false);
        double r = 1.0 / sqrt(mean_of(x, call->k, mean, true) + (double)call->eps);
        for (int64_t i = 0; i < call->k; i++)
            y[i] = (float)((x[i] - mean) * r * call->w[i] + bias[i]);
    }
}
