/* Do two runs agree, and does load on the machine spoil decisions? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "tuner/measure/stats.h"
#include "tuner/selfcheck/check_duels.h"

/* Pairs of runs per cell when there is time: enough for a bound of 98 % at 64 cells. */
enum { MOST_PAIRS = 8 };

/* Contests of the filed cells held twice on their samples. */
static kt_status on_samples(kt_check *c, kt_err *err) {
    static const char name[] = KT_CHECK_FILED "choices of two runs within 2 %";
    const kt_strategy *strategy = kt_strategy_find("auto");
    const int pairs = c->quick ? 1 : MOST_PAIRS;
    int n = 0, near = 0, cells = 0;

    for (int i = 0; i < c->n_journals; i++)
        for (size_t k = 0; k < c->sim[i].n; k++) {
            const kt_sim_cell *cell = &c->sim[i].cells[k];
            int a, b;
            if (!cell->is_oracle || kt_check_stopped(c)) continue;
            cells++;
            for (int p = 0; p < pairs; p++, n++) {
                const uint64_t seed = c->seed + 2 * ((uint64_t)pairs * k + (uint64_t)p);
                KT_TRY(kt_sim_decide(cell, strategy, seed, &a, err));
                KT_TRY(kt_sim_decide(cell, strategy, seed + 1, &b, err));
                near += fabs(log(cell->contender[a].true_ns / cell->contender[b].true_ns)) <=
                        log1p(0.02);
            }
        }
    if (n == 0)
        kt_check_missing(c, name, 98, "%", "no filed oracle journal; see goal 1");
    else
        kt_check_rate(c, name, near, n, 98, true,
                      "%d pairs of decisions of %d filed oracle cells on their samples", n, cells);
    return KT_OK;
}

/* Real contests of a few cells, quiet and with one core taken; the choices then meet. */
static kt_status with_load(kt_check *c, kt_err *err) {
    const size_t most = c->quick ? 8 : 24;
    double sum = 0, high = 0, weight = 0, worst = 0;
    int n_other = 0;
    kt_check_cells cells;
    kt_check_duels d;
    kt_choice quiet[KT_CHECK_CELLS], loaded[KT_CHECK_CELLS];
    kt_hogs hogs = {0};
    kt_status st;
    size_t n = 0;

    KT_TRY(kt_check_cells_make(c, "int4", c->quick ? "m<=4,threads=1" : "m<=8", most, &cells, err));
    st = kt_check_tune(c, &cells.list, c->seed, quiet, err);
    if (st == KT_OK) st = kt_hogs_start(&hogs, 1, err);
    if (st == KT_OK) st = kt_check_tune(c, &cells.list, c->seed + 1, loaded, err);
    kt_hogs_stop(&hogs);
    kt_check_duels_init(c, &d);
    for (size_t i = 0; st == KT_OK && i < cells.list.n; i++) {
        kt_choice pair[2] = {loaded[i], quiet[i]};
        kt_duel_result r = {0};
        if (!kt_choice_equal(&pair[0], &pair[1]))
            st = kt_duels_race(&d.duels, &cells.list.cells[i].problem, cells.list.cells[i].threads,
                               pair, KT_COMPARE_ROUNDS, &r, err);
        n++;
        n_other += !kt_choice_equal(&pair[0], &pair[1]);
        sum += cells.list.cells[i].weight * r.ratio.point;
        weight += cells.list.cells[i].weight;
        high += cells.list.cells[i].weight * r.ratio.high;
        worst = fmax(worst, r.ratio.low);
    }
    if (st == KT_OK && n > 0) {
        kt_check_at_most(
            c, "regret added by one busy core", 100 * expm1(sum / weight), 1, "%",
            "%zu cells tuned quiet and beside a spinning process, %d of them otherwise (at most "
            "%.0f %% of cells would be, at 95 %%); these choices met in %d quiet rounds, worst "
            "surely %+.1f %%; bound: means of the 99 %% intervals' ends",
            n, n_other, 100 * kt_rate_upper(n_other, (int)n, 0.95), KT_COMPARE_ROUNDS,
            100 * expm1(worst));
        kt_check_bound(c, 100 * expm1(high / weight));
    }
    kt_duels_deinit(&d.duels);
    kt_cell_list_deinit(&cells.list);
    return st;
}

static kt_status measure(kt_check *c, kt_err *err) {
    KT_TRY(on_samples(c, err));
    if (c->filed_class) return KT_OK;
    return with_load(c, err);
}

const kt_goal kt_goal_05_two_runs = {5, "robust against noise", measure, true};
