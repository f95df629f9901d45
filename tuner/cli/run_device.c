/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/cli/run_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/device/device_word.h"
#include "kt/version.h"
#include "tuner/session/device_session.h"

enum { MOST_ROWS = 32, LARGEST_ROWS = 4096, PRETENDED_MOST = 4, MOST_CONTENDERS = 96 };
static const int64_t usual_rows[] = {1, 2, 4, 8, 16, 64, 256, 512, 2048};
/* Four times the largest cache of the GPUs that are known. */
static const size_t rotation_bytes = (size_t)512 << 20, pretended_rotation = 1;

typedef struct device_state {
    const kt_device_tuning *run;
    kt_device_options device;
    int64_t rows[MOST_ROWS];
    int n_rows;
    kt_table *table;
    kt_device_outcome outcome;
} device_state;

static kt_status read_rows(device_state *s, kt_err *err) {
    const char *all = s->run->options->device_rows, *at = all;

    if (!all) {
        s->n_rows = (int)(sizeof usual_rows / sizeof *usual_rows);
        memcpy(s->rows, usual_rows, sizeof usual_rows);
        return KT_OK;
    }
    while (*at) {
        char *end;
        const long v = strtol(at, &end, 10);
        if (end == at || v < 1 || v > LARGEST_ROWS || (*end && *end != ',') ||
            s->n_rows == MOST_ROWS || (s->n_rows && v <= s->rows[s->n_rows - 1]))
            return kt_fail(err, KT_E_INVALID,
                           "--device-rows '%.60s': expected ascending numbers from 1 to %d such as "
                           "1,8,64",
                           all, LARGEST_ROWS);
        s->rows[s->n_rows++] = v;
        at = *end ? end + 1 : end;
    }
    return s->n_rows ? KT_OK : kt_fail(err, KT_E_INVALID, "--device-rows: no number");
}

/* What an emulated launch takes says nothing of any GPU. */
static kt_status check_clock(const device_state *s, kt_err *err) {
    const kt_run_options *o = s->run->options;
    const bool is_emulated = strcmp(s->device.class, "emulated") == 0;

    if (is_emulated && !o->pretend_clock)
        return kt_fail(err, KT_E_INVALID,
                       "--device %.40s: the time of an emulated launch is none of a GPU's, and a "
                       "table of it would mislead; --pretend-clock --out FILE tries the way with "
                       "computed times",
                       o->device);
    if (!is_emulated && o->pretend_clock)
        return kt_fail(err, KT_E_INVALID, "--pretend-clock: %.40s has a clock of its own",
                       o->device);
    if (o->pretend_clock && !o->out)
        return kt_fail(err, KT_E_INVALID,
                       "--pretend-clock needs --out FILE: its rows are no measurement, and the "
                       "table that serving finds keeps measured ones");
    return KT_OK;
}

static kt_status open_table(device_state *s, kt_err *err) {
    const time_t now = (time_t)(kt_clock_unix_ms() / 1000);
    struct tm utc;

    if (kt_table_load(s->run->table_path, &s->table, NULL) == KT_OK) return KT_OK;
    KT_TRY(kt_table_create(&s->table, err));
    s->table->fingerprint = *s->run->machine;
    s->table->shape_id = s->run->shape_id;
    snprintf(s->table->build, sizeof s->table->build, "kt %s, compiler %.64s", KT_VERSION,
             __VERSION__);
    snprintf(s->table->workload, sizeof s->table->workload, "%s", s->run->cells->workload);
    if (gmtime_r(&now, &utc))
        strftime(s->table->created, sizeof s->table->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return KT_OK;
}

/* ---- words ---- */

/* The table is the run's journal: a run that is killed goes on where it was. What cannot be written
 * is told at the end. */
static void decided(void *arg, const kt_device_verdict *v) {
    const device_state *s = arg;
    char key[KT_CELL_KEY_BYTES];

    kt_table_save(s->table, s->run->table_path, NULL);
    if (s->run->options->json) return;
    printf("%-60s %s %s  %.1f us, default %.1f us%s\n",
           kt_cell_key(&v->row.problem, 1, key, sizeof key), v->row.variant, v->row.config,
           v->row.time_ns / 1e3, v->row.default_ns / 1e3,
           s->run->options->pretend_clock ? " (pretended)" : "");
}

static void skipped(void *arg, const char *what) {
    const device_state *s = arg;
    if (s->run->options->verbose || !strstr(what, " spill"))
        fprintf(stderr, "kttune run: out: %s\n", what);
}

static bool stop(void *arg) {
    const device_state *s = arg;
    return *s->run->stop != 0;
}

static void print_json(const device_state *s) {
    const kt_device_outcome *o = &s->outcome;
    kt_json_writer w = {0};
    const char *text;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "device", o->device);
    kt_json_add_string(&w, "table", s->run->table_path);
    kt_json_add_bool(&w, "pretended", s->run->options->pretend_clock);
    kt_json_add_int(&w, "cells", o->n_cells);
    kt_json_add_int(&w, "decided", o->n_decided);
    kt_json_add_int(&w, "reused", o->n_reused);
    kt_json_add_int(&w, "tuned", o->n_tuned);
    kt_json_add_int(&w, "dropped", o->n_dropped);
    kt_json_add_int(&w, "voided", o->n_voided);
    kt_json_add_int(&w, "lost", o->n_lost);
    kt_json_add_int(&w, "shares", o->n_shares);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, NULL);
    if (text) puts(text);
    kt_json_writer_deinit(&w);
}

static void print_end(const device_state *s) {
    const kt_device_outcome *o = &s->outcome;

    if (s->run->options->json) {
        print_json(s);
        return;
    }
    printf("%s: %d of %d cells decided, %d of them by an earlier run (--fresh races them, too), %d "
           "of the others not by the default; %d contenders fell out, the "
           "device was lost %d times; %d plan cells\n%s\n",
           o->device, o->n_decided, o->n_cells, o->n_reused, o->n_tuned, o->n_dropped, o->n_lost,
           o->n_shares, s->run->table_path);
    if (s->run->options->pretend_clock)
        puts("These times are computed, not taken: the table is for tests alone.");
    if (o->n_shares == 0)
        puts(
            "No share of experts: the table has no rows of the CPU for them. Run without --device, "
            "too.");
}

static kt_status tune(device_state *s, int *code, kt_err *err) {
    const kt_run_options *o = s->run->options;
    const bool is_pretended = o->pretend_clock;
    const kt_device_session session = {
        .device = &s->device,
        .cells = s->run->cells,
        .rows = s->rows,
        .n_rows = s->n_rows,
        .threads = s->run->threads,
        .is_pretended = is_pretended,
        .is_fresh = o->fresh,
        .most = is_pretended ? PRETENDED_MOST : MOST_CONTENDERS,
        .rotation = is_pretended ? pretended_rotation : rotation_bytes,
        .seed = (uint64_t)o->seed,
        .deadline_ns = s->run->deadline_ns,
        .listener = {.decided = decided, .skipped = skipped, .stop = stop, .arg = s}};
    const kt_status st = kt_device_session_run(&session, s->table, &s->outcome, err);

    if (st != KT_OK && st != KT_E_CANCELLED) return st;
    KT_TRY(kt_table_save(s->table, s->run->table_path, err));
    print_end(s);
    *code = st == KT_E_CANCELLED                        ? KT_TUNE_INTERRUPTED
            : s->outcome.n_decided < s->outcome.n_cells ? KT_TUNE_UNDECIDED
                                                        : KT_TUNE_OK;
    return KT_OK;
}

kt_status kt_run_device(const kt_device_tuning *run, int *code, kt_err *err) {
    device_state s = {.run = run};
    bool is_used;
    kt_status st;

    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is killed has said what it decided */
    KT_TRY(kt_device_word_parse(run->options->device, &is_used, &s.device, err));
    if (!is_used)
        return kt_fail(err, KT_E_INVALID, "--device cpu: leave --device out to tune the CPU");
    KT_TRY(check_clock(&s, err));
    KT_TRY(read_rows(&s, err));
    KT_TRY(open_table(&s, err));
    st = tune(&s, code, err);
    kt_table_destroy(s.table);
    return st;
}
