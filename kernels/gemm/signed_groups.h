/* Panels of signed codes with a float scale per group, for libraries that multiply signed bytes: 64 outputs,
 * [k][64] codes and [k/32][64] scales (of w8c the same in every group), padded with zeros.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_GEMM_SIGNED_GROUPS_H
#define KT_GEMM_SIGNED_GROUPS_H

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/p64.h"

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

/* The columns of panel p that exist, from a tile [rows][64] into c of the call, or added to it. */
static inline void kt_signed_store(const kt_gemm_call *call, int64_t row, int64_t rows, int64_t p,
                                   const float *tile) {
    const int64_t left = call->problem->n - 64 * p, columns = left < 64 ? left : 64;
    float *c = call->c + row * call->ldc + 64 * p;

    for (int64_t i = 0; i < rows; i++, c += call->ldc)
        for (int64_t j = 0; j < columns; j++)
            c[j] = call->accumulate ? c[j] + tile[64 * i + j] : tile[64 * i + j];
}

/* A scale per 32 inputs is that of a8. */
static inline kt_status kt_signed_accepts(const kt_problem *q, const kt_config *config,
                                          kt_err *why) {
    if (q->acts != KT_A_INT8_G32)
        return kt_fail(why, KT_E_UNSUPPORTED, "%s activations, expected a8",
                       kt_act_format_name(q->acts));
    return kt_p64_accepts(q, config, why);
}

#endif
