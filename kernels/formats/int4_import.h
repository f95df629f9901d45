/* INT4 matrices of quantised checkpoints as our plain formats, exactly: compressed-tensors
 * ("pack-quantized", 4 bits), AWQ ("gemm") and GPTQ.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT4_IMPORT_H
#define KT_KERNELS_INT4_IMPORT_H

#include "kt/variant.h"

/* How a matrix [n, k] in groups of g inputs lies in its tensors. Words are I32 of eight nibbles, nibble i in
 * bits 4i .. 4i + 3.
 *
 *              packed                            scales      zeros                          zero point
 *   ROWS       [n, k/8]: input 8j + i in i       [n, k/g]    [ceil(n/8), k/g]: row 8r + i   stored, 8 without
 *   AWQ        [k, n/8]: row 8j + order[i] in i  [k/g, n]    [k/g, n/8], the same order     stored
 *   GPTQ       [k/8, n]: input 8j + i in i       [k/g, n]    [k/g, n/8]: row 8j + i in i    stored + 1
 *   GPTQ_V2    the same                                                                     stored
 *
 * order = 0 2 4 6 1 3 5 7. ROWS is compressed-tensors; GPTQ_V2 is "checkpoint_format": "gptq_v2". */
typedef enum kt_int4_packing {
    KT_INT4_ROWS = 0,
    KT_INT4_AWQ,
    KT_INT4_GPTQ,
    KT_INT4_GPTQ_V2
} kt_int4_packing;

/* The tensors of one matrix [n, k] in groups of `group` inputs (32, 64 or 128); all borrowed, any
 * alignment.
 *
 * packed       weight_packed or qweight
 * scale_type   KT_W_BF16, KT_W_F16 or KT_W_F32: the type of scales (weight_scale or scales)
 * zeros        weight_zero_point or qzeros; NULL = symmetric, with ROWS only
 * group_index  GPTQ's g_idx, I32 [k]: the group of each input; NULL = in order
 *
 * Value: (code - zero) * scale. */
typedef struct kt_int4_source {
    int64_t n, k, group;
    const void *packed;
    kt_weight_format scale_type;
    const void *scales;
    const void *zeros;
    kt_int4_packing packing;
    const void *group_index;
} kt_int4_source;

/* The format that holds such a matrix: w4g* for symmetric ones with bfloat16 scales, else w4zg* (an f16
 * scale, and a zero point of 8 if symmetric). KT_W_NONE for other group sizes and scale types. */
kt_weight_format kt_int4_import_format(const kt_int4_source *source);

/* Write rows [row_begin, row_end) into data and scales, the bases of a whole plain matrix of the format
 * above (kt_format_sizes). Rows are independent. Refuses, and says where: a scale that the format cannot hold
 * exactly (f16 has no room for bfloat16 scales below 2^-24 or over 65504), a zero point of 16 (GPTQ writes 15
 * for it), and groups that are not in order (desc_act, "act-order"): their inputs would have to be
 * permuted. */
kt_status kt_int4_import(const kt_int4_source *source, int64_t row_begin, int64_t row_end,
                         void *data, void *scales, kt_err *err);

/* Row `row` as floats, k of them at out: (code - zero) * scale, rounded once where scales are f32.
 * Every packing, zero points of 16 and groups in any order. Refuses shapes as above, and a group
 * that the matrix does not have. For encoding anew: a row of AWQ or GPTQ meets a line of words for
 * each input. Thread-safe. */
kt_status kt_int4_decode_row(const kt_int4_source *source, int64_t row, float *out, kt_err *err);

#endif
