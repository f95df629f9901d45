/* The plain-C panel kernel: every format, any machine. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_TILE_PLAIN_H
#define KT_SIMD_TILE_PLAIN_H

#include <string.h>

#include "base/numeric.h"
#include "kernels/p64/p64_glue.h"

static inline void kt_panel_expand_bf16(const uint8_t *panel, int64_t k, float *out) {
    const uint16_t *w = (const uint16_t *)(const void *)panel;
    for (int64_t i = 0; i < k; i++)
        for (int r = 0; r < 64; r++)
            out[64 * i + r] = kt_bf16_to_f32(w[i / 2 * 128 + 2 * r + i % 2]);
}

static inline void kt_panel_expand_w8c(const uint8_t *panel, int64_t k, float *out) {
    float scale[64];
    memcpy(scale, panel + 64 * k, sizeof scale);
    for (int64_t i = 0; i < k; i++)
        for (int r = 0; r < 64; r++)
            out[64 * i + r] = (float)(panel[i / 4 * 256 + 4 * r + i % 4] - 128) * scale[r];
}

static inline void kt_panel_expand_w4g32(const uint8_t *panel, int64_t k, float *out) {
    for (int64_t g = 0; g < k / 32; g++, panel += KT_P64_W4G32_BYTES) {
        uint16_t scale[64];
        memcpy(scale, panel + KT_P64_CODES4_BYTES, sizeof scale);
        for (int i = 0; i < 32; i++)
            for (int r = 0; r < 64; r++) {
                const int byte = panel[i % 16 / 4 * 256 + 4 * r + i % 4];
                const int code = i < 16 ? byte & 15 : byte >> 4;
                out[64 * (32 * g + i) + r] = (float)(code - 8) * kt_bf16_to_f32(scale[r]);
            }
    }
}

/* One p64 panel as f32 [k][64]: the exact weight values, rounded once to f32. */
static inline void kt_panel_expand(kt_weight_format format, const uint8_t *panel, int64_t k,
                                   float *out) {
    if (format == KT_W_BF16) kt_panel_expand_bf16(panel, k, out);
    if (format == KT_W_INT8_CHANNEL) kt_panel_expand_w8c(panel, k, out);
    if (format == KT_W_INT4_G32) kt_panel_expand_w4g32(panel, k, out);
}

/* One encoded row as f32 [k]. */
static inline void kt_row_expand(kt_weight_format weights, const void *row, int64_t k, float *out) {
    if (weights == KT_W_BF16) {
        for (int64_t i = 0; i < k; i++) out[i] = kt_bf16_to_f32(((const uint16_t *)row)[i]);
        return;
    }
    for (int64_t g = 0; g < k / 32; g++)
        for (int64_t i = 32 * g; i < 32 * g + 32; i++)
            out[i] = (float)((const int8_t *)row)[i] * kt_a8_scales(row, k)[g];
}

/* BF16 weights and rows, one product at a time. */
static inline void kt_tile_wbf16_plain(const kt_p64_tile *t) {
    const uint16_t *w = (const uint16_t *)(const void *)t->panel;
    for (int i = 0; i < t->rows; i++) {
        const uint16_t *a = t->a[i];
        float sum[64] = {0};
        for (int64_t j = 0; j < t->k; j++)
            for (int r = 0; r < 64; r++)
                sum[r] += kt_bf16_to_f32(a[j]) * kt_bf16_to_f32(w[j / 2 * 128 + 2 * r + j % 2]);
        memcpy(t->tile + 64 * i, sum, sizeof sum);
    }
}

/* Add group g of 32 inputs of row i of a w8c or w4g32 tile to its 64 sums, from the integer dot
 * products of the stored codes (with their offset) and the activations. w8c still lacks its scales. */
static inline void kt_tile_add_group(const kt_p64_tile *t, int i, int64_t g, const int32_t *dot) {
    const float a_scale = kt_a8_scales(t->a[i], t->k)[g];
    const int32_t comp = kt_a8_comps(t->a[i], t->k)[g];
    float *sum = t->tile + 64 * i;

    if (t->weights == KT_W_INT8_CHANNEL) {
        for (int r = 0; r < 64; r++) sum[r] += (float)(dot[r] + 16 * comp) * a_scale;
    } else {
        const uint16_t *scale = (const uint16_t *)(const void *)(t->panel + KT_P64_W4G32_BYTES * g +
                                                                 KT_P64_CODES4_BYTES);
        for (int r = 0; r < 64; r++)
            sum[r] += (float)(dot[r] + comp) * (kt_bf16_to_f32(scale[r]) * a_scale);
    }
}

/* The scales of w8c, once all groups are added. */
static inline void kt_tile_close_groups(const kt_p64_tile *t) {
    const float *scale = (const float *)(const void *)(t->panel + 64 * t->k);

    if (t->weights != KT_W_INT8_CHANNEL) return;
    for (int i = 0; i < t->rows; i++)
        for (int r = 0; r < 64; r++) t->tile[64 * i + r] *= scale[r];
}

/* The codes of group g of a w8c or w4g32 panel as [8][64][4], offset included: in place, or in out. */
static inline const uint8_t *kt_panel_group(const kt_p64_tile *t, int64_t g,
                                            uint8_t out[KT_P64_CODES8_BYTES]) {
    const uint8_t *block = t->panel + KT_P64_W4G32_BYTES * g;

    if (t->weights == KT_W_INT8_CHANNEL) return t->panel + KT_P64_CODES8_BYTES * g;
    for (int i = 0; i < KT_P64_CODES4_BYTES; i++) {
        out[i] = block[i] & 15;
        out[KT_P64_CODES4_BYTES + i] = block[i] >> 4;
    }
    return out;
}

#endif
