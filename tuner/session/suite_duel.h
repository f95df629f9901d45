/* A kernel and the ceilings of the machine, which take turns over memory that is cold to each: what
 * rows of the bench suites are fractions of. Private to the suites.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SUITE_DUEL_H
#define KT_TUNER_SUITE_DUEL_H

#include "tuner/measure/trial.h"
#include "tuner/session/suite_impl.h"

enum { KT_DUEL_KERNEL, KT_DUEL_STREAM, KT_DUEL_PEAK, KT_DUEL_ROLES };

/* Set pool, bank, window and at; the rest is the duel's own. */
typedef struct kt_suite_duel {
    kt_pool *pool;            /* borrowed */
    const kt_cold_bank *bank; /* borrowed: what the stream reads */
    int64_t at, window;       /* slots it reads next; of one call of the kernel */
    kt_stopwatch kernel;      /* of the trial, one contender */
    kt_trial *trial;
    const kt_variant *probe[KT_DUEL_ROLES]; /* of stream and peak; NULL = not asked for */
    double work[KT_DUEL_ROLES];             /* of one unit of the kernel: bytes; operations */
    kt_config ahead;                        /* of the stream: its best distance of prefetch */
    int64_t repeats;                        /* of the peak probe, for about 5 ms */
    double operations;                      /* of its last task */
    int role[KT_DUEL_ROLES], n;             /* of the contenders of the rounds */
} kt_suite_duel;

/* Which ceilings: those of `of`, for this kernel of this problem; names the contender in the row.
 */
kt_status kt_suite_duel_init(kt_suite_duel *d, const kt_suite_bench *s, kt_suite_ceiling of,
                             const kt_problem *problem, const kt_choice *kernel, kt_suite_row *row,
                             kt_err *err);

/* All of it for a row whose problem is spec->kept, over a bank of its own. setup: of one choice. */
kt_status kt_suite_beside_ceilings(kt_suite_bench *s, const kt_suite_spec *spec,
                                   const kt_trial_setup *setup, double seconds, kt_suite_row *row,
                                   kt_err *err);

/* Rounds of kernel and ceilings; fills the row with the fraction. setup: of one choice. */
kt_status kt_suite_duel_run(kt_suite_duel *d, const kt_suite_bench *s, const kt_trial_setup *setup,
                            double seconds, kt_suite_row *row, kt_err *err);

#endif
