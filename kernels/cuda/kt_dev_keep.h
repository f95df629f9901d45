/* Rows of a cache, as a warp writes them: the bytes of the host's kt_attn_store. bfloat16; or 8-bit
 * codes and an f32 scale, the largest magnitude becoming the largest code, 127 or 448. Rows below
 * 2^-100 are zeros. A NaN spoils the scale of an INT8 row and is a code of FP8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_KEEP_H
#define KT_DEV_KEEP_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

/* A row in memory, or (x NULL) in shared memory from `at` on. */
typedef struct kt_keep_row {
    const float *x;
    uint32_t at;
    int size;
} kt_keep_row;

KT_DEVICE float kt_keep_number(const kt_keep_row *row, int i) {
    return row->x ? row->x[i] : kt_shared_f32(row->at + (uint32_t)i * 4);
}

KT_DEVICE float kt_keep_magnitude(float x) {
    return kt_float_bits(kt_bits_float(x) & 0x7fffffffu);
}

/* Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits. */
KT_DEVICE uint8_t kt_keep_int8(float x) {
    return x == x ? (uint8_t)kt_bits_float(x + 12582912.0f) : 0;
}

/* E4M3, rounded to nearest even; magnitudes over 448 become 448. Below 2^-6 the sum with 2^14
 * rounds to steps of 2^-9. */
KT_DEVICE uint8_t kt_keep_fp8(float x) {
    const uint32_t bits = kt_bits_float(x), sign = bits >> 24 & 0x80u, u = bits & 0x7fffffffu;

    if (u > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);
    if (u < 0x3c800000u)
        return (uint8_t)(sign | (kt_bits_float(kt_float_bits(u) + 16384.0f) - 0x46800000u));
    return (uint8_t)(sign | (u + 0x7ffffu + (u >> 20 & 1u) - 0x3c000000u) >> 20);
}

KT_DEVICE void kt_keep_codes(int format, const kt_keep_row *row, uint8_t *to, float *scale) {
    const float top = format == KT_KEPT_INT8 ? 127.0f : 448.0f;
    float largest = 0, spoilt = 0, up;

    for (int i = kt_lane(); i < row->size; i += 32) {
        const float x = kt_keep_number(row, i);
        largest = kt_keep_magnitude(x) > largest ? kt_keep_magnitude(x) : largest;
        if (x != x) spoilt = 1;
    }
    KT_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float other = kt_warp_xor(largest, lanes);
        largest = other > largest ? other : largest;
    }
    spoilt = kt_warp_sum(spoilt);
    up = largest >= 0x1p-100f ? top / largest : 0.0f;
    if (kt_lane() == 0) {
        *scale = largest >= 0x1p-100f ? largest / top : 0.0f;
        if (format == KT_KEPT_INT8 && spoilt > 0) *scale = kt_float_bits(0x7fc00000u);
    }
    for (int i = kt_lane(); i < row->size; i += 32) {
        const float x = kt_mul(kt_keep_number(row, i), up);
        to[i] = format == KT_KEPT_INT8 ? kt_keep_int8(x) : kt_keep_fp8(x);
    }
}

/* scale: where it goes, of INT8 and FP8. */
KT_DEVICE void kt_keep_store(int format, const kt_keep_row *row, uint8_t *to, float *scale) {
    if (format != KT_KEPT_BF16) {
        kt_keep_codes(format, row, to, scale);
        return;
    }
    for (int i = kt_lane(); i < row->size; i += 32)
        ((uint16_t *)to)[i] = (uint16_t)kt_bf16_pair(kt_keep_number(row, i), 0);
}

/* Where head `head` of row `row` goes, and its scale. */
typedef struct kt_keep_place {
    uint8_t *to;
    float *scale;
} kt_keep_place;

KT_DEVICE kt_keep_place kt_keep_place_of(const kt_row_places *places, const kt_kept_heads *kept,
                                         int64_t row, int head) {
    const int position = places->position[row], at = position % 64;
    const int64_t page = places->page[places->first_page[places->span[row]] + position / 64];
    kt_keep_place place;

    place.to = kept->to + head * kept->head_stride + page * kept->page_stride +
               (int64_t)at * kept->row_bytes;
    place.scale = kept->scale ? kept->scale + head * kept->scale_head_stride +
                                    page * kept->scale_page_stride + at
                              : 0;
    return place;
}

#endif
