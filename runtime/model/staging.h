/* Memory that loading takes beside the packed weights. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STAGING_H
#define KT_RUNTIME_STAGING_H

#include "runtime/model/model_plan.h"

/* What plain forms may take together; one slice, and one whole matrix, always may. */
#define KT_STAGING_BUDGET ((size_t)256 << 20)

/* Matrices become panels of 64 rows: plain forms exist of a block of rows at a time. A lane has a
 * slice of the staging and takes block after block, so that 128 threads do not fill gigabytes with
 * plain forms; where even blocks are too many for the budget, there are fewer lanes than threads.
 */
typedef struct kt_staging {
    size_t packed;  /* begin of a slice: a whole packed expert that nodes will cut; 0 = experts are
                       not cut */
    size_t scratch; /* then floats of rows that are converted */
    size_t slice;   /* all of it: behind them a block in plain form, or a head twice */
    int n_slices;   /* lanes */
    size_t whole;   /* behind the slices: the largest dense matrix of a layout that is packed as a
                       whole */
    size_t total;
} kt_staging;

/* Rows of a block. */
int64_t kt_staging_rows(kt_weight_format format);

/* Are this problem's weights packed by blocks? */
bool kt_staging_has_blocks(const kt_problem_plan *plan);

/* Count for so many threads and memory nodes. A total of SIZE_MAX is too large to count. */
void kt_staging_count(const kt_model_plan *plan, int n_nodes, int threads, kt_staging *out);

#endif
