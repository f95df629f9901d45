/* One table for every routing: experts are dispatched by their own rows, so skew only changes which rows of
 * the table are asked. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/selfcheck/check_layers.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/space/cell.h"
#include "tuner/space/routing.h"

enum { DRAWS = 20 };

/* Buckets of one expert shape on a number of threads: what was chosen costs, and what the best one does. */
typedef struct ladder {
    const kt_sim_cell *cell[32]; /* ascending m */
    int n;
} ladder;

static void climb(const kt_sim *s, const kt_sim_cell *first, ladder *l) {
    l->n = 0;
    for (size_t i = 0; i < s->n && l->n < 32; i++) {
        const kt_sim_cell *x = &s->cells[i];
        int at = l->n;
        if (!x->is_oracle || x->threads != first->threads ||
            !kt_same_weights(&x->problem, &first->problem))
            continue;
        for (; at > 0 && l->cell[at - 1]->problem.m > x->problem.m; at--)
            l->cell[at] = l->cell[at - 1];
        l->cell[at] = x;
        l->n++;
    }
}

/* Times of the cell that stands for m rows, scaled to them: the nearest bucket from above. */
static void add_times(const ladder *l, int m, double *chosen, double *best) {
    int i = 0;
    const kt_sim_cell *x;
    double scale;

    while (i + 1 < l->n && l->cell[i]->problem.m < m) i++;
    x = l->cell[i];
    scale = m > x->problem.m ? (double)m / (double)x->problem.m : 1;
    *chosen += scale * x->contender[x->winner].true_ns;
    *best += scale * x->contender[x->best].true_ns;
}

static kt_status regret_of(const kt_check *c, const ladder *l, const char *routing, int64_t tokens,
                           kt_cell_regret *out, kt_err *err) {
    const kt_problem *q = &l->cell[0]->problem;
    int32_t *counts = calloc((size_t)q->experts, sizeof *counts);
    double chosen = 0, best = 0;
    kt_routing r;
    kt_status st =
        counts ? kt_routing_parse(routing, &r, err) : kt_fail(err, KT_E_NOMEM, "skew: memory");

    if (st == KT_OK) r.seed = c->seed;
    for (int d = 0; d < DRAWS && st == KT_OK; d++) {
        st = kt_routing_counts(&r, q->experts, q->topk, tokens, (uint64_t)d, counts, err);
        for (int64_t e = 0; st == KT_OK && e < q->experts; e++)
            if (counts[e] > 0) add_times(l, counts[e], &chosen, &best);
    }
    free(counts);
    if (st == KT_OK) *out = (kt_cell_regret){log(chosen / best), 1};
    return st;
}

/* All expert ladders of all journals under one routing. */
static kt_status over_all(kt_check *c, const char *routing, double *worst, int *n_ladders,
                          kt_err *err) {
    /* With one token every expert has one row whatever the skew. */
    static const int64_t tokens[] = {64, 256, 512};
    *worst = 0;
    *n_ladders = 0;
    for (int j = 0; j < c->n_journals; j++)
        for (size_t i = 0; i < c->sim[j].n; i++) {
            const kt_sim_cell *x = &c->sim[j].cells[i];
            ladder l;
            if (!x->is_oracle || x->problem.op != KT_OP_MOE_FFN || x->problem.m != 1) continue;
            climb(&c->sim[j], x, &l);
            if (l.n < 3) continue;
            ++*n_ladders;
            for (int t = 0; t < 3; t++) {
                kt_cell_regret r;
                KT_TRY(regret_of(c, &l, routing, tokens[t], &r, err));
                *worst = fmax(*worst, expm1(r.log_regret));
            }
        }
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    static const char *const routings[] = {"uniform", "zipf:0.6", "zipf:1.0"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        double worst;
        int n;
        KT_TRY(over_all(c, routings[i], &worst, &n, err));
        snprintf(name, sizeof name, KT_CHECK_FILED "skew regret, %s", routings[i]);
        if (n == 0)
            kt_check_missing(c, name, 2, "%",
                             "no filed oracle cells of experts at three row counts; see goal 1");
        else
            kt_check_at_most(
                c, name, 100 * worst, 2, "%",
                "worst of 64, 256, 512 tokens over %d expert shapes and thread counts, %d drawn "
                "layers; times of the filed oracle cells",
                n, DRAWS);
    }
    if (c->filed_class) return KT_OK;
    return kt_check_skewed_layers(c, err);
}

const kt_goal kt_goal_11_skew = {11, "skewed routing", measure, true};
