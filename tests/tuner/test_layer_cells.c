/* Plan cells from their list to the table, in the layer as it is served. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "tests/support/tune_home.h"
#include "tuner/session/layer_cells.h"

static void tiny(kt_shapes *shapes) {
    kt_err err;
    cr_assert_eq(kt_shapes_find("tiny-moe", shapes, NULL, 0, &err), KT_OK, "%s", err.message);
}

Test(plan_cells, are_listed_with_those_that_cannot_be_decided_here) {
    kt_shapes shapes;
    kt_plan_cells cells[2];
    int refused = 0;

    tiny(&shapes);
    for (int p = 0; p < 2; p++) {
        char keys[KT_MAX_PLAN_CELLS][KT_PLAN_KEY_BYTES];
        kt_plan_cells_of(&shapes, KT_SERVE_INT4, p ? KT_PROFILE_FULL : KT_PROFILE_QUICK, 2,
                         &cells[p]);
        for (int i = 0; i < cells[p].n; i++) {
            const kt_plan_cell *c = &cells[p].list[i];
            kt_plan_cell_key(c, keys[i], sizeof keys[i]);
            for (int j = 0; j < i; j++) cr_assert_str_neq(keys[i], keys[j]);
            cr_assert(c->problem.m == c->tokens && c->problem.op == KT_OP_MOE_FFN);
            if (!c->refused) continue;
            refused++;
            cr_expect(strstr(c->refused, "GPU") && (strcmp(c->cell, "cpu_gpu_split") == 0 ||
                                                    strcmp(c->cell, "prefill_offload") == 0));
        }
    }
    cr_expect_eq(refused, 4);
    cr_expect_lt(cells[0].n, cells[1].n);
    kt_plan_cells_of(&shapes, KT_SERVE_INT4, KT_PROFILE_FULL, 1, &cells[0]);
    for (int i = 0; i < cells[0].n; i++)
        cr_expect(strcmp(cells[0].list[i].cell, "threads") != 0 &&
                      strcmp(cells[0].list[i].cell, "spin") != 0,
                  "one thread has nothing to choose");
    shapes.experts = shapes.topk = shapes.moe_layers = 0;
    kt_plan_cells_of(&shapes, KT_SERVE_INT4, KT_PROFILE_FULL, 2, &cells[0]);
    cr_expect_eq(cells[0].n, 0, "no routed experts");
}

typedef struct scene {
    kt_tune_home home;
    int stop_after; /* asked so often whether to go on; 0 = for ever */
    kt_registry *registry;
    kt_table *table;
    kt_shapes shapes;
    kt_ledger ledger;
    kt_layer_session *session;
} scene;

static bool asked_enough(void *arg) {
    scene *s = arg;
    return s->stop_after > 0 && --s->stop_after == 0;
}

static void open_scene(scene *s, int threads) {
    kt_ledger_session about = {
        .machine = &s->home.machine, .workload = "tiny-moe", .strategy = "auto", .command = "test"};
    kt_layer_session_setup setup = {.machine = &s->home.machine,
                                    .shapes = &s->shapes,
                                    .format = KT_SERVE_INT4,
                                    .ledger = &s->ledger,
                                    .widest = 10, /* a busy machine is not what is tested */
                                    .rotation_bytes = 1 << 20,
                                    .threads = threads,
                                    .deadline_ns = kt_clock_ns() + INT64_C(100000000000),
                                    .seed = 3,
                                    .stop = asked_enough,
                                    .stop_arg = s};
    kt_cpu cpu;
    kt_err err;

    kt_cpu_probe(&cpu);
    tiny(&s->shapes);
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, cpu.isa,
                                    &s->registry, &err),
                 KT_OK);
    cr_assert_eq(kt_table_create(&s->table, NULL), KT_OK);
    s->table->fingerprint = s->home.machine;
    cr_assert_eq(kt_ledger_open(s->home.journal, &about, &s->ledger, &err), KT_OK, "%s",
                 err.message);
    setup.registry = s->registry;
    setup.table = s->table;
    cr_assert_eq(kt_layer_session_create(&setup, &s->session, &err), KT_OK, "%s", err.message);
}

static void close_scene(scene *s) {
    kt_layer_session_destroy(s->session);
    kt_ledger_close(&s->ledger);
    kt_table_destroy(s->table);
    kt_registry_destroy(s->registry);
}

static const kt_plan_cell *find(const kt_plan_cells *cells, const char *name, int64_t tokens) {
    for (int i = 0; i < cells->n; i++)
        if (strcmp(cells->list[i].cell, name) == 0 && cells->list[i].tokens == tokens)
            return &cells->list[i];
    cr_assert_fail("no plan cell %s of %lld tokens", name, (long long)tokens);
    return NULL;
}

/* Every kind is decided, goes into a table, and is taken over by the next session. */
Test(layer_cells, are_decided_kept_and_taken_over, .timeout = 240) {
    static const char *const kinds[] = {"layer_gain", "threads", "spin", "moe_layer"};
    static scene s;
    kt_plan_cells cells;
    double first[4];
    kt_err err;

    kt_tune_home_make(&s.home);
    for (int again = 0; again < 2; again++) {
        open_scene(&s, 2);
        kt_plan_cells_of(&s.shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, 2, &cells);
        for (int k = 0; k < 4; k++) {
            kt_table_plan plan;
            cr_assert_eq(kt_layer_session_decide(s.session, find(&cells, kinds[k], 1), &plan, &err),
                         KT_OK, "%s: %s", kinds[k], err.message);
            cr_assert_eq(kt_table_put_plan(s.table, &plan, &err), KT_OK, "%s", err.message);
            cr_expect_str_eq(plan.cell, kinds[k]);
            cr_expect(plan.row.rounds > 0 && plan.row.time_ns > 0 && plan.imbalance >= 1, "%s",
                      kinds[k]);
            cr_expect(strcmp(plan.row.status, "tuned") == 0 ||
                      strcmp(plan.row.config, plan.row.default_config) == 0 || k == 0);
            if (again) cr_expect(fabs(plan.row.time_ns - first[k]) < 0.2, "%s again", kinds[k]);
            first[k] = plan.row.time_ns;
        }
        cr_expect_eq(s.table->n_plans, 4);
        close_scene(&s);
    }
    kt_tune_home_remove(&s.home);
}

/* Rungs of this number in the journal. */
static int count_rungs(const scene *s, int number) {
    kt_journal *j;
    int n = 0;
    cr_assert_eq(kt_journal_read(s->home.journal, &j, NULL), KT_OK);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        const char *kind = kt_json_string(kt_json_get(r, "t"), NULL);
        n += kind && strcmp(kind, "plan_rung") == 0 &&
             kt_json_int(kt_json_get(r, "rung"), -1) == number;
    }
    kt_journal_close(j);
    return n;
}

/* Broken off again and again, a contest goes on with the rungs it has; none is measured twice. The
 * first rung has a sample of each of 5 ways, the second 4 or more: the first two stops fall into the
 * second rung for sure, while 30 samples may be enough for the rest. */
Test(layer_cells, go_on_where_they_were_broken_off, .timeout = 240) {
    static const int stops[] = {7, 2, 30, 0};
    static scene s;
    kt_plan_cells cells;
    kt_table_plan plan;
    kt_layer_spent spent;
    kt_status st = KT_E_CANCELLED;
    int tries = 0;
    kt_err err;

    kt_tune_home_make(&s.home);
    for (; st == KT_E_CANCELLED && tries < 4; tries++) {
        s.stop_after = stops[tries];
        open_scene(&s, 2);
        kt_plan_cells_of(&s.shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, 2, &cells);
        st = kt_layer_session_decide(s.session, find(&cells, "spin", 1), &plan, &err);
        spent = kt_layer_session_spent(s.session);
        close_scene(&s);
    }
    cr_assert_eq(st, KT_OK, "%s", err.message);
    cr_expect_geq(tries, 3, "a contest was over after %d sessions", tries);
    cr_expect_gt(spent.n_replayed, 0);
    for (int rung = 0; rung < 12; rung++) cr_expect_leq(count_rungs(&s, rung), 1, "rung %d", rung);
    kt_tune_home_remove(&s.home);
}

Test(layer_cells, what_runs_then_obeys_the_cells, .timeout = 240) {
    static scene s;
    kt_plan_cells cells;
    kt_planner *planner;
    kt_layer_plan plan;
    kt_err err;

    kt_tune_home_make(&s.home);
    open_scene(&s, 2);
    kt_plan_cells_of(&s.shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, 2, &cells);
    for (int i = 0; i < cells.n; i++) {
        kt_table_plan p;
        kt_status st;
        if (cells.list[i].tokens > 8) continue;
        st = kt_layer_session_decide(s.session, &cells.list[i], &p, &err);
        cr_assert_eq(st, cells.list[i].refused ? KT_E_UNSUPPORTED : KT_OK, "%s", err.message);
        if (st == KT_OK) cr_assert_eq(kt_table_put_plan(s.table, &p, &err), KT_OK);
    }
    cr_assert_eq(kt_planner_create(s.registry, s.table, &s.home.machine, NULL, &planner, &err),
                 KT_OK);
    kt_plan_layer(planner, &cells.list[0].problem, 2, &plan);
    cr_expect(plan.n_ignored == 0 && plan.cuts.n == 4 && plan.n_threads == 2, "%d ignored: %s",
              plan.n_ignored, plan.note);
    kt_planner_destroy(planner);
    close_scene(&s);
    kt_tune_home_remove(&s.home);
}

Test(layer_cells, a_deadline_ends_them, .timeout = 240) {
    static scene s;
    kt_plan_cells cells;
    kt_table_plan plan;
    kt_layer_session_setup late = {.format = KT_SERVE_INT4, .threads = 1, .seed = 1};
    kt_layer_session *session;
    kt_err err;

    kt_tune_home_make(&s.home);
    open_scene(&s, 1);
    late.registry = s.registry;
    late.machine = &s.home.machine;
    late.table = s.table;
    late.shapes = &s.shapes;
    late.rotation_bytes = 1 << 20;
    late.deadline_ns = kt_clock_ns();
    kt_plan_cells_of(&s.shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, 1, &cells);
    cr_assert_eq(kt_layer_session_create(&late, &session, &err), KT_OK);
    cr_expect_eq(kt_layer_session_decide(session, find(&cells, "moe_layer", 8), &plan, &err),
                 KT_E_CANCELLED);
    kt_layer_session_destroy(session);
    close_scene(&s);
    kt_tune_home_remove(&s.home);
}

Test(layer_cells, skew_regret_is_a_number, .timeout = 240) {
    static scene s;
    kt_plan_cells cells;
    kt_skew_regret r;
    kt_err err;

    kt_tune_home_make(&s.home);
    open_scene(&s, 2);
    kt_plan_cells_of(&s.shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, 2, &cells);
    cr_assert_eq(kt_layer_session_skew(s.session, &cells.list[0].problem, 64, "zipf:1", &r, &err),
                 KT_OK, "%s", err.message);
    cr_expect(r.regret >= 0 && r.regret < 5 && r.imbalance > 1.5, "%g %g", r.regret, r.imbalance);
    cr_expect_eq(kt_layer_session_skew(s.session, &cells.list[0].problem, 8, "zipf:x", &r, &err),
                 KT_E_INVALID);
    close_scene(&s);
    kt_tune_home_remove(&s.home);
}

Test(layer_cells, realised_gain_is_a_share_of_logarithms) {
    kt_table_plan g = {.predicted = 1.21};
    g.row.default_ns = 1100;
    g.row.time_ns = 1000;
    cr_expect(fabs(kt_realised_gain(&g, 0.01) - 0.5) < 1e-9);
    cr_expect(isnan(kt_realised_gain(&g, 0.2)), "within the noise");
    g.predicted = 1.005;
    cr_expect(isnan(kt_realised_gain(&g, 0)), "below one per cent");
}
