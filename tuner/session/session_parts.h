/* Shared by the files of a tuning run only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SESSION_PARTS_H
#define KT_TUNER_SESSION_PARTS_H

#include "tuner/measure/trial.h"
#include "tuner/session/session.h"

enum { KT_SESSION_POOLS = 8, KT_SESSION_SHAPES = 64 };

/* What serving would do on these weights without a table, for every m. */
typedef struct kt_shape_default {
    kt_problem problem;
    int threads;
    kt_choice_map *map; /* owned */
} kt_shape_default;

/* A contender that was out of reach in a cell. */
typedef struct kt_hopeless {
    kt_problem problem;
    int threads;
    kt_choice choice;
} kt_hopeless;

struct kt_session {
    kt_session_setup setup;
    kt_planner *planner;
    kt_banks banks;
    kt_pool *pools[KT_SESSION_POOLS];
    kt_shape_default shapes[KT_SESSION_SHAPES];
    int n_shapes;
    kt_verdicts verdicts;
    uint8_t *state;           /* [cells] kt_cell_state */
    uint8_t *is_measured;     /* [cells] decided by this run's samples, once */
    uint8_t *n_races;         /* [cells] by this run */
    uint8_t *is_first;        /* [cells] the journal holds it undecided */
    kt_table_row *rows;       /* [cells], of the decided and undecided ones */
    kt_oracle_result *oracle; /* [cells], of those it was asked about */
    size_t *order;            /* [cells], most valuable first */
    double *seconds;          /* [cells] predicted */
    size_t next;              /* in order */
    kt_hopeless *hopeless;    /* owned */
    size_t n_hopeless, hopeless_capacity;
    kt_session_progress progress;
    const kt_contest *contest; /* under way, or NULL */
    int64_t cell_start_ns, start_ns;
};

/* A cell's contenders on cold weights, with the session's wish to stop and its tally of time. */
typedef struct kt_cell_trial {
    kt_session *session;
    kt_trial *trial;    /* owned */
    kt_choice *choices; /* owned */
    kt_stopwatch inner, watch;
} kt_cell_trial;

/* The trial keeps a pointer to *out: it must stay where it is. */
kt_status kt_cell_trial_make(kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                             kt_cell_trial *out, kt_err *err);
void kt_cell_trial_deinit(kt_cell_trial *t); /* accepts a zeroed one */

/* Gate those contenders that have no result on this shape yet, the most promising ones first,
 * then take out those that were rejected or, from enough_ns on (0 = never), not come to; a
 * default that computes wrong results is replaced by the next best guess. near (may be NULL) is
 * the neighbour's winner. */
kt_status kt_session_gate(kt_session *s, const kt_tune_cell *cell, const kt_choice *near,
                          int64_t enough_ns, kt_contenders *c, kt_err *err);

/* Contenders in the order of their promise: the default, the neighbour's winner, then by their
 * bounds. order has room for c->n. */
void kt_session_order(const kt_contenders *c, const kt_choice *near, int *order);

/* When gates of a fresh contest are to end, so that a small budget decides something; 0 = they
 * may take all. */
int64_t kt_session_gate_end(const kt_session *s);

/* After them: a fresh contest goes on with those whose weights can be packed in a fair share of
 * the time that is left, two at least. Who was not gated or cannot be afforded leaves `all` too:
 * a later run finds them new. */
kt_status kt_session_afford(const kt_session *s, const kt_tune_cell *cell, const kt_choice *near,
                            kt_contenders *all, kt_contenders *in, kt_err *err);

/* Remember who was out of reach in a cell's race, and tell whether that settles a neighbouring
 * cell: the same weights with at most twice or half as many rows. Such contenders are often slow
 * beyond all others, and would cost most of a contest's time only to be dropped again after its
 * first round. */
kt_status kt_session_note_hopeless(kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                                   const double *ratio, kt_err *err);
bool kt_session_is_hopeless(const kt_session *s, const kt_tune_cell *cell, const kt_choice *choice);

/* The row's class, and the best of each other class that ran in the race; ratio[i]: time of
 * contender i over the fastest one's, INFINITY = it never ran. */
void kt_session_note_classes(const kt_contenders *c, const double *ratio, int winner,
                             kt_table_row *row);
/* The class of a row that knows none, as those of older journals: its variant's. */
void kt_session_name_class(const kt_registry *registry, kt_table_row *row);

/* Measure every contender of a decided cell until the best one is known, then both against each
 * other in fresh rounds. */
kt_status kt_session_ask_oracle(kt_session *s, size_t i, const kt_choice *standard, kt_err *err);

#endif
