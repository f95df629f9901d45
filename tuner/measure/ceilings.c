/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/ceilings.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "dispatch/registry/probes.h"
#include "tuner/measure/rounds.h"
#include "tuner/measure/stats.h"

enum { MIB = 1 << 20 };

double kt_probe_peak_gops(const kt_variant *v, int64_t ns) {
    kt_probe_call call = {.repeats = 1};
    int64_t start = kt_clock_ns(), end = start + ns, now = start;
    double best = 0;
    while (now < end) {
        int64_t before = now;
        double operations = v->probe(&call);
        now = kt_clock_ns();
        if (operations / (double)(now - before) > best) best = operations / (double)(now - before);
        if (now - before < 100000) call.repeats *= 2;
    }
    return best;
}

/* Reading windows of a buffer one after the other; one task per thread. */
typedef struct reader {
    const kt_variant *stream;
    kt_config config; /* of the stream */
    const char *data;
    size_t bytes, window, at; /* window: bytes per sample, all threads together */
    int n_tasks;
} reader;

static void read_task(void *arg, int64_t begin, int64_t end, int tid) {
    const reader *r = arg;
    size_t share = r->window / (size_t)r->n_tasks / 4096 * 4096;
    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        kt_probe_call call = {.data = r->data + r->at + (size_t)i * share,
                              .bytes = share,
                              .repeats = 1,
                              .config = &r->config};
        r->stream->probe(&call);
    }
}

/* GB/s (bytes per ns) of one window. */
static double read_window(reader *r, kt_pool *pool) {
    kt_phase phase = {.run = read_task, .arg = r, .n_tasks = r->n_tasks};
    int64_t start = kt_clock_ns();
    if (pool)
        kt_pool_run(pool, &phase, 1);
    else
        read_task(r, 0, r->n_tasks, 0);
    double ns = (double)(kt_clock_ns() - start);
    r->at = r->at + 2 * r->window > r->bytes ? 0 : r->at + r->window;
    return (double)(r->window / (size_t)r->n_tasks / 4096 * 4096 * (size_t)r->n_tasks) / ns;
}

/* Upper quartile over samples of about ns in all: noise only slows down. */
static double read_gbs(reader *r, kt_pool *pool, int64_t ns) {
    double x[KT_MAX_SAMPLES];
    int n = 0;
    int64_t end = kt_clock_ns() + ns;
    for (size_t done = 0; done < r->bytes && kt_clock_ns() < end; done += r->window)
        read_window(r, pool);
    end = kt_clock_ns() + ns;
    do x[n++] = read_window(r, pool);
    while (n < KT_MAX_SAMPLES && (n < 5 || kt_clock_ns() < end));
    return kt_quantile(x, n, 0.75);
}

/* Reading with one distance of prefetch for a while. */
typedef struct distance_trial {
    reader *r;
    kt_pool *pool;
    int64_t ns;
} distance_trial;

static double rate_of_distance(void *arg, const kt_config *config) {
    distance_trial *t = arg;
    double x[KT_MAX_SAMPLES];
    int n = 0;
    const int64_t end = kt_clock_ns() + t->ns;

    t->r->config = *config;
    do x[n++] = read_window(t->r, t->pool);
    while (n < KT_MAX_SAMPLES && kt_clock_ns() < end);
    return kt_quantile(x, n, 0.75);
}

/* The stream is what the best distance gives; which one that is depends on the number of threads.
 */
static double read_best_gbs(reader *r, kt_pool *pool, int64_t ns) {
    distance_trial t = {r, pool, ns / 16};
    r->config = kt_probe_best_config(r->stream, rate_of_distance, &t);
    return read_gbs(r, pool, ns);
}

/* The curve, and the footprint from which reads come from memory: the smallest one whose speed is
 * within 15 % of the largest footprint's, as are all above it. */
static void measure_curve(reader *r, size_t most, int64_t ns, kt_machine_report *out) {
    double memory;
    for (size_t bytes = MIB; bytes <= most && out->n_points < KT_CURVE_POINTS; bytes *= 2) {
        r->bytes = bytes;
        r->window = bytes < 16 * (size_t)MIB ? bytes : 16 * (size_t)MIB;
        r->at = 0;
        out->curve[out->n_points].bytes = bytes;
        out->curve[out->n_points++].gbs = read_gbs(r, NULL, ns);
    }
    if (out->n_points == 0) return;
    memory = out->curve[out->n_points - 1].gbs;
    for (int i = out->n_points - 1; i >= 0 && out->curve[i].gbs < 1.15 * memory; i--)
        out->ceilings.cache_knee_bytes = (double)out->curve[i].bytes;
}

static kt_status measure_streams(reader *r, const kt_topology *topology, bool quick,
                                 kt_machine_report *out, kt_err *err) {
    int64_t slice = quick ? 100000000 : 400000000;
    size_t large = (quick ? 256 : 512) * (size_t)MIB;
    size_t most = kt_memory_available_bytes() / 4;
    kt_buffer buffer = {0};
    kt_pool *pool = NULL;
    kt_pool_options options = {.n_threads = topology->usable_cores};

    if (large > most) large = most / MIB * MIB;
    if (large < 16 * (size_t)MIB)
        return kt_fail(err, KT_E_NOMEM, "probe: %zu bytes available, expected 64 MiB", most);
    KT_TRY(kt_buffer_create(large, KT_PAGES_ADVISED, -1, &buffer, err));
    out->pages = buffer.pages;
    memset(buffer.data, 1, large);
    r->data = buffer.data;
    r->n_tasks = 1;
    r->bytes = large;
    r->window = 16 * (size_t)MIB;
    out->ceilings.stream_gbs_1t = read_best_gbs(r, NULL, slice);
    out->stream_ahead[0] = r->config.value[0];
    measure_curve(r, large, slice / 8, out);
    r->bytes = large;
    r->window = 16 * (size_t)MIB;
    r->at = 0;
    out->ceilings.stream_gbs_all = out->ceilings.stream_gbs_1t;
    out->stream_ahead[1] = out->stream_ahead[0];
    out->ceilings.threads_all = topology->usable_cores;
    if (topology->usable_cores > 1 && kt_pool_create(&options, &pool, err) == KT_OK) {
        r->n_tasks = kt_pool_threads(pool);
        out->ceilings.threads_all = r->n_tasks;
        out->ceilings.stream_gbs_all = read_best_gbs(r, pool, slice);
        out->stream_ahead[1] = r->config.value[0];
        kt_pool_destroy(pool);
    }
    kt_buffer_destroy(&buffer);
    KT_TRY(kt_buffer_create(large / 2, KT_PAGES_SMALL, -1, &buffer, err));
    memset(buffer.data, 1, large / 2);
    r->data = buffer.data;
    r->bytes = large / 2;
    r->at = 0;
    r->n_tasks = 1;
    out->ceilings.stream_small_gbs_1t = read_best_gbs(r, NULL, slice);
    kt_buffer_destroy(&buffer);
    return KT_OK;
}

static void measure_peaks(const kt_registry *registry, int64_t ns, kt_ceilings *out) {
    for (size_t i = 0; i < kt_registry_count(registry); i++) {
        const kt_variant *v = kt_registry_at(registry, i);
        double *slot = &out->peak_scalar_gops, gops;
        if (v->op != KT_OP_PROBE || strncmp(v->name, "peak", 4) != 0) continue;
        for (int bit = 0; bit < KT_ISA_COUNT; bit++)
            if (v->isa >> bit & 1) slot = &out->peak_gops[bit];
        /* The AVX2 step is rated by FMA: VPMADDUBSW counts six times as many operations, none of
         * which a BF16 kernel can use, and the 8-bit kernels need two more instructions per sum. */
        if (strncmp(v->name, "peak_maddubs", 12) == 0) continue;
        gops = kt_probe_peak_gops(v, ns);
        if (gops > *slot) *slot = gops;
    }
}

/* The same cold read against itself, by the protocol of a race. In ns: samples are kept to 0.1. */
static double noise_sample(void *arg, int contender) {
    reader *r = arg;
    (void)contender;
    return (double)r->window / read_window(r, NULL);
}

static kt_status measure_noise(reader *r, int64_t ns, kt_ceilings *out, kt_err *err) {
    enum { ROUNDS = 30 };
    static const int both[] = {0, 1};
    kt_stopwatch watch = {.arg = r, .sample = noise_sample};
    double ratio[KT_MAX_SAMPLES];
    int n = 0;
    int64_t end = kt_clock_ns() + ns;
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    while (n < KT_MAX_SAMPLES && (n < 8 || kt_clock_ns() < end)) {
        double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES], x[KT_MAX_SAMPLES];
        kt_samples s;
        KT_TRY(kt_samples_create(2, &s, err));
        kt_rounds_run(&watch, &s, both, 2, ROUNDS, INT64_MAX, &rng);
        int pairs = kt_samples_pairs(&s, 0, 1, a, b);
        for (int i = 0; i < pairs; i++) x[i] = log(a[i] / b[i]);
        ratio[n++] = fabs(expm1(kt_quantile(x, pairs, 0.5)));
        kt_samples_destroy(&s);
    }
    out->aa_noise_p95 = kt_quantile(ratio, n, 0.95);
    return KT_OK;
}

static kt_status noise_on_new_buffer(reader *r, int64_t ns, kt_ceilings *out, kt_err *err) {
    kt_buffer buffer = {0};
    kt_status st;
    KT_TRY(kt_buffer_create(256 * (size_t)MIB, KT_PAGES_ADVISED, -1, &buffer, err));
    memset(buffer.data, 1, buffer.bytes);
    *r = (reader){.stream = r->stream,
                  .config = kt_config_initial(r->stream),
                  .data = buffer.data,
                  .bytes = buffer.bytes,
                  .n_tasks = 1};
    r->window = 4 * (size_t)MIB; /* at 30 GB/s the 150 us of a typical sample */
    st = measure_noise(r, ns, out, err);
    kt_buffer_destroy(&buffer);
    return st;
}

kt_status kt_ceilings_measure(const kt_registry *registry, const kt_topology *topology, bool quick,
                              kt_machine_report *out, kt_err *err) {
    int64_t start = kt_clock_ns();
    reader r = {.stream = kt_probe_find(registry, "read_stream", ~(kt_isa)0)};

    memset(out, 0, sizeof *out);
    if (!r.stream)
        return kt_fail(err, KT_E_NOT_FOUND, "probe: no usable read_stream variant in this build");
    out->timer = kt_timer_calibrate();
    measure_peaks(registry, quick ? 30000000 : 100000000, &out->ceilings);
    KT_TRY(measure_streams(&r, topology, quick, out, err));
    KT_TRY(noise_on_new_buffer(&r, quick ? 300000000 : 1000000000, &out->ceilings, err));
    out->seconds = (double)(kt_clock_ns() - start) * 1e-9;
    return KT_OK;
}
