/* bfloat16, IEEE half and E4M3 conversions, scalar. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_NUMERIC_H
#define KT_BASE_NUMERIC_H

#include <stdint.h>
#include <string.h>

static inline float kt_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN (quiet). */
static inline uint16_t kt_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float kt_f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* IEEE half, subnormals included; infinities and NaN stay what they are. */
static inline float kt_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31) return kt_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    return kt_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Round to nearest even; 65520 and above become infinity, NaN stays NaN (quiet). */
static inline uint16_t kt_f32_to_f16(float f) {
    uint32_t u, sign;
    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* below 2^-14: the sum with 0.5 rounds to steps of 2^-24 */
        float sum = kt_f32_from_bits(u) + 0.5f;
        memcpy(&u, &sum, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1u) - 0x38000000u) >> 13);
}

/* FP8 E4M3 (FN): no infinities, 0x7f and 0xff are NaN. The seven magnitude bits, read as the top of
 * an f32, are too small by 2^120, subnormals included. */
static inline float kt_f8e4m3_to_f32(uint8_t x) {
    float f = kt_f32_from_bits((uint32_t)(x & 0x7f) << 20) * 0x1p120f;
    if ((x & 0x7f) == 0x7f) f = kt_f32_from_bits(0x7fc00000u);
    return x & 0x80 ? -f : f;
}

/* Round to nearest even; magnitudes over 448 become 448, NaN stays NaN. */
static inline uint8_t kt_f32_to_f8e4m3(float f) {
    uint32_t u, sign;
    memcpy(&u, &f, sizeof u);
    sign = u >> 24 & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);
    if (u < 0x3c800000u) { /* below 2^-6: the sum with 2^14 rounds to steps of 2^-9 */
        float sum = kt_f32_from_bits(u) + 0x1p14f;
        memcpy(&u, &sum, sizeof u);
        return (uint8_t)(sign | (u - 0x46800000u));
    }
    return (uint8_t)(sign | (u + 0x7ffffu + (u >> 20 & 1u) - 0x3c000000u) >> 20);
}

/* a * b and a + b with overflow detection: nonzero = overflow, *out unspecified. */
static inline int kt_mul_overflow(uint64_t a, uint64_t b, uint64_t *out) {
    return __builtin_mul_overflow(a, b, out);
}
static inline int kt_add_overflow(uint64_t a, uint64_t b, uint64_t *out) {
    return __builtin_add_overflow(a, b, out);
}

#endif
