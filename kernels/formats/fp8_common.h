/* E4M3 weights with f32 scales: what wf8c and wf8b128 share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_FP8_COMMON_H
#define KT_KERNELS_FP8_COMMON_H

#include "base/numeric.h"
#include "kernels/formats/format.h"

/* Inputs [begin, end) of a row, all of one scale. */
static inline void kt_fp8_decode(const kt_matrix *w, int64_t row, int64_t begin, int64_t end,
                                 float scale, double *out) {
    const uint8_t *x = (const uint8_t *)w->data + row * w->k;
    for (int64_t i = begin; i < end; i++) out[i] = (double)kt_f8e4m3_to_f32(x[i]) * scale;
}

#endif
