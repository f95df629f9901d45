/* The gated delta rule in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_DELTA_REF_H
#define KT_KERNELS_DELTA_REF_H

#include "kt/variant.h"

/* Doubles that kt_delta_ref needs as work. */
size_t kt_delta_ref_doubles(const kt_problem *problem);

/* All rows of one value head by the recurrence: want [rows, step apart, v] and the state that is
 * left [k, v], and for each number how far an f32 kernel may be off, row by row or in chunks of up
 * to KT_DELTA_ROWS. The call's state and out are not written. */
void kt_delta_ref(const kt_delta_call *call, int64_t head, int64_t step, double *work, double *want,
                  double *bound, double *state, double *state_bound);

#endif
