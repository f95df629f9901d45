/* Do two runs agree, and does load on the machine spoil decisions? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"

/* Contests of the filed cells held twice on their samples. */
static kt_status on_samples(kt_check *c, kt_err *err) {
    const kt_strategy *strategy = kt_strategy_find("auto");
    size_t n = 0, near = 0;

    for (int i = 0; i < c->n_journals; i++)
        for (size_t k = 0; k < c->sim[i].n; k++) {
            const kt_sim_cell *cell = &c->sim[i].cells[k];
            int a, b;
            if (!cell->is_oracle || kt_check_stopped(c)) continue;
            KT_TRY(kt_sim_decide(cell, strategy, c->seed + 2 * k, &a, err));
            KT_TRY(kt_sim_decide(cell, strategy, c->seed + 2 * k + 1, &b, err));
            near +=
                fabs(log(cell->contender[a].true_ns / cell->contender[b].true_ns)) <= log1p(0.02);
            n++;
        }
    if (n == 0)
        kt_check_missing(c, "choices of two runs within 2 %", 98, "%",
                         "no filed oracle journal; see goal 1");
    else
        kt_check_at_least(c, "choices of two runs within 2 %", 100.0 * (double)near / (double)n, 98,
                          "%", "%zu filed oracle cells, each decided twice on its samples", n);
    return KT_OK;
}

/* Real contests of a few cells, quiet and with one core taken; the choices then meet. */
static kt_status with_load(kt_check *c, kt_err *err) {
    enum { CELLS = 8 };
    double sum = 0, weight = 0, worst = 0;
    int n_other = 0;
    kt_check_cells cells;
    kt_check_duels d;
    kt_choice quiet[KT_CHECK_CELLS], loaded[KT_CHECK_CELLS];
    kt_hogs hogs = {0};
    kt_status st;
    size_t n = 0;

    KT_TRY(kt_check_cells_make(c, "int4", "m<=4,threads=1", CELLS, &cells, err));
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
        worst = fmax(worst, r.ratio.low);
    }
    /* Signed: of two equal choices either is ahead by chance, and only the mean of all says nothing then. */
    if (st == KT_OK && n > 0)
        kt_check_at_most(
            c, "regret added by one busy core", 100 * fmax(0, expm1(sum / weight)), 1, "%",
            "%zu cells tuned quiet and beside a spinning process, %d of them otherwise, whose "
            "choices met in %d rounds on the quiet machine; none slower by more than %.1f %% "
            "beyond doubt",
            n, n_other, KT_COMPARE_ROUNDS, 100 * expm1(worst));
    kt_duels_deinit(&d.duels);
    kt_cell_list_deinit(&cells.list);
    return st;
}

static kt_status measure(kt_check *c, kt_err *err) {
    KT_TRY(on_samples(c, err));
    return with_load(c, err);
}

const kt_goal kt_goal_05_two_runs = {5, "robust against noise", measure};
