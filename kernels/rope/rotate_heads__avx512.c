/* Rotary position embedding, sixteen pairs (halves) or eight pairs (interleaved) at a time. Only the
 * last ones are masked: on Zen 5 masked loads of lines that are not in L1 wait for each other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/rope/rope_walk.h"
#include "kernels/simd/unroll.h"

/* 16 floats, or the lanes m of them; is_whole is a constant at each call. */
KT_INLINE __m512 load(const float *at, __mmask16 m, const bool is_whole) {
    return is_whole ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(m, at);
}
KT_INLINE void store(float *at, __mmask16 m, const bool is_whole, __m512 v) {
    if (is_whole)
        _mm512_storeu_ps(at, v);
    else
        _mm512_mask_storeu_ps(at, m, v);
}

KT_INLINE void rotate_16(float *x, const float *cosine, const float *sine, int64_t half,
                         __mmask16 m, const bool is_whole) {
    const __m512 a = load(x, m, is_whole), b = load(x + half, m, is_whole);
    const __m512 c = load(cosine, m, is_whole), s = load(sine, m, is_whole);

    store(x, m, is_whole, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    store(x + half, m, is_whole, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
}

/* Pairs (i, i + half). */
static void rotate_halves(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;

    for (; i + 16 <= half; i += 16) rotate_16(x + i, cosine + i, sine + i, half, 0xffff, true);
    if (i < half)
        rotate_16(x + i, cosine + i, sine + i, half, (__mmask16)((1u << (half - i)) - 1u), false);
}

/* Each cosine serves two neighbours; fmaddsub subtracts in even lanes. */
KT_INLINE void rotate_8(float *x, __m512 cosine, __m512 sine, __mmask16 m, const bool is_whole) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 v = load(x, m, is_whole), swapped = _mm512_permute_ps(v, 0xb1);
    const __m512 c = _mm512_permutexvar_ps(twice, cosine);
    const __m512 s = _mm512_permutexvar_ps(twice, sine);

    store(x, m, is_whole, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
}

/* Pairs (2i, 2i + 1). */
static void rotate_pairs(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;

    for (; i + 8 <= half; i += 8)
        rotate_8(x + 2 * i, _mm512_castps256_ps512(_mm256_loadu_ps(cosine + i)),
                 _mm512_castps256_ps512(_mm256_loadu_ps(sine + i)), 0xffff, true);
    if (i < half) {
        const __mmask16 angles = (__mmask16)((1u << (half - i)) - 1u);
        const __mmask16 m = (__mmask16)((1u << 2 * (half - i)) - 1u);
        rotate_8(x + 2 * i, load(cosine + i, angles, false), load(sine + i, angles, false), m,
                 false);
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
