/* What `kttune run` says: before, at the end, and how to go on.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RUN_REPORT_H
#define KT_TUNER_RUN_REPORT_H

#include "base/json.h"
#include "tuner/cli/workbench.h"
#include "tuner/report/outcome.h"
#include "tuner/session/layer_cells.h"
#include "tuner/session/session.h"
#include "tuner/space/trace.h"

#define KT_RUN_PATH_BYTES 1024

typedef struct kt_run_options {
    const char *model, *workload, *mix, *routing, *cache, *numa, *plans;
    const char *format, *acts, *out, *strategy, *threads, *cells, *results;
    const char *device, *device_rows; /* NULL = the CPU; of calls on a device */
    double budget_seconds;            /* 0 = none */
    int64_t seed, shard[2];           /* shard i of n; 0/0 = all */
    double widest;                    /* half interval of a decision; 0 = KT_ROW_WIDE */
    bool resume, fresh, dry_run, json, noisy_ok, oracle, profile_self, verbose, deterministic,
        pretend_clock;
} kt_run_options;

typedef struct kt_run_report {
    const kt_run_options *options;
    const kt_session *session;
    const kt_workbench *bench;
    const kt_table *table; /* as it was written; NULL before */
    const kt_trace *trace; /* the recorded load that weighs the cells, or NULL */
    const char *class_name, *table_path, *journal_path;
    double aa_noise;    /* p95 */
    double seconds;     /* of the whole program */
    size_t n_kept_rows; /* of the table that was there */
    kt_layer_spent plan_spent;
    int n_plans_open;
    bool ended_early;
} kt_run_report;

/* The command that does the run again: as it was given (model_name NULL), or for a stranger,
 * with the model's bare name and no paths. Cut when it does not fit. */
char *kt_run_command(const kt_run_options *o, const char *model_name, char *out, size_t out_bytes);

/* Cells in the order of work, predicted time, file names. */
void kt_run_print_plan(const kt_run_report *r);

/* Tokens per second before and after, what won, how sure that is, what to do; figures when they
 * were asked for. */
void kt_run_print_end(const kt_run_report *r);

/* How sure the run is, as exit codes 6 and 7 are about. */
kt_outcome kt_run_outcome(const kt_run_report *r);

/* Shared by the files that print the report. */
void kt_run_begin_json(const kt_run_report *r, kt_json_writer *w);
void kt_run_end_json(kt_json_writer *w);
void kt_run_print_trace(const kt_trace *trace);

#endif
