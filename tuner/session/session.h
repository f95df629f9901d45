/* A tuning run: cells in the order of their value, each gated, raced, held out, journalled,
 * until all are decided or the budget ends. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SESSION_H
#define KT_TUNER_SESSION_H

#include "base/pool.h"
#include "dispatch/plan/plan.h"
#include "tuner/search/strategy.h"
#include "tuner/space/cell.h"
#include "tuner/store/ledger.h"

typedef struct kt_session_setup {
    const kt_registry *registry;   /* borrowed */
    const kt_fingerprint *machine; /* with ceilings; borrowed */
    const kt_cell_list *cells;     /* borrowed */
    const kt_strategy *strategy;   /* borrowed */
    kt_ledger *ledger;             /* borrowed; NULL = nothing is kept */
    size_t rotation_bytes;         /* of the cold pool */
    int64_t deadline_ns;           /* kt_clock_ns; INT64_MAX = none */
    bool keeps_classes;  /* race the best of every class of bits, for deterministic plans */
    bool oracle;         /* after each decision, look for what it may have missed */
    double gate_seconds; /* patience with one contender's gate; 0 = 10 */
    double widest;       /* half interval of a decision; 0 = KT_ROW_WIDE */
    uint64_t seed;
    bool (*stop)(void *arg); /* asked between samples; may be NULL */
    void *stop_arg;
} kt_session_setup;

typedef enum kt_cell_state {
    KT_CELL_OPEN = 0,
    KT_CELL_DECIDED,
    KT_CELL_UNDECIDED, /* raced, but its interval is wide */
    KT_CELL_SKIPPED    /* no variant passed the gate, or its weights do not fit the memory */
} kt_cell_state;

typedef struct kt_session kt_session;

/* What a person watches; a snapshot. */
typedef struct kt_session_progress {
    size_t n_cells, n_decided, n_tuned, n_reused, n_skipped, n_repeated;
    size_t n_undecided, n_again; /* wide intervals now; races that these cost so far */
    int n_gated, n_rejected;
    int n_contenders, n_rungs; /* of the cell in hand; rungs so far */
    int64_t rounds, voided;
    double log_gain_sum;                /* over tuned cells: geomean = exp(sum / n_tuned) */
    double weight_done;                 /* share of the serving time that is decided */
    double weight_in_hand;              /* the cell in hand: its share, by the time it has had */
    double seconds_left, seconds_total; /* predicted work of the open cells, and of all */
    double seconds_raced,
        wall_raced; /* predicted work of the cells that this run raced; what they took */
    double kernel_seconds, gate_seconds; /* in samples and in gates */
    double setup_seconds;                /* packing weights into cold banks, pools */
    const kt_tune_cell *cell;            /* in hand, or NULL */
    char skipped_why[KT_ERR_SIZE];       /* of the first cell that was skipped */
} kt_session_progress;

kt_status kt_session_create(const kt_session_setup *setup, kt_session **out, kt_err *err);
void kt_session_destroy(kt_session *s);

/* Decide the next cell; when all were raced, first those again whose interval is wide (three
 * times at most), then those that are out of line. KT_OK = one more was raced, settled or
 * skipped; KT_E_NOT_FOUND = none is left; KT_E_CANCELLED = budget or stop. Others are errors
 * that end the run; what is decided stays. */
kt_status kt_session_step(kt_session *s, kt_err *err);

void kt_session_progress_get(const kt_session *s, kt_session_progress *out);

/* All rows into a table, those of undecided cells included (rows of the same key are replaced). */
kt_status kt_session_rows(const kt_session *s, kt_table *table, kt_err *err);

/* Cells that are not reached when work that is predicted to take `seconds` can still be done. */
size_t kt_session_beyond(const kt_session *s, double seconds);

const kt_tune_cell *kt_session_cell(const kt_session *s, size_t i);

/* The oracle's answer about cell i of the setup's list, or NULL. */
const kt_oracle_result *kt_session_oracle(const kt_session *s, size_t i);

/* Memory of the cold weights that are held now. */
size_t kt_session_pool_bytes(const kt_session *s);

/* The cell that comes at place `at` of the order of work, most valuable first, and its predicted
 * seconds: for --dry-run. */
const kt_tune_cell *kt_session_planned(const kt_session *s, size_t at, double *seconds);

#endif
