/* Rotary position embedding, eight pairs (halves) or four pairs (interleaved) at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/rope/rope_walk.h"

/* Pairs (i, i + half). */
static void rotate_halves(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
        __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* Pairs (2i, 2i + 1): each cosine serves two neighbours; fmaddsub subtracts in even lanes. */
static void rotate_pairs(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;
    for (; i + 4 <= half; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, 0xb1);
        __m128 c4 = _mm_loadu_ps(cosine + i), s4 = _mm_loadu_ps(sine + i);
        __m256 c = _mm256_set_m128(_mm_unpackhi_ps(c4, c4), _mm_unpacklo_ps(c4, c4));
        __m256 s = _mm256_set_m128(_mm_unpackhi_ps(s4, s4), _mm_unpacklo_ps(s4, s4));
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
    }
    for (; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

static void rope(const kt_rope_call *c) {
    kt_rope_walk(c, rotate_halves, rotate_pairs);
}

KT_VARIANT(rotate_heads__avx2) = {
    .name = "rotate_heads__avx2",
    .op = KT_OP_ROPE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "fma256",
    .version = 1,
    .layout = "",
    .rank = 1,
    .rope = rope,
};
