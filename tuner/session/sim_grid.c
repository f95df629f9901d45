/* Tuning the tuner: the rules of a race swept over recorded samples. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/session/sim.h"

/* Swept values. Rungs: those of the first protocol, shorter and longer ones. */
static const struct {
    const char *name;
    int n, rounds[KT_RACE_RUNGS];
} rungs[] = {{"4-4-8-16", 4, {4, 4, 8, 16}},
             {"2-4-8-16", 4, {2, 4, 8, 16}},
             {"4-8-16", 3, {4, 8, 16}},
             {"4-4-8", 3, {4, 4, 8}},
             {"8-8-16-32", 4, {8, 8, 16, 32}}};
static const double survivors[] = {0.5, 0.34};
static const double stops[] = {0.8, 0.9, 0.95};
static const bool by_steps[] = {true, false}; /* holdouts: those of now, or of protocol 5 */
static const double drops[] = {0.98, 0.9};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void mark_best(kt_sim_grid_point *p, int n) {
    for (int i = 0; i < n; i++) {
        p[i].is_best = true;
        for (int k = 0; k < n; k++)
            if (p[k].result.mean_sec < p[i].result.mean_sec &&
                p[k].result.regret.geomean <= p[i].result.regret.geomean)
                p[i].is_best = false;
    }
}

static int by_time(const void *a, const void *b) {
    double x = ((const kt_sim_grid_point *)a)->result.mean_sec;
    double y = ((const kt_sim_grid_point *)b)->result.mean_sec;
    return (x > y) - (x < y);
}

static void make(size_t i, kt_sim_grid_point *p) {
    size_t steps = i % COUNT(by_steps), stop = i / COUNT(by_steps) % COUNT(stops);
    size_t rest = i / COUNT(by_steps) / COUNT(stops);
    size_t drop = rest % COUNT(drops), share = rest / COUNT(drops) % COUNT(survivors);
    size_t rung = rest / COUNT(drops) / COUNT(survivors);

    memset(p, 0, sizeof *p);
    p->rules = kt_race_rules_now;
    p->rules.n_rungs = rungs[rung].n;
    memcpy(p->rules.rung_rounds, rungs[rung].rounds, sizeof p->rules.rung_rounds);
    p->rules.survivors = survivors[share];
    p->rules.drop_confidence = drops[drop];
    p->rules.stop_confidence = stops[stop];
    if (!by_steps[steps]) {
        p->rules.n_steps = 0;
        p->rules.look_rounds = 10;
        p->rules.extra_rounds = 60;
    }
    snprintf(p->name, sizeof p->name, "%s keep %.2f drop %.2f stop %.2f %s", rungs[rung].name,
             p->rules.survivors, p->rules.drop_confidence, p->rules.stop_confidence,
             by_steps[steps] ? "steps" : "fixed");
}

kt_status kt_sim_grid(const kt_sim *s, const kt_strategy *strategy, int trials, uint64_t seed,
                      kt_sim_grid_point points[KT_SIM_GRID], int *n, kt_err *err) {
    size_t all = COUNT(rungs) * COUNT(survivors) * COUNT(drops) * COUNT(stops) * COUNT(by_steps);

    *n = 0;
    for (size_t i = 0; i < all && *n < KT_SIM_GRID; i++) {
        kt_sim_grid_point *p = &points[*n];
        make(i, p);
        KT_TRY(kt_sim_run(s, strategy, &p->rules, trials, seed, &p->result, err));
        ++*n;
    }
    mark_best(points, *n);
    qsort(points, (size_t)*n, sizeof *points, by_time);
    return KT_OK;
}
