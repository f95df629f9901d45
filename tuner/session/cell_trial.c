/* What a cell's contests need: gates first, then weights, pool and clock. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/session/session_parts.h"

static double seconds_since(int64_t start_ns) {
    return (double)(kt_clock_ns() - start_ns) * 1e-9;
}

/* --- gates --- */

static kt_status gate_new(kt_session *s, const kt_tune_cell *cell, const kt_choice *near,
                          int64_t enough_ns, const kt_contenders *all, kt_err *err) {
    kt_gate_limits limits = {.seed = s->setup.seed,
                             .deadline_ns = s->setup.deadline_ns,
                             .stop = s->setup.stop,
                             .stop_arg = s->setup.stop_arg,
                             .seconds_each = s->setup.gate_seconds,
                             .enough_ns = enough_ns};
    int *order = calloc((size_t)all->n, sizeof *order);
    kt_choice *choices = calloc((size_t)all->n, sizeof *choices);
    kt_gate_result *results = calloc((size_t)all->n, sizeof *results);
    kt_status st = KT_OK;
    int n = 0;

    if (!choices || !results || !order) st = kt_fail(err, KT_E_NOMEM, "gate: no memory");
    if (st == KT_OK) kt_session_order(all, near, order);
    for (int i = 0; st == KT_OK && i < all->n; i++) {
        const kt_choice *c = &all->list[order[i]].choice;
        if (!kt_verdicts_find(&s->verdicts, &cell->problem, c)) choices[n++] = *c;
    }
    if (st == KT_OK && n > 0)
        st = kt_gate_choices(&cell->problem, choices, n, &limits, results, err);
    for (int i = 0; st == KT_OK && i < n && *results[i].outcome; i++) {
        st = kt_verdicts_add(&s->verdicts, &results[i], err);
        if (st == KT_OK && s->setup.ledger) st = kt_ledger_gate(s->setup.ledger, &results[i], err);
        s->progress.n_gated++;
        s->progress.n_rejected += !results[i].passed;
    }
    free(choices);
    free(results);
    free(order);
    return st;
}

static void drop_rejected(kt_session *s, const kt_tune_cell *cell, kt_contenders *c) {
    kt_choice standard = c->list[c->default_index].choice;
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const kt_gate_result *g =
            kt_verdicts_find(&s->verdicts, &cell->problem, &c->list[i].choice);
        if (g && g->passed) c->list[n++] = c->list[i];
    }
    c->n = n;
    c->default_index = kt_contenders_find(c, &standard);
}

static void mend_default(kt_contenders *c) {
    int best = 0;
    if (c->default_index >= 0) return;
    for (int i = 1; i < c->n; i++)
        if (c->list[i].bound_ns < c->list[best].bound_ns) best = i;
    c->default_index = best;
}

kt_status kt_session_gate(kt_session *s, const kt_tune_cell *cell, const kt_choice *near,
                          int64_t enough_ns, kt_contenders *c, kt_err *err) {
    int64_t start = kt_clock_ns();
    kt_status st = gate_new(s, cell, near, enough_ns, c, err);

    s->progress.gate_seconds += seconds_since(start);
    if (st != KT_OK) return st;
    drop_rejected(s, cell, c);
    mend_default(c);
    s->progress.n_contenders = c->n;
    return KT_OK;
}

/* --- the clock --- */

static double watch_sample(void *arg, int i) {
    kt_cell_trial *t = arg;
    int64_t start = kt_clock_ns();
    double ns = t->inner.sample(t->inner.arg, i);
    t->session->progress.kernel_seconds += seconds_since(start);
    return ns;
}
static double watch_predict(void *arg, int i) {
    kt_cell_trial *t = arg;
    return t->inner.predict_ns(t->inner.arg, i);
}
static int64_t watch_disturbances(void *arg) {
    kt_cell_trial *t = arg;
    return t->inner.disturbances(t->inner.arg);
}
static bool watch_stop(void *arg) {
    const kt_session *s = ((kt_cell_trial *)arg)->session;
    return s->setup.stop && s->setup.stop(s->setup.stop_arg);
}

static kt_status get_pool(kt_session *s, int threads, kt_pool **out, kt_err *err) {
    kt_pool_options options = {.n_threads = threads};
    int i = 0;
    while (i < KT_SESSION_POOLS && s->pools[i] && kt_pool_threads(s->pools[i]) != threads) i++;
    if (i == KT_SESSION_POOLS)
        return kt_fail(err, KT_E_INVALID, "run: more than %d thread counts", KT_SESSION_POOLS);
    if (!s->pools[i]) KT_TRY(kt_pool_create(&options, &s->pools[i], err));
    *out = s->pools[i];
    return KT_OK;
}

static kt_status make(kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                      kt_cell_trial *t, kt_err *err) {
    kt_problem encode = {.op = KT_OP_ENCODE,
                         .acts = cell->problem.acts,
                         .m = cell->problem.m,
                         .n = 1,
                         .k = cell->problem.k};
    kt_trial_setup setup = {.problem = cell->problem, .banks = &s->banks, .n_choices = c->n};
    kt_choice encoder;

    t->session = s;
    t->choices = calloc((size_t)c->n, sizeof *t->choices);
    if (!t->choices) return kt_fail(err, KT_E_NOMEM, "run: no memory");
    for (int j = 0; j < c->n; j++) t->choices[j] = c->list[j].choice;
    setup.choices = t->choices;
    KT_TRY(get_pool(s, cell->threads, &setup.pool, err));
    if (kt_problem_is_packed(&cell->problem)) {
        KT_TRY(kt_plan_resolve_simple(s->planner, &encode, cell->threads, &encoder, err));
        setup.encode = encoder.variant;
    }
    KT_TRY(kt_trial_create(&setup, &t->trial, err));
    t->inner = kt_trial_stopwatch(t->trial);
    t->watch = (kt_stopwatch){.arg = t,
                              .sample = watch_sample,
                              .predict_ns = watch_predict,
                              .disturbances = watch_disturbances,
                              .stop = watch_stop};
    return KT_OK;
}

kt_status kt_cell_trial_make(kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                             kt_cell_trial *out, kt_err *err) {
    int64_t start = kt_clock_ns();
    kt_status st;

    memset(out, 0, sizeof *out);
    st = make(s, cell, c, out, err);
    s->progress.setup_seconds += seconds_since(start);
    if (st != KT_OK) kt_cell_trial_deinit(out);
    return st;
}

void kt_cell_trial_deinit(kt_cell_trial *t) {
    kt_trial_destroy(t->trial);
    free(t->choices);
    memset(t, 0, sizeof *t);
}
