/* Rotary position embedding, sixteen pairs (halves) or eight pairs (interleaved) at a time, the
 * last ones masked.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/rope/rope_walk.h"

/* Pairs (i, i + half). */
static void rotate_halves(float *x, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i += 16) {
        __mmask16 m = half - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (half - i)) - 1u);
        __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + i + half);
        __m512 c = _mm512_maskz_loadu_ps(m, cosine + i), s = _mm512_maskz_loadu_ps(m, sine + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + i + half, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

/* Pairs (2i, 2i + 1): each cosine serves two neighbours; fmaddsub subtracts in even lanes. */
static void rotate_pairs(float *x, const float *cosine, const float *sine, int64_t half) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int64_t i = 0; i < half; i += 8) {
        int64_t left = half - i < 8 ? half - i : 8;
        __mmask16 angles = (__mmask16)((1u << left) - 1u);
        __mmask16 m = (__mmask16)((1u << 2 * left) - 1u);
        __m512 v = _mm512_maskz_loadu_ps(m, x + 2 * i), swapped = _mm512_permute_ps(v, 0xb1);
        __m512 c = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(angles, cosine + i));
        __m512 s = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(angles, sine + i));
        _mm512_mask_storeu_ps(x + 2 * i, m, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
    }
}

static void rope(const kt_rope_call *c) {
    kt_rope_walk(c, rotate_halves, rotate_pairs);
}

KT_VARIANT(rotate_heads__avx512) = {
    .name = "rotate_heads__avx512",
    .op = KT_OP_ROPE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "fma512",
    .version = 1,
    .layout = "",
    .rank = 1,
    .rope = rope,
};
