/* A device, a kernel and two buffers, for tests of what streams do. For the files that include it
 * alone: all is static. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TEST_STREAM_BENCH_H
#define KT_TEST_STREAM_BENCH_H

#include <criterion/criterion.h>
#include <string.h>

#include "dispatch/device/device.h"
#include "kernels/cuda/kt_dev.h"

enum { N = 256, THREADS = 64 };

/* out[i] = in[i] * factor + add; a block of THREADS at a time. */
typedef struct scale_call {
    const uint32_t *in;
    uint32_t *out;
    int32_t factor, add, n, fault;
} scale_call;

static inline void scale(const scale_call *p) {
    const int i = kt_block_x() * THREADS + kt_thread();

    if (p->fault == 1 && kt_thread() == 5) kt_shared_u32(1 << 20);
    if (p->fault == 2) p->out[i - p->n] = 1;
    if (i < p->n) p->out[i] = p->in[i] * (uint32_t)(p->factor * KT_CONSTANT(0)) + (uint32_t)p->add;
}
KT_ENTRY(run_scale, scale_call, scale, THREADS)

static const int32_t times_values[] = {1, 2, 3};
static const kt_param params[] = {{"times", times_values, 3, 1}};

static inline const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)target;
    return config->value[0] == 3 ? "three is too many" : NULL;
}
static inline int threads(const kt_config *config) {
    (void)config;
    return THREADS;
}
static inline size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

static const kt_cuda_kernel kernel = {.name = "scale",
                                      .targets = KT_CUDA_BASELINE,
                                      .params = params,
                                      .param_count = 1,
                                      .entry_count = 1,
                                      .entry = {{"run_scale", run_scale}},
                                      .refuse = refuse,
                                      .threads = threads,
                                      .shared_bytes = shared_bytes};

static kt_err err;

static inline kt_device *open_with(kt_device_options o) {
    kt_device *d;
    o.class = "emulated";
    cr_assert_eq(kt_device_open(&o, &d, &err), KT_OK, "%s", err.message);
    return d;
}

#define OK(call) cr_assert_eq(call, KT_OK, "%s", err.message)
#define FAILS(status, text, call)                                                          \
    do {                                                                                   \
        const kt_status st_ = call;                                                        \
        cr_expect_eq(st_, status, "%s: %d, %s", #call, st_, st_ ? err.message : "");       \
        cr_expect(st_ == KT_OK || strstr(err.message, text), "%s: '%s' lacks '%s'", #call, \
                  err.message, text);                                                      \
    } while (0)

typedef struct bench {
    kt_device *d;
    const kt_device_code *code;
    uint32_t *a, *b, host[N], back[N];
} bench;

static inline void set_up(bench *t, kt_device_options o) {
    const kt_config config = kt_cuda_initial(&kernel);

    t->d = open_with(o);
    OK(kt_device_code_of(t->d, &kernel, &config, &t->code, &err));
    OK(kt_device_alloc(t->d, sizeof t->host, (void **)&t->a, &err));
    OK(kt_device_alloc(t->d, sizeof t->host, (void **)&t->b, &err));
    for (uint32_t i = 0; i < N; i++) t->host[i] = i + 1;
    memset(t->back, 0, sizeof t->back);
}

static inline kt_status launch(bench *t, kt_stream s, const uint32_t *in, uint32_t *out, int factor,
                               int fault) {
    const scale_call p = {in, out, factor, 7, N, fault};
    const kt_device_launch l = {.code = t->code,
                                .grid_x = N / THREADS,
                                .grid_y = 1,
                                .parameters = &p,
                                .parameter_bytes = sizeof p};
    return kt_device_run(t->d, s, &l, &err);
}

static inline void expect_gathered(const bench *t, int64_t pieces, int64_t captured,
                                   int64_t replayed) {
    const kt_device_gathered g = kt_device_gather_counts(t->d);

    cr_expect(g.pieces == pieces && g.captured == captured && g.replayed == replayed,
              "%d pieces, %d captured, %d replayed", (int)g.pieces, (int)g.captured,
              (int)g.replayed);
}

#endif
