/* Rotary position embedding, sixteen pairs (halves) or eight pairs (interleaved) at a time. Only
 * the last ones are masked (row_ends512.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/rope/rope_walk.h"
#include "kernels/simd/row_ends512.h"

/* The lanes m; constant at each call where it is all of them. */
KT_INLINE void rotate_16(float *x, const float *cosine, const float *sine, int64_t half,
                         __mmask16 m) {
    const __m512 a = kt_load_lanes512(x, m), b = kt_load_lanes512(x + half, m);
    const __m512 c = kt_load_lanes512(cosine, m), s = kt_load_lanes512(sine, m);

    kt_store_lanes512(x, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    kt_store_lanes512(x + half, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
}

/* Pairs (i, i + half). */
static void rotate_halves(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;

    for (; i + 16 <= half; i += 16) rotate_16(x + i, cosine + i, sine + i, half, KT_ALL_LANES);
    if (i < half) rotate_16(x + i, cosine + i, sine + i, half, kt_lanes512(half - i));
}

/* Each cosine serves two neighbours; fmaddsub subtracts in even lanes. */
KT_INLINE void rotate_8(float *x, __m512 cosine, __m512 sine, __mmask16 m) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 v = kt_load_lanes512(x, m), swapped = _mm512_permute_ps(v, 0xb1);
    const __m512 c = _mm512_permutexvar_ps(twice, cosine);
    const __m512 s = _mm512_permutexvar_ps(twice, sine);

    kt_store_lanes512(x, m, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
}

/* Pairs (2i, 2i + 1). */
static void rotate_pairs(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;

    for (; i + 8 <= half; i += 8)
        rotate_8(x + 2 * i, _mm512_castps256_ps512(_mm256_loadu_ps(cosine + i)),
                 _mm512_castps256_ps512(_mm256_loadu_ps(sine + i)), KT_ALL_LANES);
    if (i < half) {
        const __mmask16 angles = kt_lanes512(half - i);
        rotate_8(x + 2 * i, kt_load_lanes512(cosine + i, angles),
                 kt_load_lanes512(sine + i, angles), kt_lanes512(2 * (half - i)));
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
