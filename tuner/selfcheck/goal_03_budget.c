/* Is a budget kept, and is the quick profile quick? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "base/err.h"
#include "base/rng.h"
#include "tuner/selfcheck/goal.h"

/* Runs of the real program on cells that take longer than they may. */
static kt_status overshoot(kt_check *c, kt_err *err) {
    int runs = c->quick ? 4 : 20;
    double worst = -INFINITY;
    kt_check_home home;
    kt_rng rng;

    kt_rng_seed(&rng, c->seed);
    KT_TRY(kt_check_home_make(c, "budget", &home, err));
    for (int i = 0; i < runs && !kt_check_stopped(c); i++) {
        double budget = 0.5 + kt_rng_double(&rng), seconds;
        char text[32];
        const char *arguments[] = {"run",      "--model", "Qwen3-30B-A3B", "--format", "int4",
                                   "--budget", text,      "--noisy-ok",    "--fresh",  NULL};
        snprintf(text, sizeof text, "%.0fms", 1000 * budget);
        if (kt_check_run(c, &home, arguments, -1, &seconds) < 0) {
            kt_check_missing(c, "budget overshoot, worst", 1, "s", "%s could not be run",
                             c->program);
            return KT_OK;
        }
        worst = fmax(worst, seconds - budget);
    }
    kt_check_at_most(c, "budget overshoot, worst", worst, 1, "s",
                     "%d runs with budgets of 0.5 to 1.5 s; repeat: time kttune run --model "
                     "Qwen3-30B-A3B --format int4 --budget 1s",
                     runs);
    return KT_OK;
}

/* A whole quick profile as a user runs it. */
static kt_status quick_profile(kt_check *c, kt_err *err) {
    static const char *const arguments[] = {"run",     "--model",  "Qwen3-30B-A3B", "--format",
                                            "int4",    "--budget", "60s",           "--noisy-ok",
                                            "--fresh", NULL};
    int runs = c->full ? 20 : 2;
    kt_check_home home;
    double seconds, worst = 0, share = 0;
    kt_journal *j;
    kt_sim sim;
    kt_status st;
    int code = 0;

    KT_TRY(kt_check_home_make(c, "quick", &home, err));
    for (int i = 0; i < runs && !kt_check_stopped(c); i++) {
        code = kt_check_run(c, &home, arguments, -1, &seconds);
        worst = fmax(worst, seconds);
    }
    snprintf(home.journal, sizeof home.journal, "%.900s/Qwen3-30B-A3B.journal.jsonl", home.tables);
    KT_TRY(kt_journal_read(home.journal, &j, err));
    st = kt_sim_load(j, c->registry, &sim, err);
    for (size_t i = 0; st == KT_OK && i < sim.n; i++) share += sim.cells[i].weight;
    kt_sim_deinit(&sim);
    kt_journal_close(j);
    if (st != KT_OK) return st;
    kt_check_at_most(
        c, "quick profile, wall", worst, 60, "s",
        "worst of %d runs (20 with --full) of kttune run --model Qwen3-30B-A3B --format int4 "
        "--budget 60s: exit code %d, decided cells stand for %.1f %% of the serving time",
        runs, code, 100 * share);
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    KT_TRY(overshoot(c, err));
    if (!c->quick) return quick_profile(c, err);
    kt_check_missing(c, "quick profile, wall", 60, "s",
                     "takes a minute: selfcheck --goals 3 without --quick");
    return KT_OK;
}

const kt_goal kt_goal_03_budget = {3, "budgets", measure, false};
