/* One encoded row times one p64 panel in plain C: what the scalar variants of gemm and moe_ffn share,
 * and the shortest exact statement of what a vector kernel computes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_SCALAR_H
#define KT_KERNELS_P64_SCALAR_H

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"

/* Sums of a w8c panel. The panel holds code + 128, so the sum of a group starts at -128 * sum of q:
 * 16 times the compensation for 4-bit codes. */
static inline void kt_p64_row_w8c(const uint8_t *panel, int64_t k, const void *a, float y[64]) {
    const int8_t *q = a;
    const float *a_scale = kt_a8_scales(a, k);
    const int32_t *comp = kt_a8_comps(a, k);
    const uint8_t *w = panel;
    float scale[KT_P64_ROWS];

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t g = 0; g < k / 32; g++) {
        int32_t sum[KT_P64_ROWS];
        for (int r = 0; r < KT_P64_ROWS; r++) sum[r] = 16 * comp[g];
        for (int t = 0; t < 8; t++, w += 4 * KT_P64_ROWS, q += 4)
            for (int r = 0; r < KT_P64_ROWS; r++)
                for (int j = 0; j < 4; j++) sum[r] += w[4 * r + j] * q[j];
        for (int r = 0; r < KT_P64_ROWS; r++) y[r] += a_scale[g] * (float)sum[r];
    }
    memcpy(scale, w, sizeof scale);
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] *= scale[r];
}

/* Sums of a w4g32 panel; codes are stored + 8 and the compensation takes that out. */
static inline void kt_p64_row_w4g32(const uint8_t *panel, int64_t k, const void *a, float y[64]) {
    const int8_t *q = a;
    const float *a_scale = kt_a8_scales(a, k);
    const int32_t *comp = kt_a8_comps(a, k);
    const uint8_t *w = panel;

    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t g = 0; g < k / 32; g++, q += 32) {
        uint16_t scale[KT_P64_ROWS];
        int32_t sum[KT_P64_ROWS];
        for (int r = 0; r < KT_P64_ROWS; r++) sum[r] = comp[g];
        for (int t = 0; t < 4; t++, w += 4 * KT_P64_ROWS)
            for (int r = 0; r < KT_P64_ROWS; r++)
                for (int j = 0; j < 4; j++) {
                    int byte = w[4 * r + j];
                    sum[r] += (byte & 15) * q[4 * t + j] + (byte >> 4) * q[16 + 4 * t + j];
                }
        memcpy(scale, w, sizeof scale);
        w += sizeof scale;
        for (int r = 0; r < KT_P64_ROWS; r++)
            y[r] += a_scale[g] * kt_bf16_to_f32(scale[r]) * (float)sum[r];
    }
}

static inline void kt_p64_row_wbf16(const uint8_t *panel, int64_t k, const void *a, float y[64]) {
    const uint16_t *x = a;
    for (int r = 0; r < KT_P64_ROWS; r++) y[r] = 0;
    for (int64_t i = 0; i < k; i++) {
        const uint8_t *w = panel + 4 * KT_P64_ROWS * (i / 2) + 2 * (i % 2);
        for (int r = 0; r < KT_P64_ROWS; r++) {
            uint16_t bits;
            memcpy(&bits, w + 4 * r, sizeof bits);
            y[r] += kt_bf16_to_f32(x[i]) * kt_bf16_to_f32(bits);
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

/* y[r] = a . (row r of the panel). k is a multiple of 32; a is encoded for the format's kernels. */
static inline void kt_p64_row(kt_weight_format format, const uint8_t *panel, int64_t k,
                              const void *a, float y[KT_P64_ROWS]) {
    if (format == KT_W_INT4_G32) kt_p64_row_w4g32(panel, k, a, y);
    if (format == KT_W_INT8_CHANNEL) kt_p64_row_w8c(panel, k, a, y);
    if (format == KT_W_BF16) kt_p64_row_wbf16(panel, k, a, y);
    if (format == KT_W_F32) kt_p64_row_wf32(panel, k, a, y);
}

#endif
