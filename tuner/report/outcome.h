/* How sure a run or a table is, in words: cells that are undecided or were not reached, rounds
 * that others disturbed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_OUTCOME_H
#define KT_TUNER_OUTCOME_H

#include "dispatch/table/table.h"
#include "tuner/store/journal.h"

/* More voided rounds than this share: the figures mean little (exit code 7). */
#define KT_NOISY_SHARE 0.30
#define KT_OUTCOME_WORDS 3
#define KT_OUTCOME_BYTES 320

typedef struct kt_outcome {
    size_t n_cells, n_undecided, n_open; /* open: not reached */
    int64_t rounds, voided;
    double budget_seconds,
        needed_seconds; /* 0 = none; what would have reached all, 0 = not known */
} kt_outcome;

/* Of a table: rounds are those of the contests that decided its rows, open cells those that the
 * last run left. journal may be NULL: then only intervals are known. */
void kt_outcome_of_table(const kt_table *table, const kt_journal *journal, kt_outcome *out);

bool kt_outcome_is_noisy(const kt_outcome *o);

/* Share of the rounds that were voided; 0 without rounds. */
double kt_outcome_voided(const kt_outcome *o);

/* Up to KT_OUTCOME_WORDS sentences, each with what to do; returns how many. None: all is well. */
int kt_outcome_words(const kt_outcome *o, char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES]);

#endif
