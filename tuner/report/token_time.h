/* What a table means for tokens per second. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TOKEN_TIME_H
#define KT_TUNER_TOKEN_TIME_H

#include <stdbool.h>

#include "dispatch/table/table.h"
#include "tuner/space/shapes.h"

#define KT_SERVING_FORMATS 4

/* Largest thread count of the table's rows; 1 without rows. */
int kt_table_most_threads(const kt_table *table);

/* The formats that the table's experts are served in, in the order of its rows; returns how
 * many. */
int kt_table_formats(const kt_table *table, kt_serving_format out[KT_SERVING_FORMATS]);

/* Time that all matrices of the table's model take for one token of one user: rows of m = 1, times
 * the layers and experts that use them. Attention, norms and what is not a matrix are not counted.
 */
typedef struct kt_token_time {
    kt_serving_format format;
    double before, after; /* seconds with the defaults, and tuned */
    bool is_rough;        /* rests on an undecided row */
} kt_token_time;

typedef struct kt_token_times {
    int n;
    kt_token_time of[KT_SERVING_FORMATS];
} kt_token_times;

/* Those of the table's formats on `threads` threads, but for formats of which a matrix has no row
 * for one token, and none where the model is unknown here (no workload or folder of that name).
 * Only memory can be lacking. */
kt_status kt_token_times_of(const kt_table *table, int threads, kt_token_times *out, kt_err *err);

/* Does a row of the same matrix and rows on fewer threads take less time (2 % and more)? */
bool kt_row_wants_fewer_threads(const kt_table *table, const kt_table_row *row);

#endif
