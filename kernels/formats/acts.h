/* Layout of encoded activation rows. Rows are 64-byte aligned; kt_act_row_bytes gives the stride.
 *
 * KT_A_BF16      bfloat16 [k], round to nearest even.
 * KT_A_INT8_G32  int8 q[k] | f32 scale[k/32] | int32 comp[k/32].
 *                For group g with largest magnitude A (finite inputs): scale = A / 127,
 *                q = round_to_nearest_even(x * (127 / A)), comp = -8 * sum of q over the group;
 *                A = 0 (or 127 / A overflows) gives scale 0, q 0, comp 0. comp is what a kernel
 *                with 4-bit codes stored as code + 8 starts its accumulator at; for 8-bit codes
 *                stored as code + 128 it is comp * 16.
 *                A group that holds NaN or infinity has scale NaN (0x7fc00000), q 0, comp 0: every
 *                product with it is NaN, and no conversion is undefined.
 * KT_A_F32       float [k].
 * k is a multiple of 32. Bytes between the encoded row and its stride are not written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ACTS_H
#define KT_KERNELS_ACTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kt/problem.h"

static inline size_t kt_act_row_bytes(kt_act_format format, int64_t k) {
    size_t n = (size_t)k, bytes = 0;
    if (format == KT_A_BF16) bytes = 2 * n;
    if (format == KT_A_INT8_G32) bytes = n + n / 32 * 8;
    if (format == KT_A_F32) bytes = 4 * n;
    return (bytes + 63) / 64 * 64;
}

static inline const float *kt_a8_scales(const void *row, int64_t k) {
    return (const float *)(const void *)((const char *)row + k);
}
static inline const int32_t *kt_a8_comps(const void *row, int64_t k) {
    return (const int32_t *)(const void *)((const char *)row + k + k / 32 * 4);
}
static inline float *kt_a8_scales_mut(void *row, int64_t k) {
    return (float *)(void *)((char *)row + k);
}
static inline int32_t *kt_a8_comps_mut(void *row, int64_t k) {
    return (int32_t *)(void *)((char *)row + k + k / 32 * 4);
}

/* Scale of an INT8 group from the bits of its largest magnitude (sign cleared; as integers these
 * order like the values, with infinity and NaN on top). Returns the factor to multiply the group
 * with before rounding, or 0 when q and comp of the group are zero. */
static inline float kt_a8_group_scale(uint32_t max_bits, float *scale) {
    float largest, factor;
    uint32_t factor_bits;

    memcpy(&largest, &max_bits, sizeof largest);
    if (max_bits >= 0x7f800000u) {
        const uint32_t nan_bits = 0x7fc00000u;
        memcpy(scale, &nan_bits, sizeof nan_bits);
        return 0.0f;
    }
    factor = 127.0f / largest;
    memcpy(&factor_bits, &factor, sizeof factor_bits);
    if (factor_bits >= 0x7f800000u) {
        *scale = 0.0f;
        return 0.0f;
    }
    *scale = largest / 127.0f;
    return factor;
}

/* Encode one group of 32 floats as KT_A_INT8_G32 says, in plain C. */
static inline void kt_a8_encode_group(const float *x, int8_t *q, float *scale, int32_t *comp) {
    /* 1.5 * 2^23: adding it leaves x, rounded to the nearest even integer, in the low bits. */
    const float magic = 12582912.0f;
    uint32_t max_bits = 0;
    int32_t sum = 0;
    float factor;

    for (int i = 0; i < 32; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    factor = kt_a8_group_scale(max_bits, scale);
    for (int i = 0; i < 32; i++) {
        float shifted = (factor > 0 ? x[i] * factor : 0) + magic;
        int32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        q[i] = (int8_t)(bits - 0x4b400000);
        sum += q[i];
    }
    *comp = -8 * sum;
}

/* The exact values of an encoded row. */
void kt_act_decode_row(kt_act_format format, const void *row, int64_t k, double *out);

#endif
