/* A CUDA driver that says what a test wants: two GPUs, or why it has none. That of kind `right`
 * also works: device memory is the process's own, work is done at once, launches are handed to the
 * test, and any function fails when it is told to. SPDX-License-Identifier: Apache-2.0 */
#include "tests/libraries/fake_cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 64, LARGE = 48 * 1024 };

static struct {
    const char *function;
    int after, code;
} fault;
static fake_cuda_launched *on_launch;
static char calls[1 << 16];
static size_t calls_used;
static int n_live, n_overlapped;

void fake_cuda_fail(const char *function, int after, int code) {
    fault.function = function;
    fault.after = after;
    fault.code = code;
}

void fake_cuda_on_launch(fake_cuda_launched *f) {
    on_launch = f;
}

const char *fake_cuda_calls(void) {
    return calls;
}

void fake_cuda_forget(void) {
    calls_used = 0;
    calls[0] = 0;
}

int fake_cuda_live(void) {
    return n_live;
}

int fake_cuda_overlapped(void) {
    const int n = n_overlapped;

    n_overlapped = 0;
    return n;
}

/* Notes the call; not 0: it is to fail so. Once a fatal code was given it is always given. */
static int called(const char *name) {
    if (calls_used + strlen(name) + 2 < sizeof calls)
        calls_used += (size_t)snprintf(calls + calls_used, sizeof calls - calls_used, "%s ", name);
    if (!fault.function || strcmp(fault.function, name) != 0) return 0;
    return fault.after-- > 0 ? 0 : fault.code;
}

#define CALLED()                            \
    do {                                    \
        const int code_ = called(__func__); \
        if (code_) return code_;            \
    } while (0)
/* Most functions need a current context. */
#define CALLED_INSIDE()              \
    do {                             \
        CALLED();                    \
        if (!is_current) return 201; \
    } while (0)

int cuInit(unsigned flags) {
    (void)flags;
#if defined(KT_FAKE_STUB)
    return 34;
#elif defined(KT_FAKE_NONE)
    return 100;
#elif defined(KT_FAKE_MIXED)
    return 803;
#else
    CALLED();
    return 0;
#endif
}

int cuDriverGetVersion(int *out) {
#ifdef KT_FAKE_OLD
    *out = 11040;
#else
    *out = 13000;
#endif
    return 0;
}

int cuDeviceGetCount(int *out) {
    CALLED();
    *out = 2;
    return 0;
}

int cuDeviceGet(int *out, int ordinal) {
    CALLED();
    *out = ordinal;
    return 0;
}

int cuDeviceGetName(char *out, int bytes, int device) {
    CALLED();
    strncpy(out, device ? "Pretended Small" : "Pretended Large", (size_t)bytes);
    return 0;
}

#ifndef KT_FAKE_SHORT
int cuDeviceTotalMem_v2(size_t *out, int device) {
    CALLED();
    *out = (size_t)(device ? 16 : 32) << 30;
    return 0;
}
#endif

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    CALLED();
    switch (attribute) {
    case 16: *out = device ? 82 : 170; return 0;
    case 75: *out = device ? 8 : 12; return 0;
    case 76: *out = device ? 6 : 0; return 0;
    case 91: *out = device == 0; return 0;
    case 97: *out = 101376; return 0;
    default: return 1;
    }
}

int cuDeviceGetPCIBusId(char *out, int bytes, int device) {
    snprintf(out, (size_t)bytes, "0000:%d1:00.0", device + 4);
    return 0;
}

#ifdef KT_FAKE_RIGHT

static int is_current;

int cuGetErrorName(int code, const char **out) {
    static const struct {
        int code;
        const char *name;
    } names[] = {{2, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {719, "CUDA_ERROR_LAUNCH_FAILED"},
                 {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *out = names[i].name;
            return 0;
        }
    *out = NULL;
    return 1;
}

/* ---- contexts, memory ---- */

static int contexts[2]; /* of the two GPUs */

int cuDevicePrimaryCtxRetain(void **context, int device) {
    CALLED();
    *context = &contexts[device % 2];
    n_live++;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    n_live--;
    is_current = 0;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    CALLED();
    is_current = context == &contexts[0] || context == &contexts[1];
    return 0;
}

static struct step {
    char kind; /* c(opy), f(ill), l(aunch), h(ost's function) */
    void *to;
    const void *from;
    void (*call)(void *arg);
    size_t bytes, shared;
    const struct function *function;
    unsigned grid[2], threads;
    _Alignas(16) unsigned char parameters[1024];
} step[MOST_STEPS];
static int n_steps, is_capturing;

int cuCtxSynchronize(void) {
    CALLED_INSIDE();
    return is_capturing ? 900 : 0;
}

int cuMemGetInfo_v2(size_t *left, size_t *all) {
    CALLED_INSIDE();
    *left = (size_t)30 << 30;
    *all = (size_t)32 << 30;
    return 0;
}

static int take(void **out, size_t bytes) {
    if (bytes > (size_t)1 << 30) return 2;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    n_live++;
    return *out ? 0 : 2;
}

int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    void *p = NULL;
    int code;

    CALLED_INSIDE();
    code = take(&p, bytes);
    *out = (uint64_t)(uintptr_t)p;
    return code;
}

int cuMemFree_v2(uint64_t p) {
    CALLED_INSIDE();
    free((void *)(uintptr_t)p);
    n_live--;
    return 0;
}

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    CALLED_INSIDE();
    return flags == 3 ? take(out, bytes) : 1;
}

int cuMemFreeHost(void *p) {
    CALLED_INSIDE();
    free(p);
    n_live--;
    return 0;
}

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    CALLED_INSIDE();
    if (!p || !bytes || flags != 3) return 1;
    n_live++;
    return 0;
}

int cuMemHostUnregister(void *p) {
    CALLED_INSIDE();
    if (!p) return 1;
    n_live--;
    return 0;
}

/* ---- modules: the "code" is what the pretended compiler was told ---- */

struct function {
    char name[64];
    char options[512];
    int most_shared;
};

struct module {
    char options[512];
    struct function function[8];
    int n;
};

int cuModuleLoadData(void **out, const void *code) {
    struct module *m;

    CALLED_INSIDE();
    m = calloc(1, sizeof *m);
    snprintf(m->options, sizeof m->options, "%.500s", (const char *)code);
    n_live++;
    *out = m;
    return 0;
}

int cuModuleUnload(void *module) {
    CALLED_INSIDE();
    free(module);
    n_live--;
    return 0;
}

int cuModuleGetFunction(void **out, void *module, const char *name) {
    struct module *m = module;
    struct function *f = &m->function[m->n];

    CALLED_INSIDE();
    if (m->n == 8) return 500;
    m->n++;
    snprintf(f->name, sizeof f->name, "%.60s", name);
    memcpy(f->options, m->options, sizeof f->options);
    f->most_shared = LARGE;
    *out = f;
    return 0;
}

int cuFuncGetAttribute(int *out, int attribute, void *function) {
    CALLED_INSIDE();
    (void)function;
    *out = attribute == 4 ? 77 : attribute == 3 ? 8 : attribute == 1 ? 1024 : -1;
    return *out < 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    CALLED_INSIDE();
    if (attribute != 8 || value > 101376 - 1024) return 1;
    ((struct function *)function)->most_shared = value;
    return 0;
}

/* ---- work ---- */

static int carry_out(const struct step *s) {
    if (s->kind == 'c') memmove(s->to, s->from, s->bytes);
    if (s->kind == 'f') memset(s->to, 0, s->bytes);
    if (s->kind == 'h') s->call(s->to);
    if (s->kind != 'l' || !on_launch) return 0;
    return on_launch(s->function->name, s->function->options, (int)s->grid[0], (int)s->grid[1],
                     (int)s->threads, s->shared, s->parameters, s->bytes);
}

static int put(const struct step *s) {
    if (!is_capturing) return carry_out(s);
    if (n_steps == MOST_STEPS) return 2;
    step[n_steps++] = *s;
    return 0;
}

static void *pointer(uint64_t p) {
    return (void *)(uintptr_t)p;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALLED_INSIDE();
    if (!stream) return 400;
    return put(&(struct step){.kind = 'c', .to = pointer(to), .from = from, .bytes = bytes});
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    CALLED_INSIDE();
    if (!stream) return 400;
    return put(&(struct step){.kind = 'c', .to = to, .from = pointer(from), .bytes = bytes});
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    CALLED_INSIDE();
    if (!stream) return 400;
    return put(
        &(struct step){.kind = 'c', .to = pointer(to), .from = pointer(from), .bytes = bytes});
}

int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context,
                      size_t bytes, void *stream) {
    CALLED_INSIDE();
    if (!stream || !to_context || !from_context || to_context == from_context) return 400;
    return put(
        &(struct step){.kind = 'c', .to = pointer(to), .from = pointer(from), .bytes = bytes});
}

int cuMemsetD8Async(uint64_t p, unsigned char value, size_t bytes, void *stream) {
    CALLED_INSIDE();
    if (!stream || value) return 400;
    return put(&(struct step){.kind = 'f', .to = pointer(p), .bytes = bytes});
}

/* Code for sm_90 and newer waits for what is before it, other code does not. */
static bool may_overlap(const struct function *f, const kt_cu_launch *l) {
    const char *sm = strstr(f->options, "=sm_");

    return sm && atoi(sm + 4) >= 90 && l->n_attributes == 1 && l->attributes->id == 6 &&
           l->attributes->value.number == 1;
}

int cuLaunchKernelEx(const kt_cu_launch *l, void *function, void **parameters, void **extra) {
    const struct function *f = function;
    struct step s = {.kind = 'l',
                     .function = f,
                     .grid = {l->grid_x, l->grid_y},
                     .threads = l->x,
                     .shared = l->shared_bytes};

    CALLED_INSIDE();
    if (!l->stream || parameters || l->grid_z != 1 || l->y != 1 || l->z != 1) return 1;
    if (!l->grid_x || !l->grid_y || (int)l->shared_bytes > f->most_shared) return 1;
    if (l->n_attributes && !may_overlap(f, l)) return 1;
    n_overlapped += (int)l->n_attributes;
    if ((uintptr_t)extra[0] != 1 || (uintptr_t)extra[2] != 2 || extra[4]) return 1;
    s.bytes = *(const size_t *)extra[3];
    if (s.bytes > sizeof s.parameters) return 1;
    memcpy(s.parameters, extra[1], s.bytes);
    return put(&s);
}

/* ---- streams, events, graphs ---- */

static int make(void **out) {
    *out = malloc(1);
    n_live++;
    return 0;
}

static int drop(void *p) {
    free(p);
    n_live--;
    return 0;
}

int cuStreamCreate(void **out, unsigned flags) {
    CALLED_INSIDE();
    return flags == 1 ? make(out) : 1;
}
int cuStreamDestroy_v2(void *stream) {
    CALLED_INSIDE();
    return drop(stream);
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    CALLED_INSIDE();
    (void)flags;
    return stream && event ? 0 : 400;
}
int cuStreamQuery(void *stream) {
    CALLED_INSIDE();
    return stream ? 0 : 400;
}
int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg) {
    CALLED_INSIDE();
    if (!stream || !f) return 400;
    return put(&(struct step){.kind = 'h', .call = f, .to = arg});
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    CALLED_INSIDE();
    if (!stream || mode != 2) return 1;
    is_capturing = 1;
    n_steps = 0;
    return 0;
}

struct kept {
    int n;
    struct step step[MOST_STEPS];
};

int cuStreamEndCapture(void *stream, void **graph) {
    struct kept *k;

    (void)stream;
    is_capturing = 0;
    *graph = NULL;
    CALLED_INSIDE();
    k = malloc(sizeof *k);
    k->n = n_steps;
    memcpy(k->step, step, sizeof step);
    n_live++;
    *graph = k;
    return 0;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    CALLED_INSIDE();
    *out = malloc(sizeof(struct kept));
    memcpy(*out, graph, sizeof(struct kept));
    n_live++;
    return flags != 0;
}
int cuGraphLaunch(void *executable, void *stream) {
    const struct kept *k = executable;

    CALLED_INSIDE();
    if (!stream) return 400;
    for (int i = 0; i < k->n; i++) {
        const int code = carry_out(&k->step[i]);
        if (code) return code;
    }
    return 0;
}
int cuGraphDestroy(void *graph) {
    return drop(graph);
}
int cuGraphExecDestroy(void *executable) {
    return drop(executable);
}

int cuEventCreate(void **out, unsigned flags) {
    CALLED_INSIDE();
    return flags ? 1 : make(out);
}
int cuEventDestroy_v2(void *event) {
    CALLED_INSIDE();
    return drop(event);
}
int cuEventRecord(void *event, void *stream) {
    CALLED_INSIDE();
    return event && stream ? 0 : 400;
}
int cuEventSynchronize(void *event) {
    CALLED_INSIDE();
    return event ? 0 : 400;
}
int cuEventQuery(void *event) {
    CALLED_INSIDE();
    return event ? 0 : 400;
}
int cuEventElapsedTime(float *ms, void *from, void *to) {
    CALLED_INSIDE();
    *ms = 1.5f;
    return from && to ? 0 : 400;
}

#endif
