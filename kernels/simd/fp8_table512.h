/* E4M3 bytes to bfloat16 by table, for AVX-512 with VBMI: the seven magnitude bits of a code index two
 * tables of 128 bytes, the high and the low byte of its value (exact, subnormals and NaN included);
 * VPERMI2B looks 64 codes up, ignoring the sign bit, which one VPTERNLOGD carries over. The panel's byte
 * order is such that unpacking low and high bytes gives pairs of inputs in the order of the 16 rows, as
 * VDPBF16PS and TDPBF16PS want.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FP8_TABLE512_H
#define KT_SIMD_FP8_TABLE512_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"

/* 2^(e - 127) of 16 exponents: the exponents' fields, and for 0 the subnormal number. */
KT_INLINE __m512 kt_fp8_powers(const uint8_t *exponents) {
    const __m512i e =
        _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)exponents));
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000)));
}

#if defined(__AVX512VBMI__)

/* bfloat16 of the codes 0x00..0x7f: high and low bytes. Normal codes e, m are the bits of (e + 120) << 7 |
 * m << 4; subnormal ones m * 2^-9. */
#define KT_FP8_HIGH_NORMAL(e) (uint8_t)(((e) + 120) >> 1)
#define KT_FP8_ROW_HIGH(e)                                                                      \
    KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e), \
        KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e), KT_FP8_HIGH_NORMAL(e)
#define KT_FP8_ROW_LOW(e)                                                        \
    ((e)&1) << 7, ((e)&1) << 7 | 0x10, ((e)&1) << 7 | 0x20, ((e)&1) << 7 | 0x30, \
        ((e)&1) << 7 | 0x40, ((e)&1) << 7 | 0x50, ((e)&1) << 7 | 0x60, ((e)&1) << 7 | 0x70

static const _Alignas(64) uint8_t kt_fp8_high[128] = {
    /* 0, 2^-9, 2^-8, 1.5 2^-8, 2^-7, 1.25 2^-7, 1.5 2^-7, 1.75 2^-7 */
    0x00,
    0x3b,
    0x3b,
    0x3b,
    0x3c,
    0x3c,
    0x3c,
    0x3c,
    KT_FP8_ROW_HIGH(1),
    KT_FP8_ROW_HIGH(2),
    KT_FP8_ROW_HIGH(3),
    KT_FP8_ROW_HIGH(4),
    KT_FP8_ROW_HIGH(5),
    KT_FP8_ROW_HIGH(6),
    KT_FP8_ROW_HIGH(7),
    KT_FP8_ROW_HIGH(8),
    KT_FP8_ROW_HIGH(9),
    KT_FP8_ROW_HIGH(10),
    KT_FP8_ROW_HIGH(11),
    KT_FP8_ROW_HIGH(12),
    KT_FP8_ROW_HIGH(13),
    KT_FP8_ROW_HIGH(14),
    0x43,
    0x43,
    0x43,
    0x43,
    0x43,
    0x43,
    0x43,
    0x7f};
static const _Alignas(64) uint8_t kt_fp8_low[128] = {0x00,
                                                     0x00,
                                                     0x80,
                                                     0xc0,
                                                     0x00,
                                                     0x20,
                                                     0x40,
                                                     0x60,
                                                     KT_FP8_ROW_LOW(1),
                                                     KT_FP8_ROW_LOW(2),
                                                     KT_FP8_ROW_LOW(3),
                                                     KT_FP8_ROW_LOW(4),
                                                     KT_FP8_ROW_LOW(5),
                                                     KT_FP8_ROW_LOW(6),
                                                     KT_FP8_ROW_LOW(7),
                                                     KT_FP8_ROW_LOW(8),
                                                     KT_FP8_ROW_LOW(9),
                                                     KT_FP8_ROW_LOW(10),
                                                     KT_FP8_ROW_LOW(11),
                                                     KT_FP8_ROW_LOW(12),
                                                     KT_FP8_ROW_LOW(13),
                                                     KT_FP8_ROW_LOW(14),
                                                     0x80,
                                                     0x90,
                                                     0xa0,
                                                     0xb0,
                                                     0xc0,
                                                     0xd0,
                                                     0xe0,
                                                     0xc0};

/* The tables: high bytes, low bytes. */
KT_INLINE void kt_fp8_tables(__m512i tables[4]) {
    tables[0] = _mm512_load_si512(kt_fp8_high);
    tables[1] = _mm512_load_si512(kt_fp8_high + 64);
    tables[2] = _mm512_load_si512(kt_fp8_low);
    tables[3] = _mm512_load_si512(kt_fp8_low + 64);
}

/* A line of codes -> two pairs of inputs of 16 rows. sign: 0x80 in every byte. */
KT_INLINE void kt_fp8_widen_by(__m512i line, const __m512i tables[4], __m512i sign,
                               __m512i pair[2]) {
    const __m512i low = _mm512_permutex2var_epi8(tables[2], line, tables[3]);
    __m512i high = _mm512_permutex2var_epi8(tables[0], line, tables[1]);

    high = _mm512_ternarylogic_epi32(high, line, sign, 0xf8); /* high | (line & sign) */
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
}

/* From memory by one load: VPERMI2B overwrites its indices, and the compiler would load a line three times, which
 * costs a stream 2 to 3 % (one row, Zen 4). */
KT_INLINE void kt_fp8_widen(const uint8_t *from, const __m512i tables[4], __m512i pair[2]) {
    __m512i line = _mm512_load_si512(from);

    __asm__("" : "+v"(line));
    kt_fp8_widen_by(line, tables, _mm512_set1_epi8(-128), pair);
}

#endif
#endif
