/* Panel kernels for 256-bit VPDPBUSD: rows of encoded activations times one p64 panel.
 *
 * VPDPBUSD adds four products of unsigned codes and signed activations to an int32 lane, which does not
 * saturate and cannot overflow (32 * 255 * 127 < 2^21), so INT8 panels need no unpacking and a group's
 * sum starts at the compensation (p64_blocked.h).
 *
 * KT_DPBUSD256 is the instruction: "%{vex%} vpdpbusd" for AVX-VNNI, and "vpdpbusd" where a test runs this
 * code by the EVEX form of AVX-512 VNNI.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AVXVNNI_H
#define KT_SIMD_P64_AVXVNNI_H

#include "kernels/p64/words256.h"

#ifndef KT_DPBUSD256
#define KT_DPBUSD256 "%{vex%} vpdpbusd"
#endif

KT_INLINE kt_vi kt_dot_next(kt_vi sum, kt_vi u, kt_vi q) {
    __asm__(KT_DPBUSD256 " %2, %1, %0" : "+x"(sum) : "x"(u), "x"(q));
    return sum;
}
KT_INLINE kt_vi kt_dot_begin(kt_vi start) {
    return start;
}
KT_INLINE kt_vi kt_dot_first(kt_vi u, kt_vi q, kt_vi start) {
    return kt_dot_next(start, u, q);
}
KT_INLINE kt_vi kt_dot_last(kt_vi sum, kt_vi start) {
    (void)start;
    return sum;
}

#define KT_DOT_APART 0
#include "kernels/p64/p64_blocked.h"

static inline void kt_tile_w4g32_avxvnni(const kt_p64_tile *t) {
    kt_tile_w4g32_blocked(t);
}

static inline void kt_tile_w8c_avxvnni(const kt_p64_tile *t) {
    kt_tile_w8c_bytes(t);
}

#endif
