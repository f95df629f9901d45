/* A row's kernel and the ceilings of the machine. SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/suite_duel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/registry/probes.h"
#include "kernels/formats/format.h"
#include "tuner/measure/ceilings.h"
#include "tuner/space/candidates.h"

enum { KERNEL = KT_DUEL_KERNEL, STREAM = KT_DUEL_STREAM, PEAK = KT_DUEL_PEAK };

/* Bytes of each thread, whole pages. */
static size_t stream_share(const kt_suite_duel *d) {
    size_t bytes = (size_t)d->window * d->bank->stride;
    return bytes / (size_t)kt_pool_threads(d->pool) / 4096 * 4096;
}

static void stream_task(void *arg, int64_t begin, int64_t end, int tid) {
    kt_suite_duel *d = arg;
    const char *data = (const char *)d->bank->buffer.data + (size_t)d->at * d->bank->stride;
    size_t share = stream_share(d);
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {
            .data = data + (size_t)i * share, .bytes = share, .repeats = 1, .config = &d->ahead};
        d->probe[STREAM]->probe(&call);
    }
}

static void peak_task(void *arg, int64_t begin, int64_t end, int tid) {
    kt_suite_duel *d = arg;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {.repeats = d->repeats};
        double operations = d->probe[PEAK]->probe(&call);
        if (i == 0) d->operations = operations; /* of one task; all do the same */
    }
}

/* Work per ns of a ceiling on all threads of the pool. */
static double run_ceiling(kt_suite_duel *d, int which) {
    int threads = kt_pool_threads(d->pool);
    kt_phase phase = {
        .run = which == STREAM ? stream_task : peak_task, .arg = d, .n_tasks = threads};
    int64_t start = kt_clock_ns();
    double ns;

    kt_pool_run(d->pool, &phase, 1);
    ns = (double)(kt_clock_ns() - start);
    if (which == STREAM) {
        d->at = (d->at + d->window) % d->bank->n_slots;
        return (double)stream_share(d) * threads / ns;
    }
    if (ns < 3e6) d->repeats *= 2;
    return d->operations * threads / ns;
}

/* Of a ceiling: how long it would take for one unit of the kernel. */
static double duel_sample(void *arg, int contender) {
    kt_suite_duel *d = arg;
    int role = d->role[contender];
    if (role == KERNEL) return d->kernel.sample(d->kernel.arg, 0);
    return d->work[role] / run_ceiling(d, role);
}

static int64_t duel_disturbances(void *arg) {
    kt_suite_duel *d = arg;
    return d->kernel.disturbances(d->kernel.arg);
}

/* The fraction: time of the ceiling (the slower of two) over time of the kernel. */
static void fill_row(const kt_suite_duel *d, const kt_samples *samples, kt_suite_row *row) {
    int by = 1;

    if (d->n > 2 && kt_samples_p25(samples, 2) > kt_samples_p25(samples, 1)) by = 2;
    kt_suite_ratio(samples, by, 0, row);
    row->is_gbs = d->role[by] == STREAM;
    row->ceiling = d->work[d->role[by]] / kt_samples_p25(samples, by);
    row->rate = d->work[d->role[by]] / kt_samples_p25(samples, 0);
}

/* Sums of VPMADDWD by the faster of two ways to add them (kernels/probe). */
static const kt_variant *peak_of_words(const kt_registry *registry, kt_isa isa) {
    enum { NS = 5000000 };
    const kt_variant *ints = kt_probe_find(registry, "peak_maddubs_words__", isa);
    const kt_variant *floats = kt_probe_find(registry, "peak_maddubs_words_floats__", isa);
    if (!ints || !floats) return ints ? ints : floats;
    return kt_probe_peak_gops(floats, NS) > kt_probe_peak_gops(ints, NS) ? floats : ints;
}

/* The peak of the instruction that the kernel multiplies with: of tiles when it is on tiles, else
 * the widest within the instruction sets it names. A library names the least that it needs and
 * takes what it finds, so for it everything counts. Without VNNI, 8-bit codes, and attention's
 * words, take another than smaller ones (kernels/probe); VPDPWSSD is measured against VPDPBUSD,
 * which does twice as much. */
static const kt_variant *peak_of(const kt_registry *registry, const kt_problem *q,
                                 const kt_variant *kernel) {
    const bool is_attn = q->op == KT_OP_ATTN;
    const bool is_int8 =
        q->acts == KT_A_INT8_G32 || q->acts == KT_A_INT8_G16P2 ||
        (is_attn && (kernel->numerics == KT_NUM_ACTS8 || kernel->numerics == KT_NUM_ACTS16));
    const bool is_bf16 = q->acts == KT_A_BF16 || (is_attn && kernel->numerics == KT_NUM_BF16_F32);
    const bool is_wide = is_int8 && kt_format_find(q->weights)->bits >= 8;
    const kt_isa isa = strstr(kernel->name, "__lib") ? ~(kt_isa)0 : kt_isa_closure(kernel->isa);
    const kt_variant *v = NULL;
    if (is_int8) v = kt_probe_find(registry, "peak_tdpbusd", isa);
    if (is_int8 && !v) v = kt_probe_find(registry, "peak_dpbusd", isa);
    if (is_int8 && !v)
        v = is_wide ? peak_of_words(registry, isa) : kt_probe_find(registry, "peak_maddubs__", isa);
    if (is_bf16) v = kt_probe_find(registry, "peak_tdpbf16", isa);
    if (is_bf16 && !v) v = kt_probe_find(registry, "peak_dpbf16", isa);
    if (!v) v = kt_probe_find(registry, "peak_fma", isa);
    return v ? v : kt_probe_find(registry, "peak_", isa);
}

/* Reading the bank with one distance of prefetch for some milliseconds. */
static double rate_of_distance(void *arg, const kt_config *config) {
    enum { NS = 2000000 };
    kt_suite_duel *d = arg;
    double best = 0;
    const int64_t end = kt_clock_ns() + NS;

    d->ahead = *config;
    do best = fmax(best, run_ceiling(d, STREAM));
    while (kt_clock_ns() < end);
    return best;
}

static kt_status find_probes(kt_suite_duel *d, const kt_suite_bench *s, kt_suite_ceiling of,
                             const kt_problem *problem, const kt_variant *kernel, kt_err *err) {
    d->n = 1;
    if (of != KT_OF_PEAK) d->probe[STREAM] = kt_probe_find(s->registry, "read_stream", ~(kt_isa)0);
    if (of != KT_OF_STREAM) d->probe[PEAK] = peak_of(s->registry, problem, kernel);
    if ((of != KT_OF_PEAK && !d->probe[STREAM]) || (of != KT_OF_STREAM && !d->probe[PEAK]))
        return kt_fail(err, KT_E_NOT_FOUND, "no usable probe variant");
    for (int c = STREAM; c <= PEAK; c++)
        if (d->probe[c]) d->role[d->n++] = c;
    for (int64_t before = 0; d->probe[PEAK] && before != d->repeats;) {
        before = d->repeats;
        run_ceiling(d, PEAK);
    }
    return KT_OK;
}

/* The kernel and, where its figure is a part of a peak, the instruction that the peak is of. */
static void name_contender(const kt_suite_duel *d, const kt_choice *best, kt_suite_row *row) {
    char name[KT_CONTENDER_NAME_BYTES];

    kt_contender_name(best, name, sizeof name);
    snprintf(row->contender, sizeof row->contender, "%.120s%s%.48s", name,
             d->probe[PEAK] ? " of " : "", d->probe[PEAK] ? d->probe[PEAK]->name : "");
}

kt_status kt_suite_duel_init(kt_suite_duel *d, const kt_suite_bench *s, kt_suite_ceiling of,
                             const kt_problem *problem, const kt_choice *kernel, kt_suite_row *row,
                             kt_err *err) {
    d->repeats = 1;
    KT_TRY(find_probes(d, s, of, problem, kernel->variant, err));
    name_contender(d, kernel, row);
    if (d->probe[STREAM]) d->ahead = kt_probe_best_config(d->probe[STREAM], rate_of_distance, d);
    return KT_OK;
}

kt_status kt_suite_duel_run(kt_suite_duel *d, const kt_suite_bench *s, const kt_trial_setup *setup,
                            double seconds, kt_suite_row *row, kt_err *err) {
    kt_stopwatch watch = {.arg = d, .sample = duel_sample, .disturbances = duel_disturbances};
    kt_samples samples;
    kt_status st;

    KT_TRY(kt_samples_create(KT_DUEL_ROLES, &samples, err));
    st = kt_trial_create(setup, &d->trial, err);
    if (st == KT_OK) {
        d->kernel = kt_trial_stopwatch(d->trial);
        d->work[STREAM] = kt_trial_bytes(d->trial, 0) / kt_trial_units(d->trial);
        d->work[PEAK] = kt_trial_operations(d->trial) / kt_trial_units(d->trial);
        st = kt_suite_rounds(s, &watch, d->n, seconds, &samples, err);
    }
    if (st == KT_OK) fill_row(d, &samples, row);
    kt_trial_destroy(d->trial);
    kt_samples_destroy(&samples);
    return st;
}
