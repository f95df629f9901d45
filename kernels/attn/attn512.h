/* What the AVX-512 variants of attention share: masks, and where sums begin and end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_512_H
#define KT_ATTN_512_H

#include <immintrin.h>

#include "kernels/attn/attn_walk.h"
#include "kernels/simd/row_ends512.h"
#include "kernels/simd/tile512.h"

/* The first `left` elements, as many as there are. */
KT_INLINE __mmask64 mask64(int64_t left) {
    return left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
}
KT_INLINE __mmask32 mask32(int64_t left) {
    return left >= 32 ? (__mmask32)0xffffffffu : (__mmask32)((1u << left) - 1u);
}

/* Where the sums of queries begin: those so far times what keeps of them, 32 columns from x on. */
KT_INLINE void begin_sums(const kt_attn_part *t, int64_t i, int64_t x, __m512 sum[][2],
                          const int nq) {
    const int64_t ldo = t->ldo;
    const float *o = t->o + i * ldo + x;

    KT_EACH (r, nq) {
        const __m512 keep = _mm512_set1_ps(t->keep[i + r]);
        KT_EACH (c, 2) sum[r][c] = _mm512_mul_ps(keep, _mm512_load_ps(o + r * ldo + 16 * c));
    }
}
KT_INLINE void end_sums(const kt_attn_part *t, int64_t i, int64_t x, __m512 sum[][2],
                        const int nq) {
    const int64_t ldo = t->ldo;
    float *o = t->o + i * ldo + x;

    KT_EACH (r, nq) {
        KT_EACH (c, 2) _mm512_store_ps(o + r * ldo + 16 * c, sum[r][c]);
    }
}

#endif
