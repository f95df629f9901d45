/* Rotation in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROPE_REF_H
#define KT_KERNELS_ROPE_REF_H

#include "kt/variant.h"

/* Row `row` of the call, not in place: heads * head_dim results and, for each, how far an f32
 * kernel may be off. call->x is only read. */
void kt_rope_ref_row(const kt_rope_call *call, int64_t row, double *want, double *bound);

#endif
