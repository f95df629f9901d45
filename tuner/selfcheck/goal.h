/* What this tuner promises of itself, measured. One file tuner/selfcheck/goal_<nn>_<name>.c defines
 * `const kt_goal kt_goal_<nn>_<name> = {...};`. The build finds it and writes the table.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_GOAL_H
#define KT_TUNER_GOAL_H

#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/session/sim.h"

#define KT_CHECK_PATH_BYTES 512
#define KT_CHECK_ROWS 96
#define KT_CHECK_JOURNALS 32

/* UNPROVEN: what was measured keeps the bar, but so small a sample cannot show that it does. */
typedef enum kt_check_verdict {
    KT_CHECK_UNMEASURED = 0,
    KT_CHECK_OK,
    KT_CHECK_MISSED,
    KT_CHECK_UNPROVEN
} kt_check_verdict;

/* "ok", "MISSED", .. */
const char *kt_check_verdict_name(kt_check_verdict verdict);

/* Rows that read filed data begin their name so; all others are measured now. */
#define KT_CHECK_FILED "filed: "

typedef struct kt_check_row {
    int goal;
    char name[64], unit[16];
    double measured, bar;
    bool at_least;    /* the bar is a floor; else a ceiling */
    bool is_measured; /* false: it could not be measured, `how` says why */
    /* What the sample supports at 95 % (kt_check_bound); NaN where the row is no estimate. */
    double bound;
    kt_check_verdict verdict;
    char how[320]; /* on what, and how to repeat it; where a bar is missed, why */
} kt_check_row;

/* Everything a goal may use. */
typedef struct kt_check {
    const kt_registry *registry;   /* borrowed */
    const kt_topology *topology;   /* borrowed */
    const kt_fingerprint *machine; /* with ceilings; borrowed */
    const char *program;           /* this kttune, to be run as a child */
    const char *results;           /* folder of all classes */
    /* Only rows of filed data, of this machine class; NULL = all rows, data of this machine's
     * class. With it topology and machine may be NULL. */
    const char *filed_class;
    char scratch[KT_CHECK_PATH_BYTES]; /* an empty folder, removed at the end */
    bool quick, full; /* full: as many trials as the promises name, however long that takes */
    uint64_t seed;
    bool (*ask)(void *arg); /* the user's wish to stop; may be NULL */
    void *ask_arg;
    /* For goals and what they run: the user's wish, or the end of the time that a goal has. */
    bool (*stop)(void *arg);
    void *stop_arg;
    int64_t deadline_ns; /* of the goal in hand */
    /* Journals in results/ of this machine class, as simulations. */
    int n_journals;
    kt_journal *journal[KT_CHECK_JOURNALS]; /* owned */
    char journal_model[KT_CHECK_JOURNALS][96];
    kt_sim sim[KT_CHECK_JOURNALS]; /* owned */
    int goal;                      /* in hand */
    kt_check_row row[KT_CHECK_ROWS];
    int n_rows;
} kt_check;

typedef struct kt_goal {
    int number;
    const char *title;
    /* Report rows; an error is reported as a row that was not measured. */
    kt_status (*measure)(kt_check *c, kt_err *err);
    bool reads_filed; /* it has rows of filed data */
} kt_goal;

extern const kt_goal *const kt_builtin_goals[];
extern const size_t kt_builtin_goal_count;

/* The machine class whose filed data is read. */
void kt_check_class(const kt_check *c, char *out, size_t size);

/* Fill scratch and journals; what is above them is set. */
kt_status kt_check_init(kt_check *c, kt_err *err);
void kt_check_deinit(kt_check *c);

/* Measure one goal. */
void kt_check_goal(kt_check *c, const kt_goal *goal);

/* A measured row; ok follows from the bar. how names the measurement. */
void kt_check_at_most(kt_check *c, const char *name, double measured, double bar, const char *unit,
                      const char *how, ...) __attribute__((format(printf, 6, 7)));
void kt_check_at_least(kt_check *c, const char *name, double measured, double bar, const char *unit,
                       const char *how, ...) __attribute__((format(printf, 6, 7)));
/* What the last row's sample supports at 95 % (or as `how` says): the row is ok only if this
 * keeps the bar too. */
void kt_check_bound(kt_check *c, double bound);
/* A row of `hits` in n trials, in percent, with its one-sided 95 % bound. */
void kt_check_rate(kt_check *c, const char *name, int hits, int n, double bar_percent,
                   bool at_least, const char *how, ...) __attribute__((format(printf, 7, 8)));
/* A row that could not be measured: not ok. */
void kt_check_missing(kt_check *c, const char *name, double bar, const char *unit, const char *why,
                      ...) __attribute__((format(printf, 5, 6)));

/* Seconds that a goal may take; what is not measured by then is reported as such. */
double kt_check_seconds(const kt_check *c);

static inline bool kt_check_stopped(const kt_check *c) {
    return c->stop && c->stop(c->stop_arg);
}

/* --- load --- */

/* Processes that keep cores busy. */
typedef struct kt_hogs {
    int n;
    int pid[16];
} kt_hogs;

kt_status kt_hogs_start(kt_hogs *h, int n, kt_err *err);
void kt_hogs_stop(kt_hogs *h); /* accepts a zeroed one */

/* --- a home of its own --- */

/* A folder with machine.json and the model "mini", which is tuned in a second. */
typedef struct kt_check_home {
    char folder[KT_CHECK_PATH_BYTES], model[KT_CHECK_PATH_BYTES];
    char tables[2 * KT_CHECK_PATH_BYTES]; /* folder of its tables and journals */
    char table[2 * KT_CHECK_PATH_BYTES], journal[2 * KT_CHECK_PATH_BYTES]; /* of "mini" */
} kt_check_home;

kt_status kt_check_home_make(const kt_check *c, const char *name, kt_check_home *out, kt_err *err);

/* Run the program with these arguments (NULL-terminated, after the program's name) in this home,
 * output to nowhere. kill_after_ms >= 0: kill -9 then. Returns the exit code, -1 when a signal
 * ended it, -2 when it could not be started; *seconds (may be NULL) gets the wall time. */
int kt_check_run(const kt_check *c, const kt_check_home *home, const char *const *arguments,
                 int kill_after_ms, double *seconds);

#endif
