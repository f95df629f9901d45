/* Formats whose rows are sequences of blocks with integer codes (kernels/formats/p64_spec.h names
 * them): a format file says how one plain block comes apart; decoding and packing (blocks_panel.h)
 * follow from it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_BLOCKS_H
#define KT_KERNELS_BLOCKS_H

#include <emmintrin.h>
#include <string.h>

#include "kernels/formats/format.h"
#include "kernels/formats/p64_spec.h"

/* One block (spec.span inputs) of one row, taken apart. Fields that a spec does not have are not
 * looked at. scale and minimum hold the bits that a packed panel holds: floats of 32 or 16 bits,
 * or bytes. */
struct kt_block {
    uint8_t code[256];
    uint16_t d, dmin; /* f16 bits */
    uint32_t scale[16], minimum[16];
};

/* A weight of a group is scale * value + minimum. */
typedef struct kt_group_terms {
    double scale, minimum;
} kt_group_terms;

/* The terms of group g of a block and the value of its input i, a small integer: all exact. */
kt_group_terms kt_block_terms(const kt_p64_spec *s, const kt_block *b, int g);
int kt_block_value(const kt_p64_spec *s, const kt_block *b, int i);

/* kt_format members of every block format. */
void kt_blocks_decode_row(const kt_matrix *w, int64_t row, double *out);
void kt_blocks_terms_row(const kt_matrix *w, int64_t row, double *out);

/* --- for the format files ------------------------------------------------------------------- */

static inline uint16_t kt_load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Block b of a row of a GGUF matrix: rows are rows of blocks, without padding. */
static inline const uint8_t *kt_gguf_block(const kt_matrix *w, int64_t row, int64_t b, int inputs,
                                           int bytes) {
    const uint64_t blocks = (uint64_t)w->k / (uint64_t)inputs; /* a shift */

    return (const uint8_t *)w->data + ((uint64_t)row * blocks + (uint64_t)b) * (uint64_t)bytes;
}

/* Codes are written 16 at a time: panels are made of vectors of them (blocks_panel.h). */
static inline __m128i kt_load_16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
static inline void kt_store_16(uint8_t *p, __m128i v) {
    _mm_storeu_si128((__m128i *)(void *)p, v);
}
static inline __m128i kt_bits_of(__m128i v, int shift, int mask) {
    return _mm_and_si128(_mm_srli_epi16(v, shift), _mm_set1_epi8((char)mask));
}

/* 16 bytes of nibbles as 32 codes: the low halves first. */
static inline void kt_split_halves(const uint8_t *qs, uint8_t code[32]) {
    const __m128i v = kt_load_16(qs);

    kt_store_16(code, kt_bits_of(v, 0, 15));
    kt_store_16(code + 16, kt_bits_of(v, 4, 15));
}

/* Bits (from >> shift) & mask of 32 bytes as 32 codes; and, moved up by `up`, beside what the codes
 * hold. */
static inline void kt_take_bits(const uint8_t *from, int shift, int mask, uint8_t code[32]) {
    for (int i = 0; i < 32; i += 16)
        kt_store_16(code + i, kt_bits_of(kt_load_16(from + i), shift, mask));
}
static inline void kt_add_bits(const uint8_t *from, int shift, int mask, int up, uint8_t code[32]) {
    for (int i = 0; i < 32; i += 16) {
        const __m128i more = _mm_slli_epi16(kt_bits_of(kt_load_16(from + i), shift, mask), up);
        kt_store_16(code + i, _mm_or_si128(kt_load_16(code + i), more));
    }
}

/* Bit i of 32 is the fifth bit of code i: each byte eight times, one bit of it kept in each. */
static inline void kt_add_fifth_bits(const uint8_t *bits, uint8_t code[32]) {
    const __m128i one_each = _mm_set1_epi64x((long long)UINT64_C(0x8040201008040201));

    for (int i = 0; i < 4; i += 2) {
        const __m128i bytes =
            _mm_set_epi64x((long long)(bits[i + 1] * UINT64_C(0x0101010101010101)),
                           (long long)(bits[i] * UINT64_C(0x0101010101010101)));
        const __m128i is_set = _mm_cmpeq_epi8(_mm_and_si128(bytes, one_each), one_each);
        const __m128i fifth = _mm_and_si128(is_set, _mm_set1_epi8(16));
        kt_store_16(code + 8 * i, _mm_or_si128(kt_load_16(code + 8 * i), fifth));
    }
}

/* count / 2 bytes of nibbles in the order of the inputs, even input low; count is a multiple of 32.
 * */
static inline void kt_split_pairs(const uint8_t *qs, int count, uint8_t *code) {
    for (int i = 0; i < count; i += 32) {
        const __m128i v = kt_load_16(qs + i / 2);
        const __m128i even = kt_bits_of(v, 0, 15), odd = kt_bits_of(v, 4, 15);
        kt_store_16(code + i, _mm_unpacklo_epi8(even, odd));
        kt_store_16(code + i + 16, _mm_unpackhi_epi8(even, odd));
    }
}

/* The twelve bytes of 6-bit scales and minima of Q4_K and Q5_K. */
static inline void kt_k_scales(const uint8_t *s, kt_block *out) {
    for (int t = 0; t < 4; t++) {
        out->scale[t] = s[t] & 63;
        out->minimum[t] = s[t + 4] & 63;
        out->scale[t + 4] = (uint16_t)((s[t + 8] & 15) | s[t] >> 6 << 4);
        out->minimum[t + 4] = (uint16_t)(s[t + 8] >> 4 | s[t + 4] >> 6 << 4);
    }
}

/* The members plain_bytes and unpack of a GGUF format, from its take_apart(). */
#define KT_GGUF_MEMBERS(inputs, bytes)                                                       \
    static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) { \
        *data_bytes = (size_t)n * (size_t)(k / (inputs)) * (bytes);                          \
        *scale_bytes = 0;                                                                    \
    }                                                                                        \
    static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {          \
        take_apart(kt_gguf_block(w, row, b, inputs, bytes), out);                            \
    }

#endif
