/* Blocks of keys turned round, on AVX-512: lane j of a vector belongs to key j, so that scores come out as vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_TURN512_H
#define KT_ATTN_TURN512_H

#include <immintrin.h>

#include "kernels/attn/attn_walk.h"
#include "kernels/simd/tile512.h"

#define KEYS KT_ATTN_BLOCK
#define KT_TURNED_ROW ((size_t)4 * KEYS) /* bytes of a turned block that hold a dword of each key */

KT_INLINE __mmask32 mask32(int64_t left) {
    return left >= 32 ? (__mmask32)0xffffffffu : (__mmask32)((1u << left) - 1u);
}
KT_INLINE __mmask16 mask16(int64_t left) {
    return left >= 16 ? (__mmask16)0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1u);
}
/* Transpose 16 rows of 16 dwords. */
KT_INLINE void transpose(__m512i r[16]) {
    __m512i t[16];

    KT_EACH (i, 8) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    KT_EACH (i, 4) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    KT_EACH (i, 4) { /* r[4 g + i] has dwords 4 l + i of rows 4 g .. 4 g + 3 in lane l */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    KT_EACH (i, 4) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    }
}

#endif
