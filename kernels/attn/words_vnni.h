/* kernels/attn/attn_words256.h by VPDPWSSD. KT_DPWSSD256 is the instruction: "%{vex%} vpdpwssd" for
 * AVX-VNNI, and "vpdpwssd" where a test runs this code by the EVEX form of AVX-512 VNNI.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WORDS_VNNI_H
#define KT_ATTN_WORDS_VNNI_H

#include <immintrin.h>

#include "kernels/simd/inline.h"

#ifndef KT_DPWSSD256
#define KT_DPWSSD256 "%{vex%} vpdpwssd"
#endif

KT_INLINE __m256i dot_words(__m256i sum, __m256i a, __m256i b) {
    __asm__(KT_DPWSSD256 " %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

#endif
