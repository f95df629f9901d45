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

/* Four groups of eight VPMADDUBSW of 4-bit codes: seven additions of 16-bit products, then VPMADDWD widens and
 * a 32-bit sum takes the group in. A ninth product would not fit 16 bits (9 * 2 * 15 * 127 > 2^15), so
 * no exact kernel does less. Four products before four additions: additions go to any pipe, and right behind
 * their product they take those that multiply. Registers 0..3 sums of 32 bits, 4..7 of 16, 8..11 products. */
#define KT_PEAK_WIDENED(vec)                         \
    KT_PEAK_4("vpmaddubsw", vec, 15, 14, 4, 5, 6, 7) \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_STEP(vec)                                \
    KT_PEAK_INTO("vpmaddwd", vec, 13, 4, 8)          \
    KT_PEAK_INTO("vpmaddwd", vec, 13, 5, 9)          \
    KT_PEAK_INTO("vpmaddwd", vec, 13, 6, 10)         \
    KT_PEAK_INTO("vpmaddwd", vec, 13, 7, 11)         \
    KT_PEAK_ADD("vpaddd", vec, 8, 0)                 \
    KT_PEAK_ADD("vpaddd", vec, 9, 1)                 \
    KT_PEAK_ADD("vpaddd", vec, 10, 2) KT_PEAK_ADD("vpaddd", vec, 11, 3)
#define KT_PEAK_WIDENED_PRODUCTS 32
#define KT_PEAK_STEP(vec)                              \
    KT_PEAK_4("vpmaddubsw", vec, 15, 14, 8, 9, 10, 11) \
    KT_PEAK_ADD("vpaddw", vec, 8, 4)                   \
    KT_PEAK_ADD("vpaddw", vec, 9, 5)                   \
    KT_PEAK_ADD("vpaddw", vec, 10, 6) KT_PEAK_ADD("vpaddw", vec, 11, 7)
#define KT_PEAK_4(op, vec, a, b, i, j, k, l) \
    KT_PEAK_INTO(op, vec, a, b, i)           \
    KT_PEAK_INTO(op, vec, a, b, j) KT_PEAK_INTO(op, vec, a, b, k) KT_PEAK_INTO(op, vec, a, b, l)

#define KT_PEAK_INTO(op, vec, a, b, to) op " %%" vec #a ", %%" vec #b ", %%" vec #to "\n\t"
#define KT_PEAK_ADD(op, vec, part, sum) KT_PEAK_INTO(op, vec, part, sum, sum)

#define KT_PEAK_CLOBBERS                                                                     \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

#endif
