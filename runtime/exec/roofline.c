/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/roofline.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "dispatch/registry/probes.h"

#define STREAM_BYTES ((size_t)512 << 20) /* many times any cache */
#define WINDOW_BYTES ((size_t)16 << 20)  /* per sample, all threads together */
#define MAX_WINDOWS 1024
#define DISTANCE_WINDOWS 4 /* with each distance of prefetch, twice */
#define STREAM_NS ((int64_t)200000000)
#define PEAK_NS ((int64_t)50000000)

typedef struct probe_task {
    const kt_variant *probe;
    const char *data; /* streams */
    size_t share;     /* bytes of a thread */
    int64_t repeats;  /* peaks */
    kt_config config; /* streams */
} probe_task;

static void run_probe(void *arg, int64_t begin, int64_t end, int tid) {
    const probe_task *t = arg;
    kt_probe_call call = {.repeats = t->repeats, .config = t->data ? &t->config : NULL};

    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        call.data = t->data ? t->data + (size_t)i * t->share : NULL;
        call.bytes = t->share;
        t->probe->probe(&call);
    }
}

/* One task per thread; nanoseconds until the last is done. */
static double sample(kt_pool *pool, probe_task *t) {
    kt_phase phase = {.run = run_probe, .arg = t, .n_tasks = kt_pool_threads(pool)};
    int64_t start = kt_clock_ns();

    kt_pool_run(pool, &phase, 1);
    return (double)(kt_clock_ns() - start);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Windows of a buffer one after the other, read by all threads. */
typedef struct stream_walk {
    kt_pool *pool;
    const kt_buffer *buffer;
    size_t window, at;
    probe_task task;
} stream_walk;

static double window_gbs(stream_walk *s) {
    s->task.data = (const char *)s->buffer->data + s->at;
    s->at = s->at + 2 * s->window > s->buffer->bytes ? 0 : s->at + s->window;
    return (double)s->window / sample(s->pool, &s->task);
}

static double rate_of_distance(void *arg, const kt_config *config) {
    stream_walk *s = arg;
    double best = 0;

    s->task.config = *config;
    for (int i = 0; i < DISTANCE_WINDOWS; i++) {
        double gbs = window_gbs(s);
        if (gbs > best) best = gbs;
    }
    return best;
}

/* Upper quartile of the windows with the best distance of prefetch, as `kttune probe` takes it. */
static kt_status measure_stream(const kt_variant *probe, kt_pool *pool, double *gbs, kt_err *err) {
    size_t share = WINDOW_BYTES / (size_t)kt_pool_threads(pool) / 4096 * 4096;
    kt_buffer buffer;
    stream_walk s = {.pool = pool,
                     .buffer = &buffer,
                     .window = share * (size_t)kt_pool_threads(pool),
                     .task = {.probe = probe, .share = share, .repeats = 1}};
    double rate[MAX_WINDOWS];
    int64_t end;
    int n = 0;

    if (!probe || !share) return KT_OK;
    KT_TRY(kt_buffer_create(STREAM_BYTES, KT_PAGES_ADVISED, -1, &buffer, err));
    memset(buffer.data, 1, buffer.bytes); /* pages of its own, not the kernel's zero page */
    s.task.config = kt_probe_best_config(probe, rate_of_distance, &s);
    end = kt_clock_ns() + STREAM_NS;
    do rate[n++] = window_gbs(&s);
    while (n < MAX_WINDOWS && kt_clock_ns() < end);
    qsort(rate, (size_t)n, sizeof *rate, ascending);
    *gbs = rate[(n - 1) * 3 / 4];
    kt_buffer_destroy(&buffer);
    return KT_OK;
}

static double measure_peak(const kt_variant *probe, kt_pool *pool) {
    probe_task t = {.probe = probe, .repeats = 16};
    kt_probe_call once = {.repeats = 1};
    double ops = probe->probe(&once), best = 0;
    int64_t end = kt_clock_ns() + PEAK_NS;

    do {
        double ns = sample(pool, &t);
        double rate = ops * (double)t.repeats * kt_pool_threads(pool) / ns;
        if (rate > best) best = rate;
        if (ns < 500000) t.repeats *= 2; /* so that starting the threads does not count */
    } while (kt_clock_ns() < end);
    return best;
}

/* The instructions that multiply such operands: the fastest counts, whichever the kernels have
 * chosen, so that no work is above it. What stands second is tried where nothing of the first is
 * usable: VPMADDUBSW counts products that kernels must still widen. */
static const struct {
    const char *best_of[3], *else_of[2];
} instructions[KT_UNIT_COUNT] = {
    [KT_UNIT_F32] = {{"peak_fma"}, {"peak__scalar"}},
    [KT_UNIT_BF16] = {{"peak_tdpbf16", "peak_dpbf16", "peak_fma"}, {"peak__scalar"}},
    [KT_UNIT_INT8] = {{"peak_tdpbusd", "peak_dpbusd"}, {"peak_maddubs__", "peak__scalar"}}};

static void try_peak(const kt_registry *registry, const char *prefix, kt_pool *pool, kt_unit unit,
                     kt_roofline *out) {
    const kt_variant *probe = prefix ? kt_probe_find(registry, prefix, ~(kt_isa)0) : NULL;
    double gops = probe ? measure_peak(probe, pool) : 0;

    if (gops <= out->peak_gops[unit]) return;
    out->peak_gops[unit] = gops;
    out->probe[unit] = probe->name;
}

kt_status kt_roofline_measure(const kt_registry *registry, kt_pool *pool, kt_roofline *out,
                              kt_err *err) {
    memset(out, 0, sizeof *out);
    for (kt_unit u = 0; u < KT_UNIT_COUNT; u++) {
        for (int i = 0; i < 3; i++) try_peak(registry, instructions[u].best_of[i], pool, u, out);
        for (int i = 0; i < 2 && !out->probe[u]; i++)
            try_peak(registry, instructions[u].else_of[i], pool, u, out);
    }
    return measure_stream(kt_probe_find(registry, "read_stream", ~(kt_isa)0), pool,
                          &out->stream_gbs, err);
}
