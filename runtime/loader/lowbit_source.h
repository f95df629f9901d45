/* Tensors of GGUF's low-bit blocks as floats and as w8g16m. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOWBIT_SOURCE_H
#define KT_RUNTIME_LOWBIT_SOURCE_H

#include "runtime/loader/matrix_source.h"

/* Bytes of a row of k inputs in the file. */
size_t kt_lowbit_row_bytes(const kt_tensor *t, int64_t k);

/* Inputs of a row (counted over all matrices of a stack) as floats, which hold them exactly. */
void kt_lowbit_read_row(const kt_tensor *t, int64_t row, int64_t k, float *out);

/* Rows [begin, end) of a source all of whose pieces are low-bit blocks, as w8g16m, exactly. data
 * and scales begin with row `first`. */
void kt_lowbit_encode(const kt_matrix_source *s, int64_t first, int64_t begin, int64_t end,
                      void *data, void *scales);

#endif
