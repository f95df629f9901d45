/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/line_suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/ceilings.h"
#include "tuner/measure/trial.h"
#include "tuner/session/session.h"

enum { HIDDEN = 2048, INTERMEDIATE = 768, EXPERTS = 128, TOPK = 8, SPREAD_TOKENS = 512 };
enum { SPREAD_ROWS = SPREAD_TOKENS * TOPK / EXPERTS, MIB = 1 << 20 };

static const struct {
    const char *name;
    kt_weight_format weights;
    kt_act_format acts;
    bool is_decode;
    double bar;
} specs[] = {
    {"int4_g32_decode_of_stream", KT_W_INT4_G32, KT_A_INT8_G32, true, 0.85},
    {"int8_32rows_of_vnni_peak", KT_W_INT8_CHANNEL, KT_A_INT8_G32, false, 0.60},
    {"int8_decode_of_stream", KT_W_INT8_CHANNEL, KT_A_INT8_G32, true, 0},
    {"bf16_decode_of_stream", KT_W_BF16, KT_A_BF16, true, 0},
    {"int4_g32_32rows_of_vnni_peak", KT_W_INT4_G32, KT_A_INT8_G32, false, 0},
    {"bf16_32rows_of_bf16_peak", KT_W_BF16, KT_A_BF16, false, 0},
};
enum { N_SPECS = sizeof specs / sizeof *specs };

/* A race takes two or three; only a very busy machine needs more. */
static const double pick_seconds = 30;

typedef struct suite {
    const kt_registry *registry;
    const kt_fingerprint *machine;
    kt_line_options options;
    kt_pool *pool;
    int64_t deadline_ns;
} suite;

/* The fastest correct variant for this cell, by the tuner's own race. */
static kt_status pick(const suite *s, const kt_problem *problem, double seconds, kt_choice *out,
                      kt_err *err) {
    kt_tune_cell cell = {.problem = *problem, .threads = s->options.threads, .weight = 1};
    kt_cell_list list = {.cells = &cell, .n = 1};
    kt_session_setup setup = {.registry = s->registry,
                              .machine = s->machine,
                              .cells = &list,
                              .strategy = kt_strategy_find("auto"),
                              .rotation_bytes = 256 * (size_t)MIB,
                              .deadline_ns = kt_clock_ns() + (int64_t)(seconds * 1e9),
                              .seed = s->options.seed,
                              .stop = s->options.stop,
                              .stop_arg = s->options.stop_arg};
    kt_session *session = NULL;
    kt_table *table = NULL;
    kt_status st = kt_session_create(&setup, &session, err);

    memset(out, 0, sizeof *out);
    if (st == KT_OK) st = kt_session_step(session, err);
    if (st == KT_OK) st = kt_table_create(&table, err);
    if (st == KT_OK) st = kt_session_rows(session, table, err);
    if (st == KT_OK && table->n_rows == 0)
        st = kt_fail(err, KT_E_NOT_FOUND, "no variant passed the gate");
    if (st == KT_OK) {
        out->variant = kt_registry_find(s->registry, table->rows[0].variant);
        st = kt_config_parse(out->variant, table->rows[0].config, &out->config, err);
    }
    kt_table_destroy(table);
    kt_session_destroy(session);
    return st;
}

/* --- the kernel and its ceiling as two contenders --- */

typedef struct duel {
    kt_stopwatch kernel; /* of the trial, one contender */
    kt_trial *trial;
    const kt_variant *ceiling;
    kt_pool *pool;
    const char *data; /* the bank, for streams */
    size_t bytes, at, window;
    double work; /* bytes or operations of one unit of the kernel */
    bool is_stream;
    int64_t repeats; /* of a peak probe, for about 5 ms */
    double done[2];  /* last work per ns of kernel and ceiling */
} duel;

static void stream_task(void *arg, int64_t begin, int64_t end, int tid) {
    duel *d = arg;
    size_t share = d->window / (size_t)kt_pool_threads(d->pool) / 4096 * 4096;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {
            .data = d->data + d->at + (size_t)i * share, .bytes = share, .repeats = 1};
        d->ceiling->probe(&call);
    }
}

static void peak_task(void *arg, int64_t begin, int64_t end, int tid) {
    duel *d = arg;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {.repeats = d->repeats};
        double operations = d->ceiling->probe(&call);
        if (i == 0) d->done[1] = operations; /* of one task; all do the same */
    }
}

/* Work per ns of the ceiling on all threads of the pool. */
static double run_ceiling(duel *d) {
    int threads = kt_pool_threads(d->pool);
    kt_phase phase = {.run = d->is_stream ? stream_task : peak_task, .arg = d, .n_tasks = threads};
    int64_t start = kt_clock_ns();
    double ns, work;

    kt_pool_run(d->pool, &phase, 1);
    ns = (double)(kt_clock_ns() - start);
    if (d->is_stream) {
        work = (double)(d->window / (size_t)threads / 4096 * 4096 * (size_t)threads);
        d->at = d->at + 2 * d->window > d->bytes ? 0 : d->at + d->window;
    } else {
        work = d->done[1] * threads;
        if (ns < 3e6) d->repeats *= 2;
    }
    return work / ns;
}

static double duel_sample(void *arg, int contender) {
    duel *d = arg;
    return contender == 0 ? d->kernel.sample(d->kernel.arg, 0) : d->work / run_ceiling(d);
}

static int64_t duel_disturbances(void *arg) {
    duel *d = arg;
    return d->kernel.disturbances(d->kernel.arg);
}

/* Rounds until the time is spent, at least five. */
static kt_status measure(duel *d, const suite *s, double seconds, kt_line_row *row, kt_err *err) {
    static const int both[] = {0, 1};
    kt_stopwatch watch = {.arg = d, .sample = duel_sample, .disturbances = duel_disturbances};
    int64_t end = kt_clock_ns() + (int64_t)(seconds * 1e9);
    kt_samples samples;
    kt_rng rng;

    kt_rng_seed(&rng, s->options.seed);
    duel_sample(d, 0); /* warm up both, untaken */
    duel_sample(d, 1);
    KT_TRY(kt_samples_create(2, &samples, err));
    do {
        if (s->options.stop && s->options.stop(s->options.stop_arg)) {
            kt_samples_destroy(&samples);
            return kt_fail(err, KT_E_CANCELLED, "bench: stopped");
        }
        kt_rounds_run(&watch, &samples, both, 2, 1, INT64_MAX, &rng);
    } while (samples.n_rounds < KT_MAX_SAMPLES - 1 &&
             (samples.n_rounds < 5 || kt_clock_ns() < end));
    kt_interval ratio = kt_samples_compare(&samples, 1, 0, 0.95, &rng); /* ceiling / kernel */
    row->measured = exp(ratio.point);
    row->spread = (kt_interval){exp(ratio.point), exp(ratio.low), exp(ratio.high)};
    row->rounds = samples.n_rounds;
    row->ceiling = d->work / kt_samples_p25(&samples, 1);
    double per_ns = 1 / kt_samples_p25(&samples, 0);
    row->gbs = d->is_stream ? d->work * per_ns : 0;
    row->gops = d->is_stream ? 0 : d->work * per_ns;
    row->ok = row->measured >= row->bar;
    kt_samples_destroy(&samples);
    return KT_OK;
}

static const kt_variant *ceiling_of(const suite *s, int spec) {
    const kt_variant *v = NULL;
    if (specs[spec].is_decode) return kt_probe_stream(s->registry);
    v = kt_probe_peak(s->registry,
                      specs[spec].acts == KT_A_INT8_G32 ? "peak_dpbusd" : "peak_dpbf16");
    if (!v && specs[spec].acts == KT_A_INT8_G32) v = kt_probe_peak(s->registry, "peak_maddubs");
    if (!v) v = kt_probe_peak(s->registry, "peak_fma");
    return v ? v : kt_probe_peak(s->registry, "peak_");
}

static kt_status run_row(const suite *s, int spec, double seconds, kt_line_row *row, kt_err *err) {
    kt_problem problem = {.op = KT_OP_MOE_FFN,
                          .weights = specs[spec].weights,
                          .acts = specs[spec].acts,
                          .m = specs[spec].is_decode ? 1 : SPREAD_ROWS,
                          .n = INTERMEDIATE,
                          .k = HIDDEN,
                          .experts = EXPERTS,
                          .topk = TOPK};
    kt_problem encode = {.op = KT_OP_ENCODE, .acts = problem.acts, .m = 1, .n = 1, .k = HIDDEN};
    kt_banks banks = {.rotation_bytes = 256 * (size_t)MIB};
    kt_planner *planner = NULL;
    kt_choice best, encoder;
    kt_trial_setup setup = {.problem = problem,
                            .pool = s->pool,
                            .banks = &banks,
                            .choices = &best,
                            .n_choices = 1,
                            .spread_tokens = specs[spec].is_decode ? 0 : SPREAD_TOKENS};
    kt_cold_bank *bank;
    duel d = {.ceiling = ceiling_of(s, spec),
              .pool = s->pool,
              .is_stream = specs[spec].is_decode,
              .repeats = 1};
    kt_status st;

    if (!d.ceiling) return kt_fail(err, KT_E_NOT_FOUND, "no usable probe variant");
    KT_TRY(pick(s, &problem, pick_seconds, &best, err));
    kt_contender_name(&best, row->contender, sizeof row->contender);
    st = kt_planner_create(s->registry, NULL, s->machine, NULL, &planner, err);
    if (st == KT_OK)
        st = kt_plan_resolve_simple(planner, &encode, s->options.threads, &encoder, err);
    /* The experts themselves are the rotation: 128 of them, each with its own bytes. */
    if (st == KT_OK) st = kt_banks_get(&banks, &problem, best.variant, EXPERTS, &bank, err);
    if (st == KT_OK) {
        setup.encode = encoder.variant;
        st = kt_trial_create(&setup, &d.trial, err);
    }
    if (st == KT_OK) {
        d.kernel = kt_trial_stopwatch(d.trial);
        d.data = bank->buffer.data;
        d.bytes = bank->buffer.bytes;
        d.window = TOPK * bank->stride;
        d.work = d.is_stream ? (double)bank->slot_bytes : kt_trial_operations(d.trial);
        st = measure(&d, s, seconds, row, err);
    }
    kt_trial_destroy(d.trial);
    kt_banks_deinit(&banks);
    kt_planner_destroy(planner);
    return st;
}

kt_status kt_line_suite(const kt_registry *registry, const kt_fingerprint *machine,
                        const kt_line_options *options, kt_line_row rows[KT_LINE_ROWS], int *n_rows,
                        kt_err *err) {
    suite s = {.registry = registry, .machine = machine, .options = *options};
    kt_pool_options pool = {.n_threads = options->threads};
    double seconds = options->seconds > 0 ? options->seconds : 12;
    kt_status st = KT_OK;

    *n_rows = 0;
    KT_TRY(kt_pool_create(&pool, &s.pool, err));
    for (int i = 0; i < N_SPECS && st != KT_E_CANCELLED; i++) {
        kt_line_row *row = &rows[i];
        kt_err why = {0};
        memset(row, 0, sizeof *row);
        snprintf(row->name, sizeof row->name, "%s", specs[i].name);
        snprintf(row->unit, sizeof row->unit, "%s",
                 specs[i].is_decode ? "of read stream" : "of peak");
        row->bar = specs[i].bar;
        st = run_row(&s, i, seconds / N_SPECS, row, &why);
        if (st == KT_E_CANCELLED && s.options.stop && s.options.stop(s.options.stop_arg)) break;
        if (st != KT_OK) {
            snprintf(row->note, sizeof row->note, "%.127s", why.message);
            row->ok = row->bar == 0;
            st = KT_OK;
        }
        *n_rows = i + 1;
    }
    kt_pool_destroy(s.pool);
    return st == KT_OK ? KT_OK : kt_fail(err, st, "bench: stopped");
}
