/* Finding stored numbers that are not finite. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FINITE_H
#define KT_RUNTIME_FINITE_H

#include "runtime/loader/matrix_source.h"

/* The first of elements [begin, begin + count) of a tensor that is NaN or infinite; -1 when there
 * is none. Integers are always finite. Reads at the speed of memory. */
int64_t kt_tensor_find_nonfinite(const kt_tensor *t, int64_t begin, int64_t count);

/* Refuse elements [begin, begin + count) that are not finite: the error names file, tensor,
 * position and value. */
kt_status kt_tensor_check_finite(const kt_checkpoint *c, const kt_tensor *t, int64_t begin,
                                 int64_t count, kt_err *err);

/* The same for what rows [row_begin, row_end) of a matrix are stored as: floats, the scales of INT4
 * (all of them with the first row, as of turned matrices) or the scales and minima in the heads of blocks. c = NULL leaves
 * the file out of the message. */
kt_status kt_matrix_source_check_finite(const kt_checkpoint *c, const kt_matrix_source *s,
                                        int64_t row_begin, int64_t row_end, kt_err *err);

#endif
