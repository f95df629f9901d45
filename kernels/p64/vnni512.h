/* Integer multiply-adds on AVX-512 VNNI: panels of unsigned codes times a8 activations.
 *
 * VPDPBUSD multiplies unsigned by signed bytes and adds four products to each int32 lane. Weights are
 * stored unsigned (code + 8, code + 128), activations are the signed operand, broadcast to all lanes.
 * The surplus 8 * sum q or 128 * sum q of a group is the same for every weight row, so the
 * accumulators start at its negative, the group's stored compensation, and it costs nothing.
 * No sum saturates or wraps: |sum| <= 32 * 255 * 127 < 2^21, which is also exact in f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_VNNI512_H
#define KT_KERNELS_VNNI512_H

#include "kernels/simd/bf16x512.h"

/* gcc 12 copies each accumulator around its intrinsic once a tile holds 16 or more of them, which
 * halves the speed; the constraint "+v" says what is meant. */
KT_INLINE __m512i kt_dpbusd512(__m512i sum, __m512i u8, __m512i s8) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
}

#endif
