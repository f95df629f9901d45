/* The correctness gate: no variant is timed before it has computed right results.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_VERDICTS_H
#define KT_TUNER_VERDICTS_H

#include <stdbool.h>

#include "kt/variant.h"

/* What the gate found about one variant and configuration on the weights of one problem. */
typedef struct kt_gate_result {
    kt_choice choice;
    kt_problem problem; /* m = 0 */
    bool passed;
    char outcome[16];          /* "passed", "wrong", "crash", "timeout" */
    double rel_rms;            /* against the double reference */
    char message[KT_ERR_SIZE]; /* of a failure: first failing element, repeatable */
} kt_gate_result;

typedef struct kt_gate_limits {
    uint64_t seed;
    int64_t deadline_ns;     /* kt_clock_ns */
    bool (*stop)(void *arg); /* may be NULL */
    void *stop_arg;
    double seconds_each; /* a choice that takes longer is rejected; 0 = 10 */
    int64_t
        enough_ns; /* from then on two results are enough: the others' outcomes stay ""; 0 = never */
} kt_gate_limits;

/* Gate n choices on this problem's shape (m ignored: every row count that kernels treat differently
 * is tried). Shapes are cut down to a few panels, keeping their remainders, so that the double
 * reference stays cheap. Runs in a child process: a variant that reads out of bounds faults there and
 * is reported as a crash. out receives n results. KT_E_CANCELLED when time ended first. */
kt_status kt_gate_choices(const kt_problem *problem, const kt_choice *choices, int n,
                          const kt_gate_limits *limits, kt_gate_result *out, kt_err *err);

/* The problem the gate really runs for this one. */
kt_problem kt_gate_problem(const kt_problem *problem);

/* Results kept over a run, asked by choice and shape. */
typedef struct kt_verdicts {
    kt_gate_result *list; /* owned */
    int n, capacity;
} kt_verdicts;

const kt_gate_result *kt_verdicts_find(const kt_verdicts *v, const kt_problem *problem,
                                       const kt_choice *choice);
kt_status kt_verdicts_add(kt_verdicts *v, const kt_gate_result *result, kt_err *err);
void kt_verdicts_deinit(kt_verdicts *v);

#endif
