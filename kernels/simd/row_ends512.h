/* What a row of floats ends with, and all before it, by one path. On Zen 5 masked accesses of lines
 * that are not in L1 are slow (rows of gates from memory take 1.8 to 2.3 times as long), so a mask
 * of all lanes is none. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROW_ENDS512_H
#define KT_KERNELS_ROW_ENDS512_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"

#define KT_ALL_LANES ((__mmask16)0xffff)

/* The first `left` lanes, as many as there are. */
KT_INLINE __mmask16 kt_lanes512(int64_t left) {
    return left >= 16 ? KT_ALL_LANES : left <= 0 ? 0 : (__mmask16)((1u << left) - 1u);
}

/* The lanes m of what lies there, zeros in the others. */
KT_INLINE __m512 kt_load_lanes512(const float *at, __mmask16 m) {
    return m == KT_ALL_LANES ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(m, at);
}

KT_INLINE void kt_store_lanes512(float *at, __mmask16 m, __m512 v) {
    if (m == KT_ALL_LANES)
        _mm512_storeu_ps(at, v);
    else
        _mm512_mask_storeu_ps(at, m, v);
}

#endif
