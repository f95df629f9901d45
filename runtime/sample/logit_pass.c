/* Four lanes at a time: SSE2 is what every x86-64 processor has.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_pass.h"

#include <emmintrin.h>
#include <math.h>
#include <stddef.h>

#include "base/cpu.h"

enum { BLOCK = KT_LOGIT_BLOCK };

static float max_of_lanes(__m128 x) {
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* Of two operands of which the first is NaN, maxps gives the second. */
static float maximum(const float *x) {
    __m128 a = _mm_set1_ps(-INFINITY), b = a, c = a, d = a;

    for (int i = 0; i < BLOCK; i += 16) {
        a = _mm_max_ps(_mm_loadu_ps(x + i), a);
        b = _mm_max_ps(_mm_loadu_ps(x + i + 4), b);
        c = _mm_max_ps(_mm_loadu_ps(x + i + 8), c);
        d = _mm_max_ps(_mm_loadu_ps(x + i + 12), d);
    }
    return max_of_lanes(_mm_max_ps(_mm_max_ps(a, b), _mm_max_ps(c, d)));
}

/* exp(x) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, whose exponential is the polynomial of
 * Cephes' expf; ln 2 is in two parts so that r is exact. exp(-87) is over the smallest normal
 * number. */
static __m128 exp4(__m128 x) {
    const __m128 is_seen = _mm_cmpgt_ps(x, _mm_set1_ps(-87.0f));
    __m128 clamped = _mm_max_ps(x, _mm_set1_ps(-87.0f)); /* NaN becomes -87 */
    __m128i n = _mm_cvtps_epi32(_mm_mul_ps(clamped, _mm_set1_ps(1.44269504f)));
    __m128 whole = _mm_cvtepi32_ps(n), p = _mm_set1_ps(1.9875691500e-4f);
    __m128 r = _mm_sub_ps(clamped, _mm_mul_ps(whole, _mm_set1_ps(0.693359375f)));

    r = _mm_sub_ps(r, _mm_mul_ps(whole, _mm_set1_ps(-2.12194440e-4f)));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.3981999507e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(8.3334519073e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(4.1665795894e-2f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.6666665459e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(5.0000001201e-1f));
    p = _mm_add_ps(_mm_mul_ps(_mm_mul_ps(p, r), r), _mm_add_ps(r, _mm_set1_ps(1)));
    n = _mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23);
    return _mm_and_ps(is_seen, _mm_mul_ps(p, _mm_castsi128_ps(n)));
}

static double sum_of_lanes(__m128 x) {
    const __m128d d = _mm_add_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(_mm_movehl_ps(x, x)));
    return _mm_cvtsd_f64(d) + _mm_cvtsd_f64(_mm_unpackhi_pd(d, d));
}

static double weigh(const float *x, const kt_logit_cut *cut, float *out) {
    const __m128 top = _mm_set1_ps(cut->top), scale = _mm_set1_ps(cut->scale);
    const __m128 least = _mm_set1_ps(cut->least);
    __m128 sum[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};

    for (int i = 0; i < BLOCK; i += 4) {
        const __m128 l = _mm_loadu_ps(x + i);
        const __m128 e =
            _mm_and_ps(_mm_cmpge_ps(l, least), exp4(_mm_mul_ps(_mm_sub_ps(l, top), scale)));
        sum[i / 4 % 4] = _mm_add_ps(sum[i / 4 % 4], e);
        if (out) _mm_storeu_ps(out + i, e);
    }
    return sum_of_lanes(_mm_add_ps(_mm_add_ps(sum[0], sum[1]), _mm_add_ps(sum[2], sum[3])));
}

static double sum_over(const float *x, const float *w, float over, int64_t *equals) {
    const __m128 bound = _mm_set1_ps(over);
    __m128 sum[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
    __m128i same = _mm_setzero_si128(); /* minus the number of equals of each lane */

    for (int i = 0; i < BLOCK; i += 4) {
        const __m128 l = _mm_loadu_ps(x + i);
        const __m128 counts = _mm_and_ps(_mm_cmpgt_ps(l, bound), _mm_loadu_ps(w + i));
        sum[i / 4 % 4] = _mm_add_ps(sum[i / 4 % 4], counts);
        same = _mm_add_epi32(same, _mm_castps_si128(_mm_cmpeq_ps(l, bound)));
    }
    same = _mm_add_epi32(same, _mm_shuffle_epi32(same, 0x4e));
    same = _mm_add_epi32(same, _mm_shuffle_epi32(same, 0xb1));
    *equals -= _mm_cvtsi128_si32(same);
    return sum_of_lanes(_mm_add_ps(_mm_add_ps(sum[0], sum[1]), _mm_add_ps(sum[2], sum[3])));
}

const kt_logit_pass kt_logit_pass_sse2 = {.maximum = maximum, .weigh = weigh, .sum_over = sum_over};

const kt_logit_pass *kt_logit_pass_best(void) {
    const kt_isa isa = kt_isa_available();

    if (isa & KT_ISA_AVX512) return &kt_logit_pass_avx512;
    return isa & KT_ISA_AVX2 ? &kt_logit_pass_avx2 : &kt_logit_pass_sse2;
}
