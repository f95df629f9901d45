/* w8g16m: int8 codes in groups of 16 inputs, one f32 scale and one f32 minimum per group:
 * w = scale * code + minimum, codes -128..127.
 *
 *     data    int8 [n, k]
 *     scales  float [n, k/16, 2]: scale, minimum
 *
 * 12 bits a weight: nobody should choose it, so there is no encoder. It is where matrices of
 * different block formats meet (kernels/formats/w8g16m.h), since it holds each of them exactly:
 *
 *     code     an integer of 8 bits in every block format: 2 to 6 bits less an offset, int8, the
 *              values of IQ4 (-127..113) and of E2M1 doubled (-12..12), code - zero with a zero
 *              point up to 128
 *     scale    an f16, a bfloat16 or 2^(e - 128) as it is; d (f16, 11 bits) times a sub-scale of
 *              4 to 8 bits: 19 bits at most, multiples of 2^-24 up to 2^24, so f32 has room
 *     minimum  0, an f16, or dmin (f16) times 6 bits; what a zero point over 128 leaves times an
 *              f16 scale
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/w8g16m.h"

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(INT8_G16M, 27);
KT_FORMAT_BLOCKS(8, 0, 32, 16, F32, F32, LINEAR, 128);

#define GROUP 16
#define BLOCK 32 /* inputs of a packed block (p64_spec.h) */

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = 2 * sizeof(float) * (size_t)n * (size_t)(k / GROUP);
}

static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {
    const uint8_t *q = (const uint8_t *)w->data + row * w->k + b * BLOCK;
    const float *terms = (const float *)w->scales + 2 * (row * (w->k / GROUP) + b * BLOCK / GROUP);

    for (int g = 0; g < BLOCK / GROUP; g++) {
        memcpy(&out->scale[g], terms + 2 * g, sizeof *terms);
        memcpy(&out->minimum[g], terms + 2 * g + 1, sizeof *terms);
    }
    for (int i = 0; i < BLOCK; i++) out->code[i] = q[i] ^ 0x80; /* value + 128 */
}

KT_BLOCKS_PACK_ROWS(KT_W_INT8_G16M)

/* --- from other formats ----------------------------------------------------------------------- */

int kt_w8g16m_takes(kt_weight_format format) {
    return format == KT_W_INT8_CHANNEL || kt_p64_spec_of(format).low > 0;
}

/* Inputs [first, first + 16) of a block. Of a zero point beyond 128, whose code - zero no byte
 * holds, the rest is a minimum: scale * (code - zero) = scale * (code - 128) - scale * (zero -
 * 128). */
static void from_group(const kt_p64_spec *s, const kt_block *block, int first, int8_t *code,
                       float terms[2]) {
    const int g = first / s->group;
    const int zero = s->minimum == KT_P64_MIN_ZERO ? (int)block->minimum[g] : 0;
    const int rest = zero > 128 ? zero - 128 : 0;
    kt_group_terms t = kt_block_terms(s, block, g);

    if (rest) t.minimum = -t.scale * rest;
    terms[0] = (float)t.scale;
    terms[1] = (float)t.minimum;
    for (int i = 0; i < GROUP; i++) code[i] = (int8_t)(kt_block_value(s, block, first + i) + rest);
}

static void from_blocks(const kt_matrix *w, int64_t row, int8_t *code, float *terms) {
    const kt_format *format = kt_format_find(w->format);
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    kt_block block;

    for (int64_t b = 0; b < w->k / s.span; b++) {
        format->unpack(w, row, b, &block);
        for (int i = 0; i < s.span; i += GROUP, code += GROUP, terms += 2)
            from_group(&s, &block, i, code, terms);
    }
}

static void from_channel(const kt_matrix *w, int64_t row, int8_t *code, float *terms) {
    memcpy(code, (const int8_t *)w->data + row * w->k, (size_t)w->k);
    for (int64_t g = 0; g < w->k / GROUP; g++) {
        terms[2 * g] = ((const float *)w->scales)[row];
        terms[2 * g + 1] = 0;
    }
}

kt_status kt_w8g16m_from(const kt_matrix *w, int64_t row_begin, int64_t row_end, void *data,
                         void *scales, kt_err *err) {
    const int64_t groups = w->k / GROUP;
    size_t data_bytes, scale_bytes;

    if (!kt_w8g16m_takes(w->format))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "w8g16m from %s: expected blocks of integer codes or w8c, whose weights it "
                       "holds exactly",
                       kt_weight_format_name(w->format));
    KT_TRY(kt_format_sizes(kt_format_find(KT_W_INT8_G16M), w->n, w->k, &data_bytes, &scale_bytes,
                           err));
    KT_TRY(kt_format_sizes(kt_format_find(w->format), w->n, w->k, &data_bytes, &scale_bytes, err));
    for (int64_t row = row_begin; row < row_end; row++) {
        int8_t *code = (int8_t *)data + row * w->k;
        float *terms = (float *)scales + 2 * row * groups;
        if (w->format == KT_W_INT8_CHANNEL)
            from_channel(w, row, code, terms);
        else
            from_blocks(w, row, code, terms);
        if (kt_p64_tail_bytes(kt_p64_spec_of(w->format)) && w->scales)
            kt_w8g16m_times(terms, groups, ((const float *)w->scales)[row]);
    }
    return KT_OK;
}

void kt_w8g16m_times(float *terms, int64_t groups, float factor) {
    for (int64_t g = 0; g < groups; g++) terms[2 * g] *= factor;
}

KT_FORMAT(w8g16m) = {
    .name = "w8g16m",
    .id = KT_W_INT8_G16M,
    .bits = 8 + 64.0 / GROUP,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
};
