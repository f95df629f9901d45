/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/run_report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/search/regret.h"

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
    if (o->oracle) append(out, bytes, " --oracle");
    if (o->budget_seconds > 0) append(out, bytes, " --budget %gs", o->budget_seconds);
    if (!model_name && o->out) append_word(out, bytes, "out", o->out);
    if (!model_name && o->results) append_word(out, bytes, "results", o->results);
    return out;
}

static void finish(kt_json_writer *w) {
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

static void print_trace(const kt_trace *t) {
    kt_trace_load load;

    if (!t) return;
    load = kt_trace_load_of(t);
    printf(
        "recorded load of %s: %zu steps of %lld to %lld tokens, %lld layers; an expert with rows "
        "has %.1f, at most %lld",
        t->model, t->n_steps, (long long)load.fewest_tokens, (long long)load.most_tokens,
        (long long)t->layers, load.mean_rows, (long long)load.most_rows);
    if (load.imbalance > 0)
        printf("; the busiest of a layer %.1f times an even share", load.imbalance);
    printf("\n");
}

static void begin(kt_json_writer *w, const kt_run_report *r) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "machine", r->class_name);
    kt_json_add_string(w, "table", r->table_path);
    kt_json_add_string(w, "journal", r->journal_path);
    if (r->trace) put_trace(w, r->trace);
}

/* --- before --- */

static void print_plan_json(const kt_run_report *r, size_t n) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    double seconds, total = 0;

    begin(&w, r);
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
    finish(&w);
}

void kt_run_print_plan(const kt_run_report *r) {
    kt_session_progress p;
    double seconds, total = 0;

    kt_session_progress_get(r->session, &p);
    if (r->options->json) {
        print_plan_json(r, p.n_cells);
        return;
    }
    print_trace(r->trace);
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

/* --- at the end --- */

static double gain_of(const kt_session_progress *p) {
    return p->n_tuned ? expm1(p->log_gain_sum / (double)p->n_tuned) : 0;
}

/* What the oracle says about the decisions, and the time both took. */
typedef struct oracle_sums {
    kt_regret_summary regret;
    size_t n_missed; /* another choice is faster beyond doubt */
} oracle_sums;

static oracle_sums sum_oracle(const kt_run_report *r, size_t n_cells) {
    oracle_sums sums = {0};
    kt_cell_regret *list = calloc(n_cells + 1, sizeof *list);
    size_t n = 0;

    for (size_t i = 0; list && i < n_cells; i++) {
        const kt_oracle_result *o = kt_session_oracle(r->session, i);
        if (!o) continue;
        list[n++] = (kt_cell_regret){o->regret.point, kt_session_cell(r->session, i)->weight};
        sums.n_missed += o->regret.low > 0;
    }
    if (list) sums.regret = kt_regret_summarise(list, n);
    free(list);
    return sums;
}

static void print_end_json(const kt_run_report *r, const kt_session_progress *p) {
    kt_json_writer w = {.indent = 1};
    char command[KT_RUN_PATH_BYTES];

    begin(&w, r);
    kt_json_add_int(&w, "cells", (int64_t)p->n_cells);
    kt_json_add_int(&w, "decided", (int64_t)p->n_decided);
    kt_json_add_int(&w, "reused", (int64_t)p->n_reused);
    kt_json_add_int(&w, "repeated", (int64_t)p->n_repeated);
    kt_json_add_int(&w, "tuned", (int64_t)p->n_tuned);
    kt_json_add_int(&w, "skipped", (int64_t)p->n_skipped);
    kt_json_add_int(&w, "kept_rows", (int64_t)r->n_kept_rows);
    kt_json_add_int(&w, "gated", p->n_gated);
    kt_json_add_int(&w, "rejected", p->n_rejected);
    kt_json_add_int(&w, "rounds", p->rounds);
    kt_json_add_int(&w, "voided", p->voided);
    kt_json_add_fixed(&w, "gain_geomean", gain_of(p), 4);
    kt_json_add_fixed(&w, "aa_noise_p95", r->aa_noise, 4);
    kt_json_add_fixed(&w, "weight_done", p->weight_done, 4);
    kt_json_add_fixed(&w, "seconds", r->seconds, 2);
    kt_json_add_fixed(&w, "seconds_kernels", p->kernel_seconds, 3);
    kt_json_add_fixed(&w, "seconds_gates", p->gate_seconds, 3);
    kt_json_add_fixed(&w, "seconds_setup", p->setup_seconds, 3);
    if (r->options->oracle) {
        oracle_sums o = sum_oracle(r, p->n_cells);
        kt_json_add_int(&w, "oracle_cells", (int64_t)o.regret.n);
        kt_json_add_int(&w, "oracle_missed", (int64_t)o.n_missed);
        kt_json_add_fixed(&w, "regret_geomean", o.regret.geomean, 5);
        kt_json_add_fixed(&w, "regret_p95", o.regret.p95, 5);
        kt_json_add_fixed(&w, "regret_max", o.regret.max, 5);
    }
    kt_json_add_string(&w, "repeat", kt_run_command(r->options, NULL, command, sizeof command));
    finish(&w);
}

static void print_oracle(const kt_run_report *r, const kt_session_progress *p) {
    oracle_sums o = sum_oracle(r, p->n_cells);
    printf("oracle of %zu cells: regret %.2f %% geomean, %.2f %% p95, %.2f %% max; %.0f %% of the "
           "cells "
           "within 2 %%; in %zu another choice is faster beyond doubt\n",
           o.regret.n, 100 * o.regret.geomean, 100 * o.regret.p95, 100 * o.regret.max,
           100 * o.regret.within_2, o.n_missed);
}

static void print_profile(const kt_run_report *r, const kt_session_progress *p) {
    double kernels = p->kernel_seconds + r->plan_spent.kernel_seconds;
    double setup = p->setup_seconds + r->plan_spent.setup_seconds;
    double rest = r->seconds - kernels - p->gate_seconds - setup;
    printf(
        "time: %.1f %% in kernels, %.1f %% in gates, %.1f %% packing cold weights, %.1f %% in the "
        "tuner itself\n",
        100 * kernels / r->seconds, 100 * p->gate_seconds / r->seconds, 100 * setup / r->seconds,
        100 * rest / r->seconds);
}

void kt_run_print_end(const kt_run_report *r) {
    kt_session_progress p;
    char command[2 * KT_RUN_PATH_BYTES];
    double gain;

    kt_session_progress_get(r->session, &p);
    if (r->options->json) {
        print_end_json(r, &p);
        return;
    }
    print_trace(r->trace);
    gain = gain_of(&p);
    printf("%zu of %zu cells decided (%zu from the journal), %.1f %% of the serving time: "
           "%zu tuned (%s%+.1f %% geomean), %zu kept the default\n",
           p.n_decided, p.n_cells, p.n_reused, 100 * p.weight_done, p.n_tuned,
           gain < 2 * r->aa_noise ? "≈ " : "", 100 * gain, p.n_decided - p.n_tuned);
    if (p.n_repeated)
        printf("%zu cells measured again: they had taken longer than with more rows or fewer "
               "threads\n",
               p.n_repeated);
    if (p.n_skipped) printf("%zu cells skipped: %s\n", p.n_skipped, p.skipped_why);
    printf("%d contenders gated, %d rejected; %lld rounds, %lld voided; %.1f s\nwrote %s",
           p.n_gated, p.n_rejected, (long long)p.rounds, (long long)p.voided, r->seconds,
           r->table_path);
    if (r->n_kept_rows) printf(" (%zu rows of other cells kept)", r->n_kept_rows);
    printf("\nto see it: kttune show %s --plot all\n", r->table_path);
    if (r->options->oracle) print_oracle(r, &p);
    if (r->options->profile_self) print_profile(r, &p);
    if (r->ended_early)
        printf("to go on: %s\n", kt_run_command(r->options, NULL, command, sizeof command));
}
