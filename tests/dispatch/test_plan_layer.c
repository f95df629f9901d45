/* Plan cells: in the table, in its file, and as what the runtime obeys. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "dispatch/plan/plan.h"
#include "dispatch/plan/planner.h"
#include "tests/support/fake_variants.h"
#include "tests/support/skip.h"
#include "tests/support/temp.h"

static const kt_problem experts = {.op = KT_OP_MOE_FFN,
                                   .weights = KT_W_INT4_G32,
                                   .acts = KT_A_INT8_G32,
                                   .n = 768,
                                   .k = 2048,
                                   .experts = 128,
                                   .topk = 8};

static kt_table_plan cell(const char *name, int64_t tokens, const char *routing, double imbalance,
                          const char *choice) {
    kt_table_plan p = {.tokens = tokens, .imbalance = imbalance};
    snprintf(p.cell, sizeof p.cell, "%s", name);
    snprintf(p.routing, sizeof p.routing, "%s", routing);
    p.row.problem = experts;
    p.row.problem.m = tokens;
    p.row.threads = 2;
    snprintf(p.row.variant, sizeof p.row.variant, "%s", name);
    snprintf(p.row.default_variant, sizeof p.row.default_variant, "%s", name);
    snprintf(p.row.config, sizeof p.row.config, "%s", choice);
    snprintf(p.row.default_config, sizeof p.row.default_config, "default");
    p.row.time_ns = 1000;
    p.row.default_ns = 1100;
    p.row.ci_low = 0.99, p.row.ci_high = 1.01;
    p.row.rounds = 60;
    snprintf(p.row.status, sizeof p.row.status, "tuned");
    return p;
}

static kt_table *make(void) {
    static const struct {
        const char *name, *routing, *choice;
        int64_t tokens;
        double imbalance;
    } list[] = {{"threads", "zipf:0.6", "threads=1", 1, 1},
                {"moe_layer", "zipf:0", "task_kib=96,tasks=8,first=number", 64, 3.2},
                {"moe_layer", "zipf:1", "task_kib=384,tasks=2,first=rows", 64, 15},
                {"spin", "zipf:0.6", "spin_us=200", 1, 1},
                {"threads", "zipf:0.6", "threads=2", 512, 9}};
    kt_table *t;
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = (kt_fingerprint){.vendor = "AuthenticAMD",
                                      .microarch = "zen4",
                                      .isa = KT_FAKE_ISA,
                                      .usable_cores = 2,
                                      .numa_nodes = 1};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        kt_table_plan p =
            cell(list[i].name, list[i].tokens, list[i].routing, list[i].imbalance, list[i].choice);
        kt_err err;
        cr_assert_eq(kt_table_put_plan(t, &p, &err), KT_OK, "%s", err.message);
    }
    return t;
}

Test(table_plans, are_kept_in_order_and_replaced) {
    kt_table *t = make();
    kt_table_plan p = cell("threads", 1, "zipf:0.6", 1, "threads=2");

    cr_assert_eq(t->n_plans, 5);
    cr_expect_str_eq(t->plans[0].cell, "moe_layer");
    cr_expect_str_eq(t->plans[0].routing, "zipf:0");
    cr_expect_str_eq(t->plans[2].cell, "spin");
    cr_assert_eq(kt_table_put_plan(t, &p, NULL), KT_OK);
    cr_assert_eq(t->n_plans, 5);
    cr_expect_str_eq(kt_table_find_plan(t, &p)->row.config, "threads=2");
    p.row.threads = 3;
    cr_expect_null(kt_table_find_plan(t, &p));
    kt_table_destroy(t);
}

Test(table_plans, nonsense_is_refused_by_name) {
    kt_table *t = make();
    kt_table_plan p;
    kt_err err;
    static const struct {
        const char *word;
        int what;
    } bad[] = {{"cell", 0}, {"tokens", 1}, {"imbalance", 2}, {"predicted", 3}, {"time_ns", 4}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = cell("threads", 1, "zipf:0.6", 1, "threads=2");
        if (bad[i].what == 0) snprintf(p.cell, sizeof p.cell, "tea");
        if (bad[i].what == 1) p.tokens = 2;
        if (bad[i].what == 2) p.imbalance = -1;
        if (bad[i].what == 3) p.predicted = NAN;
        if (bad[i].what == 4) p.row.time_ns = 0;
        cr_expect_eq(kt_table_put_plan(t, &p, &err), KT_E_INVALID);
        cr_expect(strstr(err.message, bad[i].word), "'%s' lacks '%s'", err.message, bad[i].word);
    }
    cr_expect_eq(t->n_plans, 5);
    kt_table_destroy(t);
}

/* Saved, loaded, saved again: the same bytes. */
Test(table_plans, read_back_as_written) {
    char folder[256], path[320], *text[2];
    size_t size[2];
    kt_table *t = make(), *back;
    kt_err err;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.kttable.json", folder);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_file_read(path, 1 << 20, &text[i], &size[i], &err), KT_OK);
        cr_assert_eq(kt_table_load(path, &back, &err), KT_OK, "%s", err.message);
        kt_table_destroy(t);
        t = back;
    }
    cr_assert_eq(t->n_plans, 5);
    cr_assert_eq(size[0], size[1]);
    cr_assert_arr_eq(text[0], text[1], size[0]);
    cr_expect(strstr(text[0], "{\"cell\":\"moe_layer\",\"tokens\":64,\"routing\":\"zipf:0\""));
    free(text[0]);
    free(text[1]);
    kt_table_destroy(t);
    kt_temp_remove(folder);
}

static void plan_of(const kt_table *t, const kt_problem *q, int threads, kt_layer_plan *out) {
    kt_registry *registry;
    kt_planner *p;
    cr_assert_eq(
        kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_FAKE_ISA, &registry, NULL),
        KT_OK);
    cr_assert_eq(kt_planner_create(registry, t, &t->fingerprint, NULL, &p, NULL), KT_OK);
    kt_plan_layer(p, q, threads, out);
    kt_planner_destroy(p);
    kt_registry_destroy(registry);
}

Test(layer_plan, is_what_the_cells_say) {
    kt_table *t = make();
    kt_layer_plan plan;
    kt_problem other = experts;

    plan_of(t, &experts, 2, &plan);
    cr_expect(plan.n_cells == 5 && plan.n_ignored == 0 && !plan.note[0]);
    cr_assert_eq(plan.cuts.n, 2);
    cr_expect_eq(kt_moe_cut_for(&plan.cuts, 64, 2)->task_bytes, 96 << 10);
    cr_expect(kt_moe_cut_for(&plan.cuts, 64, 20)->is_largest_first);
    cr_expect_eq(plan.spin_ns, 200000);
    cr_expect_eq(kt_layer_plan_threads(&plan, 1, 2), 1);
    cr_expect_eq(kt_layer_plan_threads(&plan, 20, 2), 1);
    cr_expect_eq(kt_layer_plan_threads(&plan, 24, 2), 2);
    cr_expect_eq(kt_layer_plan_threads(&plan, 512, 2), 2);
    cr_expect_eq(kt_layer_plan_threads(&plan, 512, 1), 1, "no more than there are");
    plan_of(t, &experts, 3, &plan);
    cr_expect(plan.n_cells == 0 && plan.cuts.n == 0 && plan.spin_ns == 0, "another pool");
    cr_expect_eq(kt_layer_plan_threads(&plan, 1, 3), 3);
    other.n = 1024;
    plan_of(t, &other, 2, &plan);
    cr_expect_eq(plan.n_cells, 0, "other experts");
    other = experts;
    other.experts = 64;
    plan_of(t, &other, 2, &plan);
    cr_expect_eq(plan.n_cells, 0, "another number of experts");
    other = experts;
    other.topk = 4;
    plan_of(t, &other, 2, &plan);
    cr_expect_eq(plan.n_cells, 0, "fewer experts a token");
    kt_table_destroy(t);
}

Test(layer_plan, what_cannot_be_obeyed_is_said) {
    static const char *const bad[][2] = {{"threads", "threads=0"},
                                         {"threads", "threads=2x"},
                                         {"threads", "thread=2"},
                                         {"spin", "spin_us=-5"},
                                         {"spin", "spin_us=99999999"},
                                         {"moe_layer", "task_kib=0,tasks=4,first=number"},
                                         {"moe_layer", "task_kib=192,tasks=4,first=both"},
                                         {"moe_layer", "task_kib=192,tasks=4"},
                                         {"moe_layer", "tasks=4,task_kib=192,first=rows"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_table *t = make();
        kt_table_plan p = cell(bad[i][0], 7, "uniform", 1, bad[i][1]);
        kt_layer_plan plan;
        cr_assert_eq(kt_table_put_plan(t, &p, NULL), KT_OK);
        plan_of(t, &experts, 2, &plan);
        cr_expect(plan.n_cells == 5 && plan.n_ignored == 1, "%s: %d", bad[i][1], plan.n_cells);
        cr_expect(strstr(plan.note, bad[i][0]) && strstr(plan.note, "expected"), "%s", plan.note);
        kt_table_destroy(t);
    }
}

Test(layer_plan, cuts_are_read_back) {
    const kt_moe_cut cuts[] = {{192 << 10, 4, 0}, {1 << 20, 1, 1}};
    for (int i = 0; i < 2; i++) {
        kt_moe_cut back;
        char text[64];
        cr_assert_eq(kt_moe_cut_parse(kt_moe_cut_format(&cuts[i], text, sizeof text), &back, NULL),
                     KT_OK);
        cr_expect(back.task_bytes == cuts[i].task_bytes &&
                  back.tasks_per_thread == cuts[i].tasks_per_thread &&
                  back.is_largest_first == cuts[i].is_largest_first);
    }
}

/* Rows whose layers do not gain what the rows promise answer with their default, until they are trusted. */
Test(plan_layer, rows_that_their_layer_denies_run_the_default) {
    static const char fast[] = "w4g32_a8_moe64__avx2", plain[] = "any_any_moe64__scalar";
    static const struct {
        const char *status; /* of the layer: is its gain sure? */
        double default_ns;  /* over 1000 */
        double predicted;
        const char *also; /* a second routing that confirms */
        bool is_denied;
    } cases[] = {{"default", 1010, 1.5, NULL, true},
                 {"default", 1010, 1.5, "zipf:1", false},
                 {"tuned", 1100, 1.5, NULL, false},
                 {"default", 1450, 1.5, NULL, false},
                 {"default", 1010, 1.005, NULL, false}};
    kt_registry *registry;
    kt_cpu cpu;
    kt_err err;

    kt_cpu_probe(&cpu);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, cpu.isa, &registry, &err),
        KT_OK);
    kt_skip_without_isa(KT_ISA_AVX2, fast);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_table_plan gain = cell("layer_gain", 64, "zipf:0.6", 6.9, "table");
        kt_choice_map *map = calloc(1, sizeof *map);
        kt_planner *planner;
        kt_table *t;

        cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
        t->fingerprint = (kt_fingerprint){.isa = cpu.isa, .usable_cores = 2, .numa_nodes = 1};
        gain.predicted = cases[i].predicted;
        gain.row.default_ns = cases[i].default_ns;
        snprintf(gain.row.status, sizeof gain.row.status, "%s", cases[i].status);
        cr_assert_eq(kt_table_put_plan(t, &gain, &err), KT_OK, "%s", err.message);
        if (cases[i].also) {
            snprintf(gain.routing, sizeof gain.routing, "%s", cases[i].also);
            gain.row.default_ns = 1480;
            cr_assert_eq(kt_table_put_plan(t, &gain, &err), KT_OK, "%s", err.message);
        }
        for (int64_t m = 1; m <= 4; m++) {
            kt_table_row r = gain.row;
            r.problem.m = m;
            snprintf(r.variant, sizeof r.variant, "%s", fast);
            snprintf(r.default_variant, sizeof r.default_variant, "%s", plain);
            r.config[0] = r.default_config[0] = '\0';
            r.version = kt_registry_find(registry, fast)->version;
            r.time_ns = 1000;
            r.default_ns = 1500;
            snprintf(r.status, sizeof r.status, "tuned");
            cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
        }
        cr_assert_eq(kt_planner_create(registry, t, &t->fingerprint, NULL, &planner, &err), KT_OK);
        for (int trusted = 0; trusted <= 1; trusted++) {
            const char *want = cases[i].is_denied && !trusted ? plain : fast;
            if (trusted) kt_planner_trust_rows(planner);
            cr_assert_eq(kt_plan_resolve(planner, &experts, 2, 4, 0.7, map, NULL, &err), KT_OK,
                         "%s", err.message);
            cr_expect_str_eq(kt_choice_for(map, 4)->variant->name, want, "case %zu, trusted %d: %s",
                             i, trusted, kt_choice_for(map, 4)->variant->name);
        }
        kt_planner_destroy(planner);
        kt_table_destroy(t);
        free(map);
    }
    kt_registry_destroy(registry);
}

/* A prediction of 2 that turns out to be 1.5 is realised by log 1.5 / log 2. */
Test(plan_layer, gains_are_compared_in_logarithms) {
    kt_table_plan gain = cell("layer_gain", 64, "zipf:0.6", 6.9, "table");

    gain.predicted = 2;
    gain.row.default_ns = 1500;
    cr_expect_float_eq(kt_layer_realised(&gain, 0), log(1.5) / log(2), 1e-12);
    gain.row.default_ns = 800;
    cr_expect_float_eq(kt_layer_realised(&gain, 0), log(0.8) / log(2), 1e-12, "a loss");
    gain.predicted = 1.0099;
    cr_expect(isnan(kt_layer_realised(&gain, 0)));
    gain.predicted = 1.05;
    cr_expect(!isnan(kt_layer_realised(&gain, 0.02)) && isnan(kt_layer_realised(&gain, 0.03)));
}

/* The layers whose experts have rows nearest to the row's m are asked; one that confirms is enough. */
Test(plan_layer, the_nearest_layers_are_asked) {
    static const struct {
        struct {
            int64_t tokens; /* 64 give an expert 4 rows, 256 give it 16 */
            double default_ns;
        } gains[3];
        int64_t m;
        int is_denied;
    } cases[] = {{{{64, 1010}, {256, 1480}, {0, 0}}, 4, 1},
                 {{{64, 1480}, {256, 1010}, {0, 0}}, 4, 0},
                 {{{64, 1480}, {256, 1010}, {0, 0}}, 16, 1},
                 {{{64, 1010}, {256, 1480}, {0, 0}}, 16, 0},
                 {{{64, 1010}, {64, 1020}, {64, 1480}}, 4, 0},
                 {{{64, 1010}, {64, 1020}, {0, 0}}, 4, 1},
                 {{{0, 0}, {0, 0}, {0, 0}}, 4, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_table_row row = cell("layer_gain", 4, "uniform", 1, "x").row;
        kt_table *t;
        kt_err err;

        cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
        for (int g = 0; g < 3 && cases[i].gains[g].tokens; g++) {
            static const char *const routings[] = {"zipf:0", "zipf:0.6", "zipf:1"};
            kt_table_plan gain =
                cell("layer_gain", cases[i].gains[g].tokens, routings[g], 2, "table");
            gain.predicted = 1.5;
            gain.row.default_ns = cases[i].gains[g].default_ns;
            snprintf(gain.row.status, sizeof gain.row.status, "default");
            cr_assert_eq(kt_table_put_plan(t, &gain, &err), KT_OK, "%s", err.message);
        }
        row.problem.m = cases[i].m;
        cr_expect_eq(kt_layer_denies(t, &row), cases[i].is_denied, "case %zu", i);
        row.problem.op = KT_OP_GEMM;
        cr_expect_eq(kt_layer_denies(t, &row), 0, "case %zu: not of experts", i);
        kt_table_destroy(t);
    }
}
