/* Plan cells in the journal: samples and decisions, taken over by a later run like those of kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_PLAN_RECORDS_H
#define KT_TUNER_PLAN_RECORDS_H

#include "tuner/store/ledger.h"

/* The contest in hand: kind of its records, who takes part. Borrowed texts. */
typedef struct kt_plan_contest {
    kt_ledger *ledger;
    const char *key; /* of the plan cell */
    uint32_t id;     /* of ways, kernels and default */
    const char *const *names;
    int n_replayed; /* rungs taken from the journal so far */
} kt_plan_contest;

/* Whole rungs are written to the journal, and taken from there when the contest was broken off. */
kt_rung_store kt_plan_contest_store(kt_plan_contest *c);

/* Decide this cell again: what is recorded of it is not taken over any more. */
kt_status kt_plan_contest_forget(const kt_plan_contest *c, kt_err *err);

kt_status kt_plan_contest_decide(const kt_plan_contest *c, const kt_table_plan *plan, kt_err *err);
/* An earlier decision of the same contest by the same build and machine, newest first. */
bool kt_plan_contest_decided(const kt_plan_contest *c, kt_table_plan *out);

#endif
