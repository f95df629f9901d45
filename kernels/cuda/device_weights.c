/* Packing of weights for GPUs. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device_weights.h"

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/formats/blocks.h"
#include "kernels/formats/iq1.h"

enum { UNIT = 32, SPAN_MAX = 256, FP8_GROUP = 128 };

kt_weight_format kt_device_weight_format(kt_weight_format stored) {
    if (stored == KT_W_F16 || stored == KT_W_F32) return KT_W_BF16;
    return kt_weight_spec_of((int)stored).low ? stored : KT_W_NONE;
}

size_t kt_device_row_bytes(kt_weight_format format, int64_t k) {
    return kt_weight_row_of((int)kt_device_weight_format(format), (int)k).bytes;
}

kt_status kt_device_weights_bytes(kt_weight_format format, int64_t n, int64_t k, size_t *bytes,
                                  kt_err *err) {
    const kt_format *f = kt_format_find(format);
    size_t data, scales;

    *bytes = 0;
    if (!f)
        return kt_fail(err, KT_E_UNSUPPORTED, "weights for a device: no format has the number %d",
                       (int)format);
    if (kt_device_weight_format(format) == KT_W_NONE)
        return kt_fail(err, KT_E_UNSUPPORTED, "weights for a device: no kernel there reads %s",
                       f->name);
    KT_TRY(kt_format_sizes(f, n, k, &data, &scales, err));
    if (k % 8 != 0 || k > INT32_MAX / 8)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%s matrix of %lld x %lld for a device: k must be a multiple of 8 below %d",
                       f->name, (long long)n, (long long)k, INT32_MAX / 8);
    *bytes = (size_t)n * kt_device_row_bytes(format, k);
    return KT_OK;
}

/* ---- codes ---- */

/* `bits` bits from `shift` on of each of 32 codes: inputs 2 j and 2 j + 1 are a pair whose fields
 * lie 16 bits apart in a word of 32 / bits codes. */
static void pair_bits(const uint8_t *code, int shift, int bits, uint8_t *to) {
    const int codes = 32 / bits; /* of a word */

    for (int word = 0; word < bits; word++) {
        uint32_t v = 0;
        for (int i = 0; i < codes; i++) {
            const uint32_t field = code[word * codes + i] >> shift & ((1u << bits) - 1);
            v |= field << (i / 2 * bits + i % 2 * 16);
        }
        memcpy(to + 4 * word, &v, 4);
    }
}

static void ordered_nibbles(const uint8_t *code, uint8_t *to) {
    for (int i = 0; i < UNIT / 2; i++) to[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

static void put_codes(const kt_weight_spec *s, const uint8_t *code, uint8_t *low, uint8_t *high) {
    if (s->low == 8)
        memcpy(low, code, UNIT);
    else if (s->values != KT_CODE_LINEAR)
        ordered_nibbles(code, low);
    else
        pair_bits(code, 0, s->low, low);
    if (s->high) pair_bits(code, s->low, s->high, high);
}

static void put_terms(uint8_t *field, int term, const uint32_t *bits, int64_t first, int count) {
    const int bytes = kt_term_bytes(term);

    for (int i = 0; i < count; i++) memcpy(field + (first + i) * bytes, &bits[i], (size_t)bytes);
}

/* One block of a block format, taken apart by the format's file. */
static void put_block(const kt_weight_spec *s, const kt_weight_row *at, const kt_block *block,
                      int64_t b, int span, uint8_t *row) {
    const int groups = span / s->group;
    const uint16_t head[2] = {block->d, block->dmin};
    const size_t head_bytes = (size_t)kt_head_bytes(*s);

    for (int u = 0; u < span / UNIT; u++) {
        const int64_t unit = b * (span / UNIT) + u;
        put_codes(s, block->code + u * UNIT, row + unit * 4 * s->low,
                  row + at->high + unit * 4 * s->high);
    }
    put_terms(row + at->scale, s->scale, block->scale, b * groups, groups);
    if (s->minimum != KT_TERM_NIBBLE)
        put_terms(row + at->minimum, s->minimum, block->minimum, b * groups, groups);
    memcpy(row + at->head + (size_t)b * head_bytes, head, head_bytes);
}

/* A block with a grid keeps its bytes, field by field: of each as many as 256 inputs have of it. */
static void copy_field(const uint8_t *block, int from, uint8_t *field, int64_t b, int bytes) {
    if (from >= 0) memcpy(field + b * bytes, block + from, (size_t)bytes);
}

/* IQ1 has the codes of panels instead of indices: a key of eight bits, a rank of four. */
static void put_iq1_points(const uint8_t *low, const uint8_t *fields, int field_bits, uint8_t *keys,
                           uint8_t *ranks) {
    for (int i = 0; i < SPAN_MAX / 8; i++) {
        const int in_unit = field_bits * (i % 4);
        const unsigned high = kt_load_u16(fields + i / 4 * 2) >> in_unit & 7;
        const unsigned code = kt_iq1_codes[low[i] | high << 8];
        keys[i] = (uint8_t)(code >> 4);
        ranks[i / 2] |= (uint8_t)((code & 15) << i % 2 * 4);
    }
}

static void put_nibble(uint8_t *to, int i, unsigned value) {
    to[i / 2] |= (uint8_t)(value << i % 2 * 4);
}

static void put_iq1_s(const uint8_t *block, const kt_weight_row *at, int64_t b, uint8_t *to) {
    uint8_t *scales = to + at->scale + b * 4, *ranks = to + at->minimum + b * 16;

    put_iq1_points(block + 2, block + 34, 3, to + b * 32, ranks);
    for (int u = 0; u < SPAN_MAX / UNIT; u++)
        put_nibble(scales, u, kt_load_u16(block + 34 + 2 * u) >> 12);
    memcpy(to + at->head + 2 * b, block, 2);
}

static void put_iq1_m(const uint8_t *block, const kt_weight_row *at, int64_t b, uint8_t *to) {
    uint8_t *scales = to + at->scale + b * 8, *ranks = to + at->minimum + b * 16;
    uint16_t head[2] = {kt_iq1_m_d(block), 0};

    put_iq1_points(block, block + 32, 4, to + b * 32, ranks);
    for (int g = 0; g < SPAN_MAX / 16; g++) {
        const unsigned s = kt_load_u16(block + 48 + g / 4 * 2) >> g % 4 * 3 & 7;
        put_nibble(scales, g, s | (block[32 + g] & 8u));
        head[1] |= (uint16_t)((block[32 + g] >> 7) << g);
    }
    memcpy(to + at->head + 4 * b, head, sizeof head);
}

/* ---- rows ---- */

static void put_blocks(const kt_matrix *w, int64_t row, uint8_t *to) {
    const kt_format *f = kt_format_find(w->format);
    const kt_weight_spec s = kt_weight_spec_of((int)w->format);
    const kt_weight_row at = kt_weight_row_of((int)w->format, (int)w->k);
    const int span = kt_p64_spec_of(w->format).span;
    const float factor = 1;
    kt_block block;

    memset(&block, 0, sizeof block);
    for (int64_t b = 0; b < w->k / span; b++) {
        f->unpack(w, row, b, &block);
        put_block(&s, &at, &block, b, span, to);
    }
    if (s.scale == KT_TERM_E4M3)
        memcpy(to + at.head, w->scales ? (const float *)w->scales + row : &factor, sizeof factor);
}

static void put_grid(const kt_matrix *w, int64_t row, uint8_t *to) {
    const kt_format *f = kt_format_find(w->format);
    const kt_weight_spec s = kt_weight_spec_of((int)w->format);
    const kt_weight_row at = kt_weight_row_of((int)w->format, (int)w->k);
    const int scale_bytes = SPAN_MAX / kt_term_inputs(s, s.scale) * kt_term_bytes(s.scale);

    for (int64_t b = 0; b < w->k / SPAN_MAX; b++) {
        const uint8_t *block = kt_gguf_block(w, row, b, SPAN_MAX, f->block_bytes);
        copy_field(block, f->fields_at[0], to, b, SPAN_MAX / 8 * s.low);
        copy_field(block, f->fields_at[1], to + at.high, b, SPAN_MAX / 8 * s.high);
        copy_field(block, f->fields_at[2], to + at.scale, b, scale_bytes);
        copy_field(block, f->fields_at[3], to + at.minimum, b, SPAN_MAX / UNIT);
        copy_field(block, 0, to + at.head, b, 2);
    }
}

static void put_iq1(const kt_matrix *w, int64_t row, uint8_t *to) {
    const int block_bytes = kt_format_find(w->format)->block_bytes;
    const kt_weight_row at = kt_weight_row_of((int)w->format, (int)w->k);

    for (int64_t b = 0; b < w->k / SPAN_MAX; b++) {
        const uint8_t *block = kt_gguf_block(w, row, b, SPAN_MAX, block_bytes);
        if (kt_p64_spec_of(w->format).group == UNIT)
            put_iq1_s(block, &at, b, to);
        else
            put_iq1_m(block, &at, b, to);
    }
}

static void put_bf16(const kt_matrix *w, int64_t row, uint8_t *to) {
    const int64_t first = row * w->k;

    if (w->format == KT_W_BF16) {
        memcpy(to, (const uint16_t *)w->data + first, 2 * (size_t)w->k);
        return;
    }
    for (int64_t i = 0; i < w->k; i++) {
        const float x = w->format == KT_W_F16
                            ? kt_f16_to_f32(((const uint16_t *)w->data)[first + i])
                            : ((const float *)w->data)[first + i];
        const uint16_t bits = kt_f32_to_bf16(x);
        memcpy(to + 2 * i, &bits, 2);
    }
}

static void put_int8(const kt_matrix *w, int64_t row, uint8_t *to) {
    const uint8_t *code = (const uint8_t *)w->data + row * w->k;
    const kt_weight_row at = kt_weight_row_of(KT_W_INT8_CHANNEL, (int)w->k);

    memset(to, 0x80, at.high);
    for (int64_t i = 0; i < w->k; i++) to[i] = code[i] ^ 0x80;
    memcpy(to + at.scale, (const float *)w->scales + row, sizeof(float));
}

static void put_fp8(const kt_matrix *w, int64_t row, uint8_t *to) {
    const int is_block = w->format == KT_W_FP8_B128;
    const int64_t group = is_block ? FP8_GROUP : w->k;
    const int64_t groups = (w->k + group - 1) / group;
    const float *scales = (const float *)w->scales + (is_block ? row / FP8_GROUP * groups : row);
    const kt_weight_row at = kt_weight_row_of((int)w->format, (int)w->k);

    memcpy(to, (const uint8_t *)w->data + row * w->k, (size_t)w->k);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t end = (g + 1) * group < w->k ? (g + 1) * group : w->k;
        float scale = scales[g];
        for (int64_t i = g * group; i < end; i++)
            if ((to[i] & 0x7f) == 0x7f) scale = kt_f32_from_bits(0x7fc00000u);
        memcpy(to + at.scale + (size_t)g * sizeof scale, &scale, sizeof scale);
    }
}

/* A NaN code makes the exponent of its group NaN. */
static void put_mxfp8(const kt_matrix *w, int64_t row, uint8_t *to) {
    const int64_t groups = w->k / UNIT;
    const kt_weight_row at = kt_weight_row_of(KT_W_MXFP8, (int)w->k);

    memcpy(to, (const uint8_t *)w->data + row * w->k, (size_t)w->k);
    memcpy(to + at.scale, (const uint8_t *)w->scales + row * groups, (size_t)groups);
    for (int64_t i = 0; i < w->k; i++)
        if ((to[i] & 0x7f) == 0x7f) to[at.scale + i / UNIT] = 255;
}

kt_status kt_device_weights_pack(const kt_matrix *w, int64_t row_begin, int64_t row_end,
                                 void *records, kt_err *err) {
    void (*put)(const kt_matrix *, int64_t, uint8_t *) = put_blocks;
    size_t bytes;

    KT_TRY(kt_device_weights_bytes(w->format, w->n, w->k, &bytes, err));
    bytes = kt_device_row_bytes(w->format, w->k);
    if (kt_device_weight_format(w->format) == KT_W_BF16) put = put_bf16;
    if (w->format == KT_W_INT8_CHANNEL) put = put_int8;
    if (w->format == KT_W_FP8_B128 || w->format == KT_W_FP8_CHANNEL) put = put_fp8;
    if (w->format == KT_W_MXFP8) put = put_mxfp8;
    if (kt_p64_spec_of(w->format).grid) put = put_grid;
    if (kt_p64_spec_of(w->format).scale == KT_P64_IQ1) put = put_iq1;
    for (int64_t row = row_begin; row < row_end; row++) {
        uint8_t *to = (uint8_t *)records + (size_t)(row - row_begin) * bytes;
        memset(to, 0, bytes);
        put(w, row, to);
    }
    return KT_OK;
}
