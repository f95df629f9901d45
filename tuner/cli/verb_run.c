/* kttune run: measure a model's cells and write the dispatch table.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "kt/version.h"
#include "tuner/cli/run_device.h"
#include "tuner/cli/run_plans.h"
#include "tuner/cli/run_report.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/workbench.h"
#include "tuner/measure/cold.h"
#include "tuner/report/progress.h"
#include "tuner/report/results.h"
#include "tuner/session/encodings.h"
#include "tuner/space/cell_filter.h"
#include "tuner/space/workload.h"
#include "tuner/store/table_union.h"

/* Up to this budget the quick selection of cells; time to write the table at the end. */
static const double quick_budget_seconds = 180, closing_seconds = 0.4;

enum { PATH_BYTES = KT_RUN_PATH_BYTES, MAX_THREAD_COUNTS = KT_MAX_THREAD_COUNTS };

typedef struct run_state {
    const kt_verb_context *context;
    kt_run_options options;
    kt_workbench bench;
    kt_workload workload; /* of whose routing trace part points into it: not to be moved */
    kt_cell_list cells;
    int most_threads;
    kt_ledger ledger;
    kt_session *session;
    kt_progress line;
    kt_table *table;
    char table_path[PATH_BYTES], journal_path[PATH_BYTES], command[PATH_BYTES];
    size_t n_kept_rows;
    bool ended_early, is_foreign;
    int n_plans_open; /* plan cells that time was too short for */
    kt_layer_spent plan_spent;
} run_state;

/* Asked between samples: the place to show progress as well. */
static bool stop_asked(void *arg) {
    run_state *r = arg;
    if (r->session) kt_progress_show(&r->line, r->session);
    return *r->context->stop != 0;
}

static kt_status parse_threads(const char *text, int usable, int *out, int *n, kt_err *err) {
    const char *all = text;
    *n = 0;
    if (!text) {
        out[(*n)++] = 1;
        if (usable > 1) out[(*n)++] = usable;
        return KT_OK;
    }
    while (*text) {
        char *end;
        long v = strtol(text, &end, 10);
        if (end == text || v < 1 || v > 4096 || (*end && *end != ',') || *n == MAX_THREAD_COUNTS)
            return kt_fail(err, KT_E_INVALID,
                           "--threads '%s': expected up to %d counts such as 1,2", all,
                           MAX_THREAD_COUNTS);
        out[(*n)++] = (int)v;
        text = *end ? end + 1 : end;
    }
    return *n > 0 ? KT_OK : kt_fail(err, KT_E_INVALID, "--threads: no count");
}

/* Shards that share a folder get files of their own: x.shard-1-of-4.kttable.json. */
static kt_status name_shard(run_state *r, kt_err *err) {
    static const char table_end[] = ".kttable.json";
    size_t stem = strlen(r->table_path) - (sizeof table_end - 1);
    int n;

    if (r->options.shard[1] == 0) return KT_OK;
    n = snprintf(r->table_path + stem, PATH_BYTES - stem, ".shard-%lld-of-%lld%s",
                 (long long)r->options.shard[0], (long long)r->options.shard[1], table_end);
    return n > 0 && (size_t)n < PATH_BYTES - stem
               ? KT_OK
               : kt_fail(err, KT_E_INVALID, "%s: path too long", r->table_path);
}

/* Only a model: the usual mix of cells. A workload, a mix or a routing: what those say. */
static kt_status find_workload(run_state *r, kt_err *err) {
    const kt_run_options *o = &r->options;
    kt_workload_request request = {o->workload, o->model, o->mix, o->routing};
    int cache = kt_cache_state_parse(o->cache);

    if (cache < 0)
        return kt_fail(err, KT_E_INVALID, "--cache '%.40s': expected served, cold or warm",
                       o->cache);
    if (strcmp(o->numa, "local") != 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "--numa '%.40s': only local is measured; this machine has %d memory node%s",
                       o->numa, r->bench.topology.numa_nodes,
                       r->bench.topology.numa_nodes == 1 ? "" : "s");
    KT_TRY(kt_workload_find(&request, &r->workload, err));
    if (cache != KT_CACHE_SERVED) r->workload.cache = (kt_cache_state)cache;
    if (r->workload.cache != KT_CACHE_SERVED && !o->out)
        return kt_fail(err, KT_E_INVALID,
                       "--cache %s needs --out FILE: such rows are for study, and the table that "
                       "serving finds keeps those measured as it is served",
                       kt_cache_state_name(r->workload.cache));
    return KT_OK;
}

static kt_status choose_threads(run_state *r, int *threads, int *n, kt_err *err) {
    if (r->options.threads || r->workload.n_threads == 0)
        return parse_threads(r->options.threads, r->bench.topology.usable_cores, threads, n, err);
    *n = r->workload.n_threads;
    memcpy(threads, r->workload.threads, (size_t)*n * sizeof *threads);
    return KT_OK;
}

/* The format that was asked for, else the one that was recorded, else the checkpoint's own. */
static kt_status choose_format(run_state *r, kt_err *err) {
    kt_run_options *o = &r->options;
    const bool is_recorded = o->workload && !o->routing && r->workload.routing.trace;
    const char *recorded = is_recorded ? r->workload.trace.weights : "";
    const bool is_known = *recorded && kt_serving_format_parse(recorded) >= 0;

    if (!o->format) o->format = is_known ? recorded : "native";
    if (kt_serving_format_parse(o->format) < 0)
        return kt_fail(err, KT_E_INVALID, "--format '%s': expected native, bf16, int8 or int4",
                       o->format);
    if (*recorded && strcmp(recorded, o->format) != 0)
        fprintf(stderr, "kttune run: %s was recorded with --weights %s; tuning %s%s\n", o->workload,
                recorded, o->format, is_known ? "" : ", since no --format is like it");
    return KT_OK;
}

static kt_status make_cells(run_state *r, kt_err *err) {
    const kt_run_options *o = &r->options;
    int threads[MAX_THREAD_COUNTS], n_threads, format;
    kt_profile profile =
        o->budget_seconds <= quick_budget_seconds ? KT_PROFILE_QUICK : KT_PROFILE_FULL;

    if (o->format && kt_serving_format_parse(o->format) < 0)
        return kt_fail(err, KT_E_INVALID, "--format '%s': expected native, bf16, int8 or int4",
                       o->format);
    KT_TRY(find_workload(r, err));
    KT_TRY(choose_format(r, err));
    format = kt_serving_format_parse(o->format);
    KT_TRY(choose_threads(r, threads, &n_threads, err));
    KT_TRY((o->workload || o->mix || o->routing
                ? kt_cells_of_workload(&r->workload, (kt_serving_format)format, profile, threads,
                                       n_threads, &r->cells, err)
                : kt_cells_of_shapes(&r->workload.shapes, (kt_serving_format)format, profile,
                                     threads, n_threads, &r->cells, err)));
    if (o->cells) KT_TRY(kt_cells_filter(&r->cells, o->cells, err));
    if (o->shard[0] || o->shard[1])
        KT_TRY(kt_cells_shard(&r->cells, o->shard[0], o->shard[1], err));
    if (o->out) {
        if (snprintf(r->table_path, PATH_BYTES, "%s", o->out) >= PATH_BYTES)
            return kt_fail(err, KT_E_INVALID, "--out: path too long");
    } else {
        KT_TRY(kt_table_default_path(&r->bench.machine, r->workload.shapes.name,
                                     r->workload.shapes.shape_id, r->table_path, PATH_BYTES, err));
        KT_TRY(name_shard(r, err));
    }
    for (int i = 0; i < n_threads; i++)
        if (threads[i] > r->most_threads) r->most_threads = threads[i];
    return kt_journal_path_of(r->table_path, r->journal_path, PATH_BYTES, err);
}

/* Bytes that the weights of a trial rotate through. */
static size_t rotation_of(const run_state *r) {
    const kt_ceilings *c = &r->bench.machine.ceilings;
    size_t llc = r->bench.topology.llc_bytes;
    kt_serving_format format = (kt_serving_format)kt_serving_format_parse(r->options.format);

    if (r->workload.cache == KT_CACHE_WARM) return 0;
    if (r->workload.cache == KT_CACHE_COLD) return kt_cold_rotation_bytes(c, llc);
    return kt_cold_rotation_of_model(c, llc, kt_shapes_weight_bytes(&r->workload.shapes, format));
}

/* The default path has the machine's class in it; a file that was named may be anybody's, and
 * the rows of another machine are not ours to replace. */
static kt_status check_out(run_state *r, kt_err *err) {
    kt_table *old = NULL;
    kt_err why = {0};
    kt_status st = KT_OK;
    struct stat info;

    if (r->options.out && stat(r->table_path, &info) == 0 && !S_ISREG(info.st_mode))
        return kt_fail(err, KT_E_INVALID, "--out '%s': is no file; expected a file or a new name",
                       r->table_path);
    if (!r->options.out || kt_table_load(r->table_path, &old, NULL) != KT_OK) return KT_OK;
    if (old->shape_id && r->workload.shapes.shape_id &&
        old->shape_id != r->workload.shapes.shape_id) {
        st = kt_fail(err, KT_E_MISMATCH,
                     "%s holds the rows of another model ('%s'), expected a new file or one of "
                     "'%.60s'; `kttune merge` joins tables",
                     r->table_path, old->workload, r->workload.shapes.name);
        r->is_foreign = true;
    } else if (kt_fingerprint_compare(&old->fingerprint, &r->bench.machine, &why) ==
               KT_MATCH_OTHER) {
        st = kt_fail(err, KT_E_MISMATCH,
                     "%s holds the rows of another machine (%.300s); expected a new file or one of "
                     "this machine",
                     r->table_path, why.message);
        r->is_foreign = true;
    }
    kt_table_destroy(old);
    return st;
}

/* When the budget, or this share of it, is over. */
static int64_t deadline_of(const run_state *r, double share) {
    if (r->options.budget_seconds <= 0) return INT64_MAX;
    return r->context->start_ns +
           (int64_t)((r->options.budget_seconds - closing_seconds) * share * 1e9);
}

static kt_session_setup session_of(run_state *r, const kt_cell_list *cells, int64_t deadline_ns) {
    return (kt_session_setup){.registry = r->bench.registry,
                              .machine = &r->bench.machine,
                              .cells = cells,
                              .strategy = kt_strategy_find(r->options.strategy),
                              .ledger = r->options.dry_run ? NULL : &r->ledger,
                              .rotation_bytes = rotation_of(r),
                              .deadline_ns = deadline_ns,
                              .keeps_classes = r->options.deterministic,
                              .oracle = r->options.oracle,
                              .widest = r->options.widest,
                              .seed = (uint64_t)r->options.seed,
                              .stop = stop_asked,
                              .stop_arg = r};
}

static kt_status open_ledger(run_state *r, kt_err *err) {
    kt_ledger_session session = {.machine = &r->bench.machine,
                                 .workload = r->workload.shapes.name,
                                 .strategy = r->options.strategy,
                                 .command = r->command,
                                 .seed = (uint64_t)r->options.seed};

    if (!kt_strategy_find(r->options.strategy))
        return kt_fail(err, KT_E_INVALID, "--strategy '%s': unknown; see `kttune list strategies`",
                       r->options.strategy);
    kt_run_command(&r->options, r->workload.shapes.name, r->command, sizeof r->command);
    if (r->options.dry_run) return KT_OK;
    KT_TRY(kt_ledger_open(r->journal_path, &session, &r->ledger, err));
    if (kt_journal_dropped(r->ledger.journal) > 0)
        fprintf(stderr, "kttune: %s: %zu damaged lines are ignored\n", r->journal_path,
                kt_journal_dropped(r->ledger.journal));
    return KT_OK;
}

/* What the journal has of these cells, in either encoding. */
static kt_status forget(run_state *r, kt_err *err) {
    for (size_t i = 0; i < r->cells.n; i++) {
        kt_tune_cell cell = r->cells.cells[i];
        kt_act_format own, fast;
        KT_TRY(kt_ledger_forget(&r->ledger, &cell, err));
        if (!kt_has_two_encodings(r->bench.registry, &cell.problem, &own, &fast)) continue;
        cell.problem.acts = cell.problem.acts == own ? fast : own;
        KT_TRY(kt_ledger_forget(&r->ledger, &cell, err));
    }
    return KT_OK;
}

static kt_status open_session(run_state *r, kt_err *err) {
    const kt_session_setup setup = session_of(r, &r->cells, deadline_of(r, 1));
    return kt_session_create(&setup, &r->session, err);
}

/* Is the whole model tuned, as it is served? Only then is there a say in what all its rows
 * share. */
static bool is_whole(const run_state *r) {
    const kt_run_options *o = &r->options;
    return !o->cells && o->shard[1] == 0 && r->workload.cache == KT_CACHE_SERVED;
}

/* Encodings of activations as the table that is there has them, or as serving has them without
 * one; or the one that was asked for. */
static kt_status take_encodings(run_state *r, kt_err *err) {
    const bool keeps_bits = r->options.deterministic;
    kt_table *old = NULL;
    kt_status st;

    if (!keeps_bits && kt_table_load(r->table_path, &old, NULL) == KT_OK &&
        !kt_same_tuning_machine(&old->fingerprint, &r->bench.machine)) {
        kt_table_destroy(old);
        old = NULL;
    }
    st = kt_take_encodings(r->bench.registry, &r->bench.machine, old, keeps_bits, &r->cells, NULL,
                           err);
    if (st == KT_OK && r->options.acts)
        st = kt_give_encoding(r->bench.registry, r->options.acts, &r->cells, err);
    kt_table_destroy(old);
    return st;
}

/* Steps until all of its cells are decided or time is over. */
static kt_status run_session(kt_session *session, kt_err *err) {
    kt_status st = KT_OK;

    while (st == KT_OK) st = kt_session_step(session, err);
    return st == KT_E_NOT_FOUND || st == KT_E_CANCELLED ? KT_OK : st;
}

/* Race what decides between two encodings, and give all cells the faster one. These races cost
 * no time twice: their rows are in the journal. Where a fifth of the budget is too short for
 * them, cells keep what they have. */
static kt_status race_encodings(run_state *r, kt_err *err) {
    kt_cell_list probes = {0};
    kt_session *session = NULL;
    kt_session_progress p = {0};
    kt_table *table = NULL;
    kt_status st = kt_encoding_probes(r->bench.registry, &r->cells, &probes, err);

    if (st == KT_OK && probes.n > 0) {
        if (!r->options.json)
            fprintf(stderr, "racing two encodings of activations in %zu cells ..\n", probes.n);
        const kt_session_setup setup = session_of(r, &probes, deadline_of(r, 0.2));
        st = kt_session_create(&setup, &session, err);
        if (st == KT_OK) st = run_session(session, err);
        if (st == KT_OK) st = kt_table_create(&table, err);
        if (st == KT_OK) {
            table->fingerprint = r->bench.machine;
            kt_session_progress_get(session, &p);
            st = kt_session_rows(session, table, err);
        }
        if (st == KT_OK && p.n_decided + p.n_undecided == probes.n)
            st = kt_take_encodings(r->bench.registry, &r->bench.machine, table, false, &r->cells,
                                   NULL, err);
    }
    kt_session_destroy(session);
    kt_table_destroy(table);
    kt_cell_list_deinit(&probes);
    return st;
}

static kt_status tune(run_state *r, kt_err *err) {
    kt_status st = KT_OK;
    int64_t deadline = r->options.budget_seconds > 0
                           ? r->context->start_ns + (int64_t)(r->options.budget_seconds * 1e9)
                           : INT64_MAX;

    kt_progress_init(&r->line, r->options.json ? NULL : stderr, r->context->start_ns, deadline);
    while (st == KT_OK) {
        kt_progress_show(&r->line, r->session);
        st = kt_session_step(r->session, err);
    }
    kt_progress_end(&r->line);
    r->ended_early = st == KT_E_CANCELLED;
    return st == KT_E_NOT_FOUND || st == KT_E_CANCELLED ? KT_OK : st;
}

/* Rows of other formats, thread counts and earlier, longer runs stay valid. A table that cannot be
 * read, or is of another machine, is replaced. */
static kt_status keep_old_rows(run_state *r, kt_err *err) {
    kt_table *old = NULL;
    kt_status st = KT_OK;

    if (kt_table_load(r->table_path, &old, NULL) != KT_OK) return KT_OK;
    if (kt_same_tuning_machine(&old->fingerprint, &r->bench.machine))
        st = kt_table_add_missing(r->table, old, r->bench.registry, &r->n_kept_rows, err);
    kt_table_destroy(old);
    return st;
}

static kt_status write_table(run_state *r, kt_err *err) {
    kt_status st;
    time_t now = (time_t)(kt_clock_unix_ms() / 1000);
    struct tm utc;

    KT_TRY(kt_table_create(&r->table, err));
    r->table->fingerprint = r->bench.machine;
    snprintf(r->table->build, sizeof r->table->build, "kt %s, compiler %.64s", KT_VERSION,
             __VERSION__);
    snprintf(r->table->workload, sizeof r->table->workload, "%s", r->cells.workload);
    if (gmtime_r(&now, &utc))
        strftime(r->table->created, sizeof r->table->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    r->table->shape_id = r->workload.shapes.shape_id;
    st = kt_session_rows(r->session, r->table, err);
    if (st == KT_OK) st = keep_old_rows(r, err);
    if (st == KT_OK) st = kt_table_save(r->table, r->table_path, err);
    return st;
}

static bool stop_asked_quietly(void *arg) {
    const run_state *r = arg;
    return *r->context->stop != 0;
}

/* A part of the cells, or weights elsewhere than as served, say nothing about layers. */
static bool wants_plans(const run_state *r) {
    const kt_run_options *o = &r->options;
    if (o->plans) return strcmp(o->plans, "no") != 0;
    return is_whole(r);
}

static kt_status decide_plans(run_state *r, kt_err *err) {
    const kt_run_options *o = &r->options;
    kt_serving_format format = (kt_serving_format)kt_serving_format_parse(o->format);
    kt_layer_session_setup setup = {.registry = r->bench.registry,
                                    .machine = &r->bench.machine,
                                    .table = r->table,
                                    .shapes = &r->workload.shapes,
                                    .format = format,
                                    .ledger = &r->ledger,
                                    .is_fresh = o->fresh,
                                    .widest = o->widest,
                                    .rotation_bytes = rotation_of(r),
                                    .threads = r->most_threads,
                                    .deadline_ns = deadline_of(r, 1),
                                    .seed = (uint64_t)o->seed,
                                    .stop = stop_asked_quietly,
                                    .stop_arg = r};
    kt_plan_cells cells;
    int n = 0;

    kt_plan_cells_of(&r->workload.shapes, format,
                     o->budget_seconds <= quick_budget_seconds ? KT_PROFILE_QUICK : KT_PROFILE_FULL,
                     setup.threads, &cells);
    if (cells.n == 0) return KT_OK;
    KT_TRY(kt_take_encodings(r->bench.registry, &r->bench.machine, r->table, o->deterministic, NULL,
                             &cells, err));
    KT_TRY(
        kt_run_plans(&setup, &cells, r->table, o->json ? NULL : stderr, &n, &r->plan_spent, err));
    for (int i = 0; i < cells.n; i++) r->n_plans_open += cells.list[i].refused == NULL;
    r->n_plans_open -= n;
    return kt_table_save(r->table, r->table_path, err);
}

/* Noise comes first: who is told of undecided cells only would run again on a machine that
 * disturbs again. */
static int exit_code(const run_state *r, const kt_outcome *o) {
    const bool minds_noise = !r->options.noisy_ok;

    if (*r->context->stop) return KT_TUNE_INTERRUPTED;
    if (minds_noise && kt_outcome_is_noisy(o)) return KT_TUNE_NOISY;
    if (o->n_open > 0) return KT_TUNE_UNDECIDED;
    return minds_noise && o->n_undecided > 0 ? KT_TUNE_UNDECIDED : KT_TUNE_OK;
}

static kt_run_report report_of(const run_state *r) {
    return (kt_run_report){.options = &r->options,
                           .session = r->session,
                           .bench = &r->bench,
                           .table = r->table,
                           .trace = r->workload.routing.trace,
                           .class_name = r->bench.class_name,
                           .table_path = r->table_path,
                           .journal_path = r->journal_path,
                           .aa_noise = r->bench.machine.ceilings.aa_noise_p95,
                           .seconds = (double)(kt_clock_ns() - r->context->start_ns) * 1e-9,
                           .n_kept_rows = r->n_kept_rows,
                           .plan_spent = r->plan_spent,
                           .n_plans_open = r->n_plans_open,
                           .ended_early = r->ended_early};
}

/* Where the session's time went, and what it leaves. */
static kt_status end_journal(run_state *r, const kt_outcome *o, kt_err *err) {
    kt_session_progress p;
    kt_session_times times;

    kt_session_progress_get(r->session, &p);
    times = (kt_session_times){.wall = (double)(kt_clock_ns() - r->context->start_ns) * 1e-9,
                               .kernels = p.kernel_seconds + r->plan_spent.kernel_seconds,
                               .gates = p.gate_seconds,
                               .setup = p.setup_seconds + r->plan_spent.setup_seconds,
                               .n_cells = o->n_cells,
                               .n_open = o->n_open,
                               .n_undecided = o->n_undecided};
    return kt_ledger_end(&r->ledger, r->ended_early ? "stopped" : "complete", &times, err);
}

static kt_status run_device(run_state *r, int *code, kt_err *err) {
    const kt_run_options *o = &r->options;
    const kt_device_tuning run = {.options = o,
                                  .machine = &r->bench.machine,
                                  .cells = &r->cells,
                                  .shape_id = r->workload.shapes.shape_id,
                                  .table_path = r->table_path,
                                  .threads = r->most_threads,
                                  .deadline_ns = deadline_of(r, 1),
                                  .stop = r->context->stop};

    return kt_run_device(&run, code, err);
}

static kt_status run_all(run_state *r, int *code, kt_err *err) {
    kt_run_report report;
    kt_outcome outcome;
    kt_status st;

    KT_TRY(kt_workbench_init(&r->bench, !r->options.device, err));
    KT_TRY(make_cells(r, err));
    KT_TRY(take_encodings(r, err));
    KT_TRY(check_out(r, err));
    if (r->options.device) return run_device(r, code, err);
    KT_TRY(open_ledger(r, err));
    if (r->options.fresh && !r->options.dry_run) KT_TRY(forget(r, err));
    if (is_whole(r) && !r->options.deterministic && !r->options.acts && !r->options.dry_run)
        KT_TRY(race_encodings(r, err));
    KT_TRY(open_session(r, err));
    if (r->options.dry_run) {
        report = report_of(r);
        kt_run_print_plan(&report);
        *code = KT_TUNE_OK;
        return KT_OK;
    }
    st = tune(r, err);
    KT_TRY(write_table(r, st == KT_OK ? err : NULL)); /* what is decided is worth keeping */
    if (st != KT_OK) return st;
    if (!r->ended_early && wants_plans(r)) KT_TRY(decide_plans(r, err));
    report = report_of(r);
    outcome = kt_run_outcome(&report);
    KT_TRY(end_journal(r, &outcome, err));
    kt_run_print_end(&report);
    if (r->options.results)
        KT_TRY(kt_results_write(r->options.results, r->table_path, r->journal_path,
                                &r->bench.machine, err));
    *code = exit_code(r, &outcome);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    run_state r = {.context = context,
                   .options = {.strategy = "auto", .cache = "served", .numa = "local", .seed = 1}};
    kt_run_options *o = &r.options;
    const kt_switch switches[] = {
        {"model", KT_SWITCH_TEXT, &o->model, "DIR|NAME", "whose shapes to tune"},
        {"workload", KT_SWITCH_TEXT, &o->workload, "NAME|FILE",
         "weigh cells by its serving mix and routing; its shapes unless --model is given. FILE may "
         "be "
         "what `kt serve --record-workload` wrote"},
        {"mix", KT_SWITCH_TEXT, &o->mix, "NAME",
         "one of the workload's mixes; default its own choice, or all"},
        {"routing", KT_SWITCH_TEXT, &o->routing, "R",
         "uniform, zipf:0.6, dirichlet:0.3 or trace:FILE; default the workload's"},
        {"format", KT_SWITCH_TEXT, &o->format, "F",
         "native, bf16, int8 or int4 (experts int4, rest int8); default what was recorded, or "
         "native"},
        {"acts", KT_SWITCH_TEXT, &o->acts, "F",
         "encoding of activations where kernels read two, a8 or a8p; default what serving takes"},
        {"budget", KT_SWITCH_DURATION, &o->budget_seconds, "TIME",
         "hard limit, 60s or 10m; up to 3m the quick choice of cells; 0s = none (default)"},
        {"out", KT_SWITCH_TEXT, &o->out, "FILE", "the table; default where serving looks for it"},
        {"resume", KT_SWITCH_FLAG, &o->resume, NULL, "take over what the journal holds (default)"},
        {"fresh", KT_SWITCH_FLAG, &o->fresh, NULL,
         "measure all these cells again, whatever the journal holds"},
        {"threads", KT_SWITCH_TEXT, &o->threads, "N,N", "thread counts; default 1 and all cores"},
        {"cells", KT_SWITCH_TEXT, &o->cells, "COND,..",
         "only these: m<=4, m>=64, threads=2, op=gemm, role=experts"},
        {"cache", KT_SWITCH_TEXT, &o->cache, "STATE",
         "weights while timed: served (default), cold, warm; the last two need --out"},
        {"numa", KT_SWITCH_TEXT, &o->numa, "MODE", "memory of the weights: local (default)"},
        {"plans", KT_SWITCH_TEXT, &o->plans, "yes|no",
         "decide plan cells (layers, threads, spin) too; default yes for whole runs"},
        {"device", KT_SWITCH_TEXT, &o->device, "DEVICE",
         "tune cuda[:N] instead of the CPU: its rows come beside those of the CPU"},
        {"device-rows", KT_SWITCH_TEXT, &o->device_rows, "N,N",
         "rows of calls on the device; default 1 to 2048"},
        {"pretend-clock", KT_SWITCH_FLAG, &o->pretend_clock, NULL,
         "for tests, with --device emulated and --out: times are computed, not taken"},
        {"shard", KT_SWITCH_SIZE, o->shard, "I/N",
         "only part I of N, for N machines of one kind; join with `kttune merge`"},
        {"strategy", KT_SWITCH_TEXT, &o->strategy, "NAME",
         "auto, exhaustive, random; default auto"},
        {"deterministic", KT_SWITCH_FLAG, &o->deterministic, NULL,
         "for serving with kt ... --deterministic: its encoding of activations, and every race has "
         "the best of each class of bits; says at the end what each matrix keeps"},
        {"oracle", KT_SWITCH_FLAG, &o->oracle, NULL,
         "after each decision measure every contender: what did the strategy miss?"},
        {"profile-self", KT_SWITCH_FLAG, &o->profile_self, NULL,
         "say where the time went: kernels, gates, packing, the tuner itself"},
        {"seed", KT_SWITCH_COUNT, &o->seed, "N", "orders and resamples; default 1"},
        {"results", KT_SWITCH_TEXT, &o->results, "DIR",
         "also put table, journal, machine and README under DIR/<machine class>/"},
        {"noisy-ok", KT_SWITCH_FLAG, &o->noisy_ok, NULL,
         "no exit code 7 or, for undecided cells, 6 on a busy machine"},
        {"widest", KT_SWITCH_SHARE, &o->widest, "SHARE",
         "half an interval that is wider leaves its cell undecided; default 10%"},
        {"verbose", KT_SWITCH_FLAG, &o->verbose, NULL,
         "more figures at the end, and every decision about whole layers (-v)"},
        {"dry-run", KT_SWITCH_FLAG, &o->dry_run, NULL, "print cells, predicted time, file names"},
        {"json", KT_SWITCH_FLAG, &o->json, NULL, "print a JSON summary, no progress"},
    };
    const kt_verb_usage usage = {
        "run", "--model DIR|NAME | --workload NAME|FILE ",
        "Tune this machine for a model. Each cell (matrix shape, rows, threads) is decided by a "
        "race\n"
        "of all correct variants on cold weights; a variant replaces the default only when it "
        "wins\n"
        "again on fresh samples. Ctrl-C writes a valid table of what is decided.",
        "  kttune run --model tiny-moe --budget 60s\n"
        "  kttune run --model ~/models/Qwen3-30B-A3B --format int4 --budget 10m --threads 2\n"
        "  kttune run --model ~/models/Qwen3-30B-A3B --format int4 --device cuda\n"
        "  kttune run --workload Qwen3-30B-A3B --mix chat-8 --routing zipf:1.0 --dry-run\n"
        "  kttune run --workload recorded.jsonl --budget 5m\n"};
    const char *words[1];
    int n_words = 0, result = KT_TUNE_INTERNAL;
    bool has_journal;
    kt_err err = {0};
    kt_status st;
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 words, 1, &n_words);

    if (code >= 0) return code;
    if (!o->model && n_words == 1) o->model = words[0];
    if (!o->model && !o->workload)
        return kt_switch_fail(&usage, "--model or --workload is missing");
    if (n_words == 1 && o->model != words[0])
        return kt_switch_fail(&usage, "'%s' is one argument too many", words[0]);
    if (o->fresh && o->resume)
        return kt_switch_fail(&usage, "--resume and --fresh exclude each other");
    if (o->plans && strcmp(o->plans, "yes") != 0 && strcmp(o->plans, "no") != 0)
        return kt_switch_fail(&usage, "--plans '%s': expected yes or no", o->plans);
    st = run_all(&r, &result, &err);
    has_journal = r.ledger.journal != NULL;
    kt_session_destroy(r.session);
    kt_ledger_close(&r.ledger);
    kt_table_destroy(r.table);
    kt_cell_list_deinit(&r.cells);
    kt_workload_deinit(&r.workload);
    kt_workbench_deinit(&r.bench);
    if (st == KT_OK) return result;
    if (st == KT_E_IO && has_journal)
        fprintf(stderr,
                "kttune run: nothing that was decided is lost: it lies in %s, and the same command "
                "goes on from there when files can be written again\n",
                r.journal_path);
    return r.is_foreign ? kt_table_verb_fail(&err) : kt_verb_fail(&err);
}

const kt_verb kt_verb_run = {.name = "run",
                             .summary = "tune this machine for a model, write the table",
                             .run = run,
                             .finishes_on_signal = true};
