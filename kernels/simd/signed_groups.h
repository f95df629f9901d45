/* Panels of signed codes with a float scale per group, for libraries that multiply signed bytes: 64 outputs,
 * [k][64] codes and [k/32][64] scales (of w8c the same in every group), padded with zeros.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_SIGNED_GROUPS_H
#define KT_SIMD_SIGNED_GROUPS_H

#include <string.h>

#include "base/numeric.h"
#include "kt/variant.h"

#define KT_SIGNED_GROUP 32

static inline int8_t kt_signed_code(const kt_matrix *w, int64_t row, int64_t l) {
    const int64_t at = row * w->k + l;
    if (w->format == KT_W_INT8_CHANNEL) return ((const int8_t *)w->data)[at];
    return (int8_t)((((const uint8_t *)w->data)[at / 2] >> (l % 2 * 4) & 15) - 8);
}

static inline float kt_signed_scale(const kt_matrix *w, int64_t row, int64_t group) {
    if (w->format == KT_W_INT8_CHANNEL) return ((const float *)w->scales)[row];
    return kt_bf16_to_f32(((const uint16_t *)w->scales)[row * (w->k / KT_SIGNED_GROUP) + group]);
}

/* The panel of rows [first, first + 64) of a w8c or w4g32 matrix. */
static inline void kt_signed_panel(const kt_matrix *w, int64_t first, int8_t *codes,
                                   float *scales) {
    memset(codes, 0, 64 * (size_t)w->k);
    memset(scales, 0, 64 * (size_t)(w->k / KT_SIGNED_GROUP) * sizeof *scales);
    for (int64_t r = 0; r < 64 && first + r < w->n; r++) {
        for (int64_t l = 0; l < w->k; l++) codes[l * 64 + r] = kt_signed_code(w, first + r, l);
        for (int64_t g = 0; g < w->k / KT_SIGNED_GROUP; g++)
            scales[g * 64 + r] = kt_signed_scale(w, first + r, g);
    }
}

#endif
