/* Encoding of activations from registers, AVX-512: the bits that kernels/formats/acts.h prescribes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENCODE512_H
#define KT_KERNELS_ENCODE512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/formats/acts.h"
#include "kernels/simd/unroll.h"

/* One group of 32 floats -> 32 int8, their scale and their compensation (KT_A_INT8_G32). */
static inline void kt_a8_store_group512(__m512 x0, __m512 x1, int8_t *q, float *scale,
                                        int32_t *comp) {
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x0), clear),
                                   _mm512_and_si512(_mm512_castps_si512(x1), clear));
    float factor = kt_a8_group_scale((uint32_t)_mm512_reduce_max_epi32(top), scale);
    __m512i q0 = _mm512_setzero_si512(), q1 = q0;

    if (factor != 0.0f) {
        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, _mm512_set1_ps(factor)));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, _mm512_set1_ps(factor)));
    }
    *comp = -8 * _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(q1));
}

/* 32 floats -> groups g and g + 1 of a row of KT_A_INT8_G16P2: kt_a8p_encode_group twice, both groups in
 * one vector wherever a group has one number. */
static inline void kt_a8p_store_groups512(__m512 x0, __m512 x1, void *row, int64_t k, int64_t g) {
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    const __m512i m0 = _mm512_and_si512(_mm512_castps_si512(x0), clear);
    const __m512i m1 = _mm512_and_si512(_mm512_castps_si512(x1), clear);
    /* Lanes of `top`, four times: first group, first, second, second. */
    __m512i top = _mm512_max_epi32(_mm512_unpacklo_epi64(m0, m1), _mm512_unpackhi_epi64(m0, m1));
    top = _mm512_max_epi32(top, _mm512_shuffle_epi32(top, 0xb1));
    top = _mm512_max_epi32(top, _mm512_shuffle_i32x4(top, top, 0x4e));
    top = _mm512_max_epi32(top, _mm512_shuffle_i32x4(top, top, 0xb1));
    top = _mm512_srli_epi32(_mm512_add_epi32(top, _mm512_set1_epi32(0x10000)), 23);
    const __mmask16 is_in = _mm512_cmple_epi32_mask(top, _mm512_set1_epi32(237));
    top = _mm512_max_epi32(top, _mm512_set1_epi32(7));
    const __m512i factor =
        _mm512_maskz_slli_epi32(is_in, _mm512_sub_epi32(_mm512_set1_epi32(260), top), 23);
    const __m512i bias =
        _mm512_mask_or_epi32(_mm512_set1_epi32(0x7fc00000), is_in,
                             _mm512_slli_epi32(_mm512_add_epi32(top, _mm512_set1_epi32(17)), 23),
                             _mm512_set1_epi32(0x400000));
    const __m512i f0 = _mm512_shuffle_epi32(factor, 0x00), f1 = _mm512_shuffle_epi32(factor, 0xaa);
    const __m512i q0 = _mm512_maskz_cvtps_epi32(_mm512_test_epi32_mask(f0, f0),
                                                _mm512_mul_ps(x0, _mm512_castsi512_ps(f0)));
    const __m512i q1 = _mm512_maskz_cvtps_epi32(_mm512_test_epi32_mask(f1, f1),
                                                _mm512_mul_ps(x1, _mm512_castsi512_ps(f1)));
    const __m256i q = _mm256_set_m128i(_mm512_cvtepi32_epi8(q1), _mm512_cvtepi32_epi8(q0));
    __m256i sums =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    const __m128i sum =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i two = _mm_shuffle_epi32(_mm512_castsi512_si128(bias), 0x08);
    char *to = (char *)row + k + 4 * g;

    _mm256_storeu_si256((__m256i *)(void *)((char *)row + 16 * g), q);
    _mm_storel_epi64((__m128i *)(void *)to, two);
    _mm_storel_epi64((__m128i *)(void *)(to + k / 4), _mm_sub_epi32(two, _mm_slli_epi32(sum, 3)));
    _mm_storel_epi64((__m128i *)(void *)(to + k / 2), _mm_sub_epi32(two, _mm_slli_epi32(sum, 7)));
}

/* The sum or the largest of lanes 0 to 3, for vectors of 128 bits that hold four numbers each. */
#define KT_JOIN_LANES(op, a, b)                                                                  \
    __m512i joined_ =                                                                            \
        _mm512_##op##_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)); \
    joined_ = _mm512_shuffle_i32x4(joined_, joined_, 0xd8);                                      \
    return _mm256_##op##_epi32(_mm512_castsi512_si256(joined_),                                  \
                               _mm512_extracti64x4_epi64(joined_, 1))
KT_INLINE __m256i kt_lanes_max512(__m512i a, __m512i b) {
    KT_JOIN_LANES(max, a, b);
}
KT_INLINE __m256i kt_lanes_add512(__m512i a, __m512i b) {
    KT_JOIN_LANES(add, a, b);
}

/* kt_a8_store_group512 for four groups, with the bits of one at a time: what a group has one number
 * of is worked out for all four in one vector. Codes go to q and so on, `apart` bytes from group to
 * group, scales and compensations likewise, `numbers_apart`. */
KT_INLINE void kt_a8_store_groups512(__m512 x[4][2], uint8_t *q, size_t apart, float *scales,
                                     int32_t *comps, size_t numbers_apart) {
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    const __m512i in_order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i infinity = _mm_set1_epi32(0x7f800000);
    _Alignas(16) int32_t is_in[4], comp[4];
    _Alignas(16) float factor[4], scale[4];
    __m512i most[4], sum[2];

    KT_EACH (r, 4)
        most[r] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x[r][0]), clear),
                                   _mm512_and_si512(_mm512_castps_si512(x[r][1]), clear));
    KT_EACH (i, 2)
        most[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(most[2 * i], most[2 * i + 1]),
                                   _mm512_unpackhi_epi32(most[2 * i], most[2 * i + 1]));
    most[0] = _mm512_max_epi32(_mm512_unpacklo_epi64(most[0], most[1]),
                               _mm512_unpackhi_epi64(most[0], most[1]));
    const __m256i half =
        _mm256_max_epi32(_mm512_castsi512_si256(most[0]), _mm512_extracti64x4_epi64(most[0], 1));
    const __m128i bits =
        _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    /* kt_a8_group_scale */
    const __m128 largest = _mm_castsi128_ps(bits);
    const __m128 over = _mm_div_ps(_mm_set1_ps(127.0f), largest);
    const __m128i finite = _mm_cmpgt_epi32(infinity, bits);
    const __m128i in = _mm_and_si128(finite, _mm_cmpgt_epi32(infinity, _mm_castps_si128(over)));
    const __m128 step = _mm_and_ps(_mm_castsi128_ps(in), _mm_div_ps(largest, _mm_set1_ps(127.0f)));
    const __m128i nan = _mm_andnot_si128(finite, _mm_set1_epi32(0x7fc00000));
    _mm_store_si128((__m128i *)(void *)is_in, in);
    _mm_store_ps(factor, over);
    _mm_store_ps(scale, _mm_or_ps(step, _mm_castsi128_ps(nan)));

    KT_EACH (i, 2) {
        __m512i code[2][2];
        KT_EACH (b, 2) {
            const int r = 2 * i + b;
            KT_EACH (c, 2) {
                const __m512 y = _mm512_mul_ps(x[r][c], _mm512_set1_ps(factor[r]));
                code[b][c] = _mm512_and_si512(_mm512_cvtps_epi32(y), _mm512_set1_epi32(is_in[r]));
            }
        }
        const __m512i both = _mm512_packs_epi16(_mm512_packs_epi32(code[0][0], code[0][1]),
                                                _mm512_packs_epi32(code[1][0], code[1][1]));
        const __m512i codes = _mm512_permutexvar_epi32(in_order, both);
        uint8_t *to = q + (size_t)(2 * i) * apart;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(codes));
        _mm256_storeu_si256((__m256i *)(void *)(to + apart), _mm512_extracti64x4_epi64(codes, 1));
        sum[i] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), both),
                                   _mm512_set1_epi16(1));
    }
    const __m256i sums = kt_lanes_add512(sum[0], sum[1]);
    const __m256i pairs = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    const __m128i four = _mm256_castsi256_si128(
        _mm256_permutevar8x32_epi32(pairs, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)));
    _mm_store_si128((__m128i *)(void *)comp,
                    _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(four, 3)));
    KT_EACH (r, 4) {
        memcpy((char *)scales + (size_t)r * numbers_apart, &scale[r], sizeof *scales);
        memcpy((char *)comps + (size_t)r * numbers_apart, &comp[r], sizeof *comps);
    }
}

/* The same for group g of four rows of k inputs, `stride` bytes apart. */
KT_INLINE void kt_a8_store_rows512(__m512 x[4][2], uint8_t *h, size_t stride, int64_t k,
                                   int64_t g) {
    kt_a8_store_groups512(x, h + 32 * g, stride, kt_a8_scales_mut(h, k) + g,
                          kt_a8_comps_mut(h, k) + g, stride);
}

/* kt_a8p_store_groups512 for up to four rows, `stride` bytes apart, with the bits of one at a time: what a group
 * has one number of, its largest magnitude, step and sum, is worked out for all rows in one vector (Zen 4: 30
 * cycles a row instead of 59). Numbers stand in the order of row, then group. */
KT_INLINE void kt_a8p_store_rows512(__m512 x[4][2], const int rows, uint8_t *h, size_t stride,
                                    int64_t k, int64_t g) {
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    const __m512i in_order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const int pairs = rows > 2 ? 2 : 1;
    _Alignas(32) int32_t is_in[8];
    _Alignas(32) float factor[8];
    _Alignas(32) char bias[32], start8[32], start128[32];
    __m512i most[4], sum[2];

    KT_EACH (r, 2 * pairs) {
        const int row = r < rows ? r : 0; /* for one that is not there */
        const __m512i m0 = _mm512_and_si512(_mm512_castps_si512(x[row][0]), clear);
        const __m512i m1 = _mm512_and_si512(_mm512_castps_si512(x[row][1]), clear);
        most[r] = _mm512_max_epi32(_mm512_unpacklo_epi64(m0, m1), _mm512_unpackhi_epi64(m0, m1));
    }
    KT_EACH (i, pairs) {
        const __m512 a = _mm512_castsi512_ps(most[2 * i]);
        const __m512 b = _mm512_castsi512_ps(most[2 * i + 1]);
        most[i] = _mm512_max_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    }
    __m256i top = kt_lanes_max512(most[0], most[pairs - 1]);
    top = _mm256_srli_epi32(_mm256_add_epi32(top, _mm256_set1_epi32(0x10000)), 23);
    const __mmask8 in = _mm256_cmple_epi32_mask(top, _mm256_set1_epi32(237));
    top = _mm256_max_epi32(top, _mm256_set1_epi32(7));
    _mm256_store_si256(
        (__m256i *)(void *)factor,
        _mm256_maskz_slli_epi32(in, _mm256_sub_epi32(_mm256_set1_epi32(260), top), 23));
    _mm256_store_si256((__m256i *)(void *)is_in, _mm256_maskz_set1_epi32(in, -1));
    top = _mm256_mask_or_epi32(_mm256_set1_epi32(0x7fc00000), in,
                               _mm256_slli_epi32(_mm256_add_epi32(top, _mm256_set1_epi32(17)), 23),
                               _mm256_set1_epi32(0x400000));
    KT_EACH (i, pairs) {
        __m512i q[2][2];
        KT_EACH (b, 2) {
            const int r = 2 * i + b, row = r < rows ? r : 0;
            KT_EACH (c, 2) {
                const __m512 y = _mm512_mul_ps(x[row][c], _mm512_set1_ps(factor[2 * r + c]));
                q[b][c] =
                    _mm512_and_si512(_mm512_cvtps_epi32(y), _mm512_set1_epi32(is_in[2 * r + c]));
            }
        }
        const __m512i both = _mm512_packs_epi16(_mm512_packs_epi32(q[0][0], q[0][1]),
                                                _mm512_packs_epi32(q[1][0], q[1][1]));
        const __m512i codes = _mm512_permutexvar_epi32(in_order, both);
        uint8_t *to = h + (size_t)(2 * i) * stride + 16 * g;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(codes));
        if (2 * i + 1 < rows)
            _mm256_storeu_si256((__m256i *)(void *)(to + stride),
                                _mm512_extracti64x4_epi64(codes, 1));
        sum[i] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), both),
                                   _mm512_set1_epi16(1));
    }
    const __m256i sums = kt_lanes_add512(sum[0], sum[pairs - 1]);
    _mm256_store_si256((__m256i *)(void *)bias, top);
    _mm256_store_si256((__m256i *)(void *)start8,
                       _mm256_sub_epi32(top, _mm256_slli_epi32(sums, 3)));
    _mm256_store_si256((__m256i *)(void *)start128,
                       _mm256_sub_epi32(top, _mm256_slli_epi32(sums, 7)));
    KT_EACH (r, rows) {
        uint8_t *to = h + (size_t)r * stride + k + 4 * g;
        memcpy(to, bias + 8 * r, 8);
        memcpy(to + k / 4, start8 + 8 * r, 8);
        memcpy(to + k / 2, start128 + 8 * r, 8);
    }
}

/* 16 floats -> bfloat16, to nearest even, with integers: the bits of kt_f32_to_bf16. The instruction
 * for it, VCVTNE2PS2BF16, flushes denormals, and all encoders must agree. Adding half of the last
 * place, less one when the result would be even, carries exactly when the value rounds up; NaN is kept
 * from carrying. */
static inline __m256i kt_bf16_round512(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i out = _mm512_srli_epi32(up, 16);
    out = _mm512_mask_or_epi32(out, is_nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(out);
}

#endif
