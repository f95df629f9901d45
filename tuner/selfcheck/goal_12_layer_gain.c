/* Does a whole layer gain what its cells promise? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"

enum { LOOK_ROUNDS = 2, CELL_ROUNDS = 60, LAYER_ROUNDS = 20, MOST_RIVALS = 8 };

/* Smaller promises drown in the noise of a layer; larger ones hold for sure. */
static const double least_gain = 0.04, most_gain = 1.0;

typedef struct sums {
    int n;
    double promised, realised;            /* sums of logs */
    double most_promised, least_realised; /* the same of their intervals' ends */
    double worst;                         /* realised share of one pair */
} sums;

/* Variants that could run this cell but do not: each stands for what tuning may have replaced. */
static int find_rivals(const kt_check *c, const kt_problem *problem, const kt_choice *chosen,
                       kt_choice rivals[MOST_RIVALS]) {
    int n = 0;
    for (size_t i = 0; i < kt_registry_count(c->registry) && n < MOST_RIVALS; i++) {
        kt_choice x = {.variant = kt_registry_at(c->registry, i)};
        x.config = kt_config_initial(x.variant);
        if (x.variant != chosen->variant &&
            kt_variant_accepts(x.variant, problem, &x.config, NULL) == KT_OK)
            rivals[n++] = x;
    }
    return n;
}

/* One rival: by the cell, then in layers where every expert gets the cell's rows. */
static kt_status race(kt_check_duels *d, const kt_tune_cell *cell, const kt_choice pair[2], sums *s,
                      kt_err *err) {
    const kt_problem *q = &cell->problem;
    const kt_gate_result *gate;
    kt_duel_result in_cell, in_layer;

    d->duels.spread_tokens = 0;
    KT_TRY(kt_duels_gate(&d->duels, q, &pair[0], &gate, err));
    if (!gate->passed) return KT_OK;
    KT_TRY(kt_duels_race(&d->duels, q, cell->threads, pair, LOOK_ROUNDS, &in_cell, err));
    if (in_cell.ratio.point > 2 * log1p(most_gain)) return KT_OK; /* plain code takes seconds */
    KT_TRY(kt_duels_race(&d->duels, q, cell->threads, pair, CELL_ROUNDS, &in_cell, err));
    if (in_cell.ratio.low < log1p(least_gain) || in_cell.ratio.point > log1p(most_gain))
        return KT_OK;
    d->duels.spread_tokens = q->m * q->experts / q->topk;
    KT_TRY(kt_duels_race(&d->duels, q, cell->threads, pair, LAYER_ROUNDS, &in_layer, err));
    s->n++;
    s->promised += in_cell.ratio.point;
    s->realised += in_layer.ratio.point;
    s->most_promised += in_cell.ratio.high;
    s->least_realised += in_layer.ratio.low;
    s->worst = fmin(s->worst, in_layer.ratio.point / in_cell.ratio.point);
    return KT_OK;
}

static kt_status race_cell(kt_check *c, kt_check_duels *d, const kt_tune_cell *cell,
                           const kt_choice *chosen, sums *s, kt_err *err) {
    kt_choice rivals[MOST_RIVALS];
    int n = find_rivals(c, &cell->problem, chosen, rivals);
    for (int i = 0; i < n && !kt_check_stopped(c); i++) {
        kt_choice pair[2] = {rivals[i], *chosen};
        KT_TRY(race(d, cell, pair, s, err));
    }
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    static const char name[] = "realised share of the promised layer gain";
    kt_choice winners[KT_CHECK_CELLS];
    kt_check_cells cells;
    kt_check_duels d;
    sums s = {.worst = INFINITY};
    kt_status st;

    KT_TRY(kt_check_cells_make(c, "int4",
                               c->quick ? "m<=1,threads=1,role=experts" : "m<=4,role=experts",
                               c->quick ? 1 : 8, &cells, err));
    kt_check_duels_init(c, &d);
    st = kt_check_tune(c, &cells.list, c->seed, winners, err);
    for (size_t i = 0; st == KT_OK && i < cells.list.n; i++)
        st = race_cell(c, &d, &cells.list.cells[i], &winners[i], &s, err);
    kt_duels_deinit(&d.duels);
    kt_cell_list_deinit(&cells.list);
    if (st != KT_OK) return st;
    if (s.n == 0)
        kt_check_missing(c, name, 80, "%", "no other variant is slower by %.0f %% to %.0f %%",
                         100 * least_gain, 100 * most_gain);
    else {
        kt_check_at_least(
            c, name, 100 * s.realised / s.promised, 80, "%",
            "%d pairs of the winner and a slower variant: %+.1f %% (geomean) by the cell, %+.1f "
            "%% in layers of 128 experts; worst pair %.0f %%; bound: the ends of the 99 %% "
            "intervals",
            s.n, 100 * expm1(s.promised / s.n), 100 * expm1(s.realised / s.n), 100 * s.worst);
        kt_check_bound(c, 100 * s.least_realised / s.most_promised);
    }
    return KT_OK;
}

const kt_goal kt_goal_12_layer_gain = {12, "realised layer gain", measure, false};
