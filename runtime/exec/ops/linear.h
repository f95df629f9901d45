/* What nodes with matrices share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_OPS_LINEAR_H
#define KT_RUNTIME_OPS_LINEAR_H

#include "runtime/exec/step.h"

/* One activation encoding of a node's input rows. */
typedef struct kt_exec_encoding {
    kt_act_format acts;
    const kt_variant *variant;
    uint8_t *rows;
    size_t stride;
} kt_exec_encoding;

/* The packed runs of a weight as jobs of one phase. */
typedef struct kt_exec_linear {
    kt_gemm_group group;
    kt_gemm_job job[KT_WEIGHT_PARTS];
    const kt_problem_plan *plan[KT_WEIGHT_PARTS];
    kt_exec_encoding encoding[KT_WEIGHT_PARTS];
    int n_encodings;
} kt_exec_linear;

/* State of a node whose weight is a matrix and whose out is where the product goes. */
kt_status kt_exec_linear_init(kt_exec_node *n, kt_err *err);
/* Encode rows of the input for all runs; row r as row r + shift. */
void kt_exec_linear_encode(const kt_exec_linear *l, const kt_rows *x, int64_t begin, int64_t end,
                           int64_t shift);
void kt_exec_linear_count(kt_exec_node *n, kt_step_kind kind, int64_t rows);

#endif
