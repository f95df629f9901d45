/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/duels.h"

#include <math.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/cold.h"
#include "tuner/search/contest.h"
#include "tuner/space/cell.h"
#include "tuner/space/shapes.h"

size_t kt_duels_rotation(const kt_ceilings *ceilings, size_t llc_bytes, const kt_table *table) {
    kt_shapes shapes;
    kt_serving_format format;

    if (table->n_rows == 0 || kt_shapes_find(table->workload, &shapes, NULL, 0, NULL) != KT_OK)
        return kt_cold_rotation_bytes(ceilings, llc_bytes);
    format = kt_serving_format_of(table->rows[0].problem.weights);
    return kt_cold_rotation_of_model(ceilings, llc_bytes, kt_shapes_weight_bytes(&shapes, format));
}

void kt_duels_deinit(kt_duels *d) {
    kt_pool_destroy(d->pool);
    kt_banks_deinit(&d->banks);
    kt_planner_destroy(d->planner);
    kt_verdicts_deinit(&d->verdicts);
}

kt_status kt_duels_gate(kt_duels *d, const kt_problem *problem, const kt_choice *choice,
                        const kt_gate_result **out, kt_err *err) {
    kt_gate_limits limits = {
        .seed = d->seed, .deadline_ns = INT64_MAX, .stop = d->stop, .stop_arg = d->stop_arg};
    kt_gate_result result;

    *out = kt_verdicts_find(&d->verdicts, problem, choice);
    if (*out) return KT_OK;
    KT_TRY(kt_gate_choices(problem, choice, 1, &limits, &result, err));
    KT_TRY(kt_verdicts_add(&d->verdicts, &result, err));
    *out = kt_verdicts_find(&d->verdicts, problem, choice);
    return KT_OK;
}

static kt_status set_up(kt_duels *d, const kt_problem *problem, int threads, kt_choice *encoder,
                        kt_err *err) {
    kt_problem encode = {
        .op = KT_OP_ENCODE, .acts = problem->acts, .m = problem->m, .n = 1, .k = problem->k};
    kt_pool_options options = {.n_threads = threads};

    if (!d->planner)
        KT_TRY(kt_planner_create(d->registry, NULL, d->machine, NULL, &d->planner, err));
    if (kt_problem_is_packed(problem))
        KT_TRY(kt_plan_resolve_simple(d->planner, &encode, threads, encoder, err));
    if (d->pool && kt_pool_threads(d->pool) == threads) return KT_OK;
    kt_pool_destroy(d->pool);
    d->pool = NULL;
    return kt_pool_create(&options, &d->pool, err);
}

/* The trial's samples with the owner's wish to stop. */
typedef struct watch_arg {
    kt_stopwatch trial;
    const kt_duels *duels;
} watch_arg;

static double one_sample(watch_arg *w, int i) {
    int64_t start = kt_clock_ns(), wall;
    double ns = w->trial.sample(w->trial.arg, i);
    if (i == 0 || w->duels->slowdown <= 0) return ns;
    wall = kt_clock_ns() - start;
    while ((double)(kt_clock_ns() - start) < (1 + w->duels->slowdown) * (double)wall) {
    }
    return ns * (double)(kt_clock_ns() - start) / (double)wall;
}

static double watch_sample(void *arg, int i) {
    watch_arg *w = arg;
    double ns = one_sample(w, i);
    for (int r = 1; r < w->duels->repeats; r++) ns = fmin(ns, one_sample(w, i));
    return ns;
}
static int64_t watch_disturbances(void *arg) {
    watch_arg *w = arg;
    return w->trial.disturbances(w->trial.arg);
}
static bool watch_stop(void *arg) {
    watch_arg *w = arg;
    return w->duels->stop && w->duels->stop(w->duels->stop_arg);
}

/* Looking often finds more by chance: four early looks and the last one together err once in a hundred. */
static const double early_confidence = 0.999, last_confidence = 0.995;
enum { LOOK_ROUNDS = 48 };

/* Rounds until the question is settled, or all of them. */
static kt_status run(const kt_duels *d, const kt_stopwatch *watch, kt_samples *s, int rounds,
                     kt_duel_result *out, kt_rng *rng, kt_err *err) {
    static const int both[] = {0, 1};
    kt_status st;

    for (int done = 0; done < rounds;) {
        bool has_looks = d->least_effect > 0 && rounds - done > LOOK_ROUNDS;
        int n = has_looks ? LOOK_ROUNDS : rounds - done;
        st = kt_rounds_run(watch, s, both, 2, n, INT64_MAX, rng);
        if (st != KT_OK) return kt_fail(err, st, "duel: stopped");
        done += n;
        out->confidence = d->least_effect <= 0 ? KT_GAIN_CONFIDENCE
                          : done < rounds      ? early_confidence
                                               : last_confidence;
        out->ratio = kt_samples_compare(s, 0, 1, out->confidence, rng);
        if (done == rounds) break;
        if ((out->ratio.low > 0 || out->ratio.high < 0) &&
            fabs(out->ratio.point) >= log1p(d->least_effect))
            break;
        if (out->ratio.low > -log1p(d->least_effect) && out->ratio.high < log1p(d->least_effect))
            break;
    }
    return KT_OK;
}

kt_status kt_duels_race(kt_duels *d, const kt_problem *problem, int threads,
                        const kt_choice pair[2], int rounds, kt_duel_result *out, kt_err *err) {
    kt_trial_setup setup = {.problem = *problem,
                            .banks = &d->banks,
                            .choices = pair,
                            .n_choices = 2,
                            .spread_tokens = d->spread_tokens};
    watch_arg arg = {.duels = d};
    kt_stopwatch watch = {.arg = &arg,
                          .sample = watch_sample,
                          .disturbances = watch_disturbances,
                          .stop = watch_stop};
    kt_trial *trial = NULL;
    kt_samples s = {0};
    kt_choice encoder = {0};
    kt_rng rng;
    kt_status st = set_up(d, problem, threads, &encoder, err);

    if (st != KT_OK) return st;
    kt_rng_seed(&rng, d->seed);
    setup.pool = d->pool;
    setup.encode = encoder.variant;
    st = kt_trial_create(&setup, &trial, err);
    if (st == KT_OK) st = kt_samples_create(2, &s, err);
    if (st == KT_OK) {
        arg.trial = kt_trial_stopwatch(trial);
        st = run(d, &watch, &s, rounds, out, &rng, err);
    }
    if (st == KT_OK) {
        for (int i = 0; i < 2; i++) out->p25_ns[i] = kt_samples_p25(&s, i);
        out->rounds = s.n_rounds;
        out->voided = s.n_voided;
    }
    kt_samples_destroy(&s);
    kt_trial_destroy(trial);
    return st;
}
