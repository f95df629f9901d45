/* Rows of the bench suites about threads: two against one, and all cores beside a busy process.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/busy_child.h"
#include "tuner/measure/trial.h"
#include "tuner/session/suite_impl.h"
#include "tuner/space/candidates.h"

/* One choice as two trials; the second may use another pool. */
typedef struct pair {
    kt_banks banks;
    kt_choice best;
    kt_pool *pool[2];
    kt_trial *trial[2];
    kt_stopwatch watch[2];
    pid_t neighbour; /* busy during the second's samples; 0 = none */
} pair;

static void pair_deinit(pair *p) {
    kt_busy_end(p->neighbour);
    for (int i = 0; i < 2; i++) kt_trial_destroy(p->trial[i]);
    for (int i = 0; i < 2; i++) kt_pool_destroy(p->pool[i]);
    kt_banks_deinit(&p->banks);
}

static kt_status pair_init(pair *p, kt_suite_bench *s, const kt_suite_spec *spec,
                           const int threads[2], kt_suite_row *row, kt_err *err) {
    kt_problem problem = kt_suite_problem(s->registry, s->machine, spec);
    kt_trial_setup setup = {.banks = &p->banks,
                            .choices = &p->best,
                            .n_choices = 1,
                            .spread_tokens = spec->spread_tokens};
    kt_choice encoder;

    p->banks.rotation_bytes = KT_SUITE_ROTATION;
    KT_TRY(kt_suite_pick(s, s->registry, &problem, threads[0], &p->best, err));
    KT_TRY(kt_suite_encoder(s, s->registry, &problem, threads[0], &encoder, err));
    kt_contender_name(&p->best, row->contender, sizeof row->contender);
    setup.problem = problem;
    setup.encode = encoder.variant;
    for (int i = 0; i < 2; i++) {
        kt_pool_options options = {.n_threads = threads[i]};
        KT_TRY(kt_pool_create(&options, &p->pool[i], err));
        setup.pool = p->pool[i];
        KT_TRY(kt_trial_create(&setup, &p->trial[i], err));
        p->watch[i] = kt_trial_stopwatch(p->trial[i]);
    }
    return KT_OK;
}

static kt_status run(pair *p, const kt_suite_bench *s, const kt_stopwatch *watch, int over,
                     double seconds, double factor, kt_suite_row *row, kt_err *err) {
    kt_samples samples;
    kt_status st;

    KT_TRY(kt_samples_create(2, &samples, err));
    st = kt_suite_rounds(s, watch, 2, seconds, &samples, err);
    if (st == KT_OK) {
        const double operations = kt_trial_operations(p->trial[0]) / kt_trial_units(p->trial[0]);
        kt_suite_ratio(&samples, over, 1 - over, row);
        row->measured *= factor;
        row->least_ns[0] *= factor;
        row->rate = operations / kt_samples_p25(&samples, 1);
        row->ceiling = operations / kt_samples_p25(&samples, 0);
    }
    kt_samples_destroy(&samples);
    return st;
}

static double sample_pair(void *arg, int i) {
    pair *p = arg;
    return p->watch[i].sample(p->watch[i].arg, 0);
}

kt_status kt_suite_scaling(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err) {
    static const int threads[] = {1, 2};
    pair p = {.neighbour = 0};
    kt_stopwatch watch = {.arg = &p, .sample = sample_pair};
    kt_status st;

    snprintf(row->unit, sizeof row->unit, "times one thread");
    if (kt_usable_cores() < 2) return kt_fail(err, KT_E_UNSUPPORTED, "needs 2 cores");
    st = pair_init(&p, s, spec, threads, row, err);
    if (st == KT_OK) st = run(&p, s, &watch, 0, seconds, 1, row, err);
    pair_deinit(&p);
    return st;
}

/* Mean over slices of the scheduler: what counts is the time of many layers, also those that were cut. */
static double sample_beside(void *arg, int i) {
    static const double slice_ns = 100e6;
    pair *p = arg;
    int64_t start = kt_clock_ns(), ns;
    double sum = 0, n = 0;

    kt_busy_run(p->neighbour, i == 1);
    while ((double)(ns = kt_clock_ns() - start) < slice_ns) {
        sum += p->watch[i].sample(p->watch[i].arg, 0);
        n++;
    }
    kt_busy_run(p->neighbour, 0);
    (void)ns;
    return sum / n;
}

/* The process takes about one core, so c - 1 of c are left: time per available core is busy time times
 * (c - 1) / c over quiet time. */
kt_status kt_suite_neighbour(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                             kt_suite_row *row, kt_err *err) {
    const int cores = kt_usable_cores(), threads[] = {cores, cores};
    pair p = {.neighbour = 0};
    kt_stopwatch watch = {.arg = &p, .sample = sample_beside};
    kt_status st;

    snprintf(row->unit, sizeof row->unit, "times quiet, per available core");
    if (cores < 2) return kt_fail(err, KT_E_UNSUPPORTED, "needs 2 cores");
    st = pair_init(&p, s, spec, threads, row, err);
    if (st == KT_OK) st = kt_busy_start(&p.neighbour, err);
    if (st == KT_OK)
        st = run(&p, s, &watch, 1, seconds, (double)(cores - 1) / (double)cores, row, err);
    pair_deinit(&p);
    return st;
}
