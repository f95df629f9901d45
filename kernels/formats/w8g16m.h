/* Matrices of other formats as w8g16m, exactly: the common form of matrices that are multiplied
 * together but stored differently (gate and up, or q, k and v, of a GGUF file).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_W8G16M_H
#define KT_KERNELS_W8G16M_H

#include "kt/variant.h"

/* Does w8g16m hold every matrix of this format without loss? Yes: all block formats (INT4 in
 * groups with and without zero points, w8g128, every GGUF block type from Q2_K to Q8_0, IQ4_NL,
 * IQ4_XS, MXFP4, NVFP4, TQ1_0, TQ2_0, IQ1 to IQ3), w8c, and itself. No: floating-point weights (wf32, wbf16,
 * wf16, wf8b128, wf8c), whose codes are no integers. */
int kt_w8g16m_takes(kt_weight_format format);

/* Write rows [row_begin, row_end) of w into data and scales, the bases of a whole plain w8g16m
 * matrix of the same n and k (kt_format_sizes; scales aligned to 4 bytes). Each scale, minimum
 * and code stands for the very number that w's format says: scale * code + minimum is equal in
 * real arithmetic, with infinite or NaN scales too (but factors of NVFP4 rows times their scales
 * are rounded to f32). Rows are independent: threads may share them
 * out. Refuses formats that kt_w8g16m_takes does not and sizes that w8g16m cannot have (k a
 * multiple of 32); then nothing is written. */
kt_status kt_w8g16m_from(const kt_matrix *w, int64_t row_begin, int64_t row_end, void *data,
                         void *scales, kt_err *err);

/* Multiply the scales of `groups` groups of 16 by a factor of their weights, each rounded once. */
void kt_w8g16m_times(float *terms, int64_t groups, float factor);

#endif
