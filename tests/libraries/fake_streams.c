/* A CUDA driver's streams on one thread each: what they are given is done in order, functions of
 * the host among it, and can be captured to be replayed. By fake_streams.h, or as programs for GPUs
 * use a driver: of device memory, which is the process's, copies and fills, and of graphs.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_streams.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1024, INVALID_HANDLE = 400 };

typedef struct work {
    void (*f)(void *arg);
    void *arg, *to;
    const void *from;
    size_t bytes;
    uint32_t *writes, value; /* a word that becomes it */
    const uint32_t *waits;   /* or is waited for until it is */
    bool fills;              /* `to`, with value */
} work;

struct fake_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work queue[MOST], graph[MOST];
    int n, done, n_graph;
    bool is_held, is_capturing, is_ending;
};

static fake_stream *known[16];

static void *run(void *arg) {
    fake_stream *s = arg;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        work w;
        while ((s->is_held || s->done == s->n) && !s->is_ending)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->done == s->n) break;
        w = s->queue[s->done % MOST];
        pthread_mutex_unlock(&s->lock);
        if (w.f)
            w.f(w.arg);
        else if (w.writes)
            __atomic_store_n(w.writes, w.value, __ATOMIC_RELEASE);
        else if (w.waits)
            while (__atomic_load_n(w.waits, __ATOMIC_ACQUIRE) != w.value) usleep(5);
        else if (w.fills)
            memset(w.to, (int)w.value, w.bytes);
        else
            memcpy(w.to, w.from, w.bytes);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

fake_stream *fake_stream_make(void) {
    fake_stream *s = calloc(1, sizeof *s);

    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pthread_create(&s->thread, NULL, run, s);
    for (int i = 0; i < 16; i++)
        if (!known[i]) {
            known[i] = s;
            break;
        }
    return s;
}

static bool is_known(const void *stream) {
    for (int i = 0; i < 16; i++)
        if (stream && known[i] == stream) return true;
    return false;
}

static void put(fake_stream *s, const work *w) {
    pthread_mutex_lock(&s->lock);
    if (s->is_capturing) {
        s->graph[s->n_graph++] = *w;
    } else {
        while (s->n - s->done == MOST) pthread_cond_wait(&s->changed, &s->lock);
        s->queue[s->n++ % MOST] = *w;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_copy(fake_stream *s, void *to, const void *from, size_t bytes) {
    put(s, &(work){.to = to, .from = from, .bytes = bytes});
}

void fake_stream_hold(fake_stream *s, int is_held) {
    pthread_mutex_lock(&s->lock);
    s->is_held = is_held;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_capture(fake_stream *s, int is_on) {
    pthread_mutex_lock(&s->lock);
    if (is_on) s->n_graph = 0;
    s->is_capturing = is_on;
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_replay(fake_stream *s) {
    for (int i = 0; i < s->n_graph; i++) put(s, &s->graph[i]);
}

void fake_stream_sync(fake_stream *s) {
    pthread_mutex_lock(&s->lock);
    while (s->done < s->n) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_end(fake_stream *s) {
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < 16; i++)
        if (known[i] == s) known[i] = NULL;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg);
int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg) {
    if (!is_known(stream)) return INVALID_HANDLE;
    put(stream, &(work){.f = f, .arg = arg});
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status);
int cuStreamIsCapturing(void *stream, int *status) {
    if (!is_known(stream)) return INVALID_HANDLE;
    *status = ((fake_stream *)stream)->is_capturing;
    return 0;
}

/* ---- words of mapped memory ---- */

static _Thread_local void *context;
static int n_blocks, relaxed;

void fake_streams_enter(int is_inside) {
    context = is_inside ? &n_blocks : NULL;
}

int fake_streams_blocks(void) {
    return n_blocks;
}

int cuCtxGetCurrent(void **out);
int cuCtxGetCurrent(void **out) {
    *out = context;
    return 0;
}

int cuCtxSetCurrent(void *to);
int cuCtxSetCurrent(void *to) {
    context = to;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode);
int cuThreadExchangeStreamCaptureMode(int *mode) {
    const int before = relaxed;
    relaxed = *mode;
    *mode = before;
    return 0;
}

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    if (!context || flags != 3 || relaxed != 2) return 201;
    *out = aligned_alloc(4096, bytes);
    n_blocks++;
    return *out ? 0 : 2;
}

int cuMemFreeHost(void *p);
int cuMemFreeHost(void *p) {
    if (!context) return 201;
    free(p);
    n_blocks--;
    return 0;
}

int cuStreamWriteValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags);
int cuStreamWriteValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags) {
    if (!is_known(stream) || flags) return INVALID_HANDLE;
    put(stream, &(work){.writes = (uint32_t *)(uintptr_t)at, .value = value});
    return 0;
}

int cuStreamWaitValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags);
int cuStreamWaitValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags) {
    if (!is_known(stream) || flags != 1) return INVALID_HANDLE;
    put(stream, &(work){.waits = (const uint32_t *)(uintptr_t)at, .value = value});
    return 0;
}

/* ---- the rest of a driver, as tests/gpu/gpu_experts.c uses it ---- */

typedef struct fake_graph {
    int n;
    work of[MOST];
} fake_graph;

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
    return flags ? 1 : 0;
}

int cuDeviceGet(int *out, int ordinal);
int cuDeviceGet(int *out, int ordinal) {
    *out = ordinal;
    return ordinal ? 101 : 0;
}

int cuDeviceGetName(char *out, int bytes, int device);
int cuDeviceGetName(char *out, int bytes, int device) {
    (void)device;
    strncpy(out, "streams of the CPU", (size_t)bytes);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device);
int cuDevicePrimaryCtxRetain(void **out, int device) {
    (void)device;
    *out = &n_blocks;
    return 0;
}

int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    void *p = context ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    *out = (uint64_t)(uintptr_t)p;
    return p ? 0 : 2;
}

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    (void)bytes, (void)flags;
    return context && p ? 0 : 201;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    if (!is_known(stream)) return INVALID_HANDLE;
    fake_stream_copy(stream, (void *)(uintptr_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    if (!is_known(stream)) return INVALID_HANDLE;
    fake_stream_copy(stream, to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int cuMemsetD8Async(uint64_t p, unsigned char value, size_t bytes, void *stream);
int cuMemsetD8Async(uint64_t p, unsigned char value, size_t bytes, void *stream) {
    if (!is_known(stream)) return INVALID_HANDLE;
    put(stream, &(work){.fills = true, .to = (void *)(uintptr_t)p, .bytes = bytes, .value = value});
    return 0;
}

int cuStreamCreate(void **out, unsigned flags);
int cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    *out = fake_stream_make();
    return is_known(*out) ? 0 : 2;
}

int cuStreamSynchronize(void *stream);
int cuStreamSynchronize(void *stream) {
    if (!is_known(stream)) return INVALID_HANDLE;
    fake_stream_sync(stream);
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)mode;
    if (!is_known(stream)) return INVALID_HANDLE;
    fake_stream_capture(stream, 1);
    return 0;
}

int cuStreamEndCapture(void *stream, void **graph);
int cuStreamEndCapture(void *stream, void **graph) {
    fake_stream *s = stream;
    fake_graph *g = malloc(sizeof *g);

    if (!is_known(stream) || !g) return INVALID_HANDLE;
    fake_stream_capture(s, 0);
    g->n = s->n_graph;
    memcpy(g->of, s->graph, sizeof g->of);
    *graph = g;
    return 0;
}

int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags);
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    (void)flags;
    *out = malloc(sizeof(fake_graph));
    if (*out) memcpy(*out, graph, sizeof(fake_graph));
    return *out ? 0 : 2;
}

int cuGraphLaunch(void *executable, void *stream);
int cuGraphLaunch(void *executable, void *stream) {
    const fake_graph *g = executable;

    if (!is_known(stream)) return INVALID_HANDLE;
    for (int i = 0; i < g->n; i++) put(stream, &g->of[i]);
    return 0;
}

int cuGraphDestroy(void *graph);
int cuGraphDestroy(void *graph) {
    free(graph);
    return 0;
}

int cuGraphExecDestroy(void *executable);
int cuGraphExecDestroy(void *executable) {
    free(executable);
    return 0;
}
