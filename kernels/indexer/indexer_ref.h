/* Double reference of the indexer's scores. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INDEXER_REF_H
#define KT_KERNELS_INDEXER_REF_H

#include "kt/variant.h"

/* Row `row` of the call in double: want and bound have n_keys numbers, of heads with
 * scores of their own for each head. */
void kt_index_ref(const kt_index_call *call, int64_t row, double *want, double *bound);

#endif
