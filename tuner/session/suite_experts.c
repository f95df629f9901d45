/* Expert rows of the bench suites: a layer and the ceilings of the machine take turns over the same memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "kernels/formats/format.h"
#include "tuner/measure/ceilings.h"
#include "tuner/measure/trial.h"
#include "tuner/session/suite_impl.h"
#include "tuner/space/candidates.h"

/* --- the kernel and its ceilings as contenders --- */

enum { KERNEL, STREAM, PEAK, N_CONTENDERS }; /* roles */

typedef struct duel {
    kt_stopwatch kernel; /* of the trial, one contender */
    kt_trial *trial;
    kt_pool *pool;
    const kt_variant *probe[N_CONTENDERS]; /* of STREAM and PEAK; NULL = not asked for */
    double work[N_CONTENDERS];             /* of one unit of the kernel: bytes; operations */
    const char *data;                      /* the bank, for the stream */
    size_t bytes, at, window;
    int64_t repeats;           /* of the peak probe, for about 5 ms */
    double operations;         /* of its last task */
    int role[N_CONTENDERS], n; /* of the contenders of the rounds */
} duel;

static void stream_task(void *arg, int64_t begin, int64_t end, int tid) {
    duel *d = arg;
    size_t share = d->window / (size_t)kt_pool_threads(d->pool) / 4096 * 4096;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {
            .data = d->data + d->at + (size_t)i * share, .bytes = share, .repeats = 1};
        d->probe[STREAM]->probe(&call);
    }
}

static void peak_task(void *arg, int64_t begin, int64_t end, int tid) {
    duel *d = arg;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {.repeats = d->repeats};
        double operations = d->probe[PEAK]->probe(&call);
        if (i == 0) d->operations = operations; /* of one task; all do the same */
    }
}

/* Work per ns of a ceiling on all threads of the pool. */
static double run_ceiling(duel *d, int which) {
    int threads = kt_pool_threads(d->pool);
    kt_phase phase = {
        .run = which == STREAM ? stream_task : peak_task, .arg = d, .n_tasks = threads};
    int64_t start = kt_clock_ns();
    double ns, work;

    kt_pool_run(d->pool, &phase, 1);
    ns = (double)(kt_clock_ns() - start);
    if (which == STREAM) {
        work = (double)(d->window / (size_t)threads / 4096 * 4096 * (size_t)threads);
        d->at = d->at + 2 * d->window > d->bytes ? 0 : d->at + d->window;
    } else {
        work = d->operations * threads;
        if (ns < 3e6) d->repeats *= 2;
    }
    return work / ns;
}

/* Of a ceiling: how long it would take for one unit of the kernel. */
static double duel_sample(void *arg, int contender) {
    duel *d = arg;
    int role = d->role[contender];
    if (role == KERNEL) return d->kernel.sample(d->kernel.arg, 0);
    return d->work[role] / run_ceiling(d, role);
}

static int64_t duel_disturbances(void *arg) {
    duel *d = arg;
    return d->kernel.disturbances(d->kernel.arg);
}

/* The fraction: time of the ceiling (the slower of two) over time of the kernel. */
static kt_status measure(duel *d, const kt_suite_bench *s, double seconds, kt_suite_row *row,
                         kt_err *err) {
    kt_stopwatch watch = {.arg = d, .sample = duel_sample, .disturbances = duel_disturbances};
    kt_samples samples;
    kt_rng rng;
    kt_status st;
    int by = 1;

    d->n = 1;
    for (int c = STREAM; c <= PEAK; c++)
        if (d->probe[c]) d->role[d->n++] = c;
    kt_rng_seed(&rng, s->options.seed);
    KT_TRY(kt_samples_create(N_CONTENDERS, &samples, err));
    st = kt_suite_rounds(s, &watch, d->n, seconds, &samples, &rng, err);
    if (st == KT_OK) {
        if (d->n > 2 && kt_samples_p25(&samples, 2) > kt_samples_p25(&samples, 1)) by = 2;
        kt_suite_ratio(&samples, by, 0, &rng, row);
        row->is_gbs = d->role[by] == STREAM;
        row->ceiling = d->work[d->role[by]] / kt_samples_p25(&samples, by);
        row->rate = d->work[d->role[by]] / kt_samples_p25(&samples, 0);
    }
    kt_samples_destroy(&samples);
    return st;
}

/* Sums of VPMADDWD by the faster of two ways to add them (kernels/probe). */
static const kt_variant *peak_of_words(const kt_registry *registry) {
    enum { NS = 5000000 };
    const kt_variant *ints = kt_probe_peak(registry, "peak_maddubs_words__");
    const kt_variant *floats = kt_probe_peak(registry, "peak_maddubs_words_floats__");
    if (!ints || !floats) return ints ? ints : floats;
    return kt_probe_peak_gops(floats, NS) > kt_probe_peak_gops(ints, NS) ? floats : ints;
}

/* The peak of the best instruction for these operands that the registry has. Without VNNI, 8-bit codes
 * take another than smaller ones (kernels/probe). */
static const kt_variant *peak_of(const kt_registry *registry, const kt_problem *q) {
    const bool is_int8 = q->acts == KT_A_INT8_G32 || q->acts == KT_A_INT8_G16P2;
    const bool is_wide = kt_format_find(q->weights)->bits >= 8;
    const kt_variant *v = NULL;
    if (is_int8) v = kt_probe_peak(registry, "peak_dpbusd");
    if (is_int8 && !v)
        v = is_wide ? peak_of_words(registry) : kt_probe_peak(registry, "peak_maddubs__");
    if (q->acts == KT_A_BF16) v = kt_probe_peak(registry, "peak_dpbf16");
    if (!v) v = kt_probe_peak(registry, "peak_fma");
    return v ? v : kt_probe_peak(registry, "peak_");
}

static void fill_duel(duel *d, const kt_suite_bench *s, const kt_suite_spec *spec,
                      const kt_problem *problem, const kt_cold_bank *bank) {
    double units = kt_trial_units(d->trial);
    d->kernel = kt_trial_stopwatch(d->trial);
    d->data = bank->buffer.data;
    d->bytes = bank->buffer.bytes;
    d->window = (size_t)spec->topk * bank->stride;
    d->work[STREAM] = kt_trial_bytes(d->trial, 0) / units;
    d->work[PEAK] = kt_trial_operations(d->trial) / units;
    if (spec->of != KT_OF_PEAK) d->probe[STREAM] = kt_probe_stream(s->registry);
    if (spec->of != KT_OF_STREAM) d->probe[PEAK] = peak_of(s->registry, problem);
}

static kt_status run_on(kt_suite_bench *s, kt_pool *pool, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err) {
    kt_problem problem = kt_suite_problem(s->registry, spec);
    kt_banks banks = {.rotation_bytes = KT_SUITE_ROTATION};
    const int threads = kt_pool_threads(pool);
    kt_choice best, encoder;
    kt_trial_setup setup = {.pool = pool,
                            .banks = &banks,
                            .choices = &best,
                            .n_choices = 1,
                            .spread_tokens = spec->spread_tokens};
    kt_cold_bank *bank;
    duel d = {.pool = pool, .repeats = 1};
    kt_status st;

    KT_TRY(kt_suite_pick(s, s->registry, &problem, threads, &best, err));
    kt_contender_name(&best, row->contender, sizeof row->contender);
    st = kt_suite_encoder(s, s->registry, &problem, threads, &encoder, err);
    /* The experts themselves are the rotation, each with its own bytes. */
    if (st == KT_OK) st = kt_banks_get(&banks, &problem, best.variant, spec->experts, &bank, err);
    if (st == KT_OK) {
        setup.problem = problem;
        setup.encode = encoder.variant;
        st = kt_trial_create(&setup, &d.trial, err);
    }
    if (st == KT_OK) {
        fill_duel(&d, s, spec, &problem, bank);
        if ((spec->of != KT_OF_PEAK && !d.probe[STREAM]) ||
            (spec->of != KT_OF_STREAM && !d.probe[PEAK]))
            st = kt_fail(err, KT_E_NOT_FOUND, "no usable probe variant");
    }
    if (st == KT_OK) st = measure(&d, s, seconds, row, err);
    kt_trial_destroy(d.trial);
    kt_banks_deinit(&banks);
    return st;
}

kt_status kt_suite_experts(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err) {
    kt_pool_options options = {.n_threads = spec->threads};
    kt_pool *pool = NULL;
    kt_status st;

    if (!spec->threads) return run_on(s, s->pool, spec, seconds, row, err);
    if (spec->threads > kt_usable_cores())
        return kt_fail(err, KT_E_UNSUPPORTED, "needs %d cores", spec->threads);
    KT_TRY(kt_pool_create(&options, &pool, err));
    st = run_on(s, pool, spec, seconds, row, err);
    kt_pool_destroy(pool);
    return st;
}
