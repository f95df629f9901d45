/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/compress/entries_ref.h"

#include <math.h>

/* Windows entry - 1 (its A half, where windows overlap) and entry. */
void kt_entry_ref(const float *values, const float *gates, const float *ape, int64_t dim,
                  int64_t halves, int64_t ratio, int64_t entry, double *out) {
    const int64_t width = halves * dim, first = (entry + 1 - halves) * ratio;

    for (int64_t i = 0; i < dim; i++) {
        double sum = 0, pooled = 0, top = -INFINITY;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t t = first < 0 ? 0 : first; t < (entry + 1) * ratio; t++) {
                const int64_t at = t < entry * ratio ? i : i + width - dim;
                const double gate = (double)gates[t * width + at] + ape[t % ratio * width + at];
                if (pass == 0) top = fmax(top, gate);
                if (pass == 0) continue;
                sum += exp(gate - top);
                pooled += exp(gate - top) * values[t * width + at];
            }
        out[i] = pooled / sum;
    }
}
