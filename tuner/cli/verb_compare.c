/* kttune compare: what changed between two tables, beyond doubt. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/report/comparison.h"
#include "tuner/search/contest.h"
#include "tuner/session/duels.h"
#include "tuner/space/candidates.h"
#include "tuner/store/ledger.h"
#include "tuner/store/table_union.h"

typedef struct compare_state {
    const kt_verb_context *context;
    kt_workbench bench;
    kt_table *a, *b;
    kt_comparison cells;
    kt_duels duels;
    int raced, not_raced, wrong;
    const char *path_a, *path_b;
    char note[KT_ERR_SIZE];
} compare_state;

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

static bool choice_of(const kt_registry *registry, const kt_table_row *row, kt_choice *out) {
    memset(out, 0, sizeof *out);
    if (!kt_row_is_current(row, registry)) return false;
    out->variant = kt_registry_find(registry, row->variant);
    return kt_config_parse(out->variant, row->config, &out->config, NULL) == KT_OK;
}

/* Both winners in alternating rounds, here and now. Cells whose winner is the same are no question;
 * those whose winner this build lacks keep their recorded times. */
static kt_status race_cell(compare_state *s, kt_compared *x, kt_err *err) {
    const kt_problem *problem = &x->a->problem;
    kt_choice pair[2];
    kt_duel_result r;

    if (!choice_of(s->bench.registry, x->a, &pair[1]) ||
        !choice_of(s->bench.registry, x->b, &pair[0])) {
        s->not_raced++;
        return KT_OK;
    }
    x->confidence = KT_GAIN_CONFIDENCE;
    x->ratio = (kt_interval){0, 0, 0};
    if (kt_choice_equal(&pair[0], &pair[1])) return KT_OK;
    for (int i = 0; i < 2; i++) {
        const kt_gate_result *g;
        KT_TRY(kt_duels_gate(&s->duels, problem, &pair[i], &g, err));
        if (g->passed) continue;
        fprintf(stderr, "kttune: %s: %s\n", g->outcome, g->message);
        s->wrong++;
        return KT_OK;
    }
    KT_TRY(kt_duels_race(&s->duels, problem, x->a->threads, pair, KT_COMPARE_ROUNDS, &r, err));
    x->ratio = r.ratio;
    x->confidence = r.confidence;
    s->raced++;
    return KT_OK;
}

static kt_status check_machine(const compare_state *s, const kt_table *t, const char *path,
                               kt_err *err) {
    kt_err why = {0};

    if (kt_same_tuning_machine(&t->fingerprint, &s->bench.machine)) return KT_OK;
    kt_fingerprint_compare(&t->fingerprint, &s->bench.machine, &why);
    return kt_fail(err, KT_E_MISMATCH,
                   "%s is of another machine (%.300s); --rerun expected tables of this one", path,
                   why.message);
}

static kt_status race_all(compare_state *s, kt_err *err) {
    KT_TRY(check_machine(s, s->a, s->path_a, err));
    KT_TRY(check_machine(s, s->b, s->path_b, err));
    s->duels =
        (kt_duels){.registry = s->bench.registry,
                   .machine = &s->bench.machine,
                   .seed = 1,
                   .least_effect = KT_COMPARE_LEAST,
                   .repeats = KT_COMPARE_REPEATS,
                   .stop = stop_asked,
                   .stop_arg = (void *)(uintptr_t)s->context,
                   .banks = {.rotation_bytes = kt_duels_rotation(
                                 &s->bench.machine.ceilings, s->bench.topology.llc_bytes, s->a)}};
    for (int i = 0; i < s->cells.n; i++) KT_TRY(race_cell(s, &s->cells.list[i], err));
    return KT_OK;
}

static const char *const change_names[] = {"same", "faster", "slower"};

static void print_text(const compare_state *s, bool rerun, bool all) {
    const kt_comparison *c = &s->cells;

    if (*s->note) printf("note: %s\n", s->note);
    for (int i = 0; i < c->n; i++) {
        const kt_compared *x = &c->list[i];
        char key[KT_CELL_KEY_BYTES];
        if (x->change == KT_CHANGE_NONE && !all) continue;
        printf("%-6s %-58s %+6.1f %% (%+.1f .. %+.1f)  %s {%s} -> %s {%s}\n",
               change_names[x->change], kt_cell_key(&x->a->problem, x->a->threads, key, sizeof key),
               100 * expm1(x->ratio.point), 100 * expm1(x->ratio.low), 100 * expm1(x->ratio.high),
               x->a->variant, x->a->config, x->b->variant, x->b->config);
    }
    printf("%d cells in both: %d faster, %d slower by at least %.1f %%, time %+.1f %% geomean; %zu "
           "only in %s, %zu only in %s\n",
           c->n, c->n_faster, c->n_slower, 100 * c->least_effect,
           c->n ? 100 * expm1(c->log_sum / c->n) : 0, c->only_a, s->path_a, c->only_b, s->path_b);
    if (rerun)
        printf("%d raced again, %d with the same winner, %d outdated (recorded times)\n", s->raced,
               c->n - s->raced - s->not_raced - s->wrong, s->not_raced);
}

static void print_json(const compare_state *s) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    const kt_comparison *c = &s->cells;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "note", s->note);
    kt_json_add_int(&w, "cells", c->n);
    kt_json_add_int(&w, "faster", c->n_faster);
    kt_json_add_int(&w, "slower", c->n_slower);
    kt_json_add_int(&w, "only_a", (int64_t)c->only_a);
    kt_json_add_int(&w, "only_b", (int64_t)c->only_b);
    kt_json_add_int(&w, "raced", s->raced);
    kt_json_add_fixed(&w, "least_effect", c->least_effect, 4);
    kt_json_add_fixed(&w, "time_geomean", c->n ? expm1(c->log_sum / c->n) : 0, 4);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (int i = 0; i < c->n; i++) {
        const kt_compared *x = &c->list[i];
        char key[KT_CELL_KEY_BYTES];
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "cell", kt_cell_key(&x->a->problem, x->a->threads, key, sizeof key));
        kt_json_add_string(&w, "change", change_names[x->change]);
        kt_json_add_fixed(&w, "time", expm1(x->ratio.point), 4);
        kt_json_add_fixed(&w, "low", expm1(x->ratio.low), 4);
        kt_json_add_fixed(&w, "high", expm1(x->ratio.high), 4);
        kt_json_add_string(&w, "a", x->a->variant);
        kt_json_add_string(&w, "a_config", x->a->config);
        kt_json_add_string(&w, "b", x->b->variant);
        kt_json_add_string(&w, "b_config", x->b->config);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static kt_status compare(compare_state *s, bool rerun, double fail_above, kt_err *err) {
    double least;

    KT_TRY(kt_workbench_init(&s->bench, rerun, err));
    KT_TRY(kt_table_load(s->path_a, &s->a, err));
    KT_TRY(kt_table_load(s->path_b, &s->b, err));
    KT_TRY(kt_comparison_make(s->a, s->b, &s->cells, err));
    if (s->cells.n == 0)
        return kt_fail(err, KT_E_INVALID, "%s and %s have no cell in common", s->path_a, s->path_b);
    if (rerun)
        KT_TRY(race_all(s, err));
    else if (!kt_same_tuning_machine(&s->a->fingerprint, &s->b->fingerprint))
        snprintf(s->note, sizeof s->note,
                 "the tables are of different machines: times are compared as they are");
    least = fail_above > 0 ? fail_above : rerun ? 0.03 : s->cells.least_effect;
    kt_comparison_judge(&s->cells, least);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    compare_state s = {.context = context};
    bool rerun = false, json = false, all = false;
    double fail_above = 0;
    const kt_switch switches[] = {
        {"rerun", KT_SWITCH_FLAG, &rerun, NULL,
         "race the two winners of each cell here and now, in alternating rounds"},
        {"fail-above", KT_SWITCH_SHARE, &fail_above, "SHARE",
         "count changes from this on; default 3% or twice the A/A noise"},
        {"all", KT_SWITCH_FLAG, &all, NULL, "also print cells that did not change"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "compare", "TABLE_A TABLE_B ",
        "What is faster or slower in B than in A. A change counts when it is large enough and "
        "significant\n"
        "among all cells (1 % false discoveries). Recorded times of two runs differ by what the "
        "machine\n"
        "did meanwhile; only --rerun compares like with like. Exit code 5: a cell is slower in B.",
        "  kttune compare before.kttable.json after.kttable.json --rerun --fail-above 3%\n"};
    const char *words[2];
    int n = 0, code = kt_switches_parse(&usage, switches, 4, argc, argv, words, 2, &n);
    kt_err err = {0};
    kt_status st;

    if (code >= 0) return code;
    if (n != 2) return kt_switch_fail(&usage, "expected two tables");
    s.path_a = words[0];
    s.path_b = words[1];
    st = compare(&s, rerun, fail_above, &err);
    if (st == KT_OK && json) print_json(&s);
    if (st == KT_OK && !json) print_text(&s, rerun, all);
    code = s.wrong ? KT_TUNE_GATE : s.cells.n_slower ? KT_TUNE_REGRESSION : KT_TUNE_OK;
    kt_duels_deinit(&s.duels);
    kt_comparison_deinit(&s.cells);
    kt_table_destroy(s.a);
    kt_table_destroy(s.b);
    kt_workbench_deinit(&s.bench);
    return st == KT_OK ? code : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_compare = {.name = "compare",
                                 .summary = "what is faster or slower in a second table",
                                 .run = run,
                                 .finishes_on_signal = true};
