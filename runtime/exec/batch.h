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

/* Of the tokens that the next step appends to s, the last n are guesses, which
 * kt_sequence_truncate may take back afterwards: pages that they fill are not known to the cache
 * before another step has come behind them, and the states of recurrent layers before the step are
 * kept, for kt_sequence_truncate to go back to (which then forgets all of the step's tokens).
 * n_spans: sequences of that step. Returns n, or 0 where there are no slots to keep those states
 * in; then nothing is guessed. Holds for one step; 0 = none. The engine's thread. */
int64_t kt_sequence_guess(kt_sequence *s, int64_t n, int n_spans);

/* While an answer is made, after a step: where the sequence ends with a page, keep a copy of the
 * states of recurrent layers for those that begin alike, instead of the last one that this sequence
 * kept so. States of marked spans stay. Nothing where there are no such layers, no slot, or guesses
 * in the page. The engine's thread. */
void kt_sequence_keep_recent(kt_sequence *s);

#endif
