/* Text of one block of a peak probe: an instruction on independent accumulators.
 *
 * A peak is only reached when the latency of the instruction is covered: 4 cycles times 2 pipes for
 * VPDPBUSD and FMA, 6 times 2 for VDPBF16PS. 16 (zmm) and 12 (ymm, which has 16 registers in all)
 * accumulators cover each of them. The operands are registers, so nothing but the pipes is measured.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_PEAK_BLOCK_H
#define KT_KERNELS_PEAK_BLOCK_H

#define KT_PEAK_BLOCKS 1000 /* blocks per repeat (kt_probe_call) */

/* "op %vec<b>, %vec<a>, %vec<accumulator>" on 12 and on 16 accumulators. */
#define KT_PEAK_12(op, vec, a, b) \
    KT_PEAK_1(op, vec, a, b, 0)   \
    KT_PEAK_1(op, vec, a, b, 1)   \
    KT_PEAK_1(op, vec, a, b, 2)   \
    KT_PEAK_1(op, vec, a, b, 3)   \
    KT_PEAK_1(op, vec, a, b, 4)   \
    KT_PEAK_1(op, vec, a, b, 5)   \
    KT_PEAK_1(op, vec, a, b, 6)   \
    KT_PEAK_1(op, vec, a, b, 7)   \
    KT_PEAK_1(op, vec, a, b, 8)   \
    KT_PEAK_1(op, vec, a, b, 9) KT_PEAK_1(op, vec, a, b, 10) KT_PEAK_1(op, vec, a, b, 11)
#define KT_PEAK_16(op, vec, a, b) \
    KT_PEAK_12(op, vec, a, b)     \
    KT_PEAK_1(op, vec, a, b, 12)  \
    KT_PEAK_1(op, vec, a, b, 13) KT_PEAK_1(op, vec, a, b, 14) KT_PEAK_1(op, vec, a, b, 15)
#define KT_PEAK_1(op, vec, a, b, i) op " %%" vec #b ", %%" vec #a ", %%" vec #i "\n\t"

#define KT_PEAK_CLOBBERS                                                                     \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

#endif
