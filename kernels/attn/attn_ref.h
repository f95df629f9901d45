/* Attention in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_REF_H
#define KT_KERNELS_ATTN_REF_H

#include "kt/variant.h"

/* Head `head` (of all query heads; its kv head must be call->kv_head) of row `row`: a value's size
 * of results and, for each, how far a kernel may be off that rounds queries and weights as
 * `numerics` says. work has room for kt_attn_ref_work(problem, position[row] + 1) doubles.
 * call->out, scratch and the key range are not used. */
void kt_attn_ref(const kt_attn_call *call, int64_t row, int64_t head, kt_numerics numerics,
                 double *work, double *want, double *bound);

/* Doubles that kt_attn_ref works in for a row that sees `keys` keys. */
size_t kt_attn_ref_work(const kt_problem *problem, int64_t keys);

#endif
