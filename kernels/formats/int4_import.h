/* INT4 matrices of compressed-tensors checkpoints ("pack-quantized", 4 bits) as our plain formats, exactly.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT4_IMPORT_H
#define KT_KERNELS_INT4_IMPORT_H

#include "kt/variant.h"

/* The tensors of one matrix [n, k] in groups of `group` inputs (32, 64 or 128); all borrowed, any
 * alignment.
 *
 * packed      weight_packed: I32 [n, k/8], input 8j + i in bits 4i .. 4i + 3 of word j, offset by 8
 * scale_type  KT_W_BF16, KT_W_F16 or KT_W_F32: the type of scales [n, k/group] (weight_scale)
 * zeros       weight_zero_point: I32 [ceil(n/8), k/group], row 8r + i in bits 4i .. 4i + 3 of word r,
 *             offset by 8; NULL = symmetric
 *
 * Value: (code - zero) * scale, code - 8 if symmetric. */
typedef struct kt_int4_source {
    int64_t n, k, group;
    const void *packed;
    kt_weight_format scale_type;
    const void *scales;
    const void *zeros;
} kt_int4_source;

/* The format that holds such a matrix: w4g* for symmetric ones with bfloat16 scales, else w4zg* (an f16
 * scale, and a zero point of 8 if symmetric). KT_W_NONE for other group sizes and scale types. */
kt_weight_format kt_int4_import_format(const kt_int4_source *source);

/* Write rows [row_begin, row_end) into data and scales, the bases of a whole plain matrix of the format
 * above (kt_format_sizes). Rows are independent. Refuses a scale that the format cannot hold exactly, and
 * says which: f16 has no room for bfloat16 scales below 2^-24 or over 65504. */
kt_status kt_int4_import(const kt_int4_source *source, int64_t row_begin, int64_t row_end,
                         void *data, void *scales, kt_err *err);

#endif
