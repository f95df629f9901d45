/* Decoding and packing of block formats, from their specs. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks.h"

#include <math.h>

#include "base/numeric.h"

static double scale_of(const kt_p64_spec *s, const kt_block *b, int g) {
    switch (s->scale) {
    case KT_P64_BF16: return kt_bf16_to_f32((uint16_t)b->scale[g]);
    case KT_P64_F16: return kt_f16_to_f32((uint16_t)b->scale[g]);
    case KT_P64_F32: return kt_f32_from_bits(b->scale[g]);
    case KT_P64_E8M0: return b->scale[g] == 255 ? (double)NAN : ldexp(1.0, (int)b->scale[g] - 128);
    case KT_P64_S8: return (double)kt_f16_to_f32(b->d) * (int8_t)b->scale[g];
    default: return (double)kt_f16_to_f32(b->d) * (b->scale[g] & 15);
    }
}

kt_group_terms kt_block_terms(const kt_p64_spec *s, const kt_block *b, int g) {
    kt_group_terms t = {scale_of(s, b, g), 0};
    if (s->minimum == KT_P64_MIN_F16) t.minimum = kt_f16_to_f32((uint16_t)b->minimum[g]);
    if (s->minimum == KT_P64_MIN_F32) t.minimum = kt_f32_from_bits(b->minimum[g]);
    if (s->minimum == KT_P64_MIN_U8) t.minimum = -(double)kt_f16_to_f32(b->dmin) * b->minimum[g];
    if (s->minimum == KT_P64_MIN_NIBBLE)
        t.minimum = -(double)kt_f16_to_f32(b->dmin) * (b->scale[g] >> 4);
    return t;
}

int kt_block_value(const kt_p64_spec *s, const kt_block *b, int i) {
    if (s->values == KT_P64_IQ4) return kt_iq4_values[b->code[i]];
    if (s->values == KT_P64_E2M1) return kt_e2m1_values[b->code[i]];
    if (s->minimum == KT_P64_MIN_ZERO) return b->code[i] - (int)b->minimum[i / s->group];
    return b->code[i] - s->offset;
}

void kt_blocks_decode_row(const kt_matrix *w, int64_t row, double *out) {
    const kt_format *format = kt_format_find(w->format);
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    kt_block block;

    for (int64_t b = 0; b < w->k / s.span; b++, out += s.span) {
        format->unpack(w, row, b, &block);
        for (int i = 0; i < s.span; i++) {
            kt_group_terms t = kt_block_terms(&s, &block, i / s.group);
            out[i] = t.scale * kt_block_value(&s, &block, i) + t.minimum;
        }
    }
}

void kt_blocks_terms_row(const kt_matrix *w, int64_t row, double *out) {
    const kt_format *format = kt_format_find(w->format);
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    kt_block block;

    for (int64_t b = 0; b < w->k / s.span; b++, out += s.span) {
        format->unpack(w, row, b, &block);
        for (int i = 0; i < s.span; i++) {
            kt_group_terms t = kt_block_terms(&s, &block, i / s.group);
            out[i] = fabs(t.scale * kt_block_value(&s, &block, i)) + fabs(t.minimum);
        }
    }
}

/* --- packing -------------------------------------------------------------------------------- */

/* Bits [shift, shift + bits) of 32 codes into one plane, as words of four inputs. A loop of its own
 * for each number of bits: it is unrolled then. */
static inline __attribute__((always_inline)) uint8_t *pack_bits(const uint8_t code[32], int shift,
                                                                int bits, uint8_t *to, int r) {
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1u);

    for (int line = 0; line < bits; line++, to += 256) {
        uint32_t word = 0;
        for (int o = line; o < 8; o += bits) {
            uint32_t quad;
            memcpy(&quad, code + 4 * o, 4);
            word |= (quad >> shift & mask) << (o - line); /* bits * (o / bits) */
        }
        memcpy(to + 4 * r, &word, 4);
    }
    return to;
}

static uint8_t *pack_plane(const uint8_t code[32], int shift, int bits, uint8_t *to, int r) {
    switch (bits) {
    case 1: return pack_bits(code, shift, 1, to, r);
    case 2: return pack_bits(code, shift, 2, to, r);
    case 4: return pack_bits(code, shift, 4, to, r);
    default: return pack_bits(code, shift, 8, to, r);
    }
}

/* 64 items of 4, 2, 1 or no bytes: the low ones of `bits`. */
static uint8_t *pack_field(uint32_t bits, size_t field_bytes, uint8_t *to, int r) {
    const uint16_t half = (uint16_t)bits;

    if (field_bytes == 256) memcpy(to + 4 * r, &bits, 4);
    if (field_bytes == 128) memcpy(to + 2 * r, &half, 2);
    if (field_bytes == 64) to[r] = (uint8_t)bits;
    return to + field_bytes;
}

static uint8_t *pack_block(const kt_p64_spec *s, const kt_block *b, uint8_t *to, int r) {
    const int inputs = kt_p64_run_inputs(*s), groups = inputs / s->group;
    const size_t head_bytes = kt_p64_head_bytes(*s);

    if (head_bytes >= 128) to = pack_field(b->d, 128, to, r);
    if (head_bytes == 256) to = pack_field(b->dmin, 128, to, r);
    for (int run = 0; run < s->span / inputs; run++) {
        const int first = run * groups;
        for (int i = 0; i < inputs; i += 32) {
            const uint8_t *code = b->code + run * inputs + i;
            if (s->high) to = pack_plane(code, s->low, s->high, to, r);
            to = pack_plane(code, 0, s->low, to, r);
        }
        for (int g = first; g < first + groups; g++)
            to = pack_field(b->scale[g], kt_p64_scale_bytes(*s), to, r);
        for (int g = first; g < first + groups; g++)
            to = pack_field(b->minimum[g], kt_p64_minimum_bytes(*s), to, r);
    }
    return to;
}

void kt_blocks_pack_row(const kt_matrix *w, int64_t row, uint8_t *panel, int r) {
    const kt_format *format = kt_format_find(w->format);
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    kt_block block = {{0}, 0, 0, {0}, {0}};

    for (int64_t b = 0; b < w->k / s.span; b++) {
        if (row < w->n) format->unpack(w, row, b, &block);
        panel = pack_block(&s, &block, panel, r);
    }
}
