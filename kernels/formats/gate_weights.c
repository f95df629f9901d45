/* Adversarial weights of every format for the gates. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64_spec.h"

enum { W_RANDOM, W_EXTREME, W_HEAVY, W_ZERO_SCALE, W_ONE_GROUP, W_LOWEST, W_PATTERNS };

/* What a row is drawn by. */
typedef struct row_pattern {
    kt_rng *rng;
    int pattern;
    float size;
} row_pattern;

/* A code in lo..hi by the row's pattern. */
static int draw_code(const row_pattern *p, int lo, int hi) {
    if (p->pattern == W_EXTREME) return kt_rng_below(p->rng, 2) ? lo : hi;
    if (p->pattern == W_LOWEST) return lo;
    return lo + (int)kt_rng_below(p->rng, (uint64_t)(hi - lo + 1));
}

/* The scale of group g, either sign, within a decade of the row's size. */
static float draw_scale(const row_pattern *p, int64_t g, int64_t groups) {
    float s = p->size * (float)pow(10, -kt_rng_double(p->rng));
    if (p->pattern == W_HEAVY) s = (float)exp(1.5 * kt_rng_normal(p->rng));
    if (kt_rng_below(p->rng, 2)) s = -s;
    if (p->pattern == W_ZERO_SCALE) s = 0;
    if (p->pattern == W_ONE_GROUP && g != groups / 2) s = 0;
    return s;
}

/* The same for scales in f16, where every other zero is a subnormal half instead. */
static float draw_half_scale(const row_pattern *p, int64_t g, int64_t groups) {
    float s = draw_scale(p, g, groups);
    if (p->pattern == W_ZERO_SCALE && g % 2)
        s = (float)(1 + (int)kt_rng_below(p->rng, 2046) - 1023) * 0x1p-24f;
    return s;
}

/* A float weight within the row's size, or a tail of the normal's cube. */
static float draw_float(const row_pattern *p, int64_t i, int64_t k) {
    float v = kt_rng_uniform(p->rng, -p->size, p->size), tail;
    if (p->pattern == W_EXTREME) v = kt_rng_below(p->rng, 2) ? 3.0e4f : -3.0e4f;
    if (p->pattern == W_HEAVY) tail = kt_rng_normal(p->rng), v = tail * tail * tail;
    if (p->pattern == W_ZERO_SCALE) v = kt_rng_below(p->rng, 2) ? 0.0f : -0.0f;
    if (p->pattern == W_ONE_GROUP && i / 32 != k / 64) v = 0;
    if (p->pattern == W_LOWEST) v = -p->size;
    return v;
}

static void fill_floats(const kt_matrix *w, int64_t row, const row_pattern *p, void *data) {
    for (int64_t i = row * w->k; i < (row + 1) * w->k; i++) {
        float v = draw_float(p, i % w->k, w->k);
        if (w->format == KT_W_F32)
            ((float *)data)[i] = v;
        else
            ((uint16_t *)data)[i] = w->format == KT_W_BF16 ? kt_f32_to_bf16(v) : kt_f32_to_f16(v);
    }
}

static void fill_int8(const kt_matrix *w, int64_t row, const row_pattern *p, void *data,
                      void *scales) {
    const int64_t group = w->format == KT_W_INT8_CHANNEL ? w->k : 128, groups = w->k / group;

    for (int64_t g = 0; g < groups; g++) {
        float s = draw_scale(p, g, groups);
        if (w->format == KT_W_INT8_CHANNEL)
            ((float *)scales)[row] = s;
        else
            ((uint16_t *)scales)[row * groups + g] = kt_f32_to_bf16(s);
    }
    for (int64_t i = 0; i < w->k; i++) {
        int code = draw_code(p, -128, 127);
        if (p->pattern == W_ONE_GROUP && i / 32 != w->k / 64) code = 0;
        ((int8_t *)data)[row * w->k + i] = (int8_t)code;
    }
}

/* Groups of 16 with minima of either sign: any beside the scale, alone, and such that the lowest
 * codes cancel. */
static void fill_int8m(const kt_matrix *w, int64_t row, const row_pattern *p, void *data,
                       void *scales) {
    const int64_t groups = w->k / 16;
    float *terms = (float *)scales + 2 * row * groups;

    for (int64_t g = 0; g < groups; g++) {
        terms[2 * g] = draw_scale(p, g, groups);
        terms[2 * g + 1] = 128 * draw_scale(p, g, groups);
        if (p->pattern == W_ZERO_SCALE && g % 2) terms[2 * g + 1] = p->size;
        if (p->pattern == W_LOWEST && g % 2) terms[2 * g + 1] = 128 * terms[2 * g];
    }
    for (int64_t i = 0; i < w->k; i++)
        ((int8_t *)data)[row * w->k + i] = (int8_t)draw_code(p, -128, 127);
}

static void fill_int4(const kt_matrix *w, int64_t row, int64_t group, const row_pattern *p,
                      void *data, void *scales) {
    const int64_t groups = w->k / group;

    for (int64_t g = 0; g < groups; g++)
        ((uint16_t *)scales)[row * groups + g] = kt_f32_to_bf16(draw_scale(p, g, groups));
    for (int64_t i = 0; i < w->k / 2; i++) {
        int even = draw_code(p, 0, 15), odd = draw_code(p, 0, 15);
        ((uint8_t *)data)[row * (w->k / 2) + i] = (uint8_t)(even | odd << 4);
    }
}

static void fill_int4z(const kt_matrix *w, int64_t row, int64_t group, const row_pattern *p,
                       void *data, void *scales) {
    const int64_t groups = w->k / group;
    uint8_t *row_scales = (uint8_t *)scales + 3 * row * groups;

    for (int64_t g = 0; g < groups; g++) {
        uint16_t bits = kt_f32_to_f16(draw_half_scale(p, g, groups));
        memcpy(row_scales + 2 * g, &bits, 2);
        row_scales[2 * groups + g] = (uint8_t)draw_code(p, 0, 15);
    }
    for (int64_t i = 0; i < w->k / 2; i++) {
        int even = draw_code(p, 0, 15), odd = draw_code(p, 0, 15);
        ((uint8_t *)data)[row * (w->k / 2) + i] = (uint8_t)(even | odd << 4);
    }
}

/* Every code but NaN (kt_gate_matrix_spoil). A block's scale is drawn by its first row. */
static void fill_fp8(const kt_matrix *w, int64_t row, const row_pattern *p, void *data,
                     void *scales) {
    const int64_t blocks = (w->k + 127) / 128;
    float *out = scales;

    if (w->format == KT_W_FP8_CHANNEL) out[row] = draw_scale(p, 0, 1) / 64;
    for (int64_t b = 0; b < blocks && w->format == KT_W_FP8_B128 && row % 128 == 0; b++)
        out[row / 128 * blocks + b] = p->size * kt_rng_normal(p->rng) / 64;
    for (int64_t i = 0; i < w->k; i++) {
        int code = draw_code(p, 0, 0x7e) | (int)kt_rng_below(p->rng, 2) << 7;
        if (p->pattern == W_ONE_GROUP && i / 32 != w->k / 64) code &= 0x80;
        if (p->pattern == W_ZERO_SCALE) code &= 0x80;
        ((uint8_t *)data)[row * w->k + i] = (uint8_t)code;
    }
}

/* Exponents of 2^-20 .. 1, and the smallest there is; codes as above. */
static void fill_mxfp8(const kt_matrix *w, int64_t row, const row_pattern *p, void *data,
                       void *scales) {
    uint8_t *out = (uint8_t *)scales + row * (w->k / 32);

    fill_fp8(w, row, p, data, scales);
    for (int64_t g = 0; g < w->k / 32; g++)
        out[g] = p->pattern == W_ZERO_SCALE ? 0 : (uint8_t)(107 + kt_rng_below(p->rng, 21));
}

static void put_half(uint8_t *block, int at, float v) {
    uint16_t bits = kt_f32_to_f16(v);
    if (at >= 0) memcpy(block + at, &bits, 2);
}

/* GGUF blocks: any bytes are codes and small scales; the f16 members are drawn. Their products
 * with small scales and codes reach thousands, so that they are drawn smaller, down to subnormal
 * halves. */
static void fill_gguf(const kt_format *f, const kt_matrix *w, int64_t row, const row_pattern *p,
                      void *data) {
    static const uint8_t extremes[] = {0x00, 0x0f, 0xf0, 0xff};
    const kt_p64_spec spec = kt_p64_spec_of(f->id);
    const int64_t blocks = w->k / f->block;
    const float unit =
        f->block == 256 && p->pattern != W_ZERO_SCALE ? 1.0f / 64 : 1; /* those are small enough */

    for (int64_t b = 0; b < blocks; b++) {
        uint8_t *block = (uint8_t *)data + (row * blocks + b) * f->block_bytes;
        for (int i = 0; i < f->block_bytes; i++) {
            block[i] = (uint8_t)kt_rng_below(p->rng, 256);
            if (p->pattern == W_EXTREME) block[i] = extremes[block[i] & 3];
            if (p->pattern == W_LOWEST) block[i] = 0;
        }
        put_half(block, f->d_at, unit * draw_half_scale(p, b, blocks));
        put_half(block, f->m_at, unit * draw_half_scale(p, b, blocks));
        if (f->scale_of) f->put_scale(block, 0, unit * draw_half_scale(p, b, blocks));
        if (spec.scale == KT_P64_E8M0) /* 2^-20 .. 1, and the smallest there is */
            block[0] = p->pattern == W_ZERO_SCALE ? 0 : (uint8_t)(107 + kt_rng_below(p->rng, 21));
    }
}

/* Four E4M3 scales a block: any byte is one, zeros where the pattern has them; the row's factor is
 * drawn. */
static void fill_with_factor(const kt_format *f, const kt_matrix *w, int64_t row,
                             const row_pattern *p, void *data, void *scales) {
    const int64_t blocks = w->k / f->block;

    fill_gguf(f, w, row, p, data);
    for (int64_t b = 0; b < blocks; b++) {
        const bool is_zero = p->pattern == W_ZERO_SCALE && b % 2;
        if (is_zero || (p->pattern == W_ONE_GROUP && b != blocks / 2))
            memset((uint8_t *)data + (row * blocks + b) * f->block_bytes, 0, 4);
    }
    ((float *)scales)[row] = draw_scale(p, 0, 1) / 256;
}

/* Formats of blocks, by what their scales are. */
static void fill_blocks(const kt_format *f, const kt_matrix *w, int64_t row, const row_pattern *p,
                        void *data, void *scales) {
    const kt_p64_spec spec = kt_p64_spec_of(f->id);

    if (f->block_bytes && kt_p64_tail_bytes(spec))
        fill_with_factor(f, w, row, p, data, scales);
    else if (f->block_bytes)
        fill_gguf(f, w, row, p, data);
    else if (spec.minimum == KT_P64_MIN_F32)
        fill_int8m(w, row, p, data, scales);
    else if (spec.minimum == KT_P64_MIN_ZERO)
        fill_int4z(w, row, f->group, p, data, scales);
    else if (spec.low == 8)
        fill_int8(w, row, p, data, scales);
    else
        fill_int4(w, row, f->group, p, data, scales);
}

static void fill_row(const kt_format *f, const kt_matrix *w, int64_t row, kt_rng *rng, void *data,
                     void *scales) {
    const row_pattern p = {rng, (int)(row % W_PATTERNS),
                           (float)pow(10, -3 * kt_rng_double(rng))}; /* small sums and large ones */

    switch (w->format) {
    case KT_W_F32:
    case KT_W_BF16:
    case KT_W_F16: fill_floats(w, row, &p, data); break;
    case KT_W_INT8_CHANNEL: fill_int8(w, row, &p, data, scales); break;
    case KT_W_FP8_B128:
    case KT_W_FP8_CHANNEL: fill_fp8(w, row, &p, data, scales); break;
    case KT_W_MXFP8: fill_mxfp8(w, row, &p, data, scales); break;
    default: fill_blocks(f, w, row, &p, data, scales); break;
    }
}

kt_status kt_gate_matrix_create(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                                kt_gate_matrix *out, kt_err *err) {
    const kt_format *f = kt_format_find(format);
    size_t data_bytes, scale_bytes;
    kt_status st;
    kt_rng rng;

    *out = (kt_gate_matrix){0};
    if (!f || n <= 0 || k <= 0 || k % 32 != 0 || n > 1 << 20 || k > 1 << 20)
        return kt_fail(err, KT_E_INVALID, "gate: no %s matrix of %lld x %lld",
                       kt_weight_format_name(format), (long long)n, (long long)k);
    KT_TRY(kt_format_sizes(f, n, k, &data_bytes, &scale_bytes, err));
    st = kt_guard_create(data_bytes, 4, 0xAA, &out->data, err);
    if (st == KT_OK) st = kt_guard_create(scale_bytes, 4, 0xAA, &out->scales, err);
    if (st != KT_OK) {
        kt_gate_matrix_destroy(out);
        return st;
    }
    out->matrix = (kt_matrix){format, n, k, out->data.data, scale_bytes ? out->scales.data : NULL};
    kt_rng_seed(&rng, seed);
    for (int64_t row = 0; row < n; row++)
        fill_row(f, &out->matrix, row, &rng, out->data.data, out->scales.data);
    return KT_OK;
}

void kt_gate_matrix_spoil(kt_gate_matrix *w, uint64_t seed) {
    const kt_matrix *m = &w->matrix;
    kt_rng rng;

    if (m->format != KT_W_FP8_B128 && m->format != KT_W_FP8_CHANNEL && m->format != KT_W_MXFP8)
        return;
    kt_rng_seed(&rng, seed);
    for (int64_t row = W_HEAVY; row < m->n; row += W_PATTERNS) {
        const int64_t at = (int64_t)kt_rng_below(&rng, (uint64_t)m->k);
        if (m->format == KT_W_MXFP8 && row % 2) /* an exponent that says NaN */
            ((uint8_t *)w->scales.data)[(row * m->k + at) / 32] = 255;
        else
            ((uint8_t *)w->data.data)[row * m->k + at] = kt_rng_below(&rng, 2) ? 0x7f : 0xff;
    }
}

void kt_gate_matrix_destroy(kt_gate_matrix *w) {
    kt_guard_destroy(&w->data);
    kt_guard_destroy(&w->scales);
    *w = (kt_gate_matrix){0};
}
