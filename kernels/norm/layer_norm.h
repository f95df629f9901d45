/* LayerNorm of rows. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_LAYER_NORM_H
#define KT_KERNELS_LAYER_NORM_H

#include "kt/variant.h"

/* Rows [row_begin, row_end) of the call: y = (x - mean) / sqrt(variance + eps) * w + bias, with the
 * biased variance, mean((x - mean)^2). bias has k floats; the call's kind and z are not used; y may
 * be x. Computed in double and rounded once, so the bits are the same on every machine.
 * Thread-safe; neither allocates nor fails.
 *
 * One function and no variants: the only user, the key of the DeepSeek-V3.2 indexer, norms one row
 * of 128 per token and layer, beside a product of 128 x 7168 weights that made the row. */
void kt_layer_norm_rows(const kt_norm_call *call, const float *bias);

#endif
