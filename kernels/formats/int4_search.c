/* Encoding symmetric 4-bit groups: w = scale * code, codes -8..7, the scale a bfloat16. Scales may be
 * negative: then code -8 stands for the positive extreme.
 *
 * Encoding searches the scale. A group is divided by its largest magnitude A; candidates send A to
 * t = 6.8, 6.9, ... 9.2 steps on either side (the sign decides which side has the eighth code). For
 * fixed codes q and weights v of the inputs, with <x, y> = sum v x y, the best scale is
 * <x, q> / <q, q> and leaves the error <x, x> - <x, q>^2 / <q, q>, so the candidate with the largest
 * <x, q>^2 / <q, q> wins. Its scale is rounded to bfloat16 *before* the final codes are chosen: the
 * codes then absorb part of that rounding.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <emmintrin.h>
#include <float.h>
#include <math.h>

#include "base/numeric.h"
#include "kernels/formats/int4_search.h"

#define MOST 128  /* inputs of the largest group */
#define LANES 8   /* partial sums that a compiler may keep in vectors without reassociating */
#define POINTS 25 /* candidates per sign: t = 6.8 + 0.1 i */

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
static const float round_magic = 12582912.0f;

static float code_of(float x, float inverse) {
    float q = (x * inverse + round_magic) - round_magic;
    q = q > 7.0f ? 7.0f : q;
    return q < -8.0f ? -8.0f : q;
}

/* Largest magnitude; NaN when an element is infinite or NaN. */
static float largest(const float *x, int group) {
    float best[LANES] = {0}, taint[LANES] = {0};
    float a = 0;
    for (int i = 0; i < group; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = fabsf(x[i + l]);
            best[l] = best[l] > v ? best[l] : v;
            taint[l] += v * 0.0f; /* NaN for what is not finite, which no comparison shows */
        }
    for (int l = 0; l < LANES; l++) a = (best[l] > a ? best[l] : a) + taint[l];
    return a;
}

static float sum_lanes(__m128 s) {
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

void kt_search_weights(const float *importance, int group, float *out) {
    float sum = 0;

    for (int i = 0; importance && i < group; i++) sum += importance[i];
    for (int i = 0; i < group; i++)
        out[i] = sum > 0 && sum <= FLT_MAX ? importance[i] + sum * (0x1p-10f / (float)group) : 1;
}

/* A group in units of its largest magnitude, and the weights of its inputs. */
typedef struct scaled_group {
    int vectors, weighted;
    __m128 y[MOST / 4], v[MOST / 4];
} scaled_group;

/* <y, q> and <q, q> of the codes that `inverse` gives. SSE2 is part of x86-64; written out because
 * compilers keep the clamps scalar, and this loop is all of the cost of encoding. */
static void project(const scaled_group *x, float inverse, float *yq, float *qq) {
    const __m128 step = _mm_set1_ps(inverse), magic = _mm_set1_ps(round_magic);
    const __m128 lo = _mm_set1_ps(-8), hi = _mm_set1_ps(7);
    __m128 sum_yq = _mm_setzero_ps(), sum_qq = _mm_setzero_ps();

    for (int j = 0; j < x->vectors; j++) {
        __m128 q = _mm_sub_ps(_mm_add_ps(_mm_mul_ps(x->y[j], step), magic), magic), vq;
        q = _mm_max_ps(_mm_min_ps(q, hi), lo);
        vq = x->weighted ? _mm_mul_ps(x->v[j], q) : q;
        sum_yq = _mm_add_ps(sum_yq, _mm_mul_ps(x->y[j], vq));
        sum_qq = _mm_add_ps(sum_qq, _mm_mul_ps(q, vq));
    }
    *yq = sum_lanes(sum_yq);
    *qq = sum_lanes(sum_qq);
}

/* Best scale for x / A in units of A. */
static float search_scale(const float *x, int group, const float *importance, float unit) {
    float weights[MOST], best = 0, scale = 0;
    scaled_group s;

    s.vectors = group / 4;
    s.weighted = importance != NULL;
    if (importance) kt_search_weights(importance, group, weights);
    for (int j = 0; j < group / 4; j++) {
        s.y[j] = _mm_mul_ps(_mm_loadu_ps(x + 4 * j), _mm_set1_ps(unit));
        if (importance) s.v[j] = _mm_loadu_ps(weights + 4 * j);
    }
    for (int i = 0; i < 2 * POINTS; i++) {
        float t = 6.8f + 0.1f * (float)(i >> 1);
        float yq, qq;
        project(&s, i & 1 ? t : -t, &yq, &qq);
        if (!(yq * yq > best * qq)) continue;
        best = yq * yq / qq;
        scale = yq / qq;
    }
    return scale;
}

/* Encode one group; returns its squared error. Magnitudes below 2^-100 are zeros to any model and
 * keep the division in range; a group with an infinity or NaN becomes zeros and an error that is not
 * finite. */
static double encode_group(const float *x, int group, const float *importance, uint8_t *codes,
                           uint16_t *scale_bits) {
    float q[MOST];
    float a = largest(x, group);
    float scale = 0, inverse = 0;
    double error = 0;

    *scale_bits = 0;
    if (a >= 0x1p-100f && a <= FLT_MAX) {
        *scale_bits = kt_f32_to_bf16(a * search_scale(x, group, importance, 1.0f / a));
        scale = kt_bf16_to_f32(*scale_bits);
        inverse = 1.0f / scale;
    }
    for (int i = 0; i < group; i++) q[i] = scale != 0 ? code_of(x[i], inverse) : 0;
    for (int i = 0; i < group; i++) {
        double lost = (double)x[i] - (double)scale * q[i];
        error += lost * lost;
    }
    for (int i = 0; i < group / 2; i++)
        codes[i] = (uint8_t)((int)q[2 * i] + 8) | (uint8_t)(((int)q[2 * i + 1] + 8) << 4);
    return error;
}

void kt_int4_plain_bytes(int group, int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k / 2;
    *scale_bytes = 2 * (size_t)n * (size_t)(k / group);
}

double kt_int4_encode_rows(int group, const float *src, int64_t k, const float *importance,
                           int64_t row_begin, int64_t row_end, void *data, void *scales,
                           double *energy) {
    const int64_t groups = k / group;
    double sum = 0, error = 0;

    for (int64_t g = row_begin * groups; g < row_end * groups; g++)
        error += encode_group(src + g * group, group,
                              importance ? importance + g % groups * group : NULL,
                              (uint8_t *)data + g * (group / 2), (uint16_t *)scales + g);
    for (int64_t i = row_begin * k; energy && i < row_end * k; i++) sum += (double)src[i] * src[i];
    if (energy) *energy += sum;
    return error;
}
