/* kttune sim: strategies on recorded samples. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"
#include "tuner/cli/workbench.h"
#include "tuner/session/sim.h"

enum { MOST_JOURNALS = 8 };

typedef struct sim_state {
    kt_workbench bench;
    kt_journal *journal[MOST_JOURNALS];
    kt_sim sim;
    const char *path[MOST_JOURNALS], *strategy;
    int n_paths;
    int64_t trials, seed;
    bool json, grid;
} sim_state;

static void print_text(const kt_sim_result *r) {
    printf("%-10s regret %.2f %% geomean, %.2f %% p95, %.2f %% max; %.0f %% within 2 %%; %.3f s "
           "median "
           "per cell, %.3f s p90; %.1f %% of an exhaustive search\n",
           r->strategy, 100 * r->regret.geomean, 100 * r->regret.p95, 100 * r->regret.max,
           100 * r->regret.within_2, r->median_sec, r->p90_sec, 100 * r->exhaustive_share);
    if (r->regret.geomean > r->regret.p95)
        printf(
            "  the mean is above the p95 because it is weighted by serving time: %.0f %% of that "
            "is in cells beyond the p95\n",
            100 * r->regret.weight_beyond_p95);
    printf("  seconds per cell ");
    for (int i = 0; i < KT_SIM_POINTS; i++) printf("%8.4g", kt_sim_seconds[i]);
    printf("\n  decided, %%       ");
    for (int i = 0; i < KT_SIM_POINTS; i++) printf("%8.1f", 100 * r->at[i].decided);
    printf("\n  regret, %%        ");
    for (int i = 0; i < KT_SIM_POINTS; i++) printf("%8.2f", 100 * r->at[i].regret);
    putchar('\n');
}

static void put_result(kt_json_writer *w, const kt_sim_result *r) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "strategy", r->strategy);
    kt_json_add_fixed(w, "regret_geomean", r->regret.geomean, 5);
    kt_json_add_fixed(w, "regret_p95", r->regret.p95, 5);
    kt_json_add_fixed(w, "regret_max", r->regret.max, 5);
    kt_json_add_fixed(w, "within_2", r->regret.within_2, 4);
    kt_json_add_fixed(w, "mean_seconds", r->mean_sec, 4);
    kt_json_add_fixed(w, "median_seconds", r->median_sec, 4);
    kt_json_add_fixed(w, "p90_seconds", r->p90_sec, 4);
    kt_json_add_fixed(w, "exhaustive_share", r->exhaustive_share, 4);
    kt_json_key(w, "curve");
    kt_json_begin_array(w);
    for (int i = 0; i < KT_SIM_POINTS; i++) {
        kt_json_begin_object(w);
        kt_json_add_fixed(w, "seconds", kt_sim_seconds[i], 2);
        kt_json_add_fixed(w, "decided", r->at[i].decided, 4);
        kt_json_add_fixed(w, "regret", r->at[i].regret, 5);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
}

static kt_status load(sim_state *s, kt_err *err) {
    KT_TRY(kt_workbench_init(&s->bench, false, err));
    for (int i = 0; i < s->n_paths; i++) {
        kt_sim one;
        kt_status st;
        KT_TRY(kt_journal_read(s->path[i], &s->journal[i], err));
        KT_TRY(kt_sim_load(s->journal[i], s->bench.registry, &one, err));
        st = kt_sim_join(&s->sim, &one, err);
        kt_sim_deinit(&one);
        if (st != KT_OK) return st;
    }
    if (s->sim.n == 0)
        return kt_fail(
            err, KT_E_FORMAT,
            "%s: no decided contest in %zu sound and %zu damaged lines; expected a journal "
            "of `kttune run`",
            s->path[0], kt_journal_count(s->journal[0]), kt_journal_dropped(s->journal[0]));
    if (!s->json)
        printf("%s%s: %zu cells, %zu with every contender measured; %lld trials of each\n",
               s->path[0], s->n_paths > 1 ? " and others" : "", s->sim.n, s->sim.n_oracle,
               (long long)s->trials);
    return KT_OK;
}

static void print_point(const kt_sim_grid_point *p) {
    const kt_sim_result *r = &p->result;
    printf("%c %-46s %8.3f %8.3f %8.3f %7.2f %7.2f %7.2f\n", p->is_best ? '*' : ' ', p->name,
           r->mean_sec, r->median_sec, r->p90_sec, 100 * r->regret.geomean, 100 * r->regret.p95,
           100 * r->regret.max);
}

static void put_point(kt_json_writer *w, const kt_sim_grid_point *p) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "rules", p->name);
    kt_json_add_bool(w, "best", p->is_best);
    kt_json_add_fixed(w, "mean_seconds", p->result.mean_sec, 4);
    kt_json_add_fixed(w, "median_seconds", p->result.median_sec, 4);
    kt_json_add_fixed(w, "p90_seconds", p->result.p90_sec, 4);
    kt_json_add_fixed(w, "regret_geomean", p->result.regret.geomean, 5);
    kt_json_add_fixed(w, "regret_p95", p->result.regret.p95, 5);
    kt_json_add_fixed(w, "regret_max", p->result.regret.max, 5);
    kt_json_end_object(w);
}

/* The rules of a race swept: which of them cost least for their regret? */
static kt_status sweep(sim_state *s, kt_err *err) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    const char *name = strcmp(s->strategy, "all") == 0 ? "auto" : s->strategy;
    const kt_strategy *strategy = kt_strategy_find(name);
    kt_sim_grid_point *points = calloc(KT_SIM_GRID, sizeof *points);
    kt_status st = points ? KT_OK : kt_fail(err, KT_E_NOMEM, "sim: no memory");
    int n = 0;

    if (st == KT_OK && !strategy)
        st = kt_fail(err, KT_E_INVALID, "--strategy '%s': unknown; see `kttune list strategies`",
                     name);
    if (st == KT_OK) st = load(s, err);
    if (st == KT_OK)
        st = kt_sim_grid(&s->sim, strategy, (int)s->trials, (uint64_t)s->seed, points, &n, err);
    kt_json_begin_object(&w);
    kt_json_key(&w, "points");
    kt_json_begin_array(&w);
    if (st == KT_OK && !s->json)
        printf(
            "* = no other rules have less regret in less time\n  %-46s %8s %8s %8s %7s %7s %7s\n",
            "rules", "s/cell", "median", "p90", "regret%", "p95", "max");
    for (int i = 0; i < n; i++) {
        if (s->json) put_point(&w, &points[i]);
        if (!s->json) print_point(&points[i]);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    if (st == KT_OK && s->json) kt_json_writer_print(&w, stdout);
    kt_json_writer_deinit(&w);
    free(points);
    return st;
}

static kt_status simulate(sim_state *s, kt_err *err) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 4};
    bool all = strcmp(s->strategy, "all") == 0;
    kt_sim_result r;
    kt_status st = KT_OK;

    if (!all && !kt_strategy_find(s->strategy))
        return kt_fail(err, KT_E_INVALID, "--strategy '%s': unknown; see `kttune list strategies`",
                       s->strategy);
    KT_TRY(load(s, err));
    kt_json_begin_object(&w);
    kt_json_add_int(&w, "cells", (int64_t)s->sim.n);
    kt_json_add_int(&w, "oracle_cells", (int64_t)s->sim.n_oracle);
    kt_json_add_int(&w, "trials", s->trials);
    kt_json_key(&w, "strategies");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_builtin_strategy_count && st == KT_OK; i++) {
        const kt_strategy *strategy = kt_builtin_strategies[i];
        if (!all && strcmp(strategy->name, s->strategy) != 0) continue;
        st = kt_sim_run(&s->sim, strategy, NULL, (int)s->trials, (uint64_t)s->seed, &r, err);
        if (st == KT_OK && s->json) put_result(&w, &r);
        if (st == KT_OK && !s->json) print_text(&r);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    if (st == KT_OK && s->json) kt_json_writer_print(&w, stdout);
    kt_json_writer_deinit(&w);
    return st;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    sim_state s = {.strategy = "all", .trials = 10, .seed = 1};
    const kt_switch switches[] = {
        {"strategy", KT_SWITCH_TEXT, &s.strategy, "NAME",
         "one of `kttune list strategies`; default all"},
        {"trials", KT_SWITCH_COUNT, &s.trials, "N", "contests of each cell, 1 to 1000; default 10"},
        {"seed", KT_SWITCH_COUNT, &s.seed, "N", "of the draws; default 1"},
        {"grid", KT_SWITCH_FLAG, &s.grid, NULL,
         "sweep the rules of a race instead: rungs, survivors, stops, a first look at holdouts"},
        {"json", KT_SWITCH_FLAG, &s.json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "sim", "JOURNAL.. ",
        "Hold the contests of a journal again on its recorded samples, drawn anew in each trial, "
        "by "
        "other\nstrategies: how far from the best do their choices lie, and how soon? A journal of "
        "`kttune run\n--oracle` has samples of every contender; others only of those that took "
        "part.",
        "  kttune sim results/zen4-2c-24g/Qwen3-30B-A3B.journal.jsonl.gz\n"
        "  kttune sim mine.journal.jsonl --strategy auto --trials 100 --json\n"
        "  kttune sim results/zen4-2c-24g/*.journal.jsonl.gz --grid --trials 20\n"};
    int code =
        kt_switches_parse(&usage, switches, 5, argc, argv, s.path, MOST_JOURNALS, &s.n_paths);
    kt_err err = {0};
    kt_status st;

    (void)context;
    if (code >= 0) return code;
    if (s.n_paths < 1) return kt_switch_fail(&usage, "expected a journal");
    if (s.trials < 1 || s.trials > 1000) return kt_switch_fail(&usage, "--trials: 1 to 1000");
    st = s.grid ? sweep(&s, &err) : simulate(&s, &err);
    kt_sim_deinit(&s.sim);
    for (int i = 0; i < s.n_paths; i++) kt_journal_close(s.journal[i]);
    kt_workbench_deinit(&s.bench);
    return st == KT_OK ? KT_TUNE_OK : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_sim = {
    .name = "sim", .summary = "try strategies on a journal's samples", .run = run};
