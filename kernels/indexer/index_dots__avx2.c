/* Scores of the indexer on AVX2: index_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"

#define LANES 8
#define VEC __m256
#define VECS 2
#define PIECE 16
#define HEADS 6

KT_INLINE VEC vec_zero(void) {
    return _mm256_setzero_ps();
}
KT_INLINE VEC vec_load(const float *p) {
    return _mm256_loadu_ps(p);
}
KT_INLINE void vec_store(float *p, VEC x) {
    _mm256_storeu_ps(p, x);
}
KT_INLINE VEC vec_set(float x) {
    return _mm256_set1_ps(x);
}
KT_INLINE VEC vec_fma(VEC a, VEC b, VEC c) {
    return _mm256_fmadd_ps(a, b, c);
}
/* x, or zero where it is negative or NaN. */
KT_INLINE VEC vec_positive(VEC x) {
    return _mm256_max_ps(x, _mm256_setzero_ps());
}

/* Transpose 8 rows of 8 dwords. */
KT_INLINE void turn8(__m256i r[8]) {
    __m256i t[8];

    KT_EACH (i, 4) {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    KT_EACH (i, 2) {
        r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    KT_EACH (i, 4) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    KT_EACH (i, 8) r[i] = t[i];
}

/* 8 keys of 16 numbers; vector i of out, PIECE floats apart, has number i of each. */
KT_INLINE void turn_tile(const uint16_t *k, int64_t ld, float *out) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    __m256i r[8];

    KT_EACH (j, 8) r[j] = _mm256_loadu_si256((const __m256i *)(const void *)(k + j * ld));
    turn8(r);
    KT_EACH (i, 8) {
        vec_store(out + (2 * i) * PIECE, _mm256_castsi256_ps(_mm256_slli_epi32(r[i], 16)));
        vec_store(out + (2 * i + 1) * PIECE, _mm256_castsi256_ps(_mm256_and_si256(r[i], high)));
    }
}

#include "kernels/indexer/index_lanes.h"

KT_VARIANT(index_dots__avx2) = {
    .name = "index_dots__avx2",
    .op = KT_OP_INDEX,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_NONE,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "index-chain",
    .version = 2,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .index = index_dots,
};
