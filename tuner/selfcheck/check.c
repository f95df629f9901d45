/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/stats.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/store/zipped.h"

/* --- rows --- */

static kt_check_row *new_row(kt_check *c, const char *name, double bar, const char *unit) {
    kt_check_row *r;
    if (c->n_rows == KT_CHECK_ROWS)
        c->n_rows--; /* the last one is overwritten; there are far fewer */
    r = &c->row[c->n_rows++];
    memset(r, 0, sizeof *r);
    r->goal = c->goal;
    r->bar = bar;
    r->bound = NAN;
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    return r;
}

static bool keeps(const kt_check_row *r, double x) {
    return r->at_least ? x >= r->bar : x <= r->bar;
}

static void measure_row(kt_check_row *r, double measured, bool at_least) {
    r->measured = measured;
    r->at_least = at_least;
    r->is_measured = isfinite(measured);
    if (r->is_measured) r->verdict = keeps(r, measured) ? KT_CHECK_OK : KT_CHECK_MISSED;
}

const char *kt_check_verdict_name(kt_check_verdict verdict) {
    static const char *const names[] = {"unmeasured", "ok", "MISSED", "unproven"};
    return names[verdict];
}

void kt_check_bound(kt_check *c, double bound) {
    kt_check_row *r = &c->row[c->n_rows - 1];
    r->bound = bound;
    if (r->verdict == KT_CHECK_OK && !keeps(r, bound)) r->verdict = KT_CHECK_UNPROVEN;
}

void kt_check_at_most(kt_check *c, const char *name, double measured, double bar, const char *unit,
                      const char *how, ...) {
    kt_check_row *r = new_row(c, name, bar, unit);
    va_list args;

    measure_row(r, measured, false);
    va_start(args, how);
    vsnprintf(r->how, sizeof r->how, how, args);
    va_end(args);
}

void kt_check_at_least(kt_check *c, const char *name, double measured, double bar, const char *unit,
                       const char *how, ...) {
    kt_check_row *r = new_row(c, name, bar, unit);
    va_list args;

    measure_row(r, measured, true);
    va_start(args, how);
    vsnprintf(r->how, sizeof r->how, how, args);
    va_end(args);
}

void kt_check_rate(kt_check *c, const char *name, int hits, int n, double bar_percent,
                   bool at_least, const char *how, ...) {
    kt_check_row *r = new_row(c, name, bar_percent, "%");
    va_list args;

    va_start(args, how);
    vsnprintf(r->how, sizeof r->how, how, args);
    va_end(args);
    if (n < 1) return;
    measure_row(r, 100.0 * hits / n, at_least);
    kt_check_bound(
        c, 100 * (at_least ? 1 - kt_rate_upper(n - hits, n, 0.95) : kt_rate_upper(hits, n, 0.95)));
}

void kt_check_missing(kt_check *c, const char *name, double bar, const char *unit, const char *why,
                      ...) {
    kt_check_row *r = new_row(c, name, bar, unit);
    va_list args;

    va_start(args, why);
    vsnprintf(r->how, sizeof r->how, why, args);
    va_end(args);
}

/* A machine that is busy or slow must not keep an unattended check for hours. */
double kt_check_seconds(const kt_check *c) {
    return c->full ? 3600 : c->quick ? 60 : 180;
}

static bool is_time_up(void *arg) {
    const kt_check *c = arg;
    return (c->ask && c->ask(c->ask_arg)) || (c->deadline_ns > 0 && kt_clock_ns() > c->deadline_ns);
}

void kt_check_goal(kt_check *c, const kt_goal *goal) {
    kt_err err = {0};
    kt_status st;

    c->goal = goal->number;
    c->deadline_ns = kt_clock_ns() + (int64_t)(kt_check_seconds(c) * 1e9);
    st = goal->measure(c, &err);
    if (st == KT_E_CANCELLED)
        kt_check_missing(c, goal->title, 0, "", "not finished within %.0f s: %s",
                         kt_check_seconds(c), err.message);
    else if (st != KT_OK)
        kt_check_missing(c, goal->title, 0, "", "%s", err.message);
    c->deadline_ns = 0;
}

/* --- what is filed --- */

void kt_check_class(const kt_check *c, char *out, size_t size) {
    if (c->filed_class)
        snprintf(out, size, "%s", c->filed_class);
    else
        kt_machine_class(c->machine, out, size);
}

/* Bytes of the model's name in that of its journal, packed or not; 0 = no journal's. */
static size_t model_bytes(const char *name) {
    static const char *const ends[] = {".journal.jsonl" KT_ZIPPED_END, ".journal.jsonl"};
    const size_t size = strlen(name);

    for (int i = 0; i < 2; i++) {
        const size_t end = strlen(ends[i]);
        if (size > end && strcmp(name + size - end, ends[i]) == 0) return size - end;
    }
    return 0;
}

static kt_status load_journal(kt_check *c, const char *folder, const char *name, kt_err *err) {
    char path[KT_CHECK_PATH_BYTES];
    int i = c->n_journals;
    kt_status st;

    if (i == KT_CHECK_JOURNALS) return KT_OK;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    KT_TRY(kt_journal_read(path, &c->journal[i], err));
    st = kt_sim_load(c->journal[i], c->registry, &c->sim[i], err);
    if (st != KT_OK) {
        kt_journal_close(c->journal[i]);
        return st;
    }
    snprintf(c->journal_model[i], sizeof c->journal_model[i], "%.*s", (int)model_bytes(name), name);
    c->n_journals++;
    return KT_OK;
}

static kt_status load_journals(kt_check *c, const char *results, kt_err *err) {
    char folder[KT_CHECK_PATH_BYTES], class_name[64];
    struct dirent **names = NULL;
    kt_status st = KT_OK;
    int n;

    kt_check_class(c, class_name, sizeof class_name);
    if (snprintf(folder, sizeof folder, "%s/%s", results, class_name) >= (int)sizeof folder)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", results);
    n = scandir(folder, &names, NULL, alphasort); /* none there: nothing filed */
    if (n < 0 && errno == ENOMEM)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory to list its files", folder);
    for (int i = 0; i < n; i++) {
        if (st == KT_OK && model_bytes(names[i]->d_name) > 0)
            st = load_journal(c, folder, names[i]->d_name, err);
        free(names[i]);
    }
    free(names);
    return st;
}

static kt_status make_scratch(kt_check *c, kt_err *err) {
    const char *tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(c->scratch, sizeof c->scratch, "%s/kttune-selfcheck-XXXXXX", tmp);
    if (mkdtemp(c->scratch)) return KT_OK;
    c->scratch[0] = '\0';
    return kt_fail(err, KT_E_IO, "%s: no folder can be made there", tmp);
}

kt_status kt_check_init(kt_check *c, kt_err *err) {
    kt_status st;

    c->stop = is_time_up;
    c->stop_arg = c;
    st = make_scratch(c, err);
    if (st == KT_OK) st = load_journals(c, c->results, err);
    if (st != KT_OK) kt_check_deinit(c);
    return st;
}

/* Only what was made here: links are not followed. */
static void remove_folder(const char *path) {
    DIR *d = opendir(path);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char inner[2 * KT_CHECK_PATH_BYTES];
        struct stat s;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) >= (int)sizeof inner) continue;
        if (lstat(inner, &s) == 0 && S_ISDIR(s.st_mode))
            remove_folder(inner);
        else
            unlink(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

void kt_check_deinit(kt_check *c) {
    for (int i = 0; i < c->n_journals; i++) {
        kt_sim_deinit(&c->sim[i]);
        kt_journal_close(c->journal[i]);
    }
    c->n_journals = 0;
    if (c->scratch[0]) remove_folder(c->scratch);
    c->scratch[0] = '\0';
}
