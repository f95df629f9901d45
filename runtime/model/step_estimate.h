/* How long a step should take before one was taken: what the plan expects of its matrices.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STEP_ESTIMATE_H
#define KT_RUNTIME_STEP_ESTIMATE_H

#include "runtime/model/model_plan.h"

/* Nanoseconds for a step of `rows` rows (at least 1), logits of `logits` of them: the times of all
 * matrices by the dispatch table, or by the roofline where it has none. Routed experts are those
 * that rows meet when all are alike. Attention, states and row work are left out: the scheduler
 * corrects by the steps that were taken. 0 when the plan expects nothing. experts_ns: NULL, or what
 * of it is the routed experts' goes there. */
double kt_step_estimate_ns(const kt_model_plan *plan, int64_t rows, int64_t logits,
                           double *experts_ns);

#endif
