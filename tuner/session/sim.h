/* Recorded contests as a world to try strategies in: tuning the tuner without a machine.
 *
 * Each cell of a journal gives its contenders and their samples (the oracle's, where it was asked). A
 * simulated round takes one recorded round: contenders that ran in it get their own samples, so that what
 * disturbed one disturbs all; the others one of theirs, moved by what the best one says about both rounds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SIM_H
#define KT_TUNER_SIM_H

#include "dispatch/registry/registry.h"
#include "tuner/search/regret.h"
#include "tuner/search/strategy.h"
#include "tuner/store/replay.h"

typedef struct kt_sim_contender {
    const char *name; /* borrowed from the journal */
    kt_choice choice; /* variant NULL = not in this build */
    double bound_ns;  /* by the roofline of the recorded machine; 0 = unknown */
    double true_ns;   /* p25 of the best one, times the paired ratio to it */
    int n_rounds;     /* that count */
    int *round;       /* [n_rounds], owned by the cell */
} kt_sim_contender;

typedef struct kt_sim_cell {
    kt_problem problem;
    int threads;
    const char *key;
    double weight, units;
    bool is_oracle; /* every contender was measured */
    int n, default_index, best;
    int winner;                  /* what was decided, among the contenders */
    double race_sec, gate_sec;   /* of that decision */
    kt_sim_contender *contender; /* owned */
    kt_samples samples;          /* owned; 0 ns = did not run in that round */
} kt_sim_cell;

typedef struct kt_sim {
    kt_sim_cell *cells; /* owned */
    size_t n, n_oracle;
} kt_sim;

/* The newest contest of every cell. The journal must outlive the simulation. */
kt_status kt_sim_load(const kt_journal *journal, const kt_registry *registry, kt_sim *out,
                      kt_err *err);
void kt_sim_deinit(kt_sim *s); /* accepts a zeroed one */

/* One contest of a cell on its samples; *winner is among the cell's contenders. */
kt_status kt_sim_decide(const kt_sim_cell *cell, const kt_strategy *strategy, uint64_t seed,
                        int *winner, kt_err *err);

/* Rounds of a search without racing: paired samples scatter by 3 to 4 %, so that a difference of 1 % needs
 * about 90 to be seen in 4 of 5 cases. */
#define KT_SIM_EXHAUSTIVE_ROUNDS 90

/* What an exhaustive search takes: so many rounds of every valid variant in every configuration. */
double kt_sim_exhaustive_sec(const kt_sim_cell *cell);

#define KT_SIM_POINTS 10
extern const double kt_sim_seconds[KT_SIM_POINTS];

typedef struct kt_sim_result {
    const char *strategy;
    kt_regret_summary regret;
    double median_sec, p90_sec, mean_sec; /* of measuring, per cell */
    double exhaustive_share;              /* of the time that 64 rounds of everything take */
    struct {
        double decided;  /* share of cells */
        double regret;   /* weighted geomean; undecided cells run the default */
    } at[KT_SIM_POINTS]; /* after kt_sim_seconds per cell */
} kt_sim_result;

/* Decide every cell `trials` times; rules may be NULL: those of today. */
kt_status kt_sim_run(const kt_sim *s, const kt_strategy *strategy, const kt_race_rules *rules,
                     int trials, uint64_t seed, kt_sim_result *out, kt_err *err);

/* Move the cells of `from` into `to`; journals of both must outlive it. */
kt_status kt_sim_join(kt_sim *to, kt_sim *from, kt_err *err);

/* A sweep of rules over one strategy. */
#define KT_SIM_GRID 128

typedef struct kt_sim_grid_point {
    kt_race_rules rules;
    char name[64];
    kt_sim_result result;
    bool is_best; /* no other point has less regret in less time */
} kt_sim_grid_point;

/* Every combination of the swept values; points receives at most KT_SIM_GRID, quickest first. */
kt_status kt_sim_grid(const kt_sim *s, const kt_strategy *strategy, int trials, uint64_t seed,
                      kt_sim_grid_point points[KT_SIM_GRID], int *n, kt_err *err);

#endif
