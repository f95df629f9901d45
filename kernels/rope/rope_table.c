/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_table.h"

#include <math.h>

/* Angles come from the integer position each time: adding up steps would drift. */
void kt_rope_table(double base, int64_t rotary_dim, int64_t first, int64_t positions,
                   float *cos_sin) {
    int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double theta = pow(base, -2.0 * (double)i / (double)rotary_dim);
        for (int64_t p = 0; p < positions; p++) {
            double angle = (double)(first + p) * theta;
            cos_sin[p * rotary_dim + i] = (float)cos(angle);
            cos_sin[p * rotary_dim + half + i] = (float)sin(angle);
        }
    }
}
