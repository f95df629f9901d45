/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/indexer/indexer_ref.h"

#include <math.h>

#include "base/numeric.h"

/* Heads with scores of their own: the product alone. */
static void heads_apart(const kt_index_call *c, int64_t row, double *want, double *bound) {
    const double u = 0x1p-24;
    const int64_t heads = c->problem->n, dim = c->problem->k;

    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < c->n_keys; j++, want++, bound++) {
            const float *q = c->q + row * c->ldq + h * dim;
            double magnitude = 0;
            *want = 0;
            for (int64_t i = 0; i < dim; i++) {
                const double x = (double)q[i] * (double)kt_bf16_to_f32(c->keys[j * c->ldk + i]);
                *want += x;
                magnitude += fabs(x);
            }
            *bound = 2 * (double)dim * u * magnitude + (double)dim * 0x1p-125;
        }
}

/* A head's product of k numbers is off by 2 k u of its magnitudes, and max(0, .) makes no error
 * longer; the sum over n heads by 2 n u of its own, and the errors of the products come in by the
 * weights. What is below 2^-126 may vanish: that times the weight, or the weight's product. */
void kt_index_ref(const kt_index_call *c, int64_t row, double *want, double *bound) {
    const double u = 0x1p-24;
    const int64_t heads = c->problem->n, dim = c->problem->k;

    if (c->problem->kv_heads) {
        heads_apart(c, row, want, bound);
        return;
    }
    for (int64_t j = 0; j < c->n_keys; j++) {
        double sum = 0, size = 0, error = 0x1p-125;
        for (int64_t h = 0; h < heads; h++) {
            const float *q = c->q + row * c->ldq + h * dim;
            const double w = c->w[row * c->ldw + h];
            double product = 0, magnitude = 0;
            for (int64_t i = 0; i < dim; i++) {
                const double x = (double)q[i] * (double)kt_bf16_to_f32(c->keys[j * c->ldk + i]);
                product += x;
                magnitude += fabs(x);
            }
            product = product > 0 ? product : 0;
            sum += w * product;
            size += fabs(w) * product;
            error += fabs(w) * (2 * (double)dim * u * magnitude + (double)dim * 0x1p-125);
        }
        want[j] = sum;
        bound[j] = error + 2 * (double)heads * u * (size + error);
    }
}
