/* Weight formats: exact decoding in double and, where we quantise, encoding.
 * One file kernels/formats/<name>.c defines `KT_FORMAT(<name>) = {...};` The build writes the table.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_FORMAT_H
#define KT_KERNELS_FORMAT_H

#include "kt/variant.h"

typedef struct kt_format {
    const char *name; /* the file's stem: "w4g32" */
    kt_weight_format id;
    kt_act_format acts; /* activation encoding its kernels use */
    int64_t group;      /* inputs per scale; 0 = whole row or none */
    double bits;        /* stored bits per weight, scales included, k -> infinity */

    /* Bytes of data and of scales of a plain matrix [n, k] (kt_matrix). */
    void (*plain_bytes)(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes);
    /* Decode row `row` of w into k doubles: the exact value of each stored weight. */
    void (*decode_row)(const kt_matrix *w, int64_t row, double *out);
    /* Quantise rows [row_begin, row_end) of f32 src [n, k] into data/scales (the whole matrix's
     * bases). Rows are independent: callers may share them out. Returns the sum of squared errors
     * and adds the sum of squares to *energy (may be NULL). NULL = we never encode this format. */
    double (*encode_rows)(const float *src, int64_t n, int64_t k, int64_t row_begin,
                          int64_t row_end, void *data, void *scales, double *energy);
} kt_format;

#define KT_FORMAT(stem)                      \
    extern const kt_format kt_format_##stem; \
    const kt_format kt_format_##stem

extern const kt_format *const kt_builtin_formats[];
extern const size_t kt_builtin_format_count;

const kt_format *kt_format_find(kt_weight_format id); /* NULL when there is none */

#endif
