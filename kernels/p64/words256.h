/* 256-bit vectors under the names that p64_blocked.h is written in: eight panel rows at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_WORDS256_H
#define KT_SIMD_WORDS256_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/simd/unroll.h"

#define KT_V_BYTES 32
#define KT_V_COLUMNS 2 /* vectors side by side: with four rows eight sums, of sixteen registers */

typedef __m256i kt_vi;
typedef __m256 kt_vf;

KT_INLINE kt_vi kt_v_load(const uint8_t *p) {
    return _mm256_load_si256((const __m256i *)(const void *)p);
}
KT_INLINE void kt_v_store(uint8_t *p, kt_vi v) {
    _mm256_store_si256((__m256i *)(void *)p, v);
}
/* Four bytes at p in every lane. */
KT_INLINE kt_vi kt_v_each(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}
KT_INLINE kt_vi kt_v_low_nibbles(kt_vi v) {
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
KT_INLINE kt_vi kt_v_high_nibbles(kt_vi v) {
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}
KT_INLINE kt_vi kt_v_even_bytes(kt_vi v) {
    return _mm256_and_si256(v, _mm256_set1_epi16(255));
}
KT_INLINE kt_vi kt_v_odd_bytes(kt_vi v) {
    return _mm256_srli_epi16(v, 8);
}
/* A sum as it stands: gcc would else reorder a chain of integer additions into a tree, whose leaves it
 * then keeps in memory. */
KT_INLINE kt_vi kt_v_keep(kt_vi v) {
    __asm__("" : "+x"(v));
    return v;
}
KT_INLINE kt_vi kt_v_add32(kt_vi a, kt_vi b) {
    return kt_v_keep(_mm256_add_epi32(a, b));
}
KT_INLINE kt_vi kt_v_add16(kt_vi a, kt_vi b) {
    return _mm256_add_epi16(a, b);
}
/* Sums of two 16-bit products. */
KT_INLINE kt_vi kt_v_madd16(kt_vi a, kt_vi b) {
    return _mm256_madd_epi16(a, b);
}
KT_INLINE kt_vi kt_v_each_int(int32_t v) {
    return _mm256_set1_epi32(v);
}
/* The same in the order of the source, which neither compiler's scheduler keeps by itself. */
KT_INLINE kt_vi kt_v_each_now(const void *p) {
    kt_vi v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*(const int32_t *)p));
    return v;
}
KT_INLINE kt_vi kt_v_maddubs_now(kt_vi u, kt_vi q) {
    __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(u) : "x"(u), "x"(q));
    return u;
}
KT_INLINE kt_vi kt_v_add16_now(kt_vi a, kt_vi b) {
    __asm__ volatile("vpaddw %2, %1, %0" : "=x"(a) : "x"(a), "x"(b));
    return a;
}
KT_INLINE kt_vi kt_v_madd16_now(kt_vi a, kt_vi b) {
    __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(a) : "x"(a), "x"(b));
    return a;
}
KT_INLINE kt_vi kt_v_add32_now(kt_vi a, kt_vi b) {
    __asm__ volatile("vpaddd %2, %1, %0" : "=x"(a) : "x"(a), "x"(b));
    return a;
}
/* Of vectors whose bits are floats. */
KT_INLINE kt_vi kt_v_add_floats_now(kt_vi a, kt_vi b) {
    __asm__ volatile("vaddps %2, %1, %0" : "=x"(a) : "x"(a), "x"(b));
    return a;
}
KT_INLINE kt_vf kt_v_to_float(kt_vi v) {
    return _mm256_cvtepi32_ps(v);
}
KT_INLINE kt_vf kt_v_each_float(float v) {
    return _mm256_set1_ps(v);
}
KT_INLINE kt_vf kt_v_load_floats(const float *p) {
    return _mm256_load_ps(p);
}
KT_INLINE void kt_v_store_floats(float *p, kt_vf v) {
    _mm256_store_ps(p, v);
}
KT_INLINE kt_vf kt_v_load_bf16(const uint8_t *p) {
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KT_INLINE kt_vf kt_v_mul(kt_vf a, kt_vf b) {
    return _mm256_mul_ps(a, b);
}
KT_INLINE kt_vf kt_v_fma(kt_vf a, kt_vf b, kt_vf c) {
    return _mm256_fmadd_ps(a, b, c);
}

/* One byte of each 16-bit lane must stay clear of the other: shift, then mask. */
KT_INLINE kt_vi kt_v_shift_right(kt_vi v, int bits) {
    return _mm256_srli_epi16(v, bits);
}
KT_INLINE kt_vi kt_v_shift_left(kt_vi v, int bits) {
    return _mm256_slli_epi16(v, bits);
}
KT_INLINE kt_vi kt_v_mask_bytes(kt_vi v, int mask) {
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}
KT_INLINE kt_vi kt_v_or(kt_vi a, kt_vi b) {
    return _mm256_or_si256(a, b);
}
/* -1 in the bytes whose bit is set, of 32. */
KT_INLINE kt_vi kt_v_set_bits(const uint8_t *bits) {
    const kt_vi byte =
        _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const kt_vi bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const kt_vi is_set = _mm256_and_si256(_mm256_shuffle_epi8(kt_v_each(bits), byte), bit);
    return _mm256_cmpeq_epi8(is_set, bit);
}
/* a + v where a bit is clear, a - v where it is set, by bytes; 32 bits. */
KT_INLINE kt_vi kt_v_add_signed(kt_vi a, kt_vi v, const uint8_t *bits) {
    const kt_vi minus = kt_v_set_bits(bits);
    return _mm256_add_epi8(a, _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus));
}

/* Ones in the lanes whose bit is clear. */
KT_INLINE kt_vi kt_v_clear_lanes(const uint8_t *bits) {
    const kt_vi bit = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(*bits), bit),
                              _mm256_setzero_si256());
}

/* Of pairs of lanes in a, then in b, of each 128 bits: the first ones; the second ones. */
KT_INLINE kt_vi kt_v_firsts(kt_vi a, kt_vi b) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
KT_INLINE kt_vi kt_v_seconds(kt_vi a, kt_vi b) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

/* Bytes of a table of sixteen. */
KT_INLINE kt_vi kt_v_look_up(const uint8_t table[16], kt_vi v) {
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), v);
}
KT_INLINE kt_vf kt_v_load_f16(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
KT_INLINE kt_vi kt_v_load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
KT_INLINE kt_vi kt_v_load_s8(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
/* 2^(e - 128) of bytes e; 2^-128 is a denormal number; 255 is NaN, by infinity minus infinity. */
KT_INLINE kt_vf kt_v_load_e8m0(const uint8_t *p) {
    const kt_vi e = _mm256_slli_epi32(kt_v_load_u8(p), 23);
    const kt_vf f = _mm256_castsi256_ps(_mm256_max_epi32(e, _mm256_set1_epi32(0x00400000)));
    return _mm256_fmadd_ps(f, _mm256_set1_ps(0.5f), _mm256_sub_ps(f, f));
}
/* Halves of E4M3 numbers without sign: as half floats the bytes are 2^-8 times the numbers. */
KT_INLINE kt_vf kt_v_load_e4m3(const uint8_t *p) {
    const __m128i e = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m256 f = _mm256_cvtph_ps(_mm_slli_epi16(e, 7));
    return _mm256_mul_ps(f, _mm256_set1_ps(0x1p7f));
}

#endif
