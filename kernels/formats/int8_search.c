/* Encoding 8-bit codes looks for the scale of least squared error instead of taking the largest
 * magnitude as it comes: the largest weight is an outlier more often than not, and clipping it by a few
 * per cent makes every other weight finer. For fixed codes q and weights v of the inputs, with
 * <x, y> = sum v x y, the best scale is <x, q> / <q, q>, which leaves the error
 * <x, x> - <x, q>^2 / <q, q>; so the search keeps the codes with the largest <x, q>^2 / <q, q> and
 * rounds once more with the scale they call for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int8_search.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#define LANES 8 /* partial sums that a compiler may keep in vectors without reassociating */

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
static const float round_magic = 12582912.0f;

/* Steps per largest magnitude that are tried; beyond 127 the extreme is clipped. Whole rows take every
 * fourth or so: a row of thousands is insensitive, and its search is most of the time of loading. */
static const float steps8[] = {127.0f, 129.0f, 131.0f, 134.0f, 137.0f, 141.0f, 146.0f, 152.0f};
#define STEP25(i) (127.0f + (float)(i)) /* 127 .. 151 */

static float code_of(float x, float inverse) {
    float q = (x * inverse + round_magic) - round_magic;
    q = q > 127.0f ? 127.0f : q;
    return q < -127.0f ? -127.0f : q;
}

/* Largest magnitude; NaN when an element is infinite or NaN. */
static float largest(const float *x, int64_t count) {
    float best[LANES] = {0}, taint[LANES] = {0};
    float a = 0;
    for (int64_t i = 0; i < count; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = fabsf(x[i + l]);
            best[l] = best[l] > v ? best[l] : v;
            taint[l] += v * 0.0f; /* NaN for what is not finite, which no comparison shows */
        }
    for (int l = 0; l < LANES; l++) a = (best[l] > a ? best[l] : a) + taint[l];
    return a;
}

/* <x, q> and <q, q> of the codes that `inverse` gives. */
static void project(const float *x, int64_t count, float inverse, double *xq, double *qq) {
    float sum_xq[LANES] = {0}, sum_qq[LANES] = {0};
    for (int64_t i = 0; i < count; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float q = code_of(x[i + l], inverse);
            sum_xq[l] += x[i + l] * inverse * q; /* in units of a step: no overflow for tiny x */
            sum_qq[l] += q * q;
        }
    *xq = *qq = 0;
    for (int l = 0; l < LANES; l++) *xq += sum_xq[l], *qq += sum_qq[l];
}

/* The same weighted; `floor` counts for inputs that were never active. */
static void project_weighted(const float *x, int64_t count, const float *v, double floor,
                             float inverse, double *xq, double *qq) {
    *xq = *qq = 0;
    for (int64_t i = 0; i < count; i++) {
        double q = code_of(x[i], inverse), weight = v[i] + floor;
        *xq += weight * (x[i] * inverse) * q;
        *qq += weight * q * q;
    }
}

float kt_int8_search(const float *x, int64_t count, const float *importance, int points) {
    float a = largest(x, count), scale = 0;
    double best = 0, total = 0;

    if (!(a >= 0x1p-100f && a <= FLT_MAX)) return 0;
    for (int64_t i = 0; importance && i < count; i++) total += importance[i];
    for (int s = 0; s < points; s++) {
        float inverse = (points == 25 ? STEP25(s) : steps8[s]) / a;
        double xq, qq, score;
        if (total > 0 && total <= DBL_MAX)
            project_weighted(x, count, importance, total / (double)count * 0x1p-10, inverse, &xq,
                             &qq);
        else
            project(x, count, inverse, &xq, &qq);
        score = xq * xq / qq / ((double)inverse * inverse);
        if (!(score > best)) continue;
        best = score;
        scale = (float)(xq / qq / inverse);
    }
    return scale;
}

double kt_int8_round(const float *x, int64_t count, float scale, int8_t *out) {
    float inverse = scale > 0 ? 1.0f / scale : 0;
    double error = 0;

    for (int64_t i = 0; i < count; i++) {
        float q = scale > 0 ? code_of(x[i], inverse) : 0;
        double lost = (double)x[i] - (double)scale * q;
        out[i] = (int8_t)q;
        error += lost * lost;
    }
    return error;
}
