/* What include/kt/moe.h promises of CUDA streams, asked of a GPU: calls of an expert layer that are
 * captured with a stream's other work give at each replay what a call without a stream gives, for
 * every number of tokens that was announced, and experts are computed while the GPU works. Needs
 * the driver alone: the GPU's work is copies and the filling of memory.
 *
 * gpu_experts [--gpu N] [--threads N] [--shape small|qwen3-30b] [--json FILE]
 * Exit code: 0 right, 1 something is wrong, 2 usage, 77 no GPU.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kt/moe.h"
#include "tests/gpu/gpu_check.h"
#include "tests/support/silence.h"

enum { NO_GPU = 77, MOST_TOKENS = 16, TOPK = 8, REPLAYS = 8, TIMED = 20, MOST_CALLS = 8 };
enum { DRAWN = 1000003, RELAXED = 2, PORTABLE_AND_MAPPED = 3, NON_BLOCKING = 1 };

#define MS INT64_C(1000000)
#define LONGEST_SILENCE (20000 * MS)
#define OVERLAP_BAR 1.10 /* both sides together, over the longer alone */

/* ---- the driver ---- */

typedef struct driver {
    int (*init)(unsigned flags);
    int (*device)(int *out, int ordinal);
    int (*name)(char *out, int bytes, int device);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*alloc)(uint64_t *out, size_t bytes);
    int (*pin)(void *p, size_t bytes, unsigned flags);
    int (*upload)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*download)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*fill)(uint64_t p, unsigned char value, size_t bytes, void *stream);
    int (*stream_make)(void **out, unsigned flags);
    int (*stream_sync)(void *stream);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_make)(void **out, void *graph, unsigned long long flags);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_end)(void *graph);
    int (*executable_end)(void *executable);
} driver;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"cuInit", offsetof(driver, init)},
                 {"cuDeviceGet", offsetof(driver, device)},
                 {"cuDeviceGetName", offsetof(driver, name)},
                 {"cuDevicePrimaryCtxRetain", offsetof(driver, retain)},
                 {"cuCtxSetCurrent", offsetof(driver, set_current)},
                 {"cuMemAlloc_v2", offsetof(driver, alloc)},
                 {"cuMemHostRegister_v2", offsetof(driver, pin)},
                 {"cuMemcpyHtoDAsync_v2", offsetof(driver, upload)},
                 {"cuMemcpyDtoHAsync_v2", offsetof(driver, download)},
                 {"cuMemsetD8Async", offsetof(driver, fill)},
                 {"cuStreamCreate", offsetof(driver, stream_make)},
                 {"cuStreamSynchronize", offsetof(driver, stream_sync)},
                 {"cuStreamBeginCapture_v2", offsetof(driver, capture_begin)},
                 {"cuStreamEndCapture", offsetof(driver, capture_end)},
                 {"cuGraphInstantiateWithFlags", offsetof(driver, graph_make)},
                 {"cuGraphLaunch", offsetof(driver, graph_launch)},
                 {"cuGraphDestroy", offsetof(driver, graph_end)},
                 {"cuGraphExecDestroy", offsetof(driver, executable_end)}};

static kt_status cu(int code, const char *what, kt_err *err) {
    if (code == 0) return KT_OK;
    return kt_fail(err, KT_E_IO, "%s: the CUDA driver gave error %d", what, code);
}

static kt_status open_driver(driver *d, int ordinal, char *name, int bytes, kt_err *err) {
    const char *wanted = getenv("KT_CUDA_DRIVER"), *path = wanted ? wanted : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW), *context;
    int device;

    if (!library) return kt_fail(err, KT_E_NOT_FOUND, "no CUDA driver: %.200s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f) return kt_fail(err, KT_E_NOT_FOUND, "%.200s has no %s", path, functions[i].name);
        memcpy((char *)d + functions[i].offset, &f, sizeof f);
    }
    if (d->init(0) != 0 || d->device(&device, ordinal) != 0)
        return kt_fail(err, KT_E_NOT_FOUND, "the CUDA driver has no GPU %d", ordinal);
    KT_TRY(cu(d->name(name, bytes, device), "cuDeviceGetName", err));
    KT_TRY(cu(d->retain(&context, device), "cuDevicePrimaryCtxRetain", err));
    return cu(d->set_current(context), "cuCtxSetCurrent", err);
}

/* ---- the layer, and memory of both sides ---- */

typedef struct shape {
    const char *name;
    int64_t experts, hidden, intermediate;
    size_t fill_bytes; /* of the GPU's memory, a piece of its work */
} shape;

static const shape shapes[] = {{"qwen3-30b", 128, 2048, 768, (size_t)32 << 20},
                               {"small", 16, 256, 64, (size_t)64 << 10}};

/* What a call takes and gives; the GPU has the same beside it. */
typedef struct side {
    float *x, *weight, *out, *later;
    int32_t *id;
} side;

typedef struct experts {
    gpu_check *c;
    driver d;
    shape of;
    kt_moe_team *team;
    kt_moe *layer;
    void *stream;
    side host, want;   /* pinned; and what a call without a stream gives */
    uint64_t there[5]; /* x, weight, id, out, later */
    uint64_t filled;
    kt_silence silence;
} experts;

static size_t row_bytes(const experts *e) {
    return sizeof(float) * (size_t)e->of.hidden;
}

static kt_status take(experts *e, size_t bytes, void *out, uint64_t *there, kt_err *err) {
    const size_t whole = (bytes + 4095) / 4096 * 4096;
    void *p = aligned_alloc(4096, whole);

    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for %zu bytes", whole);
    memset(p, 0, whole);
    memcpy(out, &p, sizeof p);
    KT_TRY(cu(e->d.pin(p, whole, 1), "cuMemHostRegister", err));
    return there ? cu(e->d.alloc(there, whole), "cuMemAlloc", err) : KT_OK;
}

static kt_status take_all(experts *e, kt_err *err) {
    const size_t rows = MOST_TOKENS * row_bytes(e), routes = 4 * MOST_TOKENS * TOPK;

    KT_TRY(take(e, rows, &e->host.x, &e->there[0], err));
    KT_TRY(take(e, routes, &e->host.weight, &e->there[1], err));
    KT_TRY(take(e, routes, &e->host.id, &e->there[2], err));
    KT_TRY(take(e, rows, &e->host.out, &e->there[3], err));
    KT_TRY(take(e, rows, &e->host.later, &e->there[4], err));
    KT_TRY(take(e, rows, &e->want.x, NULL, err));
    KT_TRY(take(e, routes, &e->want.weight, NULL, err));
    KT_TRY(take(e, routes, &e->want.id, NULL, err));
    KT_TRY(take(e, rows, &e->want.out, NULL, err));
    KT_TRY(take(e, rows, &e->want.later, NULL, err));
    KT_TRY(cu(e->d.alloc(&e->filled, e->of.fill_bytes), "cuMemAlloc", err));
    return cu(e->d.stream_make(&e->stream, NON_BLOCKING), "cuStreamCreate", err);
}

static kt_status load_layer(experts *e, int threads, kt_err *err) {
    const int64_t of_matrix = e->of.hidden * e->of.intermediate, n = 3 * e->of.experts * of_matrix;
    uint16_t *w = malloc(sizeof *w * (size_t)n);
    kt_moe_tensor tensors[2] = {{.name = "gate_up_proj", .dtype = "BF16", .rank = 3, .data = w},
                                {.name = "down_proj",
                                 .dtype = "BF16",
                                 .rank = 3,
                                 .data = w + 2 * e->of.experts * of_matrix}};
    kt_moe_team_options team;
    kt_moe_options o;
    kt_rng rng;
    kt_status st;

    if (!w) return kt_fail(err, KT_E_NOMEM, "no memory for %lld weights", (long long)n);
    kt_rng_seed(&rng, 1);
    for (int64_t i = 0; i < n; i++) /* the first ones again and again */
        w[i] = i < DRAWN ? kt_f32_to_bf16(0.02f * kt_rng_normal(&rng)) : w[i - DRAWN];
    memcpy(tensors[0].shape, ((int64_t[]){e->of.experts, 2 * e->of.intermediate, e->of.hidden, 0}),
           sizeof tensors[0].shape);
    memcpy(tensors[1].shape, ((int64_t[]){e->of.experts, e->of.hidden, e->of.intermediate, 0}),
           sizeof tensors[1].shape);
    kt_moe_team_options_init(&team, sizeof team);
    team.n_threads = threads;
    kt_moe_options_init(&o, sizeof o);
    o.experts = e->of.experts, o.topk = TOPK;
    o.hidden = e->of.hidden, o.intermediate = e->of.intermediate;
    o.max_tokens = MOST_TOKENS, o.weights = "int4";
    st = kt_moe_team_create(&team, &e->team, err);
    if (st == KT_OK) st = kt_moe_create(e->team, &o, &e->layer, err);
    if (st == KT_OK) st = kt_moe_load_from_tensors(e->layer, tensors, 2, NULL, err);
    free(w);
    return st;
}

static kt_moe_rows rows_of(const side *s, int tokens, bool defers, void *stream) {
    return (kt_moe_rows){.tokens = tokens,
                         .x = s->x,
                         .expert_id = s->id,
                         .route_weight = s->weight,
                         .out = s->out,
                         .id_bytes = 4,
                         .n_deferred = defers ? 2 : 0,
                         .deferred_out = defers ? s->later : NULL,
                         .stream = stream};
}

/* Rows of a round; none: nobody is asked. */
static void fill_rows(const experts *e, const side *s, int tokens, uint64_t seed, bool none) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < tokens * e->of.hidden; i++) s->x[i] = kt_rng_normal(&rng);
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < TOPK; i++) {
            const uint64_t first = seed * 7 + (uint64_t)t * 3;
            s->id[t * TOPK + i] =
                none ? -1 : (int32_t)((first + (uint64_t)i) % (uint64_t)e->of.experts);
            s->weight[t * TOPK + i] = kt_rng_uniform(&rng, 0.05f, 0.3f);
        }
}

/* ---- graphs ---- */

/* What is captured: calls one behind the other, each with the GPU's fills while it is computed. */
typedef struct plan {
    int tokens, calls, fills;
    bool defers;
} plan;

static kt_status put_fills(experts *e, int n, kt_err *err) {
    for (int i = 0; i < n; i++)
        KT_TRY(cu(e->d.fill(e->filled, (unsigned char)i, e->of.fill_bytes, e->stream),
                  "cuMemsetD8Async", err));
    return KT_OK;
}

/* A call as an engine makes it: rows come from the GPU, and go there. */
static kt_status put_call(experts *e, const plan *p, kt_err *err) {
    const size_t rows = (size_t)p->tokens * row_bytes(e), routes = 4 * (size_t)p->tokens * TOPK;
    const kt_moe_rows call = rows_of(&e->host, p->tokens, p->defers, e->stream);
    void *const s = e->stream;
    uint64_t ticket;

    KT_TRY(cu(e->d.download(e->host.x, e->there[0], rows, s), "cuMemcpyDtoHAsync", err));
    KT_TRY(cu(e->d.download(e->host.weight, e->there[1], routes, s), "cuMemcpyDtoHAsync", err));
    KT_TRY(cu(e->d.download(e->host.id, e->there[2], routes, s), "cuMemcpyDtoHAsync", err));
    KT_TRY(kt_moe_submit(e->layer, &call, &ticket, err));
    KT_TRY(put_fills(e, p->fills, err));
    KT_TRY(kt_moe_sync_stream(e->layer, ticket, s, err));
    KT_TRY(cu(e->d.upload(e->there[3], e->host.out, rows, s), "cuMemcpyHtoDAsync", err));
    if (!p->defers) return KT_OK;
    KT_TRY(kt_moe_sync_stream(e->layer, ticket + 1, s, err));
    return cu(e->d.upload(e->there[4], e->host.later, rows, s), "cuMemcpyHtoDAsync", err);
}

static kt_status capture(experts *e, const plan *p, void **out, kt_err *err) {
    void *graph = NULL;
    kt_status st = KT_OK;

    KT_TRY(cu(e->d.capture_begin(e->stream, RELAXED), "cuStreamBeginCapture", err));
    for (int i = 0; i < p->calls && st == KT_OK; i++) st = put_call(e, p, err);
    if (p->calls == 0) st = put_fills(e, p->fills, err);
    if (st != KT_OK) {
        e->d.capture_end(e->stream, &graph);
        return st;
    }
    KT_TRY(cu(e->d.capture_end(e->stream, &graph), "cuStreamEndCapture", err));
    st = cu(e->d.graph_make(out, graph, 0), "cuGraphInstantiate", err);
    e->d.graph_end(graph);
    return st;
}

static kt_status replay(experts *e, void *graph, kt_err *err) {
    KT_TRY(cu(e->d.graph_launch(graph, e->stream), "cuGraphLaunch", err));
    KT_TRY(cu(e->d.stream_sync(e->stream), "cuStreamSynchronize", err));
    kt_silence_hear(&e->silence);
    return KT_OK;
}

static kt_status send_rows(experts *e, const side *from, int tokens, kt_err *err) {
    const size_t rows = (size_t)tokens * row_bytes(e), routes = 4 * (size_t)tokens * TOPK;

    KT_TRY(cu(e->d.upload(e->there[0], from->x, rows, e->stream), "cuMemcpyHtoDAsync", err));
    KT_TRY(cu(e->d.upload(e->there[1], from->weight, routes, e->stream), "cuMemcpyHtoDAsync", err));
    return cu(e->d.upload(e->there[2], from->id, routes, e->stream), "cuMemcpyHtoDAsync", err);
}

/* ---- right ---- */

/* What the GPU has been given, against a call without a stream: values that differ in a bit. */
static kt_status count_wrong(experts *e, const plan *p, int *n_wrong, kt_err *err) {
    const int64_t n = p->tokens * e->of.hidden;
    const kt_moe_rows call = rows_of(&e->want, p->tokens, p->defers, NULL);

    KT_TRY(kt_moe_forward(e->layer, &call, err));
    for (int part = 0; part < (p->defers ? 2 : 1); part++) {
        float *got = part ? e->host.later : e->host.out;
        const float *want = part ? e->want.later : e->want.out;
        memset(got, 0xff, sizeof(float) * (size_t)n);
        KT_TRY(cu(e->d.download(got, e->there[3 + part], sizeof(float) * (size_t)n, e->stream),
                  "cuMemcpyDtoHAsync", err));
        KT_TRY(cu(e->d.stream_sync(e->stream), "cuStreamSynchronize", err));
        for (int64_t i = 0; i < n; i++) *n_wrong += memcmp(&got[i], &want[i], sizeof *got) != 0;
    }
    return KT_OK;
}

static kt_status check_replays(experts *e, const char *way, const plan *p, kt_err *err) {
    char name[96];
    void *graph;
    int n_wrong = 0;

    KT_TRY(capture(e, p, &graph, err));
    for (uint64_t round = 1; round <= REPLAYS; round++) {
        fill_rows(e, &e->want, p->tokens, round, false);
        KT_TRY(send_rows(e, &e->want, p->tokens, err));
        KT_TRY(replay(e, graph, err));
        KT_TRY(count_wrong(e, p, &n_wrong, err));
    }
    e->d.executable_end(graph);
    snprintf(name, sizeof name, "%d replays of %d token%s%s, by %s", REPLAYS, p->tokens,
             p->tokens > 1 ? "s" : "", p->defers ? ", two experts deferred" : "", way);
    gpu_check_row(e->c, name, n_wrong, 0, "values wrong", n_wrong == 0, "");
    return KT_OK;
}

/* ---- fast ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of replays, in us. */
static kt_status time_graph(experts *e, const plan *p, double *us, kt_err *err) {
    double took[TIMED];
    void *graph;

    KT_TRY(capture(e, p, &graph, err));
    for (int i = -2; i < TIMED; i++) {
        const int64_t begin = kt_clock_ns();
        KT_TRY(replay(e, graph, err));
        if (i >= 0) took[i] = (double)(kt_clock_ns() - begin) * 1e-3;
    }
    e->d.executable_end(graph);
    qsort(took, TIMED, sizeof *took, by_value);
    *us = took[TIMED / 2];
    return KT_OK;
}

/* What a call costs beside its experts: one of nobody, in a graph of several. */
static kt_status time_way(experts *e, const char *way, kt_err *err) {
    plan one = {.tokens = 1, .calls = 1}, all = {.tokens = 1, .calls = MOST_CALLS};
    char name[96];
    double few, many;

    fill_rows(e, &e->want, 1, 1, true);
    KT_TRY(send_rows(e, &e->want, 1, err));
    KT_TRY(time_graph(e, &one, &few, err));
    KT_TRY(time_graph(e, &all, &many, err));
    snprintf(name, sizeof name, "a call without experts, by %s", way);
    gpu_check_row(e->c, name, (many - few) / (MOST_CALLS - 1), -1, "us", true, "");
    return KT_OK;
}

/* As many fills as take the GPU about as long as the experts take the CPU. */
static kt_status match_fills(experts *e, double cpu_us, int *fills, double *gpu_us, kt_err *err) {
    plan p = {.fills = 4};
    double four;

    KT_TRY(time_graph(e, &p, &four, err));
    *fills = four > 0 ? (int)(cpu_us / (four / 4) + 0.5) : 1;
    if (*fills < 1) *fills = 1;
    p.fills = *fills;
    return time_graph(e, &p, gpu_us, err);
}

static kt_status time_overlap(experts *e, const char *way, int tokens, kt_err *err) {
    plan p = {.tokens = tokens, .calls = 1};
    double cpu, gpu, both, longer;
    char name[96], note[96];

    fill_rows(e, &e->want, tokens, 3, false);
    KT_TRY(send_rows(e, &e->want, tokens, err));
    KT_TRY(time_graph(e, &p, &cpu, err));
    KT_TRY(match_fills(e, cpu, &p.fills, &gpu, err));
    KT_TRY(time_graph(e, &p, &both, err));
    longer = cpu > gpu ? cpu : gpu;
    snprintf(name, sizeof name, "%d token%s, both sides over the longer, by %s", tokens,
             tokens > 1 ? "s" : "", way);
    snprintf(note, sizeof note, "CPU %.1f, GPU %.1f, both %.1f us%s", cpu, gpu, both,
             both > OVERLAP_BAR * longer ? "; the bar is missed" : "");
    gpu_check_row(e->c, name, longer > 0 ? both / longer : 0, OVERLAP_BAR, "times", true, note);
    return KT_OK;
}

/* ---- the program ---- */

static const int64_t announced[] = {1, 2, 4, 8, MOST_TOKENS};

static kt_status check_way(experts *e, const char *way, kt_err *err) {
    const size_t n = sizeof announced / sizeof *announced;
    const plan deferred = {.tokens = 4, .calls = 1, .defers = true};

    KT_TRY(kt_moe_announce(e->layer, announced, n, err));
    for (size_t i = 0; i < n; i++) {
        const plan p = {.tokens = (int)announced[i], .calls = 1, .fills = 1};
        KT_TRY(check_replays(e, way, &p, err));
    }
    KT_TRY(check_replays(e, way, &deferred, err));
    KT_TRY(time_way(e, way, err));
    KT_TRY(time_overlap(e, way, 1, err));
    return time_overlap(e, way, MOST_TOKENS, err);
}

static void give_up(void *arg) {
    const experts *e = arg;
    gpu_check_row(e->c, "the run", 0, -1, "whole", false, "no answer within 20 s");
    _exit(gpu_check_end(e->c, KT_OK, NULL));
}

static kt_status check_all(experts *e, int threads, kt_err *err) {
    static const char *const ways[2][2] = {{"functions", NULL}, {"words", "mapped"}};
    kt_status st = load_layer(e, threads, err);

    if (st == KT_OK) st = take_all(e, err);
    if (st != KT_OK) return st;
    KT_TRY(kt_silence_begin(&e->silence, LONGEST_SILENCE, give_up, e, err));
    for (int i = 0; i < 2 && st == KT_OK; i++) {
        if (ways[i][1])
            setenv("KT_MAILBOX", ways[i][1], 1);
        else
            unsetenv("KT_MAILBOX");
        st = check_way(e, ways[i][0], err);
    }
    kt_silence_end(&e->silence);
    return st;
}

static int usage(void) {
    fprintf(stderr, "usage: gpu_experts [--gpu N] [--threads N] [--shape small|qwen3-30b] "
                    "[--json FILE]\n");
    return 2;
}

int main(int argc, char **argv) {
    gpu_check c = {.w = {.indent = 1, .line_at_depth = 1 << 2}};
    static experts e; /* memory stays until the program ends */
    int gpu = 0, threads = 0;
    char name[128] = "";
    kt_status st;
    kt_err err;

    e.c = &c, e.of = shapes[0];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--gpu") == 0)
            gpu = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--json") == 0)
            c.path = argv[i + 1];
        else if (strcmp(argv[i], "--shape") == 0 && strcmp(argv[i + 1], shapes[1].name) == 0)
            e.of = shapes[1];
        else if (strcmp(argv[i], "--shape") != 0 || strcmp(argv[i + 1], shapes[0].name) != 0)
            return usage();
    }
    if (argc % 2 == 0) return usage();
    setvbuf(stdout, NULL, _IOLBF, 0); /* one that is killed has said how far it came */
    st = open_driver(&e.d, gpu, name, sizeof name, &err);
    if (st != KT_OK) {
        fprintf(stderr, "gpu_experts: %s\n", err.message);
        return st == KT_E_NOT_FOUND ? NO_GPU : 1;
    }
    printf("%s: a layer of %s, INT4\n", name, e.of.name);
    kt_json_begin_object(&c.w);
    kt_json_add_string(&c.w, "device", name);
    kt_json_add_string(&c.w, "shape", e.of.name);
    kt_json_key(&c.w, "rows");
    kt_json_begin_array(&c.w);
    st = check_all(&e, threads, &err);
    kt_moe_destroy(e.layer);
    kt_moe_team_destroy(e.team);
    return gpu_check_end(&c, st, &err);
}
