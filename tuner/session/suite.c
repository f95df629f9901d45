/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/suite.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/err.h"
#include "tuner/session/session.h"
#include "tuner/session/suite_impl.h"

static const kt_suite *const suites[] = {&kt_suite_line, &kt_suite_cpu};

static const kt_suite_measure measures[KT_ROW_KINDS] = {
    [KT_ROW_EXPERTS] = kt_suite_experts,     [KT_ROW_DENSE] = kt_suite_dense,
    [KT_ROW_SHAPES] = kt_suite_shapes,       [KT_ROW_SCALING] = kt_suite_scaling,
    [KT_ROW_NEIGHBOUR] = kt_suite_neighbour, [KT_ROW_MODEL] = kt_suite_models,
    [KT_ROW_ACCURACY] = kt_suite_accuracy,   [KT_ROW_KEPT] = kt_suite_kept,
    [KT_ROW_ROWS] = kt_suite_of_rows,
};

/* A race takes two or three; one of 512 rows on a slow or busy machine half a minute. A row has
 * three minutes in all. */
static const double pick_seconds = 100;

/* A layer of 512 tokens takes 0.1 s; the median of two is their mean. */
enum { least_rounds = 2 };

/* --- what several kinds of rows need --- */

kt_status kt_suite_on_pool(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_suite_work *run, kt_err *err) {
    const kt_pool_options options = {.n_threads = spec->threads ? spec->threads : 1};
    kt_pool *pool = NULL;
    kt_status st;

    if (options.n_threads > kt_usable_cores())
        return kt_fail(err, KT_E_UNSUPPORTED, "needs %d cores", options.n_threads);
    KT_TRY(kt_pool_create(&options, &pool, err));
    st = run(s, pool, spec, seconds, row, err);
    kt_pool_destroy(pool);
    return st;
}

kt_problem kt_suite_problem(const kt_registry *registry, const kt_fingerprint *machine,
                            const kt_suite_spec *spec) {
    const kt_op op = spec->experts ? KT_OP_MOE_FFN : KT_OP_GEMM;
    kt_problem q = {.op = op,
                    .weights = spec->weights,
                    .acts = kt_acts_default(registry, machine->microarch, op, spec->weights),
                    .m = spec->m,
                    .n = spec->intermediate,
                    .k = spec->hidden,
                    .experts = spec->experts,
                    .topk = spec->topk};
    if (!q.m) q.m = spec->spread_tokens * spec->topk / spec->experts;
    return q;
}

kt_status kt_suite_pick(kt_suite_bench *s, const kt_registry *registry, const kt_problem *problem,
                        int threads, kt_choice *out, kt_err *err) {
    kt_tune_cell cell = {.problem = *problem, .threads = threads, .weight = 1};
    kt_cell_list list = {.cells = &cell, .n = 1};
    kt_session_setup setup = {.registry = registry,
                              .machine = s->machine,
                              .cells = &list,
                              .strategy = kt_strategy_find("auto"),
                              .rotation_bytes = KT_SUITE_ROTATION,
                              .deadline_ns = kt_clock_ns() + (int64_t)(pick_seconds * 1e9),
                              .seed = s->options.seed,
                              .stop = s->options.stop,
                              .stop_arg = s->options.stop_arg};
    kt_session *session = NULL;
    kt_table *table = NULL;
    kt_status st;

    *out = s->memory->choice;
    if (s->memory->has_choice) return KT_OK;
    st = kt_session_create(&setup, &session, err);
    if (st == KT_OK) st = kt_session_step(session, err);
    /* Who asks to stop ends the suite; that time ran out ends this row alone. */
    if (st == KT_E_CANCELLED && !(s->options.stop && s->options.stop(s->options.stop_arg)))
        st = kt_fail(err, KT_E_INTERNAL, "no race was decided in %g s", pick_seconds);
    if (st == KT_OK) st = kt_table_create(&table, err);
    if (st == KT_OK) st = kt_session_rows(session, table, err);
    if (st == KT_OK && table->n_rows == 0)
        st = kt_fail(err, KT_E_NOT_FOUND, "no variant passed the gate");
    if (st == KT_OK) {
        out->variant = kt_registry_find(registry, table->rows[0].variant);
        st = kt_config_parse(out->variant, table->rows[0].config, &out->config, err);
    }
    s->memory->choice = *out;
    s->memory->has_choice = st == KT_OK;
    kt_table_destroy(table);
    kt_session_destroy(session);
    return st;
}

static kt_status resolve(const kt_suite_bench *s, const kt_registry *registry,
                         const kt_problem *problem, int threads, kt_choice *out, kt_err *err) {
    kt_planner *planner = NULL;
    kt_status st = kt_planner_create(registry, NULL, s->machine, NULL, &planner, err);

    if (st == KT_OK) st = kt_plan_resolve_simple(planner, problem, threads, out, err);
    kt_planner_destroy(planner);
    return st;
}

kt_status kt_suite_encoder(const kt_suite_bench *s, const kt_registry *registry,
                           const kt_problem *problem, int threads, kt_choice *out, kt_err *err) {
    const kt_problem encode = {
        .op = KT_OP_ENCODE, .acts = problem->acts, .m = 1, .n = 1, .k = problem->k};

    return resolve(s, registry, &encode, threads, out, err);
}

kt_status kt_suite_simple(const kt_suite_bench *s, const kt_problem *problem, int threads,
                          kt_choice *out, kt_err *err) {
    return resolve(s, s->registry, problem, threads, out, err);
}

kt_status kt_suite_own(kt_isa isa, const kt_variant ***table, kt_registry **out, kt_err *err) {
    size_t n = 0;

    *out = NULL;
    *table = calloc(kt_builtin_variant_count + 1, sizeof **table);
    if (!*table) return kt_fail(err, KT_E_NOMEM, "bench: no memory");
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strstr(kt_builtin_variants[i]->name, "__lib")) (*table)[n++] = kt_builtin_variants[i];
    return kt_registry_create(*table, n, isa & kt_isa_available(), out, err);
}

kt_status kt_suite_rounds(const kt_suite_bench *s, const kt_stopwatch *watch, int n, double seconds,
                          kt_samples *samples, kt_err *err) {
    int live[KT_SUITE_ROWS];
    int64_t end;
    kt_rng rng;

    kt_rng_seed(&rng, s->options.seed);
    for (int i = 0; i < n; i++) live[i] = i;
    for (int i = 0; i < n; i++) watch->sample(watch->arg, i); /* warm up, untaken */
    end = kt_clock_ns() + (int64_t)(seconds * 1e9);
    do {
        if (s->options.stop && s->options.stop(s->options.stop_arg))
            return kt_fail(err, KT_E_CANCELLED, "bench: stopped");
        kt_rounds_run(watch, samples, live, n, 1, INT64_MAX, &rng);
    } while (samples->n_rounds < KT_MAX_SAMPLES - 1 &&
             (samples->n_rounds < least_rounds || kt_clock_ns() < end));
    return KT_OK;
}

/* --- a figure --- */

void kt_suite_ratio(const kt_samples *samples, int x, int y, kt_suite_row *row) {
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    const int n = kt_samples_pairs(samples, x, y, a, b);

    row->least_ns[0] = kt_quantile(a, n, 0);
    row->least_ns[1] = kt_quantile(b, n, 0);
    for (int r = 0; r < n; r++) a[r] /= b[r];
    row->measured = kt_quantile(a, n, 0.5);
    row->rounds = samples->n_rounds;
    row->n_placements = 1;
}

void kt_suite_add(kt_suite_tally *tally, kt_suite_row *row, const kt_suite_row *one) {
    const int n = row->n_placements, rounds = row->rounds;
    kt_suite_row all = *one;

    for (int side = 0; side < 2 && n > 0; side++)
        all.least_ns[side] = fmin(row->least_ns[side], one->least_ns[side]);
    memcpy(all.placement, row->placement, sizeof all.placement);
    all.placement[n] = one->measured;
    tally->rate[n] = one->rate;
    tally->ceiling[n] = one->ceiling;
    all.n_placements = n + 1;
    all.rounds = n > 0 ? rounds + one->rounds : one->rounds;
    all.spread = kt_median_interval(all.placement, n + 1, 0.95);
    all.measured = all.spread.point;
    all.rate = kt_quantile(tally->rate, n + 1, 0.5);
    all.ceiling = kt_quantile(tally->ceiling, n + 1, 0.5);
    all.least_times = all.least_ns[0] / all.least_ns[1];
    *row = all;
}

/* --- the run --- */

const kt_suite *kt_suite_find(const char *name) {
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (strcmp(suites[i]->name, name) == 0) return suites[i];
    return NULL;
}

static bool is_wanted(const kt_suite_options *options, const kt_suite_spec *spec) {
    return !options->rows || fnmatch(options->rows, spec->name, 0) == 0;
}

/* A row on a machine or registry of its own is measured with a copy of the bench. */
static kt_status measure(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                         kt_suite_row *row, kt_err *err) {
    kt_suite_bench limited = *s;
    const kt_variant **table = NULL;
    kt_registry *own = NULL;
    kt_status st = KT_OK;

    if (!spec->only) return measures[spec->kind](s, spec, seconds, row, err);
    if (spec->only & ~kt_isa_available())
        return kt_fail(err, KT_E_UNSUPPORTED, "this machine lacks the instructions");
    st = kt_suite_own(spec->only, &table, &own, err);
    limited.registry = own;
    if (st == KT_OK) st = measures[spec->kind](&limited, spec, seconds, row, err);
    kt_registry_destroy(own);
    free((void *)table);
    return st;
}

static void name_row(const kt_suite_spec *spec, kt_suite_row *row) {
    static const char *const units[] = {"of read stream", "of peak", "of roofline", "of copying"};

    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", spec->name);
    snprintf(row->unit, sizeof row->unit, "%s", units[spec->of]);
    row->kind = spec->kind;
    row->bar = spec->bar;
    row->at_most = spec->at_most;
}

static bool is_kept(const kt_suite_row *row) {
    return row->bar == 0 || (row->at_most ? row->measured <= row->bar : row->measured >= row->bar);
}

/* The row on one more placement, or once and for all. */
static kt_status run_row(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                         kt_suite_tally *tally, kt_suite_row *row) {
    kt_suite_row one;
    kt_err why = {0};
    kt_status st;

    name_row(spec, &one);
    st = spec->kind == KT_ROW_MODEL ? measure(s, spec, seconds, &one, &why) /* a process already */
                                    : kt_suite_in_child(measure, s, spec, seconds, &one, &why);
    if (st == KT_E_CANCELLED) return st;
    if (st == KT_OK && one.n_placements > 0 && spec->kind != KT_ROW_SHAPES) /* adds its own */
        kt_suite_add(tally, row, &one);
    else
        *row = one;
    row->ok = st == KT_OK && is_kept(row);
    if (st == KT_OK) return st;
    snprintf(row->note, sizeof row->note, "%.127s", why.message);
    row->skipped = st == KT_E_UNSUPPORTED;
    row->ok = false;
    return KT_OK;
}

/* Whether another placement would say more. */
static bool goes_on(const kt_suite_row *row) {
    return row->n_placements > 0 && !*row->note;
}

/* What a run keeps of each row. */
typedef struct row_state {
    const kt_suite_spec *spec;
    kt_suite_memory memory;
    kt_suite_tally tally;
} row_state;

/* All rows, then all rows again: a spell of the machine meets one placement of each. */
static kt_status run_rows(kt_suite_bench *s, row_state *state, int n, double seconds,
                          kt_suite_row *rows, int *n_rows) {
    for (int i = 0; i < n; i++) name_row(state[i].spec, &rows[i]);
    for (int p = 0; p < KT_SUITE_PLACEMENTS; p++)
        for (int i = 0; i < n; i++) {
            if (p > 0 && !goes_on(&rows[i])) continue;
            s->memory = &state[i].memory;
            KT_TRY(run_row(s, state[i].spec, seconds / KT_SUITE_PLACEMENTS, &state[i].tally,
                           &rows[i]));
            if (p == 0) *n_rows = i + 1;
        }
    return KT_OK;
}

kt_status kt_suite_run(const kt_suite *suite, const kt_registry *registry,
                       const kt_fingerprint *machine, const kt_suite_options *options,
                       kt_suite_row rows[KT_SUITE_ROWS], int *n_rows, kt_err *err) {
    kt_suite_bench s = {.registry = registry, .machine = machine, .options = *options};
    double seconds = suite->seconds_per_row;
    row_state *state = calloc(KT_SUITE_ROWS, sizeof *state);
    kt_status st;
    int n = 0;

    *n_rows = 0;
    if (!state) return kt_fail(err, KT_E_NOMEM, "bench: no memory");
    for (int i = 0; i < suite->n_specs; i++)
        if (is_wanted(options, &suite->specs[i])) state[n++].spec = &suite->specs[i];
    if (n == 0) {
        free(state);
        return kt_fail(err, KT_E_INVALID, "suite %s: no row matches '%s'", suite->name,
                       options->rows);
    }
    if (options->seconds > 0) seconds = options->seconds / n;
    st = run_rows(&s, state, n, seconds, rows, n_rows);
    free(state);
    return st == KT_OK ? KT_OK : kt_fail(err, st, "bench: stopped");
}
