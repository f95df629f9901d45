/* Compiler words for kernel loops over fixed-size register arrays.
 *
 * An accumulator array stays in registers only if every loop over it is unrolled completely, so that
 * each index is a constant. Both compilers need to be told.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_UNROLL_H
#define KT_KERNELS_UNROLL_H

#include "kernels/simd/inline.h"

/* KT_INLINE_UNROLLED is KT_INLINE for what unrolled loops call dozens of times. It is a function
 * where loops are left to the compiler, since a file of its copies would compile for a minute:
 * under AddressSanitizer, whose checks leave gcc no loop to annotate, and where KT_ROLLED_UP asks
 * for it, because the time to compile counts and speed does not. */
#if defined(__SANITIZE_ADDRESS__) || defined(KT_ROLLED_UP)
#define KT_UNROLL
#define KT_ROLLED
#define KT_INLINE_UNROLLED static __attribute__((noinline, unused))
#elif defined(__clang__)
#define KT_UNROLL _Pragma("clang loop unroll(full)")
#define KT_ROLLED _Pragma("clang loop unroll(disable)")
#define KT_INLINE_UNROLLED KT_INLINE
#else
#define KT_UNROLL _Pragma("GCC unroll 32")
#define KT_ROLLED _Pragma("GCC unroll 1")
#define KT_INLINE_UNROLLED KT_INLINE
#endif

/* KT_ROLLED before a for statement keeps it a loop: prefetchers tell streams apart by the address of the
 * load instruction, and dozens of copies of one load confuse them. */

/* for (int i = 0; i < n; i++), unrolled: n <= 32 is a constant once the function is inlined. */
#define KT_EACH(i, n) KT_UNROLL for (int i = 0; i < (n); i++)

/* Loads before stay before. Hardware prefetchers follow a stream of ascending lines; one line that the
 * compiler's scheduler fetches a kilobyte early breaks it (w8c, one row, Zen 4: 86 % of the read ceiling
 * instead of 95 %). It also keeps operands from being loaded long before a register is free. */
#define KT_IN_ORDER() __asm__ volatile("" ::: "memory")

/* x is computed here, in a vector register, before the next KT_IN_ORDER or KT_SETTLE. */
#define KT_SETTLE(x) __asm__ volatile("" : "+v"(x))

#endif
