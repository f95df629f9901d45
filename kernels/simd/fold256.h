/* Sums over the lanes of several vectors at once, on AVX2: + 4, + 2, + 1, the order in which sum8()
 * of a single vector goes. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FOLD256_H
#define KT_SIMD_FOLD256_H

#include <immintrin.h>

#include "kernels/simd/inline.h"

/* Of a and of b beside each other: sums of lanes l and l + 4, a's in the lower half; of l and l + 2
 * in each half; of neighbours. A blend takes any port, a shuffle one of two. */
KT_INLINE __m256 kt_fold4_256(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
KT_INLINE __m256 kt_fold2_256(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}
KT_INLINE __m256 kt_fold1_256(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

/* The sums of the lanes of each of a[0 .. n - 1] in the lower half, of b in the upper one; n <= 4,
 * and lanes past it are anything. */
KT_INLINE __m256 kt_sum_lanes_256(const __m256 *a, const __m256 *b, const int n) {
    const __m256 first = kt_fold4_256(a[0], b[0]);
    const __m256 pair = kt_fold2_256(first, n > 1 ? kt_fold4_256(a[1], b[1]) : first);
    const __m256 third = n > 2 ? kt_fold4_256(a[2], b[2]) : first;
    if (n <= 2) return kt_fold1_256(pair, pair);
    return kt_fold1_256(pair, kt_fold2_256(third, n > 3 ? kt_fold4_256(a[3], b[3]) : third));
}

#endif
