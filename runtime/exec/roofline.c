/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/roofline.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"

#define STREAM_BYTES ((size_t)512 << 20) /* many times any cache */
#define WINDOW_BYTES ((size_t)16 << 20)  /* per sample, all threads together */
#define MAX_WINDOWS 1024
#define STREAM_NS ((int64_t)200000000)
#define PEAK_NS ((int64_t)50000000)

/* Usable probe whose name begins with one of the prefixes: the first prefix that has any, then the
 * widest instruction set. */
static const kt_variant *find_probe(const kt_registry *registry, const char *const *prefixes) {
    const kt_variant *best = NULL;

    for (; *prefixes && !best; prefixes++)
        for (size_t i = 0; i < kt_registry_count(registry); i++) {
            const kt_variant *v = kt_registry_at(registry, i);
            if (v->op != KT_OP_PROBE || strncmp(v->name, *prefixes, strlen(*prefixes)) != 0)
                continue;
            if (!best || v->isa > best->isa) best = v;
        }
    return best;
}

typedef struct probe_task {
    const kt_variant *probe;
    const char *data; /* streams */
    size_t share;     /* bytes of a thread */
    int64_t repeats;  /* peaks */
} probe_task;

static void run_probe(void *arg, int64_t begin, int64_t end, int tid) {
    const probe_task *t = arg;
    kt_probe_call call = {.repeats = t->repeats};

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

/* Upper quartile of the windows, as `kttune probe` takes it. */
static kt_status measure_stream(const kt_variant *probe, kt_pool *pool, double *gbs, kt_err *err) {
    size_t share = WINDOW_BYTES / (size_t)kt_pool_threads(pool) / 4096 * 4096;
    size_t window = share * (size_t)kt_pool_threads(pool), at = 0;
    probe_task t = {.probe = probe, .share = share, .repeats = 1};
    kt_buffer buffer;
    double rate[MAX_WINDOWS];
    int64_t end;
    int n = 0;

    if (!probe || !share) return KT_OK;
    KT_TRY(kt_buffer_create(STREAM_BYTES, KT_PAGES_ADVISED, -1, &buffer, err));
    memset(buffer.data, 1, buffer.bytes); /* pages of its own, not the kernel's zero page */
    end = kt_clock_ns() + STREAM_NS;
    do {
        t.data = (const char *)buffer.data + at;
        rate[n++] = (double)window / sample(pool, &t);
        at = at + 2 * window > buffer.bytes ? 0 : at + window;
    } while (n < MAX_WINDOWS && kt_clock_ns() < end);
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

kt_status kt_roofline_measure(const kt_registry *registry, kt_pool *pool, kt_roofline *out,
                              kt_err *err) {
    static const char *const stream[] = {"read_stream", NULL};
    static const char *const peaks[KT_UNIT_COUNT][4] = {
        [KT_UNIT_F32] = {"peak_fma", "peak__scalar", NULL},
        [KT_UNIT_BF16] = {"peak_dpbf16", "peak_fma", "peak__scalar", NULL},
        [KT_UNIT_INT8] = {"peak_dpbusd", "peak_maddubs__", "peak__scalar", NULL}};

    memset(out, 0, sizeof *out);
    for (int u = 0; u < KT_UNIT_COUNT; u++) {
        const kt_variant *probe = find_probe(registry, peaks[u]);
        if (!probe) continue;
        out->probe[u] = probe->name;
        out->peak_gops[u] = measure_peak(probe, pool);
    }
    return measure_stream(find_probe(registry, stream), pool, &out->stream_gbs, err);
}
