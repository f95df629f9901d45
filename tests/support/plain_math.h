/* What the formulas of all families are made of. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PLAIN_MATH_H
#define KT_TESTS_PLAIN_MATH_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "tests/support/plain_impl.h"

#define EPS 1e-5 /* rms_norm_eps */

/* One pass over n positions. x [n, hidden] is the residual. */
typedef struct plain_pass {
    const kt_plain_model *m;
    const kt_plain_shape *s;
    int64_t n, layer;
    kt_plain_noise noise;
    kt_rng rng;
    double *x;
    uint64_t *choices;
    char *picked; /* [n, n] keys that the last indexer picked for each position */
} plain_pass;

static inline double *numbers(int64_t count) {
    return calloc((size_t)count + 1, sizeof(double));
}

static inline double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static inline double silu(double x) {
    return x * sigmoid(x);
}

static inline void disturb(plain_pass *p, double *x, int64_t count) {
    const int is_coarse = p->noise == KT_PLAIN_COARSE || p->noise == KT_PLAIN_INT8_COARSE;

    for (int64_t i = 0; i < count; i++) {
        if (p->noise == KT_PLAIN_BF16 || p->noise == KT_PLAIN_INT8)
            x[i] = kt_bf16_to_f32(kt_f32_to_bf16((float)x[i]));
        if (is_coarse) x[i] *= 1 + 0x1p-7 * (2 * kt_rng_double(&p->rng) - 1);
    }
}

static inline void choose(plain_pass *p, int64_t t, int64_t id, int is_key) {
    uint64_t h = (uint64_t)((p->layer * 4096 + id) * 2 + is_key + 1) * 0x9e3779b97f4a7c15u;
    p->choices[t] ^= h ^ h >> 29;
}

/* y[n] = W x, on the numbers as they are; four sums at a time, so that none waits for its last
 * addition. */
static inline void product(const double *w, const double *x, int64_t n, int64_t k, double *y) {
    for (int64_t r = 0; r < n; r += 4) {
        const double *row[4];
        double sum[4] = {0};
        for (int j = 0; j < 4; j++) row[j] = w + (r + j < n ? r + j : n - 1) * k;
        for (int64_t i = 0; i < k; i++)
            for (int j = 0; j < 4; j++) sum[j] += row[j][i] * x[i];
        for (int j = 0; j < 4 && r + j < n; j++) y[r + j] = sum[j];
    }
}

/* Inputs of a linear layer. */
static inline void disturb_inputs(plain_pass *p, double *x, int64_t k) {
    if (p->noise != KT_PLAIN_INT8 && p->noise != KT_PLAIN_INT8_COARSE) {
        disturb(p, x, k);
        return;
    }
    for (int64_t g = 0; g < k; g += 16) {
        const int64_t end = g + 16 < k ? g + 16 : k;
        double most = 0, step;
        int e;
        for (int64_t i = g; i < end; i++) most = fmax(most, fabs(x[i]));
        if (!(most > 0)) continue;
        frexp(most / 127.5, &e);
        step = ldexp(1, e);
        for (int64_t i = g; i < end; i++)
            x[i] = p->noise == KT_PLAIN_INT8 ? nearbyint(x[i] / step) * step
                                             : x[i] + step * (2 * kt_rng_double(&p->rng) - 1);
    }
}

/* A linear layer: its input is disturbed. */
static inline void linear(plain_pass *p, const double *w, const double *x, int64_t n, int64_t k,
                          double *y) {
    double *in = numbers(k);

    memcpy(in, x, (size_t)k * sizeof *in);
    disturb_inputs(p, in, k);
    product(w, in, n, k, y);
    free(in);
}

static inline void rms(double *x, const double *w, int64_t n, double eps, int one_plus) {
    double sum = 0;

    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) x[i] = x[i] / sqrt(sum / (double)n + eps) * (w[i] + one_plus);
}

#endif
