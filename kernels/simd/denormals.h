/* Float arithmetic that relies on denormal numbers, whatever the program has set.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_DENORMALS_H
#define KT_SIMD_DENORMALS_H

#include <immintrin.h>

#include "kernels/simd/unroll.h"

/* Denormals are numbers, to the default rounding, until kt_denormals_restore. */
KT_INLINE unsigned kt_denormals_on(void) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80);
    KT_IN_ORDER();
    return before;
}
KT_INLINE void kt_denormals_restore(unsigned before) {
    KT_IN_ORDER();
    _mm_setcsr(before);
}

#endif
