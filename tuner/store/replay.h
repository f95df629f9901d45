/* Decided contests of a journal, to be run again on their recorded samples.
 *
 * A journal holds the sessions of several formats, seeds, strategies and builds, some of them broken
 * off. What belongs to one decision is found through its contest: the number that names contenders,
 * default and strategy, the record that lists them, and rungs of that number by the same build.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_REPLAY_H
#define KT_TUNER_REPLAY_H

#include "dispatch/table/table.h"
#include "tuner/search/contest.h"
#include "tuner/store/journal.h"

#define KT_REPLAY_CONTENDERS 1024

typedef struct kt_replay {
    const kt_journal *journal; /* borrowed, and so is all text below */
    size_t at;                 /* the record that decided it */
    size_t session;            /* the record of its session */
    kt_table_row row;          /* what was decided */
    int64_t protocol;          /* of the session: tells the rules of the race */
    const char *cell, *strategy;
    int64_t contest; /* -1 = not recorded (journals of protocol 3) */
    const char *names[KT_REPLAY_CONTENDERS];
    int n, default_index, warm_index;
    int winner;      /* of the row, among the contenders */
    int shorten;     /* 0 = not recorded */
    double weight;   /* of the cell; 0 = not recorded */
    double units;    /* experts a call ran; 1 when not recorded */
    uint64_t seed;   /* of the contest */
    double gate_sec; /* seconds of the cell's gates and setting up; 0 when not recorded */
    double race_sec; /* of all its rungs, replayed ones included */
} kt_replay;

/* Read the decision, or the oracle's answer about one, at record `at`; KT_E_NOT_FOUND when it is neither, KT_E_FORMAT when what
 * belongs to it is incomplete: the message names the cell. */
kt_status kt_replay_open(const kt_journal *journal, size_t at, kt_replay *out, kt_err *err);

/* The decision that made this row, newest first: same cell, winner and times. */
kt_status kt_replay_of_row(const kt_journal *journal, const kt_table_row *row, kt_replay *out,
                           kt_err *err);

/* Run the contest of a decision again; it ends as it did then, or with KT_E_FORMAT: its samples are not all there. */
kt_status kt_replay_decide(kt_replay *r, kt_verdict *out, kt_err *err);

/* All valid samples of the contest's rungs, in the order of its rungs (s is made). rounds of contenders that
 * left early are fewer. */
kt_status kt_replay_samples(const kt_replay *r, kt_samples *s, kt_err *err);

/* Were both sessions of one machine, compiler, version and protocol? */
bool kt_session_same_build(const kt_json *a, const kt_json *b);

#endif
