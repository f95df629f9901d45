/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router_ref.h"

#include <math.h>

#include "base/numeric.h"

/* f32 sums in any order: 2 k u S with S = sum |x_i w_i|; each product may lose 2^-149 by underflow. */
void kt_router_ref_row(const kt_router_call *call, int64_t row, double *want, double *bound) {
    const float *x = call->x + row * call->ldx;
    int64_t k = call->problem->k;

    for (int64_t e = 0; e < call->problem->n; e++) {
        double sum = 0.0, size = 0.0;
        for (int64_t i = 0; i < k; i++) {
            double w = call->problem->weights == KT_W_BF16
                           ? kt_bf16_to_f32(((const uint16_t *)call->w)[e * k + i])
                           : ((const float *)call->w)[e * k + i];
            sum += x[i] * w;
            size += fabs(x[i] * w);
        }
        want[e] = sum;
        bound[e] = 2.0 * (double)k * 0x1p-24 * size + (double)k * 0x1p-149;
    }
}
