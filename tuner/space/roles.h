/* The matrices of a decoder as the runtime asks for them; shared by the makers of cells.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_ROLES_H
#define KT_TUNER_ROLES_H

#include "tuner/space/shapes.h"

#define KT_MAX_ROLES (KT_MAX_DENSE + KT_MAX_FFN + 3)

typedef struct kt_serving_role {
    char name[16];
    kt_problem problem;
    double bytes;      /* read per token and model pass: its share of the decode time */
    int64_t times;     /* layers that have it */
    int32_t most_rows; /* larger buckets do not occur */
    int64_t shared; /* experts beside topk that every token meets: a shared one of the same form */
} kt_serving_role;

int kt_roles_list(const kt_shapes *s, kt_serving_format format,
                  kt_serving_role roles[KT_MAX_ROLES]);

/* Add a cell, or its weights to the one that is the same decision. */
kt_status kt_cells_add_or_join(kt_cell_list *list, const kt_tune_cell *cell, kt_err *err);

/* Share of the i-th of n thread counts: a server runs on all cores (the last count); fewer threads
 * are for those who share the machine. */
double kt_thread_share(int i, int n);

#endif
