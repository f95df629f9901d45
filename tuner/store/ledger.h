/* The tuner's records in the journal: what a run did, and what a later run may take over.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LEDGER_H
#define KT_TUNER_LEDGER_H

#include "dispatch/table/table.h"
#include "tuner/search/contest.h"
#include "tuner/space/candidates.h"
#include "tuner/store/journal.h"
#include "tuner/verify/verdicts.h"

/* Bump when samples of older journals must not be mixed with new ones. */
#define KT_PROTOCOL 6

typedef struct kt_ledger {
    kt_journal *journal; /* owned */
    uint8_t *usable;     /* [records]: of this machine and protocol; owned */
    uint64_t seed;       /* of the session */
    /* The contest in hand, for the rung store: set by kt_ledger_contest. */
    char cell_key[KT_CELL_KEY_BYTES];
    uint32_t contest_id;
    const char **names; /* of its contenders; the list is owned */
    int64_t rung_start_ns;
    int n_replayed; /* rungs taken from the journal so far */
} kt_ledger;

/* What a session says about itself in the journal. */
typedef struct kt_ledger_session {
    const kt_fingerprint *machine;
    const char *workload, *strategy;
    const char *command; /* repeats the run; names neither folders nor users */
    uint64_t seed;
} kt_ledger_session;

/* Open the journal at path and start a session. Earlier sessions count only when machine, protocol,
 * version and compiler are the same: two builds of one variant are not the same contender. */
kt_status kt_ledger_open(const char *path, const kt_ledger_session *session, kt_ledger *out,
                         kt_err *err);
void kt_ledger_close(kt_ledger *l); /* accepts a zeroed one */

/* Measure this cell again: what is recorded of it stays in the file, for rows of other tables, but is
 * not taken over any more. */
kt_status kt_ledger_forget(kt_ledger *l, const kt_tune_cell *cell, kt_err *err);

kt_status kt_ledger_gate(kt_ledger *l, const kt_gate_result *result, kt_err *err);

/* How a contest is held, beside who takes part. */
typedef struct kt_contest_terms {
    uint32_t id; /* kt_contest_id of all that were considered */
    const char *strategy;
    int warm_index, shorten;
    const kt_contenders *known; /* all that were considered, when fewer take part; else NULL */
    double units;               /* experts that one call runs; 1 for a GEMM */
} kt_contest_terms;

/* Begin a contest of this cell and these contenders (borrowed until the next call): its rungs are
 * recorded and replayed through *store. */
kt_status kt_ledger_contest(kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *contenders,
                            const kt_contest_terms *terms, kt_rung_store *store, kt_err *err);

/* What a decision cost. */
typedef struct kt_decision_terms {
    int rounds, voided;
    double gate_seconds; /* gates and setting up; rungs tell their own time */
} kt_decision_terms;

/* The contest in hand is decided. */
kt_status kt_ledger_decide(kt_ledger *l, const kt_table_row *row, const kt_decision_terms *terms,
                           kt_err *err);
/* The contest in hand changed nothing: the row of an earlier one stays. */
kt_status kt_ledger_keep(kt_ledger *l, const kt_table_row *row, const kt_decision_terms *terms,
                         kt_err *err);
/* The newest decision of the cell by this strategy over the same default, with a winner that is still
 * among the contenders; is_known[i] tells who took part then or before. false when there is none. */
bool kt_ledger_base(const kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *contenders,
                    const char *strategy, kt_table_row *row, bool *is_known);
/* Was a contest of this number begun and broken off? is_in[i] tells who took part: they go on, whatever has been
 * learnt about them meanwhile, so that its rungs count. */
bool kt_ledger_begun(const kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *contenders,
                     uint32_t contest_id, bool *is_in);
/* An earlier decision of the same contest, newest first; false when there is none. */
bool kt_ledger_decided(const kt_ledger *l, const kt_tune_cell *cell, uint32_t contest_id,
                       kt_table_row *out);
/* The newest decision of the cell, of whatever contest; false when there is none. */
bool kt_ledger_newest(const kt_ledger *l, const kt_tune_cell *cell, kt_table_row *out);
/* What a search that leaves nothing out found about a decided cell. */
typedef struct kt_oracle_result {
    int n_contenders;    /* all that pass the gate; 0 = not asked */
    kt_interval regret;  /* log(time of the decision / of the best), 95 %, in fresh rounds */
    int rounds;          /* behind it; 0 = both are the same */
    double auto_seconds; /* the decision's own rungs took; 0 = taken from the journal */
    char best[KT_CONTENDER_NAME_BYTES];
} kt_oracle_result;

#define KT_ORACLE_CONTENDERS 1024

/* The contest in hand was the oracle's, and this is its answer about the row. */
kt_status kt_ledger_oracle(kt_ledger *l, const kt_table_row *row, const kt_oracle_result *result,
                           kt_err *err);
/* An earlier answer of the same contest about the same choice; false when there is none. */
bool kt_ledger_oracle_known(const kt_ledger *l, const kt_table_row *row, uint32_t contest_id,
                            kt_oracle_result *out);
/* Read an answer from its record; false when it makes no sense. */
bool kt_oracle_read(const kt_json *record, kt_oracle_result *out);

/* Contenders with versions, default and strategy as one number. */
uint32_t kt_contest_id(const kt_contenders *contenders, const char *strategy);

/* A cell that could not be decided. */
kt_status kt_ledger_skip(kt_ledger *l, const kt_tune_cell *cell, const char *why, kt_err *err);

/* Where a session's time went; the rest of the wall is the tuner's own. */
typedef struct kt_session_times {
    double wall, kernels, gates, setup; /* seconds */
    size_t n_cells, n_open, n_undecided;
} kt_session_times;

/* times may be NULL. */
kt_status kt_ledger_end(kt_ledger *l, const char *reason, const kt_session_times *times,
                        kt_err *err);

/* May results of one machine stand beside those of the other? Everything hard must agree, and the
 * cores and stepping as well; measured ceilings and memory (which varies by a page from boot to boot)
 * may differ. */
bool kt_same_tuning_machine(const kt_fingerprint *a, const kt_fingerprint *b);

#endif
