/* Two choices against each other, cell after cell, in one process: gated first, then timed in
 * interleaved rounds. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DUELS_H
#define KT_TUNER_DUELS_H

#include "base/pool.h"
#include "dispatch/plan/plan.h"
#include "dispatch/table/table.h"
#include "tuner/measure/trial.h"
#include "tuner/verify/verdicts.h"

/* Rounds that tell a 3 % slowdown from noise in 95 of 100 cases where paired samples scatter by 12 %, as on a
 * busy virtual machine: the interval of the median is then +-2 %. */
#define KT_COMPARE_ROUNDS 240

/* What a comparison calls a change at all: half of what it has to find. */
#define KT_COMPARE_LEAST 0.015

/* Noise only adds time: the fastest of four samples scatters half as much as one, and a model's cells are
 * compared within a minute all the same. */
#define KT_COMPARE_REPEATS 4

typedef struct kt_duels {
    const kt_registry *registry;   /* borrowed; these five are set by the owner */
    const kt_fingerprint *machine; /* with ceilings; borrowed */
    uint64_t seed;
    bool (*stop)(void *arg); /* may be NULL */
    void *stop_arg;
    double
        slowdown; /* the second choice spins on for this share of each sample: to test the test */
    int64_t spread_tokens; /* as in kt_trial_setup */
    int repeats;           /* each side of a round is the fastest of so many samples; 0 = 1 */
    double
        least_effect; /* above 0: a race ends early when a difference of this size is beyond doubt, or
                              ruled out */
    kt_banks banks;   /* the owner sets banks.rotation_bytes */
    kt_pool *pool;    /* of the last duel; the rest is made when needed */
    kt_planner *planner; /* chooses the encoder */
    kt_verdicts verdicts;
} kt_duels;

typedef struct kt_duel_result {
    kt_interval ratio; /* log(time of the first / time of the second) */
    double
        confidence; /* of that interval: 99.5 % for a race with looks that went all the way, 99.9 %
                          when it ended early, else 99 % */
    double p25_ns[2];
    int rounds, voided;
} kt_duel_result;

/* Bytes the weights rotate through when cells of a table are timed again: as many as its own run
 * had, when its model can still be found. */
size_t kt_duels_rotation(const kt_ceilings *ceilings, size_t llc_bytes, const kt_table *table);

void kt_duels_deinit(kt_duels *d); /* accepts a zeroed one */

/* The gate's result for a choice on these weights, from memory or measured now; borrowed until the
 * next call. KT_E_CANCELLED when asked to stop. */
kt_status kt_duels_gate(kt_duels *d, const kt_problem *problem, const kt_choice *choice,
                        const kt_gate_result **out, kt_err *err);

/* Time two choices that passed the gate, in at most so many rounds. KT_E_CANCELLED when asked to stop. */
kt_status kt_duels_race(kt_duels *d, const kt_problem *problem, int threads,
                        const kt_choice pair[2], int rounds, kt_duel_result *out, kt_err *err);

#endif
