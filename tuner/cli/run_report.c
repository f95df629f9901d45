/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/run_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t bytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

/* A word for the shell; quoted when it is not plain. */
static void append_word(char *text, size_t bytes, const char *flag, const char *word) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/,+=:@";
    bool is_plain = word[0] && !word[strspn(word, plain)];

    append(text, bytes, " --%s %s", flag, is_plain ? "" : "'");
    for (; *word; word++)
        if (*word == '\'')
            append(text, bytes, "'\\''");
        else
            append(text, bytes, "%c", *word);
    append(text, bytes, "%s", is_plain ? "" : "'");
}

static bool is_bare(const char *name) {
    return !strchr(name, '/');
}

char *kt_run_command(const kt_run_options *o, const char *model_name, char *out, size_t bytes) {
    out[0] = '\0';
    append(out, bytes, "kttune run");
    /* A stranger has the shipped workloads, not our files. */
    if (o->workload)
        append_word(out, bytes, "workload",
                    is_bare(o->workload) || !model_name ? o->workload : model_name);
    if (o->model || !o->workload)
        append_word(out, bytes, "model", model_name ? model_name : o->model);
    if (o->mix) append_word(out, bytes, "mix", o->mix);
    if (o->routing && (!model_name || is_bare(o->routing)))
        append_word(out, bytes, "routing", o->routing);
    if (strcmp(o->cache, "served") != 0) append_word(out, bytes, "cache", o->cache);
    if (o->plans) append_word(out, bytes, "plans", o->plans);
    append_word(out, bytes, "format", o->format);
    if (o->threads) append_word(out, bytes, "threads", o->threads);
    if (o->cells) append_word(out, bytes, "cells", o->cells);
    if (o->shard[1] > 0)
        append(out, bytes, " --shard %lld/%lld", (long long)o->shard[0], (long long)o->shard[1]);
    if (strcmp(o->strategy, "auto") != 0) append_word(out, bytes, "strategy", o->strategy);
    if (o->seed != 1) append(out, bytes, " --seed %lld", (long long)o->seed);
    if (o->deterministic) append(out, bytes, " --deterministic");
    if (o->oracle) append(out, bytes, " --oracle");
    if (o->widest > 0) append(out, bytes, " --widest %g", o->widest);
    if (o->budget_seconds > 0) append(out, bytes, " --budget %gs", o->budget_seconds);
    if (!model_name && o->out) append_word(out, bytes, "out", o->out);
    if (!model_name && o->results) append_word(out, bytes, "results", o->results);
    return out;
}

void kt_run_end_json(kt_json_writer *w) {
    kt_json_end_object(w);
    kt_json_writer_print(w, stdout);
}

static void put_trace(kt_json_writer *w, const kt_trace *t) {
    const kt_trace_load load = kt_trace_load_of(t);

    kt_json_key(w, "trace");
    kt_json_begin_object(w);
    kt_json_add_string(w, "model", t->model);
    kt_json_add_int(w, "steps", (int64_t)t->n_steps);
    kt_json_add_int(w, "layers", t->layers);
    kt_json_add_int(w, "fewest_tokens", load.fewest_tokens);
    kt_json_add_int(w, "most_tokens", load.most_tokens);
    kt_json_add_fixed(w, "mean_rows", load.mean_rows, 3);
    kt_json_add_int(w, "most_rows", load.most_rows);
    kt_json_add_fixed(w, "imbalance", load.imbalance, 3);
    kt_json_end_object(w);
}

void kt_run_print_trace(const kt_trace *t) {
    kt_trace_load load;

    if (!t) return;
    load = kt_trace_load_of(t);
    printf("recorded load of %s", t->model);
    if (*t->weights) printf(", weights %s", t->weights);
    if (*t->kv) printf(", cache %s", t->kv);
    printf(": %zu steps of %lld to %lld tokens, %lld layers; an expert with rows "
           "has %.1f, at most %lld",
           t->n_steps, (long long)load.fewest_tokens, (long long)load.most_tokens,
           (long long)t->layers, load.mean_rows, (long long)load.most_rows);
    if (load.imbalance > 0)
        printf("; the busiest of a layer %.1f times an even share", load.imbalance);
    printf("\n");
}

void kt_run_begin_json(const kt_run_report *r, kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "machine", r->class_name);
    kt_json_add_string(w, "format", r->options->format);
    kt_json_add_string(w, "table", r->table_path);
    kt_json_add_string(w, "journal", r->journal_path);
    if (r->trace) put_trace(w, r->trace);
}

/* --- before --- */

static void print_plan_json(const kt_run_report *r, size_t n) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    double seconds, total = 0;

    kt_run_begin_json(r, &w);
    kt_json_key(&w, "cells");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < n; i++) {
        const kt_tune_cell *c = kt_session_planned(r->session, i, &seconds);
        char key[KT_CELL_KEY_BYTES];
        total += seconds;
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "role", c->role);
        kt_json_add_string(&w, "cell", kt_cell_key(&c->problem, c->threads, key, sizeof key));
        kt_json_add_fixed(&w, "weight", c->weight, 6);
        kt_json_add_fixed(&w, "seconds", seconds, 3);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_add_fixed(&w, "seconds", total, 1);
    kt_run_end_json(&w);
}

void kt_run_print_plan(const kt_run_report *r) {
    kt_session_progress p;
    double seconds, total = 0;

    kt_session_progress_get(r->session, &p);
    if (r->options->json) {
        print_plan_json(r, p.n_cells);
        return;
    }
    kt_run_print_trace(r->trace);
    for (size_t i = 0; i < p.n_cells; i++) {
        const kt_tune_cell *c = kt_session_planned(r->session, i, &seconds);
        char key[KT_CELL_KEY_BYTES];
        total += seconds;
        printf("%-12s %-58s weight %.4f  about %.2f s, %.1f s so far\n", c->role,
               kt_cell_key(&c->problem, c->threads, key, sizeof key), c->weight, seconds, total);
    }
    printf("%zu cells, about %.0f s\ntable   %s\njournal %s\n", p.n_cells, total, r->table_path,
           r->journal_path);
}
