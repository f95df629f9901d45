/* Encoding 4-bit groups with a zero point: w = scale * (code - zero), codes and zero 0..15, the scale
 * an IEEE half, as AWQ and GPTQ checkpoints have them.
 *
 * The search walks 25 step counts t = 12.6, 12.7 ... 15.0 for the group's range (extended to hold 0, so
 * that 0 has a code) and, for each, the zero points on either side of where 0 falls. For fixed
 * c = code - zero and weights v of the inputs, with <x, y> = sum v x y, the best scale is
 * <x, c> / <c, c>, and the candidate with the largest <x, c>^2 / <c, c> loses least. The scale is
 * rounded to half before the final codes are chosen.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4z_search.h"

#include <float.h>
#include <math.h>

#include "base/numeric.h"
#include "kernels/formats/int4_search.h"

#define MOST 128 /* inputs of the largest group */
#define POINTS 25

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
static const float round_magic = 12582912.0f;

/* code - zero of x * inverse. */
static float centred(float x, float inverse, float zero) {
    float c = (x * inverse + round_magic) - round_magic;
    c = c > 15.0f - zero ? 15.0f - zero : c;
    return c < -zero ? -zero : c;
}

typedef struct choice {
    float scale, zero, score;
} choice;

static void try_one(const float *x, const float *v, int group, float inverse, float zero,
                    choice *best) {
    float xc = 0, cc = 0, score;

    if (zero < 0 || zero > 15) return;
    for (int i = 0; i < group; i++) {
        float c = centred(x[i], inverse, zero);
        xc += v[i] * x[i] * c;
        cc += v[i] * c * c;
    }
    score = xc * xc;
    if (!(score > best->score * cc)) return;
    *best = (choice){xc / cc, zero, score / cc};
}

/* x in units of its largest magnitude. */
static choice search(const float *x, const float *importance, int group) {
    float v[MOST], low = 0, high = 0;
    choice best = {0, 0, 0};

    kt_search_weights(importance, group, v);
    for (int i = 0; i < group; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    for (int t = 0; t < POINTS; t++) {
        float inverse = (12.6f + 0.1f * (float)t) / (high - low), zero = -low * inverse;
        try_one(x, v, group, inverse, floorf(zero), &best);
        try_one(x, v, group, inverse, floorf(zero) + 1, &best);
    }
    return best;
}

/* Largest magnitude; NaN when an element is infinite or NaN. */
static float largest(const float *x, int group) {
    float a = 0, taint = 0;
    for (int i = 0; i < group; i++) {
        a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
        taint += x[i] * 0.0f;
    }
    return a + taint;
}

/* Returns the squared error. The scale must be a normal half: groups whose largest magnitude is below
 * 2^-9 or over 2^19 leave its range in places; they keep what half can hold. A group with an infinity or
 * NaN becomes zeros and an error that is not finite. */
static double encode_group(const float *x, const float *importance, int group, uint8_t *codes,
                           uint16_t *scale_bits, uint8_t *zero) {
    float a = largest(x, group), scale = 0, inverse = 0, y[MOST];
    choice best = {0, 0, 0};
    double error = 0;

    if (a >= 0x1p-100f && a <= FLT_MAX) {
        for (int i = 0; i < group; i++) y[i] = x[i] / a;
        best = search(y, importance, group);
        scale = kt_f16_to_f32(kt_f32_to_f16(fminf(a * best.scale, 65504.0f)));
        inverse = scale > 0 ? 1.0f / scale : 0;
    }
    *scale_bits = kt_f32_to_f16(scale);
    *zero = (uint8_t)best.zero;
    for (int i = 0; i < group; i++) {
        float c = scale > 0 ? centred(x[i], inverse, best.zero) : 0;
        double lost = (double)x[i] - (double)scale * c;
        unsigned code = (unsigned)(c + best.zero);
        error += lost * lost;
        codes[i / 2] = i % 2 ? (uint8_t)(codes[i / 2] | code << 4) : (uint8_t)code;
    }
    return error;
}

/* A row of scales is its halves, then its zero points. */
static uint8_t *scales_of(const void *scales, int64_t row, int64_t groups) {
    return (uint8_t *)(uintptr_t)scales + 3 * row * groups;
}

void kt_int4z_plain_bytes(int group, int64_t n, int64_t k, size_t *data_bytes,
                          size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k / 2;
    *scale_bytes = 3 * (size_t)n * (size_t)(k / group);
}

double kt_int4z_encode_rows(int group, const float *src, int64_t k, const float *importance,
                            int64_t row_begin, int64_t row_end, void *data, void *scales,
                            double *energy) {
    const int64_t groups = k / group;
    double sum = 0, error = 0;

    for (int64_t row = row_begin; row < row_end; row++) {
        uint8_t *row_scales = scales_of(scales, row, groups);
        for (int64_t g = 0; g < groups; g++) {
            const int64_t at = row * k + g * group;
            uint16_t bits;
            error += encode_group(src + at, importance ? importance + g * group : NULL, group,
                                  (uint8_t *)data + at / 2, &bits, row_scales + 2 * groups + g);
            row_scales[2 * g] = (uint8_t)bits;
            row_scales[2 * g + 1] = (uint8_t)(bits >> 8);
        }
    }
    for (int64_t i = row_begin * k; energy && i < row_end * k; i++) sum += (double)src[i] * src[i];
    if (energy) *energy += sum;
    return error;
}
