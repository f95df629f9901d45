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

#include "kernels/simd/tile512.h"

/* gcc 12 copies each accumulator around its intrinsic once a tile holds 16 or more of them, which
 * halves the speed; the constraint "+v" says what is meant. */
KT_INLINE __m512i kt_dpbusd512(__m512i sum, __m512i u8, __m512i s8) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
}

/* 16 bfloat16 -> f32 */
KT_INLINE __m512 kt_load_bf16x16(const uint8_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

#endif
