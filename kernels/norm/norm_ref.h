/* RMSNorm and gates in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_NORM_REF_H
#define KT_KERNELS_NORM_REF_H

#include "kt/variant.h"

/* Row `row` of the call, of any kind: k results and, for each, how far an f32 kernel may be off (in
 * any order of summation; results below 2^-126 may be flushed). call->y is not used. */
void kt_norm_ref_row(const kt_norm_call *call, int64_t row, double *want, double *bound);

#endif
