/* How weights lie on a device, and how they become bfloat16 in registers.
 *
 * A matrix [n, k] is n records, one a row, nothing between them: rows may come in any order and
 * from anywhere, and a matrix of several (gate over up, q over k over v, all experts) is their
 * records one after the other. A record is five fields, each of which begins at a multiple of 16
 * bytes; its length is a multiple of 16 (kt_weight_row). Inputs are padded to whole units of 32
 * with weights of zero.
 *
 *   low      the low bits of the codes, 2, 4 or 8 (16: the bfloat16 themselves)
 *   high     of 3, 5 and 6 bits: the 1 or 2 bits above them
 *   scale    of each group of inputs: bfloat16, f16, f32 or a byte, as the format has them
 *   minimum  of each group: f16, f32 or a byte, or the zero point
 *   head     of each 256 inputs of K-quants: f16 d, then f16 dmin where there are minima
 *
 * Codes of 4 bits and less with values in a line lie in the order in which they become pairs of
 * bfloat16: in a word of 8 codes of 4 bits, input 2 j is nibble j and input 2 j + 1 nibble j + 4,
 * so that (word >> 4 j) & 0x000f000f is a pair in its place. Planes of 2 bits and of 1 bit have 16
 * inputs (8 pairs) and 32 inputs (16 pairs) in a word, in the same way. Codes of tables (IQ4, E2M1)
 * are nibbles in order; codes of 8 bits are bytes in order, integers with 128 added.
 *
 * Nothing is rounded: a record holds the numbers of the format. What is opened is bfloat16: exact
 * for formats that are scaled late (kt_weight_spec), once rounded for the others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_WEIGHTS_H
#define KT_DEV_WEIGHTS_H

#include "kernels/cuda/kt_dev.h"

/* The formats, numbered as kt_weight_format (a build constant of the kernels). */
enum {
    KT_DEV_BF16 = 1,
    KT_DEV_INT8_CHANNEL = 2,
    KT_DEV_INT4_G32 = 3,
    KT_DEV_INT4_G64 = 6,
    KT_DEV_INT4_G128,
    KT_DEV_INT4Z_G32,
    KT_DEV_INT4Z_G64,
    KT_DEV_INT4Z_G128,
    KT_DEV_INT8_G128,
    KT_DEV_FP8_B128,
    KT_DEV_FP8_CHANNEL,
    KT_DEV_Q4_0,
    KT_DEV_Q4_1,
    KT_DEV_Q5_0,
    KT_DEV_Q5_1,
    KT_DEV_Q8_0,
    KT_DEV_Q2_K,
    KT_DEV_Q3_K,
    KT_DEV_Q4_K,
    KT_DEV_Q5_K,
    KT_DEV_Q6_K,
    KT_DEV_IQ4_NL,
    KT_DEV_IQ4_XS,
    KT_DEV_MXFP4,
    KT_DEV_INT8_G16M
};

/* What a scale or minimum is made of. The last two take d or dmin from the head. */
enum { KT_TERM_NONE, KT_TERM_BF16, KT_TERM_F16, KT_TERM_F32, KT_TERM_E8M0, KT_TERM_ZERO };
enum { KT_TERM_BYTE = 6, KT_TERM_NIBBLE };
enum { KT_CODE_LINEAR, KT_CODE_IQ4, KT_CODE_E2M1, KT_CODE_E4M3, KT_CODE_BF16 };

typedef struct kt_weight_spec {
    int low, high;      /* bits of the fields */
    int group;          /* inputs per scale; 0 = the row */
    int scale, minimum; /* KT_TERM_*; a scale BYTE is signed, a minimum BYTE is not */
    int values;         /* KT_CODE_* */
    int offset;         /* of linear codes */
    int is_late; /* opened without its scale, which the product of a group is multiplied by: a group
                    is 128 inputs or more, and the opened weights are exact */
} kt_weight_spec;

KT_DEVICE kt_weight_spec kt_weight_spec_make(int low, int high, int group, int scale, int minimum,
                                             int values, int offset, int is_late) {
    kt_weight_spec s;
    s.low = low, s.high = high, s.group = group, s.scale = scale, s.minimum = minimum;
    s.values = values, s.offset = offset, s.is_late = is_late;
    return s;
}

KT_DEVICE kt_weight_spec kt_weight_spec_of(int format) {
#define KT_SPEC(id, low, high, group, scale, minimum, values, offset, is_late)           \
    case KT_DEV_##id:                                                                    \
        return kt_weight_spec_make(low, high, group, KT_TERM_##scale, KT_TERM_##minimum, \
                                   KT_CODE_##values, offset, is_late);
    switch (format) {
        KT_SPEC(BF16, 16, 0, 0, NONE, NONE, BF16, 0, 0)
        KT_SPEC(INT8_CHANNEL, 8, 0, 0, F32, NONE, LINEAR, 128, 1)
        KT_SPEC(INT4_G32, 4, 0, 32, BF16, NONE, LINEAR, 8, 0)
        KT_SPEC(INT4_G64, 4, 0, 64, BF16, NONE, LINEAR, 8, 0)
        KT_SPEC(INT4_G128, 4, 0, 128, BF16, NONE, LINEAR, 8, 1)
        KT_SPEC(INT4Z_G32, 4, 0, 32, F16, ZERO, LINEAR, 0, 0)
        KT_SPEC(INT4Z_G64, 4, 0, 64, F16, ZERO, LINEAR, 0, 0)
        KT_SPEC(INT4Z_G128, 4, 0, 128, F16, ZERO, LINEAR, 0, 1)
        KT_SPEC(INT8_G128, 8, 0, 128, BF16, NONE, LINEAR, 128, 1)
        KT_SPEC(FP8_B128, 8, 0, 128, F32, NONE, E4M3, 0, 1)
        KT_SPEC(FP8_CHANNEL, 8, 0, 0, F32, NONE, E4M3, 0, 1)
        KT_SPEC(Q4_0, 4, 0, 32, F16, NONE, LINEAR, 8, 0)
        KT_SPEC(Q4_1, 4, 0, 32, F16, F16, LINEAR, 0, 0)
        KT_SPEC(Q5_0, 4, 1, 32, F16, NONE, LINEAR, 16, 0)
        KT_SPEC(Q5_1, 4, 1, 32, F16, F16, LINEAR, 0, 0)
        KT_SPEC(Q8_0, 8, 0, 32, F16, NONE, LINEAR, 128, 0)
        KT_SPEC(Q2_K, 2, 0, 16, NIBBLE, NIBBLE, LINEAR, 0, 0)
        KT_SPEC(Q3_K, 2, 1, 16, BYTE, NONE, LINEAR, 4, 0)
        KT_SPEC(Q4_K, 4, 0, 32, BYTE, BYTE, LINEAR, 0, 0)
        KT_SPEC(Q5_K, 4, 1, 32, BYTE, BYTE, LINEAR, 0, 0)
        KT_SPEC(Q6_K, 4, 2, 16, BYTE, NONE, LINEAR, 32, 0)
        KT_SPEC(IQ4_NL, 4, 0, 32, F16, NONE, IQ4, 0, 0)
        KT_SPEC(IQ4_XS, 4, 0, 32, BYTE, NONE, IQ4, 0, 0)
        KT_SPEC(MXFP4, 4, 0, 32, E8M0, NONE, E2M1, 0, 0)
        KT_SPEC(INT8_G16M, 8, 0, 16, F32, F32, LINEAR, 128, 0)
    default: break;
    }
#undef KT_SPEC
    return kt_weight_spec_make(0, 0, 0, KT_TERM_NONE, KT_TERM_NONE, KT_CODE_BF16, 0, 0);
}

/* Bytes of one scale or minimum; a NIBBLE minimum lies in the scale's byte. */
KT_DEVICE int kt_term_bytes(int term) {
    if (term == KT_TERM_F32) return 4;
    if (term == KT_TERM_BF16 || term == KT_TERM_F16) return 2;
    return term == KT_TERM_NONE ? 0 : 1;
}

/* Where the fields of a record begin, and its bytes. Records of at most 2^31 bytes. */
typedef struct kt_weight_row {
    uint32_t high, scale, minimum, head, bytes;
} kt_weight_row;

KT_DEVICE uint32_t kt_up16(uint32_t bytes) {
    return (bytes + 15) / 16 * 16;
}

KT_DEVICE kt_weight_row kt_weight_row_of(int format, int k) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const int has_head = s.scale == KT_TERM_BYTE || s.scale == KT_TERM_NIBBLE;
    const uint32_t inputs = s.low == 16 ? (uint32_t)(k + 7) / 8 * 8 : (uint32_t)(k + 31) / 32 * 32;
    const uint32_t groups = s.group ? (inputs + (uint32_t)s.group - 1) / (uint32_t)s.group : 1;
    kt_weight_row r;

    r.high = kt_up16(inputs / 8 * (uint32_t)s.low);
    r.scale = r.high + kt_up16(inputs / 8 * (uint32_t)s.high);
    r.minimum = r.scale + kt_up16(groups * (uint32_t)kt_term_bytes(s.scale));
    r.head = r.minimum;
    if (s.minimum != KT_TERM_NIBBLE) r.head += kt_up16(groups * (uint32_t)kt_term_bytes(s.minimum));
    r.bytes = r.head;
    if (has_head) r.bytes += kt_up16((inputs + 255) / 256 * (s.minimum ? 4 : 2));
    return r;
}

/* ---- arithmetic ---- */

#ifdef __CUDACC_RTC__
/* a * b + c of two bfloat16 each, rounded once. */
KT_DEVICE uint32_t kt_fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
KT_DEVICE float kt_f16_float(uint32_t bits) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)bits));
    return r;
}
/* Four of the bytes of a (0 .. 3) and b (4 .. 7), named by the nibbles of `which`, lowest first. */
KT_DEVICE uint32_t kt_bytes(uint32_t a, uint32_t b, uint32_t which) {
    return __byte_perm(a, b, which);
}
/* 16 bytes that others of the block read too. */
KT_DEVICE kt_u128 kt_load_cached(const void *p) {
    return *(const kt_u128 *)p;
}
/* 8 bytes that are read once. */
KT_DEVICE void kt_load_stream8(const void *p, uint32_t *low, uint32_t *high) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(*low), "=r"(*high)
                 : "l"(p));
}
#else
/* A product of bfloat16 is exact in float. A sum that is not is rounded twice, which the uses here,
 * all with exact sums, do not meet. */
KT_DEVICE uint32_t kt_fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    return kt_bf16_pair(
        fmaf(kt_float_bits(a << 16), kt_float_bits(b << 16), kt_float_bits(c << 16)),
        fmaf(kt_float_bits(a & 0xffff0000u), kt_float_bits(b & 0xffff0000u),
             kt_float_bits(c & 0xffff0000u)));
}
KT_DEVICE float kt_f16_float(uint32_t bits) {
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    float x = kt_float_bits(magnitude) * 0x1p112f;

    if ((bits & 0x7c00u) == 0x7c00u) x = kt_float_bits(magnitude | 0x7f800000u);
    return bits & 0x8000u ? -x : x;
}
KT_DEVICE uint32_t kt_bytes(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> (8 * (which >> 4 * i & 7)) & 255) << 8 * i;
    return r;
}
KT_DEVICE kt_u128 kt_load_cached(const void *p) {
    return kt_load_stream(p);
}
KT_DEVICE void kt_load_stream8(const void *p, uint32_t *low, uint32_t *high) {
    uint32_t v[2];
    kt_emulator_aligned(p, 8);
    memcpy(v, p, sizeof v);
    *low = v[0], *high = v[1];
}
#endif

KT_DEVICE uint32_t kt_twice(float x) {
    return kt_bf16_pair(x, x);
}

/* ---- pieces ---- */

/* What one 16-byte load brings (8 of 2 bits): 8 inputs of 16 bits, 16 of 8 bits, 32 of less. */
KT_DEVICE int kt_piece_inputs(int format) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    return s.low == 16 ? 8 : s.low == 8 ? 16 : 32;
}

/* A piece as it was loaded. Formats with groups of 16 inputs and pieces of 32 have two terms. */
typedef struct kt_piece {
    kt_u128 low;
    uint32_t high[2], scale[2], minimum[2], head;
} kt_piece;

KT_DEVICE uint32_t kt_term_load(const uint8_t *field, int term, int i) {
    if (term == KT_TERM_F32) return ((const uint32_t *)field)[i];
    if (term == KT_TERM_BF16 || term == KT_TERM_F16) return ((const uint16_t *)field)[i];
    return term == KT_TERM_NONE ? 0 : field[i];
}

/* Terms of inputs from `first` on; late scales are not among them. */
KT_DEVICE void kt_piece_load_terms(int format, const uint8_t *row, const kt_weight_row *at,
                                   int first, kt_piece *p) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const int g = s.group ? first / s.group : 0;
    const int is_split = s.group == 16 && kt_piece_inputs(format) == 32;

    KT_UNROLL
    for (int i = 0; i < 2; i++) {
        p->scale[i] = p->minimum[i] = 0;
        if (i > 0 && !is_split) break;
        if (!s.is_late) p->scale[i] = kt_term_load(row + at->scale, s.scale, g + i);
        if (s.minimum != KT_TERM_NIBBLE)
            p->minimum[i] = kt_term_load(row + at->minimum, s.minimum, g + i);
    }
    p->head = 0;
    if (s.scale != KT_TERM_BYTE && s.scale != KT_TERM_NIBBLE) return;
    p->head = s.minimum ? ((const uint32_t *)(row + at->head))[first / 256]
                        : ((const uint16_t *)(row + at->head))[first / 256];
}

/* Inputs [first, first + kt_piece_inputs) of a record; `first` is a multiple of them. */
KT_DEVICE void kt_piece_load(int format, const uint8_t *row, const kt_weight_row *at, int first,
                             kt_piece *p) {
    const kt_weight_spec s = kt_weight_spec_of(format);

    p->high[0] = p->high[1] = 0;
    if (s.low == 2) {
        kt_load_stream8(row + first / 4, &p->low.x, &p->low.y);
        p->low.z = p->low.w = 0;
    } else {
        p->low = kt_load_stream(row + first / 8 * s.low);
    }
    if (s.high == 1) p->high[0] = ((const uint32_t *)(row + at->high))[first / 32];
    if (s.high == 2) kt_load_stream8(row + at->high + first / 4, &p->high[0], &p->high[1]);
    kt_piece_load_terms(format, row, at, first, p);
}

/* Weights of zero, where there are none. */
KT_DEVICE void kt_piece_clear(kt_piece *p) {
    p->low.x = p->low.y = p->low.z = p->low.w = 0;
    KT_UNROLL
    for (int i = 0; i < 2; i++) p->high[i] = p->scale[i] = p->minimum[i] = 0;
    p->head = 0;
}

KT_DEVICE float kt_term_scale(int term, uint32_t bits, uint32_t head) {
    if (term == KT_TERM_F32) return kt_float_bits(bits);
    if (term == KT_TERM_BF16) return kt_float_bits(bits << 16);
    if (term == KT_TERM_F16) return kt_f16_float(bits);
    if (term == KT_TERM_BYTE)
        return kt_f16_float(head & 0xffffu) * (float)((int)(bits ^ 0x80u) - 128);
    if (term == KT_TERM_NIBBLE) return kt_f16_float(head & 0xffffu) * (float)(bits & 15u);
    if (bits == 255) return kt_float_bits(0x7fc00000u); /* E8M0: 2^(e - 128) */
    return kt_float_bits(bits > 1 ? (bits - 1) << 23 : 0x00200000u << bits);
}

KT_DEVICE float kt_term_minimum(int term, uint32_t scale, uint32_t bits, uint32_t head) {
    if (term == KT_TERM_F32) return kt_float_bits(bits);
    if (term == KT_TERM_F16) return kt_f16_float(bits);
    if (term == KT_TERM_BYTE) return -kt_f16_float(head >> 16) * (float)bits;
    if (term == KT_TERM_NIBBLE) return -kt_f16_float(head >> 16) * (float)(scale >> 4);
    return 0;
}

/* The scale that opened weights of a late format still lack, of inputs from `first` on; else 1. */
KT_DEVICE float kt_late_scale(int format, const uint8_t *row, const kt_weight_row *at, int first) {
    const kt_weight_spec s = kt_weight_spec_of(format);

    if (!s.is_late) return 1;
    return kt_term_scale(s.scale,
                         kt_term_load(row + at->scale, s.scale, s.group ? first / s.group : 0), 0);
}

KT_DEVICE uint32_t kt_word_of(kt_u128 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Pair j of word i of a linear code below 8 bits, 128 added: codes are whole numbers from 128 on,
 * whose last place in bfloat16 is 1. */
KT_DEVICE uint32_t kt_code_pair(kt_weight_spec s, const kt_piece *p, int i, int j) {
    uint32_t pair;

    if (s.low == 4)
        pair = kt_and_or(kt_word_of(p->low, i) >> (4 * j), 0x000f000fu, 0x43004300u);
    else
        pair =
            kt_and_or(kt_word_of(p->low, i / 2) >> (2 * (i % 2 * 4 + j)), 0x00030003u, 0x43004300u);
    if (s.high == 1) pair |= (p->high[0] >> (4 * i + j) & 0x00010001u) << s.low;
    if (s.high == 2)
        pair |= ((i < 2 ? p->high[0] : p->high[1]) >> (2 * (i % 2 * 4 + j)) & 0x00030003u) << s.low;
    return pair;
}

/* scale * pair + minimum, rounded once. */
KT_DEVICE uint32_t kt_scale_pair(uint32_t pair, float scale, float minimum) {
    return kt_bf16_pair(kt_fma(kt_bf16_low(pair), scale, minimum),
                        kt_fma(kt_bf16_high(pair), scale, minimum));
}

KT_DEVICE void kt_open_linear(int format, const kt_piece *p, uint32_t *pair) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const uint32_t one = 0x3f803f80u, off = kt_twice(-128.0f - (float)s.offset);

    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const int g = s.group == 16 ? i / 2 : 0;
        const float scale = s.is_late ? 1 : kt_term_scale(s.scale, p->scale[g], p->head);
        const float minimum = kt_term_minimum(s.minimum, p->scale[g], p->minimum[g], p->head);
        KT_UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t v = kt_fma_bf16(kt_code_pair(s, p, i, j), one, off);
            if (s.minimum == KT_TERM_ZERO) v = kt_fma_bf16(v, one, kt_twice(-(float)p->minimum[g]));
            if (s.scale == KT_TERM_BF16 && !s.is_late)
                v = kt_fma_bf16(v, p->scale[g] * 0x10001u, 0x80008000u);
            else if (!s.is_late)
                v = kt_scale_pair(v, scale, minimum);
            pair[4 * i + j] = v;
        }
    }
}

/* Four bytes, each 128 more than its number, as two pairs. A byte under the exponent of 2^23 is
 * that number more than 2^23. */
KT_DEVICE void kt_open_bytes(uint32_t word, float scale, float minimum, uint32_t *pair) {
    float v[4];

    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = kt_float_bits(kt_bytes(word, 0x4b000000u, 0x7540u | (uint32_t)i)) - 8388736.0f;
        v[i] = kt_fma(v[i], scale, minimum);
    }
    pair[0] = kt_bf16_pair(v[0], v[1]);
    pair[1] = kt_bf16_pair(v[2], v[3]);
}

/* Four 4-bit codes (the low half of `codes`) as bytes of a table with 128 added. */
KT_DEVICE uint32_t kt_look_up(int values, uint32_t codes) {
    const uint32_t which = codes & 0x7777u;
    const int is_iq4 = values == KT_CODE_IQ4;
    const uint32_t low = is_iq4 ? kt_bytes(0x3f2d1801u, 0x766a5d4fu, which)
                                : kt_bytes(0x83828180u, 0x8c888684u, which);
    const uint32_t high = is_iq4 ? kt_bytes(0xa6998d81u, 0xf1d9c5b5u, which)
                                 : kt_bytes(0x7d7e7f80u, 0x74787a7cu, which);
    return kt_bytes(low, high, 0x3210u | (codes & 0x8888u) >> 1);
}

/* E4M3 by its bits: shifted by 4 it is a bfloat16 that is too small by 2^120. */
KT_DEVICE uint32_t kt_open_e4m3(uint32_t word, int half) {
    const uint32_t v = kt_bytes(word, 0, half ? 0x3424u : 0x1404u);
    return kt_fma_bf16(kt_and_or(v >> 4, 0x07f007f0u, v & 0x80008000u), 0x7b807b80u, 0x80008000u);
}

/* The weights of a piece in the order of their inputs, two a word: kt_piece_inputs / 2 words. */
KT_DEVICE void kt_piece_open(int format, const kt_piece *p, uint32_t *pair) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const int is_table = s.values == KT_CODE_IQ4 || s.values == KT_CODE_E2M1;
    const float scale = s.is_late ? 1 : kt_term_scale(s.scale, p->scale[0], p->head);
    const float minimum = kt_term_minimum(s.minimum, p->scale[0], p->minimum[0], p->head);

    if (s.low < 8 && !is_table) {
        kt_open_linear(format, p, pair);
        return;
    }
    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t word = kt_word_of(p->low, i);
        if (s.low == 16) {
            pair[i] = word;
        } else if (s.values == KT_CODE_E4M3) {
            pair[2 * i] = kt_open_e4m3(word, 0);
            pair[2 * i + 1] = kt_open_e4m3(word, 1);
        } else if (is_table) {
            kt_open_bytes(kt_look_up(s.values, word & 0xffffu), scale, 0, pair + 4 * i);
            kt_open_bytes(kt_look_up(s.values, word >> 16), scale, 0, pair + 4 * i + 2);
        } else {
            kt_open_bytes(word, scale, minimum, pair + 2 * i);
        }
    }
}

#endif
