/* The cells of weight format x instruction set that have no kernel, and why.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LIST_GAPS_H
#define KT_TUNER_LIST_GAPS_H

#include <stdbool.h>

#include "kt/problem.h"

/* Has op (GEMM or MOE_FFN) a built-in variant for this format whose highest step is this one? Whether
 * this machine can run it is another question. */
bool kt_cell_is_filled(kt_op op, kt_weight_format format, int isa_bit);

/* Why nobody wrote one. Static text. */
const char *kt_cell_gap_reason(kt_weight_format format, int isa_bit);

#endif
