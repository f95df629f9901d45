/* Strategies on recorded samples: the truth is found again, simulated contests find it too, and the same
 * seed gives the same figures. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/session/sim.h"
#include "tuner/store/ledger.h"

enum { N = 12, BEST = 7, STANDARD = 2 };

/* Contender i costs 1 % more than the one before it, counted from BEST on; noise is shared in a round. */
typedef struct fake {
    kt_rng rng;
    double drift;
    int samples;
} fake;

static double cost_of(int i) {
    return 1e5 * (1 + 0.01 * ((i - BEST + N) % N));
}

static double fake_sample(void *arg, int i) {
    fake *f = arg;
    if (f->samples++ % N == 0) f->drift = exp(0.05 * (double)kt_rng_normal(&f->rng));
    return cost_of(i) * f->drift * exp(0.01 * fabs((double)kt_rng_normal(&f->rng)));
}

static const kt_variant variants[N] = {
    {.name = "a__scalar"}, {.name = "b__scalar"}, {.name = "c__scalar"}, {.name = "d__scalar"},
    {.name = "e__scalar"}, {.name = "f__scalar"}, {.name = "g__scalar"}, {.name = "h__scalar"},
    {.name = "i__scalar"}, {.name = "j__scalar"}, {.name = "k__scalar"}, {.name = "l__scalar"}};

/* A journal with one cell of which everything was measured in 64 rounds, and its decision. */
static void record(const char *path) {
    kt_fingerprint machine = {.vendor = "TestVendor",
                              .microarch = "test",
                              .family = 1,
                              .usable_cores = 1,
                              .numa_nodes = 1,
                              .memory_bytes = 1 << 30};
    kt_ledger_session about = {
        .machine = &machine, .workload = "w", .strategy = "auto", .command = "none", .seed = 1};
    kt_tune_cell cell = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 1, .n = 64, .k = 64},
        .threads = 1,
        .weight = 1};
    kt_contest_terms terms = {.strategy = "exhaustive", .warm_index = -1, .shorten = 1, .units = 1};
    kt_table_row row = {.problem = cell.problem,
                        .threads = 1,
                        .variant = "h__scalar",
                        .time_ns = 1e5,
                        .ci_low = 1,
                        .ci_high = 1,
                        .default_variant = "c__scalar",
                        .default_ns = 1e5,
                        .status = "tuned"};
    kt_contender list[N] = {0};
    kt_contenders c = {.list = list, .n = N, .default_index = STANDARD};
    kt_decision_terms spent = {.rounds = 64};
    kt_rung_store store;
    kt_ledger l;
    fake f = {0};
    kt_stopwatch watch = {.arg = &f, .sample = fake_sample};
    kt_contest contest = {
        .watch = &watch, .store = &store, .n = N, .deadline_ns = INT64_MAX, .seed = 1};
    kt_samples s;
    int live[N];

    for (int i = 0; i < N; i++) {
        live[i] = i;
        list[i].choice.variant = &variants[i];
        kt_contender_name(&list[i].choice, list[i].name, sizeof list[i].name);
    }
    kt_rng_seed(&f.rng, 5);
    cr_assert_eq(kt_ledger_open(path, &about, &l, NULL), KT_OK);
    terms.id = kt_contest_id(&c, terms.strategy);
    cr_assert_eq(kt_ledger_contest(&l, &cell, &c, &terms, &store, NULL), KT_OK);
    cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
    for (int r = 0; r < 4; r++)
        cr_assert_eq(kt_contest_rung(&contest, &s, live, N, 16, NULL), KT_OK);
    cr_assert_eq(kt_ledger_decide(&l, &row, &spent, NULL), KT_OK);
    kt_samples_destroy(&s);
    kt_ledger_close(&l);
}

Test(sim, strategies_are_judged_by_the_recorded_truth, .timeout = 180) {
    char folder[256], path[300];
    kt_registry *registry;
    kt_sim_result once, again;
    kt_journal *j;
    kt_sim sim;
    kt_err err;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.journal.jsonl", folder);
    record(path);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, 0, &registry, &err),
        KT_OK);
    cr_assert_eq(kt_journal_read(path, &j, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sim_load(j, registry, &sim, &err), KT_OK, "%s", err.message);
    cr_assert_eq(sim.n, 1);
    cr_expect_eq(sim.cells[0].best, BEST);
    cr_expect_eq(sim.cells[0].default_index, STANDARD);
    for (int i = 0; i < N; i++) {
        double ratio = sim.cells[0].contender[i].true_ns / sim.cells[0].contender[BEST].true_ns;
        cr_expect_float_eq(ratio, cost_of(i) / cost_of(BEST), 0.005, "%d: %.4f", i, ratio);
    }
    for (size_t s = 0; s < kt_builtin_strategy_count; s++) {
        const kt_strategy *strategy = kt_builtin_strategies[s];
        cr_assert_eq(kt_sim_run(&sim, strategy, NULL, 20, 3, &once, &err), KT_OK, "%s",
                     err.message);
        cr_assert_eq(kt_sim_run(&sim, strategy, NULL, 20, 3, &again, &err), KT_OK);
        cr_expect_eq(memcmp(&once, &again, sizeof once), 0, "%s differs from itself",
                     once.strategy);
        cr_expect_eq(once.at[KT_SIM_POINTS - 1].decided, 1);
        if (once.at[0].decided == 0)
            cr_expect_float_eq(once.at[0].regret, 0.07, 0.005, "undecided: the default's");
        if (strcmp(once.strategy, "random") == 0) continue; /* a few contenders only */
        cr_expect_lt(once.regret.geomean, 0.01, "%s: %.4f", once.strategy, once.regret.geomean);
    }
    kt_sim_deinit(&sim);
    kt_journal_close(j);
    kt_registry_destroy(registry);
    kt_temp_remove(folder);
}

Test(sim, replays_the_oracle_of_a_real_run, .timeout = 180) {
    kt_tune_home h;
    char command[1400], *out;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             KT_BUILD_DIR "/kttune run --model %s --cells 'm<=2,threads=1,role=experts' --oracle "
                          "--profile-self --noisy-ok --widest 1 && " KT_BUILD_DIR
                          "/kttune sim %s --trials 2 --json",
             h.model, h.journal);
    cr_expect_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    cr_expect(strstr(out, "oracle of 2 cells: regret "), "%s", out);
    cr_expect(strstr(out, "% in kernels, "), "%s", out);
    cr_expect(strstr(out, "\"oracle_cells\": 2"), "%s", out);
    cr_expect(strstr(out, "\"strategy\": \"auto\""), "%s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run(KT_BUILD_DIR "/kttune sim", &out), 2);
    free(out);
    kt_tune_home_remove(&h);
}
