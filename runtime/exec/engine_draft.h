/* Drafts by the model's own draft head (dispatch/model/draft_head.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_DRAFT_H
#define KT_RUNTIME_ENGINE_DRAFT_H

#include "runtime/exec/engine.h"

/* Rows [first_row, first_row + rows) of the last step that belong to one sequence and are kept, at
 * `position` and behind it, and what to draft behind them. */
typedef struct kt_draft_span {
    kt_sequence *seq; /* borrowed */
    int64_t first_row, rows, position;
    const int32_t
        *next;    /* borrowed: [rows] the tokens behind each, of which the last is not computed */
    int32_t *out; /* borrowed: [n], written: what may come behind next[rows - 1] */
    int64_t n;    /* 0 = only keep the head's keys and values */
} kt_draft_span;

bool kt_engine_has_draft_head(const kt_engine *e);

/* Run the draft head over rows of the step before, which nothing may have come behind: its keys and
 * values go to the sequences' pages, and the likeliest tokens by it, one after the other, to `out`.
 * Spans are in the order of their rows. logits: f32 [n_spans, vocab], overwritten. A span that has
 * no reserved tokens left for its drafts gets fewer: *n is how many. */
kt_status kt_engine_draft(kt_engine *e, kt_draft_span *spans, int n_spans, float *logits,
                          kt_err *err);

#endif
