/* 4-bit groups with a zero point: what w4zg32, w4zg64 and w4zg128 share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT4Z_SEARCH_H
#define KT_KERNELS_INT4Z_SEARCH_H

#include "kernels/formats/blocks_panel.h"

/* Members of a kt_format whose groups hold `group` inputs (32, 64 or 128). */
void kt_int4z_plain_bytes(int group, int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes);
double kt_int4z_encode_rows(int group, const float *src, int64_t k, const float *importance,
                            int64_t row_begin, int64_t row_end, void *data, void *scales,
                            double *energy);

/* A row of scales is its halves, then its zero points. */
static inline void kt_int4z_unpack(int group, const kt_matrix *w, int64_t row, int64_t b,
                                   kt_block *out) {
    const int64_t groups = w->k / group;
    const uint8_t *scales = (const uint8_t *)w->scales + 3 * row * groups;

    kt_split_pairs((const uint8_t *)w->data + row * (w->k / 2) + b * (group / 2), group, out->code);
    out->scale[0] = kt_load_u16(scales + 2 * b);
    out->minimum[0] = scales[2 * groups + b];
}

/* The whole of a format file: w = scale * (nibble - zero). */
#define KT_INT4Z_FORMAT(stem, format, inputs)                                                     \
    static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {      \
        kt_int4z_plain_bytes(inputs, n, k, data_bytes, scale_bytes);                              \
    }                                                                                             \
    static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {               \
        kt_int4z_unpack(inputs, w, row, b, out);                                                  \
    }                                                                                             \
    KT_BLOCKS_PACK_ROWS(format)                                                                   \
    static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,    \
                              int64_t row_begin, int64_t row_end, void *data, void *scales,       \
                              double *energy) {                                                   \
        (void)n;                                                                                  \
        return kt_int4z_encode_rows(inputs, src, k, importance, row_begin, row_end, data, scales, \
                                    energy);                                                      \
    }                                                                                             \
    KT_FORMAT(stem) = {                                                                           \
        .name = #stem,                                                                            \
        .id = format,                                                                             \
        .bits = 4 + 24.0 / (inputs),                                                              \
        KT_BLOCK_MEMBERS(kt_blocks_decode_row),                                                   \
        .encode_rows = encode_rows,                                                               \
    }

#endif
