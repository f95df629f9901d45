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
 *   head     of each 256 inputs of K-quants: f16 d, then f16 dmin where there are minima; of NVFP4
 *            the f32 factor of the row
 *
 * Blocks of indices into grids (IQ2, IQ3) have the bytes of their files, fields of one kind side by
 * side: in low the indices (of IQ2_XXS and IQ2_XS with the signs beside them), in high the signs, in
 * scale what holds the scales, in minimum further bits of a unit, in head f16 d. Those of IQ1 have
 * the codes of panels (kernels/formats/iq1.h), half a bit a weight more in eight: keys in low, ranks
 * in minimum, in scale s and, as bit 3, below; in head behind d a bit for each group of IQ1_M, that
 * its second point is below.
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
#include "kernels/cuda/kt_dev_points.h"
#include "kt/weight_formats.h"

/* What a scale or minimum is made of. From BYTE on d or dmin of the head come on top. Of grids: ODD
 * is half a byte n, the scale d (2 n + 1) and the grid's unit; INSIDE the same with n above the
 * signs; UNIT8 and UNIT16 belong to 32 inputs, whatever the group. E4M3 has no sign, and its head
 * is a factor of the row. */
enum {
    KT_TERM_NONE,
    KT_TERM_BF16,
    KT_TERM_F16,
    KT_TERM_F32,
    KT_TERM_E8M0,
    KT_TERM_ZERO,
    KT_TERM_BYTE,
    KT_TERM_NIBBLE,
    KT_TERM_ODD,
    KT_TERM_INSIDE,
    KT_TERM_UNIT16,
    KT_TERM_UNIT8,
    KT_TERM_E4M3,
    KT_TERM_S8 = KT_TERM_BYTE, /* the words of panels */
    KT_TERM_U8 = KT_TERM_BYTE,
    KT_TERM_NIBBLES = KT_TERM_NIBBLE
};
/* From IQ1 on points of grids. */
enum {
    KT_CODE_LINEAR,
    KT_CODE_IQ4,
    KT_CODE_E2M1,
    KT_CODE_E4M3,
    KT_CODE_BF16,
    KT_CODE_IQ1,
    KT_CODE_IQ2_XXS,
    KT_CODE_IQ2_XS,
    KT_CODE_IQ2_S,
    KT_CODE_IQ3_XXS,
    KT_CODE_IQ3_S
};

typedef struct kt_weight_spec {
    int low, high;      /* bits of the fields */
    int group;          /* inputs per scale; 0 = the row */
    int scale, minimum; /* KT_TERM_*; a scale BYTE is signed, a minimum BYTE is not */
    int values;         /* KT_CODE_* */
    int offset;         /* of linear codes */
    int is_late; /* opened without its scale (of NVFP4: without the row's factor), which the product
                    of a group is multiplied by: a group is 128 inputs or more, and the opened
                    weights are exact */
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
    case KT_W_##id:                                                                      \
        return kt_weight_spec_make(low, high, group, KT_TERM_##scale, KT_TERM_##minimum, \
                                   KT_CODE_##values, offset, is_late);
    switch (format) {
        KT_DEVICE_FORMATS(KT_SPEC)
    default: break;
    }
#undef KT_SPEC
    return kt_weight_spec_make(0, 0, 0, KT_TERM_NONE, KT_TERM_NONE, KT_CODE_BF16, 0, 0);
}

KT_DEVICE int kt_is_grid(kt_weight_spec s) {
    return s.values >= KT_CODE_IQ1;
}

/* Of NVFP4 the row's factor, of others the scale of a group is what late means. */
KT_DEVICE int kt_opens_scaled(kt_weight_spec s) {
    return !s.is_late || s.scale == KT_TERM_E4M3;
}

/* Bytes of one scale or minimum, of ODD of two; a NIBBLE minimum lies in the scale's byte. */
KT_DEVICE int kt_term_bytes(int term) {
    if (term == KT_TERM_F32) return 4;
    if (term == KT_TERM_BF16 || term == KT_TERM_F16 || term == KT_TERM_UNIT16) return 2;
    return term == KT_TERM_NONE || term == KT_TERM_INSIDE ? 0 : 1;
}

/* Inputs that so many bytes belong to. */
KT_DEVICE int kt_term_inputs(kt_weight_spec s, int term) {
    if (term == KT_TERM_UNIT8 || term == KT_TERM_UNIT16) return 32;
    return term == KT_TERM_ODD ? 2 * s.group : s.group;
}

/* Bytes of the head for 256 inputs; of NVFP4, for which it is one of a row, 0. */
KT_DEVICE int kt_head_bytes(kt_weight_spec s) {
    if (s.scale == KT_TERM_BYTE || s.scale == KT_TERM_NIBBLE) return s.minimum ? 4 : 2;
    if (s.values == KT_CODE_IQ1 && s.group == 16) return 4;
    return kt_is_grid(s) ? 2 : 0;
}

/* Where the fields of a record begin, and its bytes. Records of at most 2^31 bytes. */
typedef struct kt_weight_row {
    uint32_t high, scale, minimum, head, bytes;
} kt_weight_row;

KT_DEVICE uint32_t kt_up16(uint32_t bytes) {
    return (bytes + 15) / 16 * 16;
}

KT_DEVICE uint32_t kt_terms_bytes(kt_weight_spec s, int term, uint32_t inputs) {
    const uint32_t each = (uint32_t)kt_term_inputs(s, term);
    const uint32_t count = each ? (inputs + each - 1) / each : 1;

    return kt_up16(count * (uint32_t)kt_term_bytes(term));
}

KT_DEVICE kt_weight_row kt_weight_row_of(int format, int k) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const uint32_t inputs = s.low == 16 ? (uint32_t)(k + 7) / 8 * 8 : (uint32_t)(k + 31) / 32 * 32;
    kt_weight_row r;

    r.high = kt_up16(inputs / 8 * (uint32_t)s.low);
    r.scale = r.high + kt_up16(inputs / 8 * (uint32_t)s.high);
    r.minimum = r.scale + kt_terms_bytes(s, s.scale, inputs);
    r.head = r.minimum;
    if (s.minimum != KT_TERM_NIBBLE) r.head += kt_terms_bytes(s, s.minimum, inputs);
    r.bytes = r.head + kt_up16((inputs + 255) / 256 * (uint32_t)kt_head_bytes(s));
    if (s.scale == KT_TERM_E4M3) r.bytes += kt_up16(4);
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

/* What one 16-byte load brings (8 of 2 bits, 4 of one): 8 inputs of 16 bits, 16 of 8 bits, 32 of
 * less. */
KT_DEVICE int kt_piece_inputs(int format) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    return s.low == 16 ? 8 : s.low == 8 ? 16 : 32;
}

/* A piece as it was loaded. Formats with groups of 16 inputs and pieces of 32 have two terms. Of
 * grids head has all but the ranks of IQ1: the byte of scales, eight further bits, d. */
typedef struct kt_piece {
    kt_u128 low;
    uint32_t high[2], scale[2], minimum[2], head;
} kt_piece;

KT_DEVICE uint32_t kt_term_load(const uint8_t *field, int term, int i) {
    if (term == KT_TERM_F32) return ((const uint32_t *)field)[i];
    if (kt_term_bytes(term) == 2) return ((const uint16_t *)field)[i];
    return kt_term_bytes(term) == 0 ? 0 : field[i];
}

KT_DEVICE void kt_grid_load_terms(kt_weight_spec s, const uint8_t *row, const kt_weight_row *at,
                                  int first, kt_piece *p) {
    const uint8_t *head = row + at->head + first / 256 * kt_head_bytes(s);
    uint32_t scales = 0, more = 0;

    if (s.scale == KT_TERM_ODD)
        scales = (uint32_t)row[at->scale + first / (2 * s.group)] >> (first / s.group % 2 * 4);
    if (s.minimum == KT_TERM_UNIT8) more = row[at->minimum + first / 32];
    if (s.minimum == KT_TERM_UNIT16)
        p->minimum[0] = ((const uint16_t *)(row + at->minimum))[first / 32];
    if (kt_head_bytes(s) == 4)
        more = (uint32_t)((const uint16_t *)head)[1] >> (first / 16 % 16) & 3u;
    p->head = scales | more << 8 | (uint32_t) * (const uint16_t *)head << 16;
}

/* Terms of inputs from `first` on; what late formats lack is not among them. */
KT_DEVICE void kt_piece_load_terms(int format, const uint8_t *row, const kt_weight_row *at,
                                   int first, kt_piece *p) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const int scale_inputs = kt_term_inputs(s, s.scale);
    const int minimum_inputs = kt_term_inputs(s, s.minimum);
    const int n = kt_piece_inputs(format);

    KT_UNROLL
    for (int i = 0; i < 2; i++) {
        p->scale[i] = p->minimum[i] = 0;
        if (kt_is_grid(s)) continue;
        if (kt_opens_scaled(s) && (i == 0 || 2 * scale_inputs == n))
            p->scale[i] =
                kt_term_load(row + at->scale, s.scale, scale_inputs ? first / scale_inputs + i : 0);
        if (s.minimum != KT_TERM_NIBBLE && (i == 0 || 2 * minimum_inputs == n))
            p->minimum[i] = kt_term_load(row + at->minimum, s.minimum,
                                         minimum_inputs ? first / minimum_inputs + i : 0);
    }
    p->head = 0;
    if (kt_is_grid(s)) {
        kt_grid_load_terms(s, row, at, first, p);
        return;
    }
    if (kt_head_bytes(s) == 4) p->head = ((const uint32_t *)(row + at->head))[first / 256];
    if (kt_head_bytes(s) == 2) p->head = ((const uint16_t *)(row + at->head))[first / 256];
}

/* Inputs [first, first + kt_piece_inputs) of a record; `first` is a multiple of them. */
KT_DEVICE void kt_piece_load(int format, const uint8_t *row, const kt_weight_row *at, int first,
                             kt_piece *p) {
    const kt_weight_spec s = kt_weight_spec_of(format);

    p->high[0] = p->high[1] = 0;
    if (s.low < 4) {
        p->low.y = p->low.z = p->low.w = 0;
        if (s.low == 2) kt_load_stream8(row + first / 4, &p->low.x, &p->low.y);
        if (s.low == 1) p->low.x = ((const uint32_t *)row)[first / 32];
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
    if (term == KT_TERM_E4M3) return kt_float_bits(bits << 20) * 0x1p119f; /* codes are doubled */
    if (bits == 255) return kt_float_bits(0x7fc00000u);                    /* E8M0: 2^(e - 128) */
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
    if (s.scale == KT_TERM_E4M3) return *(const float *)(row + at->head);
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

/* E4M3 by its bits: shifted by 4 it is a bfloat16 that is too small by 2^120. With a scale, which is
 * a power of two, it is doubled, as other codes of such scales are. */
KT_DEVICE uint32_t kt_open_e4m3(uint32_t word, int half, int is_scaled, float scale) {
    const uint32_t v = kt_bytes(word, 0, half ? 0x3424u : 0x1404u);
    const uint32_t pair = kt_fma_bf16(kt_and_or(v >> 4, 0x07f007f0u, v & 0x80008000u),
                                      is_scaled ? 0x7c007c00u : 0x7b807b80u, 0x80008000u);

    if (!is_scaled) return pair;
    return kt_fma_bf16(pair, (kt_bits_float(scale) >> 16) * 0x10001u, 0x80008000u);
}

/* ---- grids ---- */

KT_DEVICE uint32_t kt_byte_of(uint32_t word, int i) {
    return word >> (8 * i) & 255u;
}

/* Eight inputs of a piece, from 8 i on, as two words of bytes, each 64 more than its number. */
KT_DEVICE void kt_grid_bytes(kt_weight_spec s, const kt_piece *p, int i, uint32_t *word) {
    const uint32_t more = kt_byte_of(p->head, 1), byte = kt_byte_of(p->low.x, i);
    const uint32_t two = (i < 2 ? p->low.x : p->low.y) >> (i % 2 * 16) & 0xffffu;

    if (s.values == KT_CODE_IQ1) { /* groups of 32 are below as a whole, of 16 by points */
        const int below = s.group == 32 ? 3 : i % 2 ? 8 + i / 2 : 3 + 4 * (i / 2);
        kt_iq1_bytes(byte, p->minimum[0] >> (4 * i) & 15u, p->head >> below & 1u, word);
    } else if (s.values == KT_CODE_IQ2_XXS) {
        kt_iq2_bytes(kt_points_iq2_xxs[byte], kt_eight_signs(p->low.y >> (7 * i)), word);
    } else if (s.values == KT_CODE_IQ2_XS) {
        kt_iq2_bytes(kt_points_iq2_xs[two & 511u], kt_eight_signs(two >> 9), word);
    } else if (s.values == KT_CODE_IQ2_S) {
        kt_iq2_bytes(kt_points_iq2_s[byte | (more >> (2 * i) & 3u) << 8], kt_byte_of(p->high[0], i),
                     word);
    } else if (s.values == KT_CODE_IQ3_XXS) {
        kt_iq3_bytes(1, kt_points_iq3_xxs[two & 255u], kt_points_iq3_xxs[two >> 8],
                     kt_eight_signs(p->high[0] >> (7 * i)), word);
    } else {
        kt_iq3_bytes(0, kt_points_iq3_s[(two & 255u) | (more >> (2 * i) & 1u) << 8],
                     kt_points_iq3_s[two >> 8 | (more >> (2 * i + 1) & 1u) << 8],
                     kt_byte_of(p->high[0], i), word);
    }
}

/* Of half a piece: d times an odd number times the grid's unit, exact in float. */
KT_DEVICE float kt_grid_scale(kt_weight_spec s, const kt_piece *p, int half) {
    const float unit = s.values == KT_CODE_IQ3_S     ? 1.0f
                       : s.values == KT_CODE_IQ3_XXS ? 0.25f
                                                     : 0.125f;
    const uint32_t mask = s.values == KT_CODE_IQ1 ? 7u : 15u;
    uint32_t n = p->head >> (s.group == 16 ? 4 * half : 0) & mask;

    if (s.scale == KT_TERM_INSIDE) n = (s.high ? p->high[0] : p->low.y) >> 28;
    return kt_f16_float(p->head >> 16) * (float)(2 * n + 1) * unit;
}

/* Four such bytes as two pairs. Under the exponent of 2^7 a byte is 192 more than its number; 192
 * times the scale, of 16 bits, is exact, so one step takes it off and multiplies. */
KT_DEVICE void kt_open_small(uint32_t word, float scale, uint32_t *pair) {
    const float off = -192.0f * scale;
    float v[4];

    KT_UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = kt_fma(kt_float_bits(kt_bytes(word, 0x43000000u, 0x7044u | (uint32_t)i << 8)), scale,
                      off);
    pair[0] = kt_bf16_pair(v[0], v[1]);
    pair[1] = kt_bf16_pair(v[2], v[3]);
}

KT_DEVICE void kt_open_grid(kt_weight_spec s, const kt_piece *p, uint32_t *pair) {
    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const float scale = kt_grid_scale(s, p, i / 2);
        uint32_t word[2];
        kt_grid_bytes(s, p, i, word);
        kt_open_small(word[0], scale, pair + 4 * i);
        kt_open_small(word[1], scale, pair + 4 * i + 2);
    }
}

/* The weights of a piece in the order of their inputs, two a word: kt_piece_inputs / 2 words. */
KT_DEVICE void kt_piece_open(int format, const kt_piece *p, uint32_t *pair) {
    const kt_weight_spec s = kt_weight_spec_of(format);
    const int is_table = s.values == KT_CODE_IQ4 || s.values == KT_CODE_E2M1;
    const float minimum = kt_term_minimum(s.minimum, p->scale[0], p->minimum[0], p->head);

    if (kt_is_grid(s)) {
        kt_open_grid(s, p, pair);
        return;
    }
    if (s.low < 8 && !is_table) {
        kt_open_linear(format, p, pair);
        return;
    }
    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t word = kt_word_of(p->low, i);
        const int g = is_table && s.group == 16 ? i / 2 : 0;
        const float scale = kt_opens_scaled(s) ? kt_term_scale(s.scale, p->scale[g], p->head) : 1;
        if (s.low == 16) {
            pair[i] = word;
        } else if (s.values == KT_CODE_E4M3) {
            pair[2 * i] = kt_open_e4m3(word, 0, !s.is_late, scale);
            pair[2 * i + 1] = kt_open_e4m3(word, 1, !s.is_late, scale);
        } else if (is_table) {
            kt_open_bytes(kt_look_up(s.values, word & 0xffffu), scale, 0, pair + 4 * i);
            kt_open_bytes(kt_look_up(s.values, word >> 16), scale, 0, pair + 4 * i + 2);
        } else {
            kt_open_bytes(word, scale, minimum, pair + 2 * i);
        }
    }
}

#endif
