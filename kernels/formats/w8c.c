/* w8c: int8 codes, one f32 scale per row: w = scale * code, codes -128..127 (we write -127..127).
 *
 * Encoding looks for the scale of least squared error instead of taking the largest magnitude as it
 * comes: a row's largest weight is an outlier more often than not, and clipping it by a few per cent
 * makes every other weight finer. For fixed codes q the best scale is <x, q> / <q, q>, which leaves
 * the error |x|^2 - <x, q>^2 / <q, q>; so the search keeps the codes with the largest
 * <x, q>^2 / <q, q> and rounds once more with the scale they call for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>

#include "kernels/formats/format.h"

#define LANES 8 /* partial sums that a compiler may keep in vectors without reassociating */

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
static const float round_magic = 12582912.0f;

/* Steps per largest magnitude that are tried; beyond 127 the extreme is clipped. */
static const float steps[] = {127.0f, 129.0f, 131.0f, 134.0f, 137.0f, 141.0f, 146.0f, 152.0f};

static float code_of(float x, float inverse) {
    float q = (x * inverse + round_magic) - round_magic;
    q = q > 127.0f ? 127.0f : q;
    return q < -127.0f ? -127.0f : q;
}

/* Largest magnitude; NaN when an element is infinite or NaN. */
static float largest(const float *x, int64_t k) {
    float best[LANES] = {0}, taint[LANES] = {0};
    float a = 0;
    for (int64_t i = 0; i < k; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = fabsf(x[i + l]);
            best[l] = best[l] > v ? best[l] : v;
            taint[l] += v * 0.0f; /* NaN for what is not finite, which no comparison shows */
        }
    for (int l = 0; l < LANES; l++) a = (best[l] > a ? best[l] : a) + taint[l];
    return a;
}

/* <x, q> and <q, q> of the codes that `inverse` gives. */
static void project(const float *x, int64_t k, float inverse, double *xq, double *qq) {
    float sum_xq[LANES] = {0}, sum_qq[LANES] = {0};
    for (int64_t i = 0; i < k; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float q = code_of(x[i + l], inverse);
            sum_xq[l] += x[i + l] * inverse * q; /* in units of a step: no overflow for tiny x */
            sum_qq[l] += q * q;
        }
    *xq = *qq = 0;
    for (int l = 0; l < LANES; l++) *xq += sum_xq[l], *qq += sum_qq[l];
}

/* The scale of least squared error among those tried; 0 for a row of zeros. */
static float search_scale(const float *x, int64_t k) {
    float a = largest(x, k);
    double best = 0;
    float scale = 0;

    if (!(a >= 0x1p-100f && a <= FLT_MAX)) return 0;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        float inverse = steps[s] / a;
        double xq, qq, score;
        project(x, k, inverse, &xq, &qq);
        score = xq * xq / qq / ((double)inverse * inverse);
        if (score <= best) continue;
        best = score;
        scale = (float)(xq / qq / inverse);
    }
    return scale;
}

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = sizeof(float) * (size_t)n;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const int8_t *q = (const int8_t *)w->data + row * w->k;
    double scale = ((const float *)w->scales)[row];
    for (int64_t i = 0; i < w->k; i++) out[i] = scale * q[i];
}

/* A row that holds an infinity or NaN becomes zeros, and the error returned is not finite. */
static double encode_rows(const float *src, int64_t n, int64_t k, int64_t row_begin,
                          int64_t row_end, void *data, void *scales, double *energy) {
    double sum = 0, error = 0;

    (void)n;
    for (int64_t row = row_begin; row < row_end; row++) {
        const float *x = src + row * k;
        int8_t *out = (int8_t *)data + row * k;
        float scale = search_scale(x, k);
        float inverse = scale > 0 ? 1.0f / scale : 0;
        ((float *)scales)[row] = scale;
        for (int64_t i = 0; i < k; i++) {
            float q = scale > 0 ? code_of(x[i], inverse) : 0;
            double lost = (double)x[i] - (double)scale * q;
            out[i] = (int8_t)q;
            error += lost * lost;
            sum += (double)x[i] * x[i];
        }
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(w8c) = {
    .name = "w8c",
    .id = KT_W_INT8_CHANNEL,
    .acts = KT_A_INT8_G32,
    .bits = 8,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
};
