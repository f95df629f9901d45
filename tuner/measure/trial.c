/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "tuner/measure/trial_ops.h"
#include "tuner/space/cell.h"

/* Long against the clock's cost (tens of ns), short against the scheduler's tick (1 to 4 ms). */
static const double sample_goal_ns = 100000;
enum { MAX_CALLS = 100000 };

/* Spread tokens read every expert, each from bytes of its own. A cell's few active experts move through
 * the bank, which the rotation makes large enough; twice as many slots keep calls apart. */
static int64_t slots_needed(const kt_trial_setup *s) {
    if (s->problem.op != KT_OP_MOE_FFN) return 1;
    return s->spread_tokens > 0 ? s->problem.experts : 2 * s->problem.topk;
}

static kt_status get_banks(kt_trial *t, kt_err *err) {
    kt_banks_new_cell(t->setup.banks);
    if (!kt_problem_is_packed(&t->setup.problem)) return KT_OK;
    for (int i = 0; i < t->setup.n_choices; i++)
        KT_TRY(kt_banks_get(t->setup.banks, &t->setup.problem, t->setup.choices[i].variant,
                            slots_needed(&t->setup), &t->entry[i].bank, err));
    return KT_OK;
}

kt_status kt_trial_create(const kt_trial_setup *setup, kt_trial **out, kt_err *err) {
    kt_trial *t = calloc(1, sizeof *t);
    kt_status st;

    *out = NULL;
    if (t) t->entry = calloc((size_t)setup->n_choices, sizeof *t->entry);
    if (!t || !t->entry) {
        free(t);
        return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    }
    t->setup = *setup;
    t->units = 1;
    kt_disturbance_init(&t->disturbance, kt_pool_threads(setup->pool));
    t->ops = setup->problem.op == KT_OP_MOE_FFN ? &kt_trial_moe
             : setup->problem.op == KT_OP_GEMM  ? &kt_trial_gemm
             : setup->problem.op == KT_OP_ATTN  ? &kt_trial_attn
             : setup->problem.op == KT_OP_NORM || setup->problem.op == KT_OP_ROUTER
                 ? &kt_trial_rows
                 : &kt_trial_sequence;
    st = get_banks(t, err);
    if (st == KT_OK) st = t->ops->create(t, err);
    if (st != KT_OK) {
        kt_trial_destroy(t);
        return st;
    }
    *out = t;
    return KT_OK;
}

void kt_trial_destroy(kt_trial *t) {
    if (!t) return;
    t->ops->destroy(t);
    kt_disturbance_deinit(&t->disturbance);
    free(t->entry);
    free(t);
}

static double run_calls(kt_trial *t, int64_t calls) {
    int64_t start = kt_clock_ns();
    for (int64_t c = 0; c < calls; c++) t->ops->call(t);
    return (double)(kt_clock_ns() - start);
}

/* The first call of a contender pays for page tables and cold code: it only tells how many calls
 * make a sample. A second one corrects the first when it was short enough to be cheap; one so long that these
 * costs vanish in it is a sample already. Returns its time then, else 0. */
static double warm_up(kt_trial *t, struct kt_trial_entry *e) {
    double ns = run_calls(t, 1), calls;
    if (ns < 10 * sample_goal_ns) ns = run_calls(t, 1);
    calls = sample_goal_ns / (ns > 1 ? ns : 1);
    e->calls = calls > MAX_CALLS ? MAX_CALLS : calls < 1 ? 1 : (int64_t)calls + 1;
    return ns >= 100 * sample_goal_ns ? ns : 0;
}

static double sample(void *arg, int contender) {
    kt_trial *t = arg;
    struct kt_trial_entry *e = &t->entry[contender];
    double ns = 0, each;
    int64_t start = kt_clock_ns();

    t->ops->select(t, contender);
    if (e->calls == 0) ns = warm_up(t, e);
    if (ns == 0) ns = run_calls(t, e->calls);
    if ((double)(kt_clock_ns() - start) > t->longest_ns)
        t->longest_ns = (double)(kt_clock_ns() - start);
    each = (ns > 1 ? ns : 1) / (double)e->calls;
    /* The warm-up may have been disturbed; a short sample asks for more calls from the next on. */
    if (ns < sample_goal_ns && e->calls < MAX_CALLS) e->calls += e->calls / 2 + 1;
    e->sample_ns = ns;
    return each / t->units;
}

/* A contender that has not run yet may take as long as the slowest first sample of the others. */
static double predict(void *arg, int contender) {
    const kt_trial *t = arg;
    const struct kt_trial_entry *e = &t->entry[contender];
    return e->calls > 0 ? e->sample_ns : t->longest_ns;
}

static int64_t disturbances(void *arg) {
    kt_trial *t = arg;
    return kt_disturbance_count(&t->disturbance);
}

kt_stopwatch kt_trial_stopwatch(kt_trial *t) {
    return (kt_stopwatch){
        .arg = t, .sample = sample, .predict_ns = predict, .disturbances = disturbances};
}

double kt_trial_units(const kt_trial *t) {
    return t->units;
}

double kt_trial_bytes(const kt_trial *t, int contender) {
    const kt_problem *q = &t->setup.problem;
    double each, operations;
    if (!t->entry[contender].bank) {
        kt_problem_work(q, &each, &operations);
        return each;
    }
    each = (double)t->entry[contender].bank->slot_bytes;
    if (q->op != KT_OP_MOE_FFN || t->setup.spread_tokens == 0) return each * t->units;
    double slots = (double)(t->setup.spread_tokens * q->topk);
    return each * (slots < (double)q->experts ? slots : (double)q->experts);
}

double kt_trial_operations(const kt_trial *t) {
    kt_problem q = t->setup.problem;
    double bytes, operations;
    if (t->setup.spread_tokens > 0) q.m = t->setup.spread_tokens * q.topk;
    kt_problem_work(&q, &bytes, &operations);
    return operations * t->units;
}
