/* How long a step of so many rows takes, learned from the steps that were taken.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STEP_COST_H
#define KT_RUNTIME_STEP_COST_H

#include <stdint.h>

enum { KT_COST_BUCKETS = 24 };

/* Steps of 2^i to 2^(i+1) - 1 rows share a bucket: their mean rows and time, old ones fading.
 * Zero-initialise. */
typedef struct kt_step_cost {
    double rows[KT_COST_BUCKETS], ns[KT_COST_BUCKETS];
} kt_step_cost;

void kt_step_cost_add(kt_step_cost *c, int64_t rows, int64_t ns);
/* Expected time of a step, between the measured sizes on a line and outside in proportion; 0 when
 * nothing was measured yet. */
double kt_step_cost_ns(const kt_step_cost *c, int64_t rows);
/* Most rows, at most `most`, of a step that takes no longer than limit_ns; 0 when even one takes
 * longer, or nothing was measured yet. */
int64_t kt_step_cost_rows(const kt_step_cost *c, int64_t limit_ns, int64_t most);

#endif
