/* The matrix weight format x instruction set: which cells have a kernel of our own, and why the others do not.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_KERNEL_MATRIX_H
#define KT_TUNER_KERNEL_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kt/problem.h"

#define KT_MATRIX_SCALAR (-1) /* the column of plain C; steps are bits of kt_isa */

/* Has op (GEMM or MOE_FFN) a built-in variant for this format whose highest step is this one? Libraries'
 * variants do not count. Whether this machine can run it is another question. */
bool kt_cell_is_filled(kt_op op, kt_weight_format format, int isa_bit);

/* Why there is no kernel. Static text; NULL when nobody gave a reason (a test sees to it that a cell has a
 * kernel or a reason). */
const char *kt_cell_gap_reason(kt_op op, kt_weight_format format, int isa_bit);

/* What libraries could be asked for and are not, with the reason. `weights` are those that it is about. */
typedef struct kt_library_gap {
    const char *library, *what; /* "aocl", "u8s8s32" */
    kt_op op;
    uint64_t weights; /* of KT_W_BIT */
    const char *reason;
} kt_library_gap;
extern const kt_library_gap kt_library_gaps[];
extern const size_t kt_library_gap_count;

/* The matrix as a Markdown table, with the reasons as footnotes. It stands in kernels/MATRIX.md. */
void kt_matrix_print(FILE *out);

#endif
