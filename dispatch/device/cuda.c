/* GPUs by the CUDA driver. The primary context is used, which other libraries of the process share.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/cuda_api.h"
#include "dispatch/device/cuda_compiler.h"
#include "dispatch/device/cuda_driver.h"
#include "dispatch/device/device_class.h"

/* An allocation that was not given back yet. */
typedef enum block_kind { OF_DEVICE, OF_HOST, PINNED } block_kind;
typedef struct block {
    void *p;
    block_kind kind;
} block;

typedef struct cuda {
    kt_cuda_api call;
    int device, shared_bytes;
    void *context;
    void *stream[KT_STREAM_COUNT];
    kt_cuda_compiler *compiler;
    bool overlaps;    /* launches, which wait for what is before them themselves (KT_ENTRY) */
    bool is_ptx;      /* the GPU is newer than the compiler knows: code for sm_80 that is
                         translated by the driver */
    char folder[512]; /* of the cache; "" = none */
    block *blocks;
    size_t n_blocks, capacity;
} cuda;

/* ---- errors ---- */

/* After these the context is of no use: every later call would give them again. */
static const int fatal[] = {4,   /* DEINITIALIZED */
                            46,  /* DEVICE_UNAVAILABLE */
                            214, /* ECC_UNCORRECTABLE */
                            220, /* NVLINK_UNCORRECTABLE */
                            226, /* CONTAINED */
                            700, /* ILLEGAL_ADDRESS */
                            702, /* LAUNCH_TIMEOUT */
                            709, /* CONTEXT_IS_DESTROYED */
                            710, /* ASSERT */
                            714, /* HARDWARE_STACK_ERROR */
                            715, /* ILLEGAL_INSTRUCTION */
                            716, /* MISALIGNED_ADDRESS */
                            717, /* INVALID_ADDRESS_SPACE */
                            718, /* INVALID_PC */
                            719, /* LAUNCH_FAILED */
                            999 /* UNKNOWN */};

static bool is_fatal(int code) {
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (fatal[i] == code) return true;
    return false;
}

static kt_status status_of(int code) {
    if (code == KT_CU_OUT_OF_MEMORY) return KT_E_NOMEM;
    if (code >= KT_CU_FIRST_CAPTURE && code <= KT_CU_LAST_CAPTURE) return KT_E_INVALID;
    return code == KT_CU_PINNED_ALREADY ? KT_E_INVALID : KT_E_IO;
}

/* 0 = KT_OK; else "NAME: what: CUDA_ERROR_.. (code)". Work that was put earlier may have failed, so
 * that a fatal code says little about `what`. */
static kt_status check(kt_device *d, int code, const char *what, kt_err *err) {
    const cuda *u = d->self;
    const char *name = NULL;
    char why[160];

    if (code == 0) return KT_OK;
    if (u->call.error_name(code, &name) != 0 || !name) name = "an error without a name";
    if (is_fatal(code)) {
        snprintf(why, sizeof why, "%s (%d), found by %s", name, code, what);
        return kt_device_lose(d, KT_E_IO, why, err);
    }
    return kt_fail(err, status_of(code), "%s: %s: %s (%d)", d->facts.name, what, name, code);
}

/* The context is current for a host's thread; several may use a device one after the other. */
static kt_status enter(kt_device *d, kt_err *err) {
    const cuda *u = d->self;
    return check(d, u->call.set_current(u->context), "making its context current", err);
}

static uint64_t address(const void *p) {
    return (uint64_t)(uintptr_t)p;
}

/* ---- opening ---- */

static void finish(kt_device *d) {
    const cuda *u = d->self;
    if (u->call.set_current(u->context) == 0) u->call.finish();
}

static int give_back(const cuda *u, block b) {
    if (b.kind == PINNED) return u->call.unpin(b.p);
    return b.kind == OF_HOST ? u->call.host_free(b.p) : u->call.free(address(b.p));
}

static void close_device(kt_device *d) {
    cuda *u = d->self;

    if (u->context) {
        u->call.set_current(u->context);
        while (u->n_blocks) give_back(u, u->blocks[--u->n_blocks]);
        for (int i = 0; i < KT_STREAM_COUNT; i++)
            if (u->stream[i]) u->call.stream_destroy(u->stream[i]);
        u->call.release(u->device);
    }
    kt_cuda_compiler_close(u->compiler);
    free(u->blocks);
    free(u); /* the driver's library stays: it has threads of its own */
}

static kt_status look_at(kt_device *d, int ordinal, kt_err *err) {
    int n = 0, major = 0, minor = 0, maps = 0;
    cuda *u = d->self;
    size_t bytes = 0;
    kt_gpu gpu = {0};

    KT_TRY(check(d, u->call.count(&n), "counting GPUs", err));
    if (ordinal < 0 || ordinal >= n)
        return kt_fail(err, KT_E_NOT_FOUND, "cuda: GPU %d, the CUDA driver sees %d", ordinal, n);
    KT_TRY(check(d, u->call.device(&u->device, ordinal), "looking at it", err));
    KT_TRY(check(d, u->call.name(d->facts.name, sizeof d->facts.name, u->device),
                 "asking for its name", err));
    KT_TRY(check(d, u->call.attribute(&major, KT_CU_MAJOR, u->device), "asking what it is", err));
    KT_TRY(check(d, u->call.attribute(&minor, KT_CU_MINOR, u->device), "asking what it is", err));
    KT_TRY(check(d, u->call.attribute(&d->facts.multiprocessors, KT_CU_MULTIPROCESSORS, u->device),
                 "asking for its multiprocessors", err));
    KT_TRY(check(d, u->call.attribute(&u->shared_bytes, KT_CU_SHARED_OPTIN, u->device),
                 "asking for its shared memory", err));
    KT_TRY(check(d, u->call.attribute(&maps, KT_CU_MAPS_PINNED, u->device),
                 "asking for the host's addresses", err));
    KT_TRY(check(d, u->call.total(&bytes, u->device), "asking for its memory", err));
    d->facts.maps_pinned = maps != 0;
    d->facts.memory_bytes = bytes;
    d->facts.ordinal = ordinal;
    gpu.sm = major * 10 + minor;
    d->facts.target = kt_gpu_target(&gpu);
    if (gpu.sm < kt_cuda_baseline()->sm)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: it is of sm_%d, expected sm_%s or newer",
                       d->facts.name, gpu.sm, kt_cuda_baseline()->name);
    return KT_OK;
}

static bool is_off(const char *variable) {
    const char *word = getenv(variable);

    return word && strcmp(word, "off") == 0;
}

/* What its code is made for, and by what. */
static kt_status choose_code(kt_device *d, kt_err *err) {
    cuda *u = d->self;
    kt_err why;

    if (kt_cuda_compiler_open(&u->compiler, &why) != KT_OK)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: %.400s", d->facts.name, why.message);
    u->is_ptx = !d->facts.target || !kt_cuda_compiler_knows(u->compiler, d->facts.target);
    if (u->is_ptx) {
        d->facts.target = kt_cuda_baseline();
        kt_log_write(d->log, KT_LOG_WARN, "device",
                     "%s is newer than %s knows: its kernels are those of sm_80", d->facts.name,
                     kt_cuda_compiler_name(u->compiler));
    }
    u->overlaps = d->facts.target->sm >= KT_OVERLAP_SM && !is_off("KT_LAUNCH_OVERLAP");
    if (kt_cubin_folder(u->folder, sizeof u->folder, NULL) != KT_OK) u->folder[0] = 0;
    return KT_OK;
}

static kt_status start(kt_device *d, kt_err *err) {
    size_t left = 0, all = 0;
    cuda *u = d->self;

    KT_TRY(choose_code(d, err));
    KT_TRY(check(d, u->call.retain(&u->context, u->device), "taking its primary context", err));
    KT_TRY(enter(d, err));
    for (int i = 0; i < KT_STREAM_COUNT; i++)
        KT_TRY(check(d, u->call.stream_create(&u->stream[i], KT_CU_STREAM_NON_BLOCKING),
                     "making a stream", err));
    KT_TRY(check(d, u->call.memory(&left, &all), "asking for its memory", err));
    d->facts.free_bytes = left;
    return KT_OK;
}

static kt_status open_device(kt_device *d, const kt_device_options *o, kt_err *err) {
    cuda *u = calloc(1, sizeof *u);
    int version;
    char why[256];
    kt_status st;

    if (!u) return kt_fail(err, KT_E_NOMEM, "cuda: no memory for the device");
    snprintf(d->facts.name, sizeof d->facts.name, "cuda");
    d->self = u;
    if (!kt_cuda_api_start(&u->call, true, &version, why, sizeof why))
        st = kt_fail(err, KT_E_NOT_FOUND, "cuda: %s", why);
    else
        st = look_at(d, o->ordinal, err);
    if (st == KT_OK) st = start(d, err);
    if (st != KT_OK) close_device(d);
    return st;
}

/* ---- memory ---- */

static kt_status memory(kt_device *d, uint64_t *free_bytes, uint64_t *bytes, kt_err *err) {
    const cuda *u = d->self;
    size_t left = 0, all = 0;

    KT_TRY(enter(d, err));
    KT_TRY(check(d, u->call.memory(&left, &all), "asking for its memory", err));
    *free_bytes = left;
    *bytes = all;
    return KT_OK;
}

static kt_status no_memory(kt_device *d, const char *of, size_t bytes, kt_err *err) {
    uint64_t left, all;

    KT_TRY(memory(d, &left, &all, err));
    return kt_fail(err, KT_E_NOMEM, "%s: no memory%s for %zu bytes: %llu of %llu are free",
                   d->facts.name, of, bytes, (unsigned long long)left, (unsigned long long)all);
}

/* Room in the list for one more, before it is allocated. */
static kt_status make_room(kt_device *d, kt_err *err) {
    cuda *u = d->self;
    const size_t capacity = u->capacity ? 2 * u->capacity : 64;
    block *more;

    if (u->n_blocks < u->capacity) return KT_OK;
    more = realloc(u->blocks, capacity * sizeof *more);
    if (!more)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a list of %zu blocks", d->facts.name,
                       capacity);
    u->blocks = more;
    u->capacity = capacity;
    return KT_OK;
}

static kt_status alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    cuda *u = d->self;
    uint64_t p = 0;
    int code;

    KT_TRY(make_room(d, err));
    KT_TRY(enter(d, err));
    code = u->call.alloc(&p, bytes);
    if (code == KT_CU_OUT_OF_MEMORY) return no_memory(d, "", bytes, err);
    KT_TRY(check(d, code, "allocating", err));
    *out = (void *)(uintptr_t)p;
    u->blocks[u->n_blocks++] = (block){*out, OF_DEVICE};
    return KT_OK;
}

static kt_status host_alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    cuda *u = d->self;
    void *p = NULL;
    int code;

    KT_TRY(make_room(d, err));
    KT_TRY(enter(d, err));
    code = u->call.host_alloc(&p, bytes, KT_CU_HOST_PORTABLE | KT_CU_HOST_MAPPED);
    if (code == KT_CU_OUT_OF_MEMORY) return no_memory(d, " of the host", bytes, err);
    KT_TRY(check(d, code, "allocating memory of the host", err));
    *out = p;
    u->blocks[u->n_blocks++] = (block){p, OF_HOST};
    return KT_OK;
}

static kt_status pin(kt_device *d, void *p, size_t bytes, kt_err *err) {
    cuda *u = d->self;

    KT_TRY(make_room(d, err));
    KT_TRY(enter(d, err));
    KT_TRY(check(d, u->call.pin(p, bytes, KT_CU_HOST_PORTABLE | KT_CU_HOST_MAPPED),
                 "pinning memory of the host", err));
    u->blocks[u->n_blocks++] = (block){p, PINNED};
    return KT_OK;
}

/* Of any kind. What is not in the list was given back before: the driver is not asked. */
static void free_memory(kt_device *d, void *p) {
    cuda *u = d->self;
    size_t i = u->n_blocks;

    while (i > 0 && u->blocks[i - 1].p != p) i--;
    if (i == 0) {
        kt_device_lose(d, KT_E_INVALID, "memory was freed that is not allocated", NULL);
        return;
    }
    if (enter(d, NULL) == KT_OK) check(d, give_back(u, u->blocks[i - 1]), "freeing memory", NULL);
    u->blocks[i - 1] = u->blocks[--u->n_blocks];
}

static kt_status copy(kt_device *d, kt_stream s, kt_device_way way, void *to, const void *from,
                      size_t bytes, kt_err *err) {
    const cuda *u = d->self;
    void *stream = u->stream[s];

    KT_TRY(enter(d, err));
    if (way == KT_WAY_UP)
        return check(d, u->call.upload(address(to), from, bytes, stream), "an upload", err);
    if (way == KT_WAY_DOWN)
        return check(d, u->call.download(to, address(from), bytes, stream), "a download", err);
    return check(d, u->call.copy(address(to), address(from), bytes, stream), "a copy", err);
}

/* The driver takes the way there is: straight over the link of two GPUs, or through the host. */
static kt_status copy_from(kt_device *d, kt_stream s, void *to, kt_device *other, const void *from,
                           size_t bytes, kt_err *err) {
    const cuda *u = d->self, *o = other->self;

    KT_TRY(enter(d, err));
    return check(
        d,
        u->call.copy_peer(address(to), u->context, address(from), o->context, bytes, u->stream[s]),
        "a copy from another GPU", err);
}

static kt_status clear(kt_device *d, kt_stream s, void *p, size_t bytes, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.fill(address(p), 0, bytes, u->stream[s]), "a clear", err);
}

/* ---- code ---- */

static void unload(kt_device *d, kt_device_code *code) {
    const cuda *u = d->self;

    if (code->module && u->call.set_current(u->context) == 0) u->call.module_unload(code->module);
}

/* Registers, local memory, and the opt-in to more than 48 KiB of shared memory. */
static kt_status load_entry(kt_device *d, kt_device_code *code, int i, kt_err *err) {
    const char *name = code->kernel->entry[i].name;
    const cuda *u = d->self;
    int fixed = 0;
    void **f = &code->function[i];

    KT_TRY(check(d, u->call.module_function(f, code->module, name), name, err));
    KT_TRY(check(d, u->call.function_attribute(&code->registers[i], KT_CU_FUNCTION_REGISTERS, *f),
                 name, err));
    KT_TRY(check(d, u->call.function_attribute(&code->local_bytes[i], KT_CU_FUNCTION_LOCAL, *f),
                 name, err));
    KT_TRY(check(d, u->call.function_attribute(&fixed, KT_CU_FUNCTION_SHARED, *f), name, err));
    return check(
        d, u->call.set_function_attribute(*f, KT_CU_FUNCTION_MOST_SHARED, u->shared_bytes - fixed),
        name, err);
}

static kt_status compile(const kt_device *d, const kt_cuda_kernel *kernel, const kt_config *config,
                         kt_cubin *made, kt_err *err) {
    const cuda *u = d->self;
    const char *folder = *u->folder ? u->folder : NULL;

    if (u->is_ptx) return kt_cuda_compile_ptx(u->compiler, kernel, config, folder, made, err);
    return kt_cuda_compile(u->compiler, kernel, config, d->facts.target, folder, made, err);
}

static void prepare(const kt_device *d, const kt_code_request *request) {
    const cuda *u = d->self;
    kt_cubin made;

    if (*u->folder && compile(d, request->kernel, &request->config, &made, NULL) == KT_OK)
        kt_cubin_free(&made);
}

static kt_status load(kt_device *d, kt_device_code *code, kt_err *err) {
    const cuda *u = d->self;
    kt_status st;
    kt_cubin made;

    KT_TRY(compile(d, code->kernel, &code->config, &made, err));
    st = enter(d, err);
    if (st == KT_OK)
        st = check(d, u->call.module_load(&code->module, made.data), code->kernel->name, err);
    kt_cubin_free(&made);
    for (int i = 0; st == KT_OK && i < code->kernel->entry_count; i++)
        st = load_entry(d, code, i, err);
    if (st != KT_OK) unload(d, code);
    return st;
}

static kt_status run(kt_device *d, kt_stream s, const kt_device_launch *l, kt_err *err) {
    const kt_device_code *c = l->code;
    const char *name = c->kernel->entry[l->entry].name;
    _Alignas(16) uint8_t parameters[KT_DEVICE_PARAMETERS];
    size_t bytes = l->parameter_bytes;
    void *extra[] = {(void *)(uintptr_t)1, parameters, (void *)(uintptr_t)2, &bytes, NULL};
    const cuda *u = d->self;
    const kt_cu_launch_attribute overlaps = {.id = KT_CU_LAUNCH_OVERLAPS, .value.number = 1};
    const kt_cu_launch how = {.grid_x = (unsigned)l->grid_x,
                              .grid_y = (unsigned)l->grid_y,
                              .grid_z = 1,
                              .x = (unsigned)kt_cuda_threads(c->kernel, &c->config, l->entry),
                              .y = 1,
                              .z = 1,
                              .shared_bytes = (unsigned)l->shared_bytes,
                              .stream = u->stream[s],
                              .attributes = &overlaps,
                              .n_attributes = u->overlaps};

    if (l->shared_bytes > (size_t)u->shared_bytes)
        return kt_fail(err, KT_E_INVALID,
                       "%s: %s: %zu bytes of shared memory, a block has at most %d", d->facts.name,
                       name, l->shared_bytes, u->shared_bytes);
    memcpy(parameters, l->parameters, bytes);
    KT_TRY(enter(d, err));
    return check(d, u->call.launch(&how, c->function[l->entry], NULL, extra), name, err);
}

/* ---- order ---- */

static kt_status event_make(kt_device *d, kt_device_event *e, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.event_create(&e->handle, 0), "making an event", err);
}

static void event_drop(kt_device *d, kt_device_event *e) {
    const cuda *u = d->self;
    if (u->call.set_current(u->context) == 0) u->call.event_destroy(e->handle);
}

static kt_status record(kt_device *d, kt_stream s, kt_device_event *e, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.event_record(e->handle, u->stream[s]), "recording an event", err);
}

/* The driver knows whose event it is. */
static kt_status wait(kt_device *d, kt_stream s, kt_device *of, const kt_device_event *e,
                      kt_err *err) {
    const cuda *u = d->self;

    (void)of;
    KT_TRY(enter(d, err));
    return check(d, u->call.stream_wait(u->stream[s], e->handle, 0), "waiting for an event", err);
}

static kt_status sync(kt_device *d, const kt_device_event *e, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, e ? u->call.event_sync(e->handle) : u->call.finish(), "waiting for its work",
                 err);
}

static kt_status passed(kt_device *d, const kt_device_event *e, bool *out, kt_err *err) {
    const cuda *u = d->self;
    int code;

    KT_TRY(enter(d, err));
    code = u->call.event_query(e->handle);
    *out = code == 0;
    return code == KT_CU_NOT_READY ? KT_OK : check(d, code, "asking for an event", err);
}

static kt_status elapsed(kt_device *d, const kt_device_event *from, const kt_device_event *to,
                         double *ms, kt_err *err) {
    const cuda *u = d->self;
    float between = 0;

    KT_TRY(enter(d, err));
    KT_TRY(check(d, u->call.event_elapsed(&between, from->handle, to->handle),
                 "the time between two events", err));
    *ms = between;
    return KT_OK;
}

static kt_status call(kt_device *d, kt_stream s, kt_device_function *f, void *arg, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.stream_call(u->stream[s], f, arg), "a function of the host", err);
}

/* An error of any stream is the context's: each of them tells it. */
static kt_status poke(kt_device *d, kt_stream s, bool *is_idle, kt_err *err) {
    const cuda *u = d->self;
    int code;

    KT_TRY(enter(d, err));
    code = u->call.stream_query(u->stream[s]);
    *is_idle = code == 0;
    return code == KT_CU_NOT_READY ? KT_OK : check(d, code, "asking for its work", err);
}

static kt_status driver_stream(kt_device *d, kt_stream s, void **out, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    *out = u->stream[s];
    return KT_OK;
}

/* ---- graphs ---- */

static kt_status capture_begin(kt_device *d, kt_stream s, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.capture_begin(u->stream[s], KT_CU_CAPTURE_RELAXED),
                 "beginning a capture", err);
}

static kt_status capture_end(kt_device *d, kt_stream s, kt_device_graph *out, kt_err *err) {
    const cuda *u = d->self;
    void *graph = NULL;
    kt_status st;

    KT_TRY(enter(d, err));
    KT_TRY(check(d, u->call.capture_end(u->stream[s], &graph), "ending a capture", err));
    st = check(d, u->call.graph_make(&out->handle, graph, 0), "making a graph ready", err);
    u->call.graph_destroy(graph);
    return st;
}

static kt_status replay(kt_device *d, kt_stream s, const kt_device_graph *graph, kt_err *err) {
    const cuda *u = d->self;

    KT_TRY(enter(d, err));
    return check(d, u->call.graph_launch(graph->handle, u->stream[s]), "replaying a graph", err);
}

static void graph_drop(kt_device *d, kt_device_graph *graph) {
    const cuda *u = d->self;
    if (graph->handle && u->call.set_current(u->context) == 0)
        u->call.executable_destroy(graph->handle);
}

const kt_device_class kt_device_class_cuda = {
    .name = "cuda",
    .open = open_device,
    .finish = finish,
    .close = close_device,
    .alloc = alloc,
    .free = free_memory,
    .host_alloc = host_alloc,
    .host_free = free_memory,
    .pin = pin,
    .unpin = free_memory,
    .memory = memory,
    .copy = copy,
    .copy_from = copy_from,
    .clear = clear,
    .prepare = prepare,
    .load = load,
    .unload = unload,
    .run = run,
    .event_make = event_make,
    .event_drop = event_drop,
    .record = record,
    .wait = wait,
    .sync = sync,
    .passed = passed,
    .elapsed = elapsed,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .graph_drop = graph_drop,
    .call = call,
    .poke = poke,
    .driver_stream = driver_stream,
};
