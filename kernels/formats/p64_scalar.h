/* One encoded row times one p64 panel in plain C: what the scalar variants of gemm and moe_ffn
 * share, and the shortest exact statement of what a vector kernel computes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_SCALAR_H
#define KT_KERNELS_P64_SCALAR_H

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/grid.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64.h"

/* Sums of a w8c panel. The panel holds code + 128, so the sum of a group starts at -128 * sum of q:
 * 16 times the compensation for 4-bit codes. */
static inline void kt_p64_row_w8c(const uint8_t *panel, int64_t k, kt_act_format acts,
                                  const void *a, float y[64]) {
    const int group = kt_a8_group_inputs(acts);
    const int8_t *q = a;
    const uint8_t *w = panel;
    float scale[KT_P64_ROWS];

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i += group) {
        const float a_scale = kt_a8_scale_at(acts, a, k, i);
        int32_t sum[KT_P64_ROWS];
        for (int r = 0; r < KT_P64_ROWS; r++) sum[r] = 16 * kt_a8_comp_at(acts, a, k, i);
        for (int t = 0; t < group; t += 4, w += 4 * KT_P64_ROWS, q += 4)
            for (int r = 0; r < KT_P64_ROWS; r++)
                for (int j = 0; j < 4; j++) sum[r] += w[4 * r + j] * q[j];
        for (int r = 0; r < KT_P64_ROWS; r++) y[r] += a_scale * (float)sum[r];
    }
    memcpy(scale, w, sizeof scale);
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] *= scale[r];
}

/* Sums of a w4g32 panel; codes are stored + 8 and the compensation takes that out. The low
 * nibbles are the first 16 inputs of a group, the high ones the others. */
static inline void kt_p64_row_w4g32(const uint8_t *panel, int64_t k, kt_act_format acts,
                                    const void *a, float y[64]) {
    const int group = kt_a8_group_inputs(acts);
    const int8_t *q = a;

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i += 32, q += 32, panel += KT_P64_W4G32_BYTES) {
        uint16_t scale[KT_P64_ROWS];
        memcpy(scale, panel + KT_P64_CODES4_BYTES, sizeof scale);
        for (int first = 0; first < 32; first += group) {
            const float a_scale = kt_a8_scale_at(acts, a, k, i + first);
            const int32_t comp = kt_a8_comp_at(acts, a, k, i + first);
            for (int r = 0; r < KT_P64_ROWS; r++) {
                int32_t sum = comp;
                for (int j = first; j < first + group; j++) {
                    int byte = panel[j % 16 / 4 * 4 * KT_P64_ROWS + 4 * r + j % 4];
                    sum += (j < 16 ? byte & 15 : byte >> 4) * q[j];
                }
                y[r] += a_scale * kt_bf16_to_f32(scale[r]) * (float)sum;
            }
        }
    }
}

/* --- block formats -------------------------------------------------------------------------- */

/* 32 inputs of a block as signed values [64][32], from their planes. */
static inline void kt_p64_expand32(const kt_p64_spec *s, const uint8_t *plane,
                                   int16_t value[KT_P64_ROWS][32]) {
    const uint8_t *low = plane + 256 * s->high;
    const int low_mask = (1 << s->low) - 1, high_mask = (1 << s->high) - 1;

    for (int o = 0; o < 8; o++) {
        const uint8_t *l = low + o % s->low * 256;
        const uint8_t *h = s->high ? plane + o % s->high * 256 : plane;
        const int l_shift = o - o % s->low, h_shift = s->high ? o - o % s->high : 0;
        for (int i = 0; i < 4 * KT_P64_ROWS; i++) {
            int code = l[i] >> l_shift & low_mask;
            if (s->high) code |= (h[i] >> h_shift & high_mask) << s->low;
            if (s->values == KT_P64_IQ4) code = kt_iq4_values[code];
            if (s->values == KT_P64_E2M1) code = kt_e2m1_values[code];
            value[i / 4][4 * o + i % 4] = (int16_t)(code - s->offset);
        }
    }
}

static inline float kt_p64_load_half(const uint8_t *field, int r, int bf16) {
    uint16_t bits;
    memcpy(&bits, field + 2 * r, sizeof bits);
    return bf16 ? kt_bf16_to_f32(bits) : kt_f16_to_f32(bits);
}

static inline float kt_p64_load_single(const uint8_t *field, int r) {
    float v;
    memcpy(&v, field + 4 * r, sizeof v);
    return v;
}

/* The scale of row r in a field of scales; d is the block's head. */
static inline float kt_p64_scale_of(const kt_p64_spec *s, const uint8_t *head, const uint8_t *field,
                                    int r) {
    switch (s->scale) {
    case KT_P64_BF16: return kt_p64_load_half(field, r, 1);
    case KT_P64_F16: return kt_p64_load_half(field, r, 0);
    case KT_P64_F32: return kt_p64_load_single(field, r);
    case KT_P64_E8M0: /* 2^(e - 128) = 2^(e - 127) / 2; e = 0 has no f32 exponent of its own */
        if (field[r] == 255) return kt_f32_from_bits(0x7fc00000u);
        return 0.5f * kt_f32_from_bits(field[r] ? (uint32_t)field[r] << 23 : 0x00400000u);
    case KT_P64_E4M3: /* as a half: 2^-8 times the number */
        return 0x1p7f * kt_f16_to_f32((uint16_t)(field[r] << 7));
    case KT_P64_S8: return kt_p64_load_half(head, r, 0) * (float)(int8_t)field[r];
    case KT_P64_ODD:
        return kt_p64_load_half(head, r, 0) * kt_grid_unit(s->grid) *
               (float)(2 * (field[r % 32] >> r / 32 * 4 & 15) + 1);
    default: return kt_p64_load_half(head, r, 0) * (float)(field[r] & 15);
    }
}

static inline float kt_p64_minimum_of(const kt_p64_spec *s, const uint8_t *head,
                                      const uint8_t *scales, const uint8_t *minima, int r) {
    if (s->minimum == KT_P64_MIN_F16) return kt_p64_load_half(minima, r, 0);
    if (s->minimum == KT_P64_MIN_F32) return kt_p64_load_single(minima, r);
    if (s->minimum == KT_P64_MIN_U8)
        return -(kt_p64_load_half(head + 128, r, 0) * (float)minima[r]);
    if (s->minimum == KT_P64_MIN_NIBBLE)
        return -(kt_p64_load_half(head + 128, r, 0) * (float)(scales[r] >> 4));
    return 0;
}

/* Unit u (32 inputs) of a block with a grid as signed values. */
static inline void kt_p64_expand_grid(const kt_p64_spec *s, const uint8_t *block, int u,
                                      int16_t value[KT_P64_ROWS][32]) {
    const uint8_t *unit = block + kt_p64_run_at(*s, 32 * u);
    const uint8_t *more = block + kt_p64_more_at(*s, 32 * u);
    const kt_grid *g = kt_grid_of(s->grid);

    for (int c = 0; c < 4; c++) {
        uint8_t size[8][16][4];
        kt_grid_magnitudes(s->grid, g, unit, more, c, size[0][0], sizeof size[0]);
        for (int o = 0; o < 8; o++) {
            const uint8_t *signs = kt_grid_column_signs(s->grid, unit, o, c);
            for (int i = 0; i < 64; i++) {
                const int16_t v = size[o][i / 4][i % 4];
                value[16 * c + i / 4][4 * o + i % 4] = signs[i / 8] >> i % 8 & 1 ? (int16_t)-v : v;
            }
        }
    }
}

/* A block with a grid: y += a_scale * (scale * sum value q) for each group of weights, or of
 * activations where these are smaller. */
static inline void kt_p64_grid_block(const kt_p64_spec *s, const uint8_t *block, const int8_t *q,
                                     const float *a_scale, int a_group, float y[KT_P64_ROWS]) {
    const int part = s->group < a_group ? s->group : a_group;
    int16_t value[KT_P64_ROWS][32];

    for (int i = 0; i < s->span; i += part) {
        const uint8_t *scales =
            block + kt_p64_scales_at(*s, 0) + (size_t)(i / s->group) * kt_p64_scale_bytes(*s);
        if (i % 32 == 0) kt_p64_expand_grid(s, block, i / 32, value);
        for (int r = 0; r < KT_P64_ROWS; r++) {
            int32_t sum = 0;
            for (int j = 0; j < part; j++) sum += value[r][i % 32 + j] * q[i + j];
            y[r] += a_scale[i / a_group] * (kt_p64_scale_of(s, block, scales, r) * (float)sum);
        }
    }
}

static inline void kt_p64_row_grid(kt_p64_spec s, const uint8_t *panel, int64_t k,
                                   kt_act_format acts, const void *a, float y[KT_P64_ROWS]) {
    const int a_group = kt_a8_group_inputs(acts);
    float a_scale[256 / 16];

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i += s.span, panel += kt_p64_block_bytes(s)) {
        for (int j = 0; j < s.span; j += a_group)
            a_scale[j / a_group] = kt_a8_scale_at(acts, a, k, i + j);
        kt_p64_grid_block(&s, panel, (const int8_t *)a + i, a_scale, a_group, y);
    }
}

/* The unit of IQ1 from input `in` of its block on, whose codes are q: as kt_p64_run. */
static inline void kt_p64_run_iq1(const kt_p64_spec *s, const uint8_t *head, int in,
                                  const int8_t *q, const float *a_scale, int a_group,
                                  float y[KT_P64_ROWS]) {
    const int part = s->group < a_group ? s->group : a_group;
    const kt_iq1_unit unit = kt_iq1_unit_at(*s, head, in);
    uint32_t word[8][KT_P64_ROWS];

    for (int p = 0; p < 4; p++)
        kt_iq1_quads(*s, &unit, p, 0, KT_P64_ROWS, word[2 * p], word[2 * p + 1]);
    for (int i = 0; i < 32; i += part)
        for (int r = 0; r < KT_P64_ROWS; r++) {
            const float d = 0.125f * kt_p64_load_half(head, r, 0);
            int32_t sum = 0;
            for (int j = i; j < i + part; j++)
                sum += ((int)(word[j / 4][r] >> j % 4 * 8 & 255) - s->offset) * q[j];
            y[r] +=
                a_scale[i / a_group] * (d * (float)kt_iq1_odd(&unit, i / s->group, r) * (float)sum);
        }
}

/* One run of a block: max(group, 32) inputs, `q` their codes and a_scale their scales. Scale and
 * minimum are exact in f32, integer sums are exact; per group of weights and of activations
 *     y += a_scale * (scale * sum value q)  and  y += (a_scale * sum q) * minimum. */
static inline void kt_p64_run(const kt_p64_spec *s, const uint8_t *head, const uint8_t *run,
                              const int8_t *q, const float *a_scale, int a_group,
                              float y[KT_P64_ROWS]) {
    const int inputs = kt_p64_run_inputs(*s), part = s->group < a_group ? s->group : a_group;
    const uint8_t *scales = run + (size_t)(inputs / 32) * kt_p64_plane_bytes(*s);
    const uint8_t *minima = scales + (size_t)(inputs / s->group) * kt_p64_scale_bytes(*s);

    for (int i = 0; i < inputs; i += part) {
        const uint8_t *plane = run + (size_t)(i / 32) * kt_p64_plane_bytes(*s);
        const uint8_t *scale = scales + (size_t)(i / s->group) * kt_p64_scale_bytes(*s);
        const uint8_t *minimum = minima + (size_t)(i / s->group) * kt_p64_minimum_bytes(*s);
        int16_t value[KT_P64_ROWS][32];
        int32_t q_sum = 0;

        kt_p64_expand32(s, plane, value);
        for (int j = i; j < i + part; j++) q_sum += q[j];
        for (int r = 0; r < KT_P64_ROWS; r++) {
            int32_t sum = 0;
            for (int j = 0; j < part; j++) sum += value[r][i % 32 + j] * q[i + j];
            if (s->minimum == KT_P64_MIN_ZERO) sum -= minimum[r] * q_sum;
            y[r] += a_scale[i / a_group] * (kt_p64_scale_of(s, head, scale, r) * (float)sum);
            y[r] +=
                a_scale[i / a_group] * (float)q_sum * kt_p64_minimum_of(s, head, scale, minimum, r);
        }
    }
}

static inline void kt_p64_row_blocks(kt_p64_spec s, const uint8_t *panel, int64_t k,
                                     kt_act_format acts, const void *a, float y[KT_P64_ROWS]) {
    const int inputs = kt_p64_run_inputs(s), a_group = kt_a8_group_inputs(acts);
    const uint8_t *head = panel;
    float a_scale[256 / 16]; /* the longest run: a group of 256 */

    if (s.grid) {
        kt_p64_row_grid(s, panel, k, acts, a, y);
        return;
    }
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i += inputs, panel += kt_p64_run_bytes(s)) {
        if (i % s.span == 0) {
            head = panel;
            panel += kt_p64_front_bytes(s);
        }
        for (int j = 0; j < inputs; j += a_group)
            a_scale[j / a_group] = kt_a8_scale_at(acts, a, k, i + j);
        if (s.scale == KT_P64_IQ1)
            kt_p64_run_iq1(&s, head, (int)(i % s.span), (const int8_t *)a + i, a_scale, a_group, y);
        else
            kt_p64_run(&s, head, panel, (const int8_t *)a + i, a_scale, a_group, y);
    }
    for (int r = 0; r < KT_P64_ROWS && kt_p64_tail_bytes(s) > 0; r++)
        y[r] *= kt_p64_load_single(panel, r);
}

/* --- floating point ------------------------------------------------------------------------- */

static inline void kt_p64_row_16bit(const uint8_t *panel, int64_t k, const void *a, int bf16,
                                    float y[64]) {
    const uint16_t *x = a;
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i++) {
        const uint8_t *w = panel + 4 * KT_P64_ROWS * (i / 2) + 2 * (i % 2);
        for (int r = 0; r < KT_P64_ROWS; r++)
            y[r] += kt_bf16_to_f32(x[i]) * kt_p64_load_half(w, 2 * r, bf16);
    }
}

/* 2^(e - 127); of e = 0 a subnormal number. */
static inline float kt_p64_exponent(uint8_t e) {
    return kt_f32_from_bits(e ? (uint32_t)e << 23 : 0x00400000u);
}

/* FP8: the scale of a block or row is applied once to the f32 sum over its inputs. */
static inline void kt_p64_row_fp8(kt_weight_format format, const uint8_t *panel, int64_t k,
                                  const void *a, float y[64]) {
    const int64_t block = format == KT_W_MXFP8 ? 32 : format == KT_W_FP8_B128 ? 128 : k;
    const uint16_t *x = a;

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t b = 0; b * block < k; b++) {
        float sum[KT_P64_ROWS] = {0};
        for (int64_t i = b * block; i < k && i < (b + 1) * block; i++) {
            const uint8_t *w = panel + i / 4 * 256 + i % 4 / 2 * 8 + i % 2;
            for (int r = 0; r < KT_P64_ROWS; r++)
                sum[r] += kt_bf16_to_f32(x[i]) * kt_f8e4m3_to_f32(w[r / 4 * 16 + r % 4 * 2]);
        }
        for (int r = 0; r < KT_P64_ROWS; r++) {
            float scale;
            int64_t at = format == KT_W_FP8_B128 ? 2 * b + r / 32 : r;
            if (format == KT_W_MXFP8)
                scale = kt_p64_exponent(panel[64 * k + 64 * b + r]);
            else
                memcpy(&scale, panel + 64 * k + 4 * at, sizeof scale);
            y[r] += scale * sum[r];
        }
    }
}

static inline void kt_p64_row_wf32(const uint8_t *panel, int64_t k, const void *a, float y[64]) {
    const float *x = a;
    const float *w = (const float *)(const void *)panel;
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i++, w += KT_P64_ROWS)
        for (int r = 0; r < KT_P64_ROWS; r++) y[r] += x[i] * w[r];
}

/* y[r] = a . (row r of the panel). k is a multiple of 32; a is encoded as `acts` says. */
static inline void kt_p64_row(kt_weight_format format, const uint8_t *panel, int64_t k,
                              kt_act_format acts, const void *a, float y[KT_P64_ROWS]) {
    switch (format) {
    case KT_W_INT4_G32: kt_p64_row_w4g32(panel, k, acts, a, y); break;
    case KT_W_INT8_CHANNEL: kt_p64_row_w8c(panel, k, acts, a, y); break;
    case KT_W_BF16:
    case KT_W_F16: kt_p64_row_16bit(panel, k, a, format == KT_W_BF16, y); break;
    case KT_W_F32: kt_p64_row_wf32(panel, k, a, y); break;
    case KT_W_FP8_CHANNEL:
    case KT_W_MXFP8:
    case KT_W_FP8_B128: kt_p64_row_fp8(format, panel, k, a, y); break;
    default: kt_p64_row_blocks(kt_p64_spec_of(format), panel, k, acts, a, y); break;
    }
}

#endif
