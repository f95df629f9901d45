/* kttune run: measure a model's cells and write the dispatch table. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "kt/version.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/workbench.h"
#include "tuner/measure/cold.h"
#include "tuner/report/progress.h"
#include "tuner/report/results.h"
#include "tuner/session/session.h"
#include "tuner/space/shapes.h"

/* Up to this budget the quick selection of cells; time to write the table at the end. */
static const double quick_budget_seconds = 180, closing_seconds = 0.2;
/* More voided rounds than this share: the figures mean little. */
static const double noisy_share = 0.3;

enum { PATH_BYTES = 1024, MAX_THREAD_COUNTS = 4 };

typedef struct run_options {
    const char *model, *format, *out, *strategy, *threads, *results;
    double budget_seconds;
    int64_t seed;
    bool resume, fresh, dry_run, json, noisy_ok;
} run_options;

typedef struct run_state {
    const kt_verb_context *context;
    run_options options;
    kt_workbench bench;
    kt_shapes shapes;
    kt_cell_list cells;
    kt_ledger ledger;
    kt_session *session;
    kt_table *table;
    char table_path[PATH_BYTES], journal_path[PATH_BYTES];
    bool ended_early;
} run_state;

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

static kt_status parse_threads(const char *text, int usable, int *out, int *n, kt_err *err) {
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
                           "--threads '%s': expected up to %d counts such as 1,2", text,
                           MAX_THREAD_COUNTS);
        out[(*n)++] = (int)v;
        text = *end ? end + 1 : end;
    }
    return *n > 0 ? KT_OK : kt_fail(err, KT_E_INVALID, "--threads: no count");
}

/* "x.kttable.json" -> "x.journal.jsonl", beside it. */
static kt_status journal_path_of(const char *table, char *out, kt_err *err) {
    static const char table_end[] = ".kttable.json";
    size_t size = strlen(table), end = sizeof table_end - 1;
    if (size > end && strcmp(table + size - end, table_end) == 0) size -= end;
    if (snprintf(out, PATH_BYTES, "%.*s.journal.jsonl", (int)size, table) >= PATH_BYTES)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", table);
    return KT_OK;
}

static kt_status make_cells(run_state *r, kt_err *err) {
    int threads[MAX_THREAD_COUNTS], n_threads;
    int format = kt_serving_format_parse(r->options.format);
    kt_profile profile =
        r->options.budget_seconds <= quick_budget_seconds ? KT_PROFILE_QUICK : KT_PROFILE_FULL;

    if (format < 0)
        return kt_fail(err, KT_E_INVALID, "--format '%s': expected native, bf16, int8 or int4",
                       r->options.format);
    KT_TRY(parse_threads(r->options.threads, r->bench.topology.usable_cores, threads, &n_threads,
                         err));
    KT_TRY(kt_shapes_find(r->options.model, &r->shapes, NULL, 0, err));
    KT_TRY(kt_cells_of_shapes(&r->shapes, (kt_serving_format)format, profile, threads, n_threads,
                              &r->cells, err));
    if (r->options.out) {
        if (snprintf(r->table_path, PATH_BYTES, "%s", r->options.out) >= PATH_BYTES)
            return kt_fail(err, KT_E_INVALID, "--out: path too long");
    } else {
        KT_TRY(kt_table_default_path(&r->bench.machine, r->shapes.name, r->table_path, PATH_BYTES,
                                     err));
    }
    return journal_path_of(r->table_path, r->journal_path, err);
}

static kt_status open_session(run_state *r, kt_err *err) {
    const kt_strategy *strategy = kt_strategy_find(r->options.strategy);
    int64_t budget_ns = (int64_t)((r->options.budget_seconds - closing_seconds) * 1e9);
    kt_session_setup setup = {.registry = r->bench.registry,
                              .machine = &r->bench.machine,
                              .cells = &r->cells,
                              .strategy = strategy,
                              .deadline_ns = r->context->start_ns + budget_ns,
                              .seed = (uint64_t)r->options.seed,
                              .stop = stop_asked,
                              .stop_arg = (void *)(uintptr_t)r->context};

    if (!strategy)
        return kt_fail(err, KT_E_INVALID, "--strategy '%s': unknown; see `kttune list strategies`",
                       r->options.strategy);
    if (r->options.budget_seconds <= 0) setup.deadline_ns = INT64_MAX;
    setup.rotation_bytes =
        kt_cold_rotation_bytes(&r->bench.machine.ceilings, r->bench.topology.llc_bytes);
    if (!r->options.dry_run) {
        KT_TRY(kt_ledger_open(r->journal_path, r->options.fresh, &r->bench.machine, r->shapes.name,
                              strategy->name, setup.seed, &r->ledger, err));
        setup.ledger = &r->ledger;
    }
    return kt_session_create(&setup, &r->session, err);
}

static void print_dry_run(const run_state *r) {
    size_t n = r->cells.n, *order = calloc(n + 1, sizeof *order);
    double *seconds = calloc(n + 1, sizeof *seconds), total = 0;
    kt_err err;

    if (order && seconds && kt_session_order(r->session, order, seconds, &err) == KT_OK) {
        for (size_t i = 0; i < n; i++) {
            const kt_tune_cell *c = &r->cells.cells[order[i]];
            char key[KT_CELL_KEY_BYTES];
            total += seconds[order[i]];
            printf("%-12s %-58s weight %.4f  about %.2f s, %.1f s so far\n", c->role,
                   kt_cell_key(&c->problem, c->threads, key, sizeof key), c->weight,
                   seconds[order[i]], total);
        }
        printf("%zu cells, about %.0f s\ntable   %s\njournal %s\n", n, total, r->table_path,
               r->journal_path);
    }
    free(order);
    free(seconds);
}

/* Predicted seconds of the cells that are still open, and of all. */
static void predict(const double *seconds, const size_t *order, size_t n, size_t done, double *left,
                    double *total) {
    *left = *total = 0;
    for (size_t i = 0; i < n; i++) {
        *total += seconds[order[i]];
        if (i >= done) *left += seconds[order[i]];
    }
}

static kt_status tune(run_state *r, kt_err *err) {
    size_t n = r->cells.n, *order = calloc(n + 1, sizeof *order);
    double *seconds = calloc(n + 1, sizeof *seconds), left, total;
    kt_session_progress now;
    kt_progress line;
    kt_status st = order && seconds ? kt_session_order(r->session, order, seconds, err)
                                    : kt_fail(err, KT_E_NOMEM, "run: no memory");
    int64_t deadline = r->options.budget_seconds > 0
                           ? r->context->start_ns + (int64_t)(r->options.budget_seconds * 1e9)
                           : INT64_MAX;

    kt_progress_init(&line, r->options.json ? NULL : stderr, r->context->start_ns, deadline);
    while (st == KT_OK) {
        kt_session_progress_get(r->session, &now);
        predict(seconds, order, n, now.n_decided + now.n_impossible, &left, &total);
        kt_progress_show(&line, &now, left, total);
        st = kt_session_step(r->session, err);
    }
    kt_progress_end(&line);
    r->ended_early = st == KT_E_CANCELLED;
    free(order);
    free(seconds);
    return st == KT_E_NOT_FOUND || st == KT_E_CANCELLED ? KT_OK : st;
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
    st = kt_session_rows(r->session, r->table, err);
    if (st == KT_OK) st = kt_table_save(r->table, r->table_path, err);
    return st;
}

static void print_summary(const run_state *r, const kt_session_progress *p) {
    double gain = p->n_tuned ? 100 * expm1(p->log_gain_sum / (double)p->n_tuned) : 0;
    double seconds = (double)(kt_clock_ns() - r->context->start_ns) * 1e-9;
    const char *about = gain < 100 * r->bench.machine.ceilings.aa_noise_p95 ? "≈ " : "";

    printf("%zu of %zu cells decided (%zu from the journal), %.1f %% of the serving time: "
           "%zu tuned (%s%+.1f %% geomean), %zu kept the default",
           p->n_decided, p->n_cells, p->n_reused, 100 * p->weight_done, p->n_tuned, about, gain,
           p->n_decided - p->n_tuned);
    if (p->n_impossible) printf(", %zu without a correct variant", p->n_impossible);
    printf("\n%d variants gated, %d rejected; %lld rounds, %lld voided; %.1f s\nwrote %s\n",
           p->n_gated, p->n_rejected, (long long)p->rounds, (long long)p->voided, seconds,
           r->table_path);
    if (r->ended_early)
        printf("to go on: kttune run --model %s --format %s --resume --out %s\n", r->options.model,
               r->options.format, r->table_path);
}

static void print_json(const run_state *r, const kt_session_progress *p) {
    kt_json_writer w = {.indent = 2};
    const char *text;
    kt_json_begin_object(&w);
    kt_json_key(&w, "machine");
    kt_json_put_string(&w, r->bench.class_name);
    kt_json_key(&w, "table");
    kt_json_put_string(&w, r->table_path);
    kt_json_key(&w, "cells");
    kt_json_put_int(&w, (int64_t)p->n_cells);
    kt_json_key(&w, "decided");
    kt_json_put_int(&w, (int64_t)p->n_decided);
    kt_json_key(&w, "tuned");
    kt_json_put_int(&w, (int64_t)p->n_tuned);
    kt_json_key(&w, "rejected");
    kt_json_put_int(&w, p->n_rejected);
    kt_json_key(&w, "gain_geomean");
    kt_json_put_double(&w, p->n_tuned ? expm1(p->log_gain_sum / (double)p->n_tuned) : 0);
    kt_json_key(&w, "seconds");
    kt_json_put_fixed(&w, (double)(kt_clock_ns() - r->context->start_ns) * 1e-9, 2);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, NULL);
    if (text) puts(text);
    kt_json_writer_deinit(&w);
}

static int exit_code(const run_state *r, const kt_session_progress *p) {
    if (*r->context->stop) return KT_TUNE_INTERRUPTED;
    if (p->n_decided + p->n_impossible < p->n_cells) return KT_TUNE_UNDECIDED;
    if (!r->options.noisy_ok && (double)p->voided > noisy_share * (double)p->rounds)
        return KT_TUNE_NOISY;
    return KT_TUNE_OK;
}

static kt_status run_all(run_state *r, int *code, kt_err *err) {
    kt_session_progress p;

    KT_TRY(kt_workbench_init(&r->bench, true, err));
    KT_TRY(make_cells(r, err));
    KT_TRY(open_session(r, err));
    if (r->options.dry_run) {
        print_dry_run(r);
        *code = KT_TUNE_OK;
        return KT_OK;
    }
    KT_TRY(tune(r, err));
    KT_TRY(write_table(r, err));
    kt_session_progress_get(r->session, &p);
    KT_TRY(kt_ledger_end(&r->ledger, r->ended_early ? "stopped" : "complete", err));
    if (r->options.json)
        print_json(r, &p);
    else
        print_summary(r, &p);
    if (r->options.results)
        KT_TRY(kt_results_write(r->options.results, r->bench.class_name, r->options.model,
                                r->options.format, r->table_path, r->journal_path,
                                &r->bench.topology, &r->bench.machine, err));
    *code = exit_code(r, &p);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    run_state r = {.context = context,
                   .options = {.format = "native", .strategy = "auto", .seed = 1}};
    run_options *o = &r.options;
    const kt_switch switches[] = {
        {"model", KT_SWITCH_TEXT, &o->model, "DIR|NAME", "whose shapes to tune (required)"},
        {"format", KT_SWITCH_TEXT, &o->format, "F",
         "native, bf16, int8 or int4 (experts int4, rest int8); default native"},
        {"budget", KT_SWITCH_DURATION, &o->budget_seconds, "TIME",
         "hard limit, 60s or 10m; up to 3m the quick choice of cells; default none"},
        {"out", KT_SWITCH_TEXT, &o->out, "FILE", "the table; default where serving looks for it"},
        {"resume", KT_SWITCH_FLAG, &o->resume, NULL, "take over what the journal holds (default)"},
        {"fresh", KT_SWITCH_FLAG, &o->fresh, NULL, "forget the journal"},
        {"threads", KT_SWITCH_TEXT, &o->threads, "N,N", "thread counts; default 1 and all cores"},
        {"strategy", KT_SWITCH_TEXT, &o->strategy, "NAME",
         "auto, exhaustive, random; default auto"},
        {"seed", KT_SWITCH_COUNT, &o->seed, "N", "orders and resamples; default 1"},
        {"results", KT_SWITCH_TEXT, &o->results, "DIR",
         "also put table, journal and machine under DIR/<machine class>/"},
        {"noisy-ok", KT_SWITCH_FLAG, &o->noisy_ok, NULL, "no exit code 7 on a busy machine"},
        {"dry-run", KT_SWITCH_FLAG, &o->dry_run, NULL, "print cells, predicted time, file names"},
        {"json", KT_SWITCH_FLAG, &o->json, NULL, "print a JSON summary, no progress"},
    };
    const kt_verb_usage usage = {
        "run", "--model DIR|NAME ",
        "Tune this machine for a model. Each cell (matrix shape, rows, threads) is decided by a "
        "race\n"
        "of all correct variants on cold weights; a variant replaces the default only when it "
        "wins\n"
        "again on fresh samples. Ctrl-C writes a valid table of what is decided.",
        "  kttune run --model tiny-moe --budget 60s\n"
        "  kttune run --model ~/models/Qwen3-30B-A3B --format int4 --budget 10m --threads 2\n"};
    const char *words[1];
    int n_words = 0, result = KT_TUNE_INTERNAL;
    kt_err err = {0};
    kt_status st;
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 words, 1, &n_words);

    if (code >= 0) return code;
    if (!o->model && n_words == 1) o->model = words[0];
    if (!o->model) return kt_switch_fail(&usage, "--model is missing");
    if (o->fresh && o->resume)
        return kt_switch_fail(&usage, "--resume and --fresh exclude each other");
    st = run_all(&r, &result, &err);
    kt_session_destroy(r.session);
    kt_ledger_close(&r.ledger);
    kt_table_destroy(r.table);
    kt_cell_list_deinit(&r.cells);
    kt_workbench_deinit(&r.bench);
    if (st == KT_E_MISMATCH) { /* another tuner holds the journal */
        kt_verb_fail(&err);
        return KT_TUNE_RESOURCE;
    }
    return st == KT_OK ? result : kt_verb_fail(&err);
}

const kt_verb kt_verb_run = {
    .name = "run", .summary = "tune this machine for a model, write the table", .run = run};
