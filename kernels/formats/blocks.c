/* Decoding of block formats, from their specs. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks.h"

#include <math.h>

#include "base/numeric.h"

/* Half of an E4M3 number without sign, of whose 15 exponents all are numbers. */
static double e4m3_halved(uint32_t byte) {
    const int exponent = (int)(byte >> 3 & 15), mantissa = (int)(byte & 7);

    return exponent ? ldexp(8 + mantissa, exponent - 11) : ldexp(mantissa, -10);
}

static double scale_of(const kt_p64_spec *s, const kt_block *b, int g) {
    switch (s->scale) {
    case KT_P64_BF16: return kt_bf16_to_f32((uint16_t)b->scale[g]);
    case KT_P64_F16: return kt_f16_to_f32((uint16_t)b->scale[g]);
    case KT_P64_F32: return kt_f32_from_bits(b->scale[g]);
    case KT_P64_ODD:
        return (double)kt_f16_to_f32(b->d) * (2 * (int)b->scale[g] + 1) * kt_grid_unit(s->grid);
    case KT_P64_E8M0: return b->scale[g] == 255 ? (double)NAN : ldexp(1.0, (int)b->scale[g] - 128);
    case KT_P64_E4M3: return e4m3_halved(b->scale[g]);
    case KT_P64_IQ1: return (double)kt_f16_to_f32(b->d) * b->scale[g] / 8;
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
        kt_group_terms t = {0};
        format->unpack(w, row, b, &block);
        for (int i = 0; i < s.span; i++) {
            if (i % s.group == 0) t = kt_block_terms(&s, &block, i / s.group);
            out[i] = t.scale * kt_block_value(&s, &block, i) + t.minimum;
        }
    }
}

void kt_blocks_terms_row(const kt_matrix *w, int64_t row, double *out) {
    const kt_format *format = kt_format_find(w->format);
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    kt_block block;

    for (int64_t b = 0; b < w->k / s.span; b++, out += s.span) {
        kt_group_terms t = {0};
        format->unpack(w, row, b, &block);
        for (int i = 0; i < s.span; i++) {
            if (i % s.group == 0) t = kt_block_terms(&s, &block, i / s.group);
            out[i] = fabs(t.scale * kt_block_value(&s, &block, i)) + fabs(t.minimum);
        }
    }
}
