/* Linear attention: what its two operations share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_LINATTN_COMMON_H
#define KT_KERNELS_LINATTN_COMMON_H

#include "kt/variant.h"

#define KT_CONV_TAPS 16  /* at most; models have 4 */
#define KT_DELTA_ROWS 64 /* rows that are prepared together; a multiple of all chunks */
#define KT_DELTA_CHUNK 8 /* rows of a chunk at most */
#define KT_DELTA_EPS 1e-6f

/* One value head's rates of one row: beta, and g whose exponential the state is multiplied with.
 * Compiled once, for the baseline: every variant has these bits. */
void kt_delta_rates(const kt_delta_call *call, int64_t head, int64_t row, float *beta, float *g);

/* Refuse, by name, what loops over `lanes` channels or columns cannot do. */
kt_status kt_conv_accepts(const kt_problem *p, int lanes, kt_err *why);
kt_status kt_delta_accepts(const kt_problem *p, int lanes, kt_err *why);

#endif
