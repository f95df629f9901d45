/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/hyper/hyper.h"

#include <math.h>

#define LANES 16
#define BLOCK 256 /* columns of all streams that stay in L1 */

float kt_hyper_factor(const float *x, int64_t n, float eps) {
    float lane[LANES] = {0}, sum = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * x[i + j];
    for (int j = 0; j < LANES; j++) sum += lane[j];
    for (; i < n; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void soften_row(float *row, int64_t count, float eps) {
    float top = row[0], sum = 0;

    for (int64_t i = 1; i < count; i++) top = row[i] > top ? row[i] : top;
    for (int64_t i = 0; i < count; i++) sum += row[i] = expf(row[i] - top);
    for (int64_t i = 0; i < count; i++) row[i] = row[i] / sum + eps;
}

static inline void divide_rows(float *c, int64_t count, float eps) {
    for (int64_t j = 0; j < count; j++) {
        float sum = 0;
        for (int64_t k = 0; k < count; k++) sum += c[j * count + k];
        for (int64_t k = 0; k < count; k++) c[j * count + k] /= sum + eps;
    }
}

static inline void divide_columns(float *c, int64_t count, float eps) {
    float sum[KT_HYPER_MOST] = {0};

    for (int64_t j = 0; j < count; j++)
        for (int64_t k = 0; k < count; k++) sum[k] += c[j * count + k];
    for (int64_t j = 0; j < count; j++)
        for (int64_t k = 0; k < count; k++) c[j * count + k] /= sum[k] + eps;
}

/* count is a constant where it is 4: 40 passes over 16 numbers. */
static inline __attribute__((always_inline)) void balance(float *c, int64_t count,
                                                          int64_t iterations, float eps) {
    divide_columns(c, count, eps);
    for (int64_t i = 1; i < iterations; i++) {
        divide_rows(c, count, eps);
        divide_columns(c, count, eps);
    }
}

void kt_hyper_coefficients(float *m, float factor, const float *base, const float *scale,
                           int64_t count, int64_t iterations, float eps) {
    float *post = m + count, *c = m + 2 * count;

    for (int64_t i = 0; i < count; i++) {
        m[i] = sigmoid(m[i] * factor * scale[0] + base[i]) + eps;
        post[i] = 2 * sigmoid(post[i] * factor * scale[1] + base[count + i]);
    }
    for (int64_t i = 0; i < count * count; i++)
        c[i] = c[i] * factor * scale[2] + base[2 * count + i];
    for (int64_t j = 0; j < count; j++) soften_row(c + j * count, count, eps);
    if (count == 4)
        balance(c, 4, iterations, eps);
    else
        balance(c, count, iterations, eps);
}

void kt_hyper_weights(float *m, float factor, const float *base, float scale, int64_t count,
                      float eps) {
    for (int64_t i = 0; i < count; i++) m[i] = sigmoid(m[i] * factor * scale + base[i]) + eps;
}

void kt_hyper_collapse(const float *streams, const float *w, int64_t count, int64_t hidden,
                       float *out) {
    for (int64_t i = 0; i < hidden; i++) out[i] = w[0] * streams[i];
    for (int64_t s = 1; s < count; s++)
        for (int64_t i = 0; i < hidden; i++) out[i] += w[s] * streams[s * hidden + i];
}

/* Columns [0, n) of all streams; mixed is what they were. */
static void join_block(float *streams, const float *y, const float *post, const float *c,
                       int64_t count, int64_t hidden, int64_t n) {
    float was[KT_HYPER_MOST][BLOCK];

    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < n; i++) was[j][i] = streams[j * hidden + i];
    for (int64_t k = 0; k < count; k++) {
        float *out = streams + k * hidden;
        for (int64_t i = 0; i < n; i++) out[i] = post[k] * y[i];
        for (int64_t j = 0; j < count; j++)
            for (int64_t i = 0; i < n; i++) out[i] += c[j * count + k] * was[j][i];
    }
}

/* Of four streams, which stay in registers: the same sums in the same order. */
static void join_four(float *restrict x0, float *restrict x1, float *restrict x2,
                      float *restrict x3, const float *restrict y, const float *post,
                      const float *c, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float a0 = x0[i], a1 = x1[i], a2 = x2[i], a3 = x3[i], b = y[i];
        x0[i] = post[0] * b + c[0] * a0 + c[4] * a1 + c[8] * a2 + c[12] * a3;
        x1[i] = post[1] * b + c[1] * a0 + c[5] * a1 + c[9] * a2 + c[13] * a3;
        x2[i] = post[2] * b + c[2] * a0 + c[6] * a1 + c[10] * a2 + c[14] * a3;
        x3[i] = post[3] * b + c[3] * a0 + c[7] * a1 + c[11] * a2 + c[15] * a3;
    }
}

void kt_hyper_remix(float *streams, const float *y, const float *post, const float *c,
                    int64_t count, int64_t hidden) {
    if (count == 4) {
        join_four(streams, streams + hidden, streams + 2 * hidden, streams + 3 * hidden, y, post, c,
                  hidden);
        return;
    }
    for (int64_t at = 0; at < hidden; at += BLOCK)
        join_block(streams + at, y + at, post, c, count, hidden,
                   hidden - at < BLOCK ? hidden - at : BLOCK);
}
