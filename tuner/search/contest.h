/* One cell's decision: contenders race, the winner meets the default once more, a verdict falls.
 * Knows nothing of kernels: samples come from a stopwatch. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CONTEST_H
#define KT_TUNER_CONTEST_H

#include "tuner/measure/rounds.h"

#define KT_HOLDOUT_ROUNDS 30
#define KT_HOLDOUTS 2           /* one after the other; a challenger must win each */
#define KT_MIN_GAIN 0.01        /* a challenger must win by 1 % */
#define KT_GAIN_CONFIDENCE 0.99 /* and by the whole of this interval */
#define KT_RUNNERS 3

/* Where whole rungs go and come back from after an interruption. Both members may be NULL. */
typedef struct kt_rung_store {
    void *arg;
    /* Append the samples of an earlier, identical rung to s; false when there is none. */
    bool (*replay)(void *arg, int rung, const int *live, int n_live, int rounds, kt_samples *s);
    /* Keep the rounds [first_round, s->n_rounds) of the live contenders. */
    kt_status (*record)(void *arg, int rung, const int *live, int n_live, int rounds,
                        int first_round, const kt_samples *s, kt_err *err);
} kt_rung_store;

#define KT_RACE_RUNGS 6
#define KT_HOLDOUT_STEPS 8

/* How a contest spends its rounds; chosen on recorded samples (`kttune sim --grid`). */
typedef struct kt_race_rules {
    int screen_rounds; /* of everybody, before the first rung; who is screen_ratio as slow then goes */
    double screen_ratio;
    int n_rungs, rung_rounds[KT_RACE_RUNGS];
    double drop_confidence; /* slower than the best by the whole of this interval: out */
    double survivors;       /* at most this share of a rung's contenders goes on, two at least */
    double tie;             /* over when all rivals are within this of the best .. */
    double
        stop_confidence; /* .. or, above 0, when by this interval none can still beat the default by
                               KT_MIN_GAIN: it stays, without a holdout */
    int look_rounds;     /* above 0: a holdout ends after so many rounds when by stop_confidence its
                        challenger cannot gain KT_MIN_GAIN */
    int extra_rounds;    /* of a holdout that has neither won nor lost by its end */
    /* Above 0: a holdout goes by so many steps, each looked at, instead of the three above. See hold_by_steps
     * in contest.c. */
    int n_steps, step_rounds[KT_HOLDOUT_STEPS];
    double each_confidence, both_confidence;
    int final_rounds; /* of the best two, when both have left the default behind */
    /* A default that is only ahead by chance meets its best rival in a holdout. */
    bool settles_doubt;
} kt_race_rules;

extern const kt_race_rules kt_race_rules_now;
/* Contests of a journal were held by the rules of their protocol. */
const kt_race_rules *kt_race_rules_of(int64_t protocol);

typedef struct kt_contest {
    const kt_race_rules *rules; /* NULL = kt_race_rules_now */
    const kt_stopwatch *watch;
    const kt_rung_store *store; /* may be NULL */
    int n;                      /* contenders 0 .. n-1, all of them correct */
    int default_index;          /* what would run without tuning */
    int warm_index;             /* what won next door, or -1 */
    bool has_proven;            /* an earlier contest of fewer contenders has a winner: */
    int proven_index;           /* when it is still the fastest nothing changes */
    int64_t deadline_ns;        /* by watch's clock */
    int shorten;                /* rungs have this many times fewer rounds; 0 = 1 */
    uint64_t seed;              /* decides orders and resamples: the same run twice decides alike */
    double *ratio;              /* NULL, or [n]: p25 over the fastest one's, INFINITY = never ran */
    int rungs_run;              /* rungs so far, counted by kt_contest_rung */
    int rounds, voided;         /* so far, replayed ones included */
} kt_contest;

typedef struct kt_verdict {
    int winner;
    bool is_kept;                 /* the proven winner stays; the rest is not filled */
    bool is_tuned;                /* the winner is not the default, and has shown it */
    double winner_ns, default_ns; /* p25 of one call, of the holdout where there was one */
    kt_interval spread;           /* of winner_ns, relative: 1.0 +- */
    kt_interval gain; /* log(default / challenger) in the holdout; zero without a challenger */
    int rounds;       /* behind winner_ns */
    int n_runners;
    int runner[KT_RUNNERS];
    double runner_ns[KT_RUNNERS];
} kt_verdict;

struct kt_strategy;

/* Race by the strategy, hold out, judge. KT_E_CANCELLED when time or patience ended first: nothing is
 * decided then, whole rungs are in the store. */
kt_status kt_contest_decide(kt_contest *c, const struct kt_strategy *strategy, kt_verdict *out,
                            kt_err *err);

/* The never-worse rule on fresh paired samples of default (a) and challenger (b): replace only when
 * the interval of the gain lies above zero and its middle is at least KT_MIN_GAIN. */
bool kt_challenger_wins(const double *default_ns, const double *challenger_ns, int n, kt_rng *rng,
                        kt_interval *gain);

/* For strategies: run one rung, or take it from the store. rounds are those of a usual contest; one that
 * is shortened runs a part of them, at least two. */
kt_status kt_contest_rung(kt_contest *c, kt_samples *s, const int *live, int n_live, int rounds,
                          kt_err *err);

/* For strategies: interleaved successive halving over live[0 .. *n_live), which is reduced to the
 * survivors, best first. The default is never dropped. */
kt_status kt_halving(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err);

/* Sort by p25, fastest first. */
void kt_rank(const kt_samples *s, int *live, int n_live);

#endif
