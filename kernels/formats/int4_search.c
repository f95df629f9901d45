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
#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "base/cpu.h"
#include "base/numeric.h"
#include "kernels/formats/int4_scores.h"
#include "kernels/formats/int4_search.h"

#define LANES 8 /* partial sums that a compiler may keep in vectors without reassociating */

static float code_of(float x, float inverse) {
    float q = (x * inverse + KT_INT4_MAGIC) - KT_INT4_MAGIC;
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

void kt_search_weights(const float *importance, int group, float *out) {
    float sum = 0;

    for (int i = 0; importance && i < group; i++) sum += importance[i];
    for (int i = 0; i < group; i++)
        out[i] = sum > 0 && sum <= FLT_MAX ? importance[i] + sum * (0x1p-10f / (float)group) : 1;
}

#define FOUR(i) \
    { 6.8f + 0.1f * i, 6.8f + 0.1f * i, 6.8f + 0.1f * i, 6.8f + 0.1f * i }
const float kt_int4_steps[KT_INT4_ROOM][4] = {
    FOUR(0),  FOUR(1),  FOUR(2),  FOUR(3),  FOUR(4),  FOUR(5),  FOUR(6),  FOUR(7),  FOUR(8),
    FOUR(9),  FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15), FOUR(16), FOUR(17),
    FOUR(18), FOUR(19), FOUR(20), FOUR(21), FOUR(22), FOUR(23), FOUR(24)};

/* One candidate at a time. SSE2 is part of x86-64; written out because compilers keep the clamps
 * scalar, and this loop is most of the cost of encoding. */
#define TURN(s, how) _mm_shuffle_ps(s, s, how)

static __m128 pick(__m128 a, __m128 b, int lanes) {
    const __m128i bit = _mm_and_si128(_mm_set1_epi32(lanes), _mm_setr_epi32(1, 2, 4, 8));
    const __m128 left = _mm_castsi128_ps(_mm_cmpeq_epi32(bit, _mm_setzero_si128()));
    return _mm_or_ps(_mm_and_ps(left, a), _mm_andnot_ps(left, b));
}

KT_INT4_SCORES(kt_int4_scores_sse2, __m128, 1, _mm_loadu_ps, _mm_loadu_ps, _mm_storeu_ps,
               _mm_set1_ps, _mm_min_ps, _mm_max_ps, TURN, pick)

kt_int4_scores *kt_int4_scores_best(kt_isa isa) {
    if (isa & KT_ISA_AVX512) return kt_int4_scores_avx512;
    return isa & KT_ISA_AVX2 ? kt_int4_scores_avx2 : kt_int4_scores_sse2;
}

/* Asking the processor takes as long as encoding a row; every width gives the same bits, so that it
 * does not matter who asks first. */
static kt_int4_scores *scores_here(void) {
    static _Atomic(kt_int4_scores *) known;
    kt_int4_scores *scores = atomic_load_explicit(&known, memory_order_relaxed);

    if (!scores) scores = kt_int4_scores_best(kt_isa_available());
    atomic_store_explicit(&known, scores, memory_order_relaxed);
    return scores;
}

/* The best of the candidates' scales, each judged by its error against the best before it. Dividing
 * first leaves the few to judge that are within what rounding may hide of the best quotient. */
static float choose(const kt_int4_sums *sums) {
    _Alignas(16) float quotient[2 * KT_INT4_POINTS + 2];
    float best = 0, scale = 0, bound = 0;
    __m128 most = _mm_setzero_ps();

    for (int i = 0; i < KT_INT4_POINTS; i += 2) {
        const __m128 a = _mm_loadu_ps(sums->sum[i]);
        const __m128 b = i + 1 < KT_INT4_POINTS ? _mm_loadu_ps(sums->sum[i + 1]) : a;
        const __m128 yq = _mm_shuffle_ps(a, b, 0x88), qq = _mm_shuffle_ps(a, b, 0xdd);
        const __m128 v = _mm_div_ps(_mm_mul_ps(yq, yq), qq);
        _mm_store_ps(quotient + 2 * i, v);
        most = _mm_max_ps(v, most); /* without NaN */
    }
    most = _mm_max_ps(most, _mm_shuffle_ps(most, most, 0x4e));
    most = _mm_max_ps(most, _mm_shuffle_ps(most, most, 0xb1));
    bound = _mm_cvtss_f32(most) * (1 - 0x1p-16f);
    for (int i = 0; i < 2 * KT_INT4_POINTS; i++) {
        const float *of = sums->sum[i >> 1] + i % 2 * 2, yq = of[0], qq = of[1];
        if (quotient[i] < bound || !(yq * yq > best * qq)) continue;
        best = yq * yq / qq;
        scale = yq / qq;
    }
    return scale;
}

/* Best scale for x / A in units of A. */
static float search_scale(const float *x, int group, const float *importance, float unit,
                          kt_int4_scores *scores) {
    kt_int4_group s;
    kt_int4_sums sums;

    s.group = group;
    s.is_weighted = importance != NULL;
    if (importance) kt_search_weights(importance, group, s.v);
    for (int i = 0; i < group; i++) s.y[i] = x[i] * unit;
    scores(&s, &sums);
    return choose(&sums);
}

/* Encode one group; returns its squared error. Magnitudes below 2^-100 are zeros to any model and
 * keep the division in range; a group with an infinity or NaN becomes zeros and an error that is not
 * finite. */
static double encode_group(const float *x, int group, const float *importance,
                           kt_int4_scores *scores, uint8_t *codes, uint16_t *scale_bits) {
    float q[KT_INT4_MOST];
    float a = largest(x, group);
    float scale = 0, inverse = 0;
    double error = 0;

    *scale_bits = 0;
    if (a >= 0x1p-100f && a <= FLT_MAX) {
        *scale_bits = kt_f32_to_bf16(a * search_scale(x, group, importance, 1.0f / a, scores));
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
    kt_int4_scores *scores = scores_here();
    double sum = 0, error = 0;

    for (int64_t g = row_begin * groups; g < row_end * groups; g++)
        error += encode_group(src + g * group, group,
                              importance ? importance + g % groups * group : NULL, scores,
                              (uint8_t *)data + g * (group / 2), (uint16_t *)scales + g);
    for (int64_t i = row_begin * k; energy && i < row_end * k; i++) sum += (double)src[i] * src[i];
    if (energy) *energy += sum;
    return error;
}
