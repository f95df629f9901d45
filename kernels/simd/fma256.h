/* Multiply-adds of tiles that fill the 16 registers of AVX2. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FMA256_H
#define KT_SIMD_FMA256_H

#include <immintrin.h>

#include "kernels/simd/inline.h"

/* sum + a * b where the sum is. With 12 sums and 4 operands a compiler that is free to overwrite an
 * operand instead needs a register more, and stores sums in the loop (gcc 12: half the speed). */
KT_INLINE __m256 kt_fma_in_place256(__m256 a, __m256 b, __m256 sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

#endif
