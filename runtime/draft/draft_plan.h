/* How many drafted tokens a step should compute: as many as give the most tokens in the least time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DRAFT_PLAN_H
#define KT_RUNTIME_DRAFT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/draft/draft_rate.h"

/* A draft of one sequence: p[i], falling with i, is the probability that its tokens 0 to i all come
 * true. */
typedef struct kt_draft_offer {
    int64_t n; /* tokens, at most KT_DRAFT_MOST */
    double p[KT_DRAFT_MOST];
    int64_t taken; /* of them, by kt_draft_plan */
} kt_draft_offer;

/* What a step is without drafts, and what limits it with them. */
typedef struct kt_draft_step {
    double tokens;       /* that it makes: rows of answers and of prompts */
    int64_t rows;        /* that it has */
    int64_t most;        /* rows of drafts, at most */
    double extra_ns;     /* what drafts take beside the step */
    double longest_ns;   /* of a step with drafts; 0 = no limit */
    bool is_indifferent; /* take all offers, whatever they cost (tests and comparisons) */
    /* Time of a step of so many rows in ns; 0 = nobody knows. */
    double (*cost_ns)(void *arg, int64_t rows);
    void *arg; /* borrowed */
} kt_draft_step;

/* Take from the n offers the tokens with which the step makes the most tokens in a unit of time:
 * the likeliest first, as many as raise (tokens + sum of p) / cost. Returns that speed against the
 * one without drafts, at least 1; 1, and nothing is taken, where the cost is not known. */
double kt_draft_plan(const kt_draft_step *step, kt_draft_offer *offers, int n);

/* Should drafts be computed, given what they would gain (kt_draft_plan)? They begin at a gain of
 * 10 % and end under 2 %, so that what is measured wrongly by a little does not switch them to and
 * fro. */
bool kt_draft_is_worth(bool is_on, double gain);

#endif
