/* Two tables side by side: which cells changed beyond doubt. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_COMPARISON_H
#define KT_TUNER_COMPARISON_H

#include "dispatch/table/table.h"
#include "tuner/measure/stats.h"

typedef enum kt_change { KT_CHANGE_NONE, KT_CHANGE_FASTER, KT_CHANGE_SLOWER } kt_change;

/* A cell that both tables have. */
typedef struct kt_compared {
    const kt_table_row *a, *b; /* borrowed from the tables */
    kt_interval ratio;         /* log(time of b / time of a); positive = slower in b */
    double confidence;         /* of ratio */
    kt_change change;          /* after kt_comparison_judge */
} kt_compared;

typedef struct kt_comparison {
    kt_compared *list; /* owned */
    int n;
    size_t only_a, only_b; /* cells that the other table lacks */
    double least_effect;   /* smaller changes count as none: 0.03 = 3 % */
    int n_faster, n_slower;
    double log_sum; /* of all ratios: geomean = exp(log_sum / n) */
} kt_comparison;

/* Pair the cells; ratios are those of the recorded times and intervals, 95 %. least_effect becomes the
 * larger of 3 % and twice the A/A noise of either table. */
kt_status kt_comparison_make(const kt_table *a, const kt_table *b, kt_comparison *out, kt_err *err);
void kt_comparison_deinit(kt_comparison *c); /* accepts a zeroed one */

/* Mark cells whose change is at least least_effect and significant at a false discovery rate of 1 %. */
void kt_comparison_judge(kt_comparison *c, double least_effect);

#endif
