/* E4M3 weights with f32 scales: what wf8c and wf8b128 share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_FP8_COMMON_H
#define KT_KERNELS_FP8_COMMON_H

#include <float.h>
#include <math.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"

/* Inputs [begin, end) of a row, all of one scale. */
static inline void kt_fp8_decode(const kt_matrix *w, int64_t row, int64_t begin, int64_t end,
                                 float scale, double *out) {
    const uint8_t *x = (const uint8_t *)w->data + row * w->k;
    for (int64_t i = begin; i < end; i++) out[i] = (double)kt_f8e4m3_to_f32(x[i]) * scale;
}

/* The larger of a and the largest magnitude; NaN when a is NaN or an element is infinite or NaN. */
static inline float kt_fp8_largest(float a, const float *x, int64_t count) {
    float taint = 0;
    for (int64_t i = 0; i < count; i++) {
        a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
        taint += x[i] * 0.0f;
    }
    return a + taint;
}

/* The scale that sends a to 448. What is not finite becomes zeros, and its error shows it. Magnitudes below
 * 2^-100 are zeros to any model and keep the division in range. */
static inline float kt_fp8_scale(float a) {
    return a >= 0x1p-100f && a <= FLT_MAX ? a / 448.0f : 0;
}

/* Round to nearest even; returns the sum of squared errors and adds to *energy. */
static inline double kt_fp8_encode(const float *x, int64_t count, float scale, uint8_t *out,
                                   double *energy) {
    double error = 0;
    for (int64_t i = 0; i < count; i++) {
        double lost;
        out[i] = scale > 0 ? kt_f32_to_f8e4m3(x[i] / scale) : 0;
        lost = (double)x[i] - (double)kt_f8e4m3_to_f32(out[i]) * scale;
        error += lost * lost;
        *energy += (double)x[i] * x[i];
    }
    return error;
}

#endif
