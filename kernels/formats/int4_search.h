/* Symmetric 4-bit groups with a searched bfloat16 scale: what w4g32, w4g64 and w4g128 share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT4_SEARCH_H
#define KT_KERNELS_INT4_SEARCH_H

#include "kernels/formats/blocks_panel.h"

/* Members of a kt_format whose groups hold `group` inputs (32, 64 or 128). */
void kt_int4_plain_bytes(int group, int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes);
double kt_int4_encode_rows(int group, const float *src, int64_t k, const float *importance,
                           int64_t row_begin, int64_t row_end, void *data, void *scales,
                           double *energy);

static inline void kt_int4_unpack(int group, const kt_matrix *w, int64_t row, int64_t b,
                                  kt_block *out) {
    const uint64_t k = (uint64_t)w->k, r = (uint64_t)row, at = (uint64_t)b; /* shifts divide */

    kt_split_pairs((const uint8_t *)w->data + r * (k / 2) + at * (uint64_t)(group / 2), group,
                   out->code);
    out->scale[0] = ((const uint16_t *)w->scales)[r * (k / (uint64_t)group) + at];
}

/* The members above for one group size, as the functions that the descriptor names. */
#define KT_INT4_MEMBERS(group)                                                                  \
    static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {    \
        kt_int4_plain_bytes(group, n, k, data_bytes, scale_bytes);                              \
    }                                                                                           \
    static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {             \
        kt_int4_unpack(group, w, row, b, out);                                                  \
    }                                                                                           \
    static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,  \
                              int64_t row_begin, int64_t row_end, void *data, void *scales,     \
                              double *energy) {                                                 \
        (void)n;                                                                                \
        return kt_int4_encode_rows(group, src, k, importance, row_begin, row_end, data, scales, \
                                   energy);                                                     \
    }

/* Weights of a group's inputs in the search: `importance` plus a thousandth of its mean, so that inputs
 * that were never active still count; all 1 without importance or where it says nothing. */
void kt_search_weights(const float *importance, int group, float *out);

#endif
