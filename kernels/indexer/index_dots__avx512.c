/* Scores of the indexer on AVX-512: index_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/attn/turn512.h"

#undef KEYS
#define LANES 16
#define VEC __m512
#define VECS 2
#define PIECE 32
#define HEADS 8

KT_INLINE VEC vec_zero(void) {
    return _mm512_setzero_ps();
}
KT_INLINE VEC vec_load(const float *p) {
    return _mm512_loadu_ps(p);
}
KT_INLINE void vec_store(float *p, VEC x) {
    _mm512_storeu_ps(p, x);
}
KT_INLINE VEC vec_set(float x) {
    return _mm512_set1_ps(x);
}
KT_INLINE VEC vec_fma(VEC a, VEC b, VEC c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* x, or zero where it is negative or NaN. */
KT_INLINE VEC vec_positive(VEC x) {
    return _mm512_max_ps(x, _mm512_setzero_ps());
}

/* 16 keys of 32 numbers; vector i of out, PIECE floats apart, has number i of each. */
KT_INLINE void turn_tile(const uint16_t *k, int64_t ld, float *out) {
    __m512i r[16];

    KT_EACH (j, 16) r[j] = _mm512_loadu_si512(k + j * ld);
    transpose(r);
    KT_EACH (i, 16) {
        vec_store(out + (2 * i) * PIECE, _mm512_castsi512_ps(_mm512_slli_epi32(r[i], 16)));
        vec_store(out + (2 * i + 1) * PIECE,
                  _mm512_castsi512_ps(_mm512_and_si512(r[i], _mm512_set1_epi32((int)0xffff0000))));
    }
}

#include "kernels/indexer/index_lanes.h"

KT_VARIANT(index_dots__avx512) = {
    .name = "index_dots__avx512",
    .op = KT_OP_INDEX,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_NONE,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "index-chain",
    .version = 2,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .workspace_bytes = workspace_bytes,
    .index = index_dots,
};
