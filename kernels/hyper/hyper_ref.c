/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/hyper/hyper_ref.h"

#include <math.h>

#include "kernels/hyper/hyper.h"

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Divide what lies `step` apart, beginning at c, by its sum plus eps. */
static void divide(double *c, int64_t count, int64_t step, double eps) {
    double sum = eps;

    for (int64_t i = 0; i < count; i++) sum += c[i * step];
    for (int64_t i = 0; i < count; i++) c[i * step] /= sum;
}

static void balance(double *c, int64_t count, int64_t iterations, double eps) {
    for (int64_t j = 0; j < count; j++) {
        double sum = 0;
        for (int64_t k = 0; k < count; k++) sum += exp(c[j * count + k]);
        for (int64_t k = 0; k < count; k++) c[j * count + k] = exp(c[j * count + k]) / sum + eps;
    }
    for (int64_t i = 0; i < iterations; i++) {
        for (int64_t j = 0; i > 0 && j < count; j++) divide(c + j * count, count, 1, eps);
        for (int64_t k = 0; k < count; k++) divide(c + k, count, count, eps);
    }
}

void kt_hyper_ref_coefficients(const float *streams, const float *fn, const float *base,
                               const float *scale, int64_t count, int64_t hidden,
                               int64_t iterations, double eps, double norm_eps, double *out) {
    const int64_t n = count * hidden;
    double squares = 0, factor;

    for (int64_t i = 0; i < n; i++) squares += (double)streams[i] * streams[i];
    factor = 1 / sqrt(squares / (double)n + norm_eps);
    for (int64_t o = 0; o < kt_hyper_outputs(count); o++) {
        const int part = o < count ? 0 : o < 2 * count ? 1 : 2;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)fn[o * n + i] * streams[i];
        out[o] = sum * factor * scale[part] + base[o];
        if (part == 0) out[o] = sigmoid(out[o]) + eps;
        if (part == 1) out[o] = 2 * sigmoid(out[o]);
    }
    balance(out + 2 * count, count, iterations, eps);
}

void kt_hyper_ref_join(const float *streams, const float *y, const double *coefficients,
                       int64_t count, int64_t hidden, double *out) {
    const double *post = coefficients + count, *c = coefficients + 2 * count;

    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < hidden; i++) {
            double sum = post[k] * y[i];
            for (int64_t j = 0; j < count; j++) sum += c[j * count + k] * streams[j * hidden + i];
            out[k * hidden + i] = sum;
        }
}
