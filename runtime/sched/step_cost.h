/* How long a step of so many rows takes: what the plan expects, corrected by the steps that were
 * taken. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STEP_COST_H
#define KT_RUNTIME_STEP_COST_H

#include <stdint.h>

enum { KT_COST_BUCKETS = 24 };

/* Steps of 2^i to 2^(i+1) - 1 rows share a bucket: their mean rows and time, old ones fading.
 * Zero-initialise. */
typedef struct kt_step_cost {
    double rows[KT_COST_BUCKETS], ns[KT_COST_BUCKETS];
    double expected[KT_COST_BUCKETS]; /* ns of 2^i rows; all 0 = nothing is expected */
} kt_step_cost;

/* What steps of 1, 2, 4 ... rows should take by another's reckoning. A function of self and rows
 * that rises with the rows; 0 = it does not know, then nothing is expected of any. */
void kt_step_cost_expect(kt_step_cost *c, double (*expected_ns)(void *self, int64_t rows),
                         void *self);
void kt_step_cost_add(kt_step_cost *c, int64_t rows, int64_t ns);
/* Expected time of a step. Where something is expected: that, times measured / expected of the
 * nearest sizes that were measured. Else between the measured sizes on a line and outside in
 * proportion; 0 when nothing was measured either. */
double kt_step_cost_ns(const kt_step_cost *c, int64_t rows);
/* Most rows, at most `most`, of a step that takes no longer than limit_ns; 0 when even one takes
 * longer, or nothing is known. */
int64_t kt_step_cost_rows(const kt_step_cost *c, int64_t limit_ns, int64_t most);

#endif
