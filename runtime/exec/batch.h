/* Steps over rows of many sequences, and the sequences themselves: pages of keys and values, states
 * of recurrent layers, reuse of what earlier sequences have computed. The interface is the public
 * one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BATCH_H
#define KT_RUNTIME_BATCH_H

#include "kt/engine.h"
#include "runtime/exec/stop.h"

/* How long a step of so many rows should take, logits of `logits` of them, in ns: what the plan
 * expects of its matrices (runtime/model/step_estimate.h), and of that the routed experts' part,
 * unless experts_ns is NULL. 0 = nothing is expected. Any thread. */
double kt_engine_expected_ns(const kt_engine *e, int64_t rows, int64_t logits, double *experts_ns);

#endif
