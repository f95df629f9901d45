/* Router logits in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROUTER_REF_H
#define KT_KERNELS_ROUTER_REF_H

#include "kt/variant.h"

/* All problem->n logits of row `row` and, for each, how far an f32 kernel may be off. */
void kt_router_ref_row(const kt_router_call *call, int64_t row, double *want, double *bound);

#endif
