/* The grids of IQ1, IQ2 and IQ3 on a device: eight weights by their index.
 *
 * A point is 16 bits: eight digits of two bits (IQ1, IQ2) or four of three, in nibbles (IQ3). So the
 * tables of IQ2 and IQ3 take 512 bytes to 2 KiB, four to 16 lines of the first-level cache, where
 * the lanes of a warp look up points of their own; constant memory would serve them one after the
 * other. IQ1's grid would be 32 lines: its points are the codes of the CPU's panels (iq1.h), which
 * two tables of 640 bytes take apart. Digits become bytes by a permute of bytes, as codes of other
 * tables do (kt_look_up).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_POINTS_H
#define KT_DEV_POINTS_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/formats/grid_points.h"
#include "kernels/formats/iq1_points.h"

#ifdef __CUDACC_RTC__
#define KT_POINTS(name) static __device__ const uint16_t kt_points_##name[]
#else
#define KT_POINTS(name) static const uint16_t kt_points_##name[]
#endif

#define KT_POINT(n) n,
#define KT_POINT_KEY(first, at) (first) | (at) << 8,
#define KT_POINT3(n) ((n)&7) | ((n)&070) << 1 | ((n)&0700) << 2 | ((n)&07000) << 3,

KT_POINTS(iq1_keys) = {KT_IQ1_KEYS(KT_POINT_KEY)};
KT_POINTS(iq1_lasts) = {KT_IQ1_LASTS(KT_POINT)};
KT_POINTS(iq2_xxs) = {KT_IQ2_XXS_POINTS(KT_POINT)};
KT_POINTS(iq2_xs) = {KT_IQ2_XS_POINTS(KT_POINT)};
KT_POINTS(iq2_s) = {KT_IQ2_S_POINTS(KT_POINT)};
KT_POINTS(iq3_xxs) = {KT_IQ3_XXS_POINTS(KT_POINT3)};
KT_POINTS(iq3_s) = {KT_IQ3_S_POINTS(KT_POINT3)};

/* Four of the bytes of a (0 .. 3) and b (4 .. 7), named by the nibbles of `which`, lowest first. */
#ifdef __CUDACC_RTC__
KT_DEVICE uint32_t kt_bytes(uint32_t a, uint32_t b, uint32_t which) {
    return __byte_perm(a, b, which);
}
#else
KT_DEVICE uint32_t kt_bytes(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> (8 * (which >> 4 * i & 7)) & 255) << 8 * i;
    return r;
}
#endif

/* Eight digits of two bits, each in a nibble. */
KT_DEVICE uint32_t kt_digits(uint32_t point) {
    uint32_t v = (point | point << 8) & 0x00ff00ffu;

    v = (v | v << 4) & 0x0f0f0f0fu;
    return (v | v << 2) & 0x33333333u;
}

/* Seven signs are stored; the eighth makes their number even. */
KT_DEVICE uint32_t kt_eight_signs(uint32_t seven) {
    return (seven & 127u) | ((uint32_t)kt_bit_count(seven & 127u) & 1u) << 7;
}

/* Eight bits, each in a nibble. */
KT_DEVICE uint32_t kt_spread_bits(uint32_t bits) {
    uint32_t v = (bits | bits << 12) & 0x000f000fu;

    v = (v | v << 6) & 0x03030303u;
    return (v | v << 3) & 0x11111111u;
}

/* Four magnitudes below 64 with 64 added, of which those whose bit of `signs` is set become
 * negative: the bytes are numbers with 64 added. */
KT_DEVICE uint32_t kt_put_signs(uint32_t magnitudes, uint32_t signs) {
    const uint32_t ones = ((signs & 15u) * 0x00204081u) & 0x01010101u;

    return (magnitudes ^ ones * 127u) + ones;
}

/* The functions below write eight weights as two words of bytes, each 64 more than its number. */

/* IQ2: 8, 25 or 43, or the same below zero; which of both is a digit's third bit. */
KT_DEVICE void kt_iq2_bytes(uint32_t point, uint32_t signs, uint32_t *word) {
    const uint32_t digits = kt_digits(point) | kt_spread_bits(signs & 255u) << 2;

    word[0] = kt_bytes(0x006b5948u, 0x00152738u, digits);
    word[1] = kt_bytes(0x006b5948u, 0x00152738u, digits >> 16);
}

/* IQ3_XXS: 4, 12 .. 52 and 62; IQ3_S: 1, 3 .. 15. Two points. */
KT_DEVICE void kt_iq3_bytes(int is_xxs, uint32_t first, uint32_t second, uint32_t signs,
                            uint32_t *word) {
    const uint32_t small = is_xxs ? 0x5c544c44u : 0x47454341u;
    const uint32_t large = is_xxs ? 0x7e746c64u : 0x4f4d4b49u;

    word[0] = kt_put_signs(kt_bytes(small, large, first), signs);
    word[1] = kt_put_signs(kt_bytes(small, large, second), signs >> 4);
}

/* IQ1: 8 times -1, 0 or 1, and 1 above that or below. */
KT_DEVICE void kt_iq1_bytes(uint32_t key, uint32_t rank, uint32_t is_below, uint32_t *word) {
    const uint32_t first = kt_points_iq1_keys[key];
    const uint32_t last = kt_points_iq1_lasts[((first >> 8) + rank) & 127u];
    const uint32_t digits = kt_digits((first & 255u) | last << 8);
    const uint32_t table = is_below ? 0x00473f37u : 0x00494139u;

    word[0] = kt_bytes(table, 0, digits);
    word[1] = kt_bytes(table, 0, digits >> 16);
}

#endif
