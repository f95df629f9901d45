/* Does a comparison see what is there, and nothing else? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"

static const double slowdown = 0.03;
/* 300: without any alarm the rate is at most 1 % at 95 % (0.99^300 = 0.049). */
enum { FULL_TRIALS = 300 };

/* What `compare --rerun` may call a change: beyond doubt, and large enough to be one. */
static bool is_change(const kt_duel_result *r) {
    return (r->ratio.low > 0 || r->ratio.high < 0) &&
           fabs(r->ratio.point) >= log1p(KT_COMPARE_LEAST);
}

typedef struct tally {
    int trials, alarms, found;
    int64_t rounds;
    double seconds;
} tally;

static kt_status default_of(const kt_tune_cell *cell, kt_planner *planner, kt_choice_map *map,
                            kt_choice *out, kt_err *err) {
    kt_plan_source source;
    KT_TRY(kt_plan_resolve(planner, &cell->problem, cell->threads, KT_M_DENSE, KT_DECODE_SHARE, map,
                           &source, err));
    *out = *kt_choice_for(map, cell->problem.m);
    return KT_OK;
}

static kt_status run_trials(kt_check *c, const kt_cell_list *cells, kt_planner *planner, int trials,
                            tally *t, kt_err *err) {
    kt_choice_map *map = calloc(1, sizeof *map);
    int64_t start = kt_clock_ns();
    kt_check_duels d;
    kt_status st = map ? KT_OK : kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");

    kt_check_duels_init(c, &d);
    d.duels.least_effect = KT_COMPARE_LEAST;
    d.duels.repeats = KT_COMPARE_REPEATS;
    for (; st == KT_OK && t->trials < trials && !kt_check_stopped(c); t->trials++) {
        /* Cell after cell, so that its weights are packed once. */
        const kt_tune_cell *cell = &cells->cells[(size_t)t->trials * cells->n / (size_t)trials];
        kt_choice pair[2];
        kt_duel_result r[2];
        d.duels.seed = c->seed + (uint64_t)t->trials;
        st = default_of(cell, planner, map, &pair[0], err);
        pair[1] = pair[0];
        for (int k = 0; k < 2 && st == KT_OK; k++) {
            d.duels.slowdown = k ? slowdown : 0;
            st = kt_duels_race(&d.duels, &cell->problem, cell->threads, pair, KT_COMPARE_ROUNDS,
                               &r[k], err);
        }
        if (st != KT_OK) break;
        t->alarms += is_change(&r[0]);
        t->found += is_change(&r[1]) && r[1].ratio.high < 0;
        t->rounds += r[0].rounds + r[1].rounds;
    }
    t->seconds = (double)(kt_clock_ns() - start) * 1e-9;
    kt_duels_deinit(&d.duels);
    free(map);
    return st == KT_E_CANCELLED && t->trials > 0 ? KT_OK : st;
}

static kt_status measure(kt_check *c, kt_err *err) {
    const int trials = c->full ? FULL_TRIALS : c->quick ? 24 : 100;
    kt_planner *planner = NULL;
    kt_check_cells cells;
    tally t = {0};
    double each;
    kt_status st;

    KT_TRY(kt_check_cells_make(c, "int4", "m<=4,threads=1", 8, &cells, err));
    st = kt_planner_create(c->registry, NULL, c->machine, NULL, &planner, err);
    if (st == KT_OK) st = run_trials(c, &cells.list, planner, trials, &t, err);
    kt_planner_destroy(planner);
    kt_cell_list_deinit(&cells.list);
    if (st != KT_OK) return st;
    if (t.trials == 0) return kt_fail(err, KT_E_CANCELLED, "no time for a single duel");
    each = t.seconds / (2 * t.trials);
    kt_check_rate(c, "A/A false alarms", t.alarms, t.trials, 1, false,
                  "%d duels of a choice with itself; an alarm is 1.5 %% or more beyond doubt (99.5 "
                  "%%, early looks 99.9 %%) in %d rounds at most; --full has %d duels",
                  t.trials, KT_COMPARE_ROUNDS, FULL_TRIALS);
    kt_check_rate(c, "power to see a 3 % slowdown", t.found, t.trials, 95, true,
                  "%d duels with a copy that spins for another 3 %% of each sample, the same rule; "
                  "%.0f rounds on average",
                  t.trials, (double)t.rounds / (2 * t.trials));
    kt_check_at_most(c, "seconds to compare a model's decode cells", 24 * each, 60, "s",
                     "24 cells of up to 8 rows at %.2f s a duel, packing included", each);
    return KT_OK;
}

const kt_goal kt_goal_06_compare = {6, "A/A and power of comparisons", measure, false};
