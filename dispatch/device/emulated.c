/* A device whose streams are queues, each worked by a thread, and whose kernels run under the
 * emulator of kernels/cuda. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "dispatch/device/device_class.h"
#include "dispatch/device/emulated_memory.h"

enum {
    DEPTH = 256, /* commands of a stream under way; the host waits for room, a replay makes it */
    MAX_PARTS = 64,
    PATIENCE_NS = 5000000 /* of a lazy stream that nobody waits for */
};

typedef enum command_kind { COPY, CLEAR, LAUNCH, CALL, RECORD, WAIT } command_kind;

/* A point of a stream. `issued` counts its records that were put, `passed` is the last one that was
 * reached; the stream and its place are those of the last record. */
typedef struct event {
    uint64_t issued, passed, place;
    kt_stream stream;
    int64_t time_ns;
    /* while a graph is captured, and after it: */
    int in_graph;                   /* its number among the graph's points + 1; 0 = of no graph */
    uint64_t capture;               /* which capture */
    uint64_t seen[KT_STREAM_COUNT]; /* work of each stream that came before it */
} event;

typedef struct emulated emulated;

typedef struct command {
    command_kind kind;
    bool loses; /* this launch finds the device lost */
    kt_stream stream;
    void *to;
    const void *from;
    size_t bytes;
    kt_device_function *function; /* called with `to` */
    event *event;
    uint64_t ticket, place; /* the record that is made, or waited for, and its place */
    emulated *owner;        /* of the event, or of what is copied; NULL = this device alone */
    kt_stream of;           /* whose stream's */
    int point;              /* of a graph, instead of an event */
    kt_device_launch launch;
    _Alignas(16) uint8_t parameters[KT_DEVICE_PARAMETERS];
} command;

typedef struct queue {
    emulated *u;
    pthread_t thread;
    bool has_thread;
    pthread_cond_t work; /* more to do, or to do it sooner */
    command *ring;       /* [depth] */
    uint64_t depth;
    uint64_t put, done, demanded;
} queue;

/* What a capture kept. */
typedef struct graph {
    command *command;
    size_t n, capacity;
    event *point;
    int n_points;
    kt_stream stream; /* that was captured */
} graph;

typedef struct capture {
    uint64_t number;
    bool is_on, failed;
    graph *graph;
    bool joined[KT_STREAM_COUNT];
    uint64_t work[KT_STREAM_COUNT], seen[KT_STREAM_COUNT][KT_STREAM_COUNT];
} capture;

struct emulated {
    kt_device *device;
    kt_emulator_options options;
    kt_emulated_memory memory;
    int64_t launches, fail_after;
    capture capture;
    kt_pool *pool; /* NULL = one thread */
    int threads;
    pthread_mutex_t launching; /* the pool runs one launch at a time */
    pthread_mutex_t lock;      /* of all below */
    pthread_cond_t progress;   /* a command was done */
    queue queue[KT_STREAM_COUNT];
    int n_called; /* functions of the host that run now */
    bool is_ending;
    kt_err fault;
};

/* ---- kernels ---- */

typedef struct parts {
    kt_launch launch;
    const kt_emulator_options *options;
    int n;
    kt_err err[MAX_PARTS];
} parts;

static void run_parts(void *arg, int64_t begin, int64_t end, int tid) {
    parts *p = arg;

    (void)tid;
    for (int64_t i = begin; i < end; i++)
        kt_emulate_part(&p->launch, p->options, (int)i, p->n, &p->err[i]);
}

static kt_status run_launch(emulated *u, const kt_device_launch *l, kt_err *err) {
    const kt_cuda_kernel *k = l->code->kernel;
    parts p = {.launch = {.name = k->entry[l->entry].name,
                          .entry = k->entry[l->entry].emulated,
                          .parameters = l->parameters,
                          .grid_x = l->grid_x,
                          .grid_y = l->grid_y,
                          .threads = kt_cuda_threads(k, &l->code->config, l->entry),
                          .shared_bytes = l->shared_bytes,
                          .constant = l->code->config.value},
               .options = &u->options,
               .n = u->threads};
    const kt_phase phase = {.run = run_parts, .arg = &p, .n_tasks = p.n};

    if (!u->pool || (l->grid_x == 1 && l->grid_y == 1))
        return kt_emulate_part(&p.launch, &u->options, 0, 1, err);
    pthread_mutex_lock(&u->launching);
    kt_pool_run(u->pool, &phase, 1);
    pthread_mutex_unlock(&u->launching);
    for (int i = 0; i < p.n; i++)
        if (p.err[i].status != KT_OK) {
            *err = p.err[i];
            return err->status;
        }
    return KT_OK;
}

/* ---- streams ---- */

/* The stream is to do its first `place` commands now. Under the lock. */
static void demand(emulated *u, kt_stream s, uint64_t place) {
    queue *q = &u->queue[s];

    if (q->demanded >= place) return;
    q->demanded = place;
    pthread_cond_signal(&q->work);
}

static void reach(event *e, uint64_t ticket) {
    if (ticket > e->passed) e->passed = ticket;
    e->time_ns = kt_clock_ns();
}

/* A word appears at once, after all that was written before: the host may watch it. */
static void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes == 4 && ((uintptr_t)to | (uintptr_t)from) % 4 == 0)
        __atomic_store_n((uint32_t *)to, *(const uint32_t *)from, __ATOMIC_RELEASE);
    else
        memmove(to, from, bytes);
}

/* Work that takes its time, without the lock. */
static kt_status do_work(emulated *u, const command *c, kt_err *err) {
    if (c->loses)
        return kt_fail(err, KT_E_IO, "%s: it fell off the bus, as was asked for",
                       c->launch.code->kernel->entry[c->launch.entry].name);
    if (c->kind == LAUNCH) return run_launch(u, &c->launch, err);
    if (c->kind == CALL) return c->function(c->to), KT_OK;
    if (c->kind == COPY)
        copy_bytes(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
    return KT_OK;
}

/* Under the lock, which is left meanwhile where the event is another device's. */
static void await(emulated *u, const command *c) {
    emulated *owner = c->owner;

    if (owner != u) pthread_mutex_unlock(&u->lock), pthread_mutex_lock(&owner->lock);
    demand(owner, c->of, c->place);
    while (c->event->passed < c->ticket) pthread_cond_wait(&owner->progress, &owner->lock);
    if (owner != u) pthread_mutex_unlock(&owner->lock), pthread_mutex_lock(&u->lock);
}

/* Under the lock. A device that is lost does nothing more, but what waits must not do so for ever.
 */
static void do_command(emulated *u, const command *c) {
    kt_err err = {KT_OK, ""};

    if (c->kind == RECORD) {
        reach(c->event, c->ticket);
    } else if (c->kind == WAIT) {
        await(u, c);
    } else if (u->fault.status == KT_OK) {
        u->n_called += c->kind == CALL;
        pthread_mutex_unlock(&u->lock);
        do_work(u, c, &err);
        pthread_mutex_lock(&u->lock);
        u->n_called -= c->kind == CALL;
        if (err.status != KT_OK && u->fault.status == KT_OK) u->fault = err;
    }
}

/* A lazy stream waits for somebody to wait for it, but not for ever: the host may watch memory. */
static void hesitate(queue *q, pthread_mutex_t *lock) {
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&q->work, lock, &until) != 0) q->demanded = q->put;
}

static void *work(void *arg) {
    queue *q = arg;
    emulated *u = q->u;
    command c;

    pthread_mutex_lock(&u->lock);
    while (!u->is_ending || q->done < q->put) {
        if (q->done == q->put) {
            pthread_cond_wait(&q->work, &u->lock);
        } else if (u->options.lazy && q->done >= q->demanded && !u->is_ending) {
            hesitate(q, &u->lock);
        } else {
            c = q->ring[q->done % q->depth]; /* the ring may move meanwhile */
            c.launch.parameters = c.parameters;
            do_command(u, &c);
            q->done++;
            pthread_cond_broadcast(&u->progress);
        }
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

static void wait_idle(emulated *u) {
    const unsigned first = u->options.seed % KT_STREAM_COUNT;

    pthread_mutex_lock(&u->lock);
    for (unsigned i = 0; i < KT_STREAM_COUNT; i++) {
        queue *q = &u->queue[(first + i) % KT_STREAM_COUNT];
        demand(u, (kt_stream)(q - u->queue), q->put);
        while (q->done < q->put) pthread_cond_wait(&u->progress, &u->lock);
    }
    pthread_mutex_unlock(&u->lock);
}

static kt_status check_fault(emulated *u, kt_err *err) {
    kt_err fault;

    pthread_mutex_lock(&u->lock);
    fault = u->fault;
    pthread_mutex_unlock(&u->lock);
    if (fault.status == KT_OK) return KT_OK;
    return kt_device_lose(u->device, fault.status, fault.message, err);
}

/* A driver may hold a lock while it calls a function of the host. Under the lock. */
static void let_functions_end(emulated *u) {
    while (u->n_called) pthread_cond_wait(&u->progress, &u->lock);
}

/* Twice the room. Under the lock. */
static bool make_room(queue *q) {
    command *more = malloc(2 * q->depth * sizeof *more);

    if (!more) return false;
    for (uint64_t i = q->done; i < q->put; i++) more[i % (2 * q->depth)] = q->ring[i % q->depth];
    free(q->ring);
    q->ring = more;
    q->depth *= 2;
    return true;
}

/* Into the ring, whatever is captured. Graphs, events and copies between devices go in at once, as
 * on a GPU: what is in it may wait for a host that is only then free to answer. */
static kt_status put_now(emulated *u, const command *c, bool is_replayed, kt_err *err) {
    queue *q = &u->queue[c->stream];
    command *slot;

    KT_TRY(check_fault(u, err));
    pthread_mutex_lock(&u->lock);
    let_functions_end(u);
    if (q->put - q->done == q->depth &&
        !((is_replayed || c->kind == RECORD || c->owner) && make_room(q))) {
        demand(u, c->stream, q->put);
        while (q->put - q->done == q->depth) pthread_cond_wait(&u->progress, &u->lock);
    }
    slot = &q->ring[q->put++ % q->depth];
    *slot = *c;
    if (c->kind == RECORD) {
        slot->ticket = ++slot->event->issued;
        slot->event->stream = c->stream;
        slot->event->place = q->put;
    } else if (c->kind == WAIT) {
        slot->ticket = slot->event->issued;
        slot->of = slot->event->stream;
        slot->place = slot->event->place;
    } else if (c->kind == LAUNCH) {
        u->launches++;
        slot->loses = u->fail_after > 0 && u->launches > u->fail_after;
    }
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&u->lock);
    return KT_OK;
}

/* ---- graphs ---- */

static kt_status keep(emulated *u, const command *c, kt_err *err) {
    graph *g = u->capture.graph;

    if (g->n == g->capacity) {
        const size_t capacity = g->capacity ? 2 * g->capacity : 16;
        command *more = realloc(g->command, capacity * sizeof *more);
        if (!more) {
            u->capture.failed = true;
            return kt_fail(err, KT_E_NOMEM, "%s: no memory for a graph of %zu commands",
                           u->device->facts.name, capacity);
        }
        g->command = more;
        g->capacity = capacity;
    }
    g->command[g->n++] = *c;
    return KT_OK;
}

static bool is_captured(const capture *k, const event *e) {
    return e->in_graph > 0 && e->capture == k->number;
}

/* Keeps the command when its stream is captured. */
static kt_status put(emulated *u, const command *c, kt_err *err) {
    capture *k = &u->capture;
    command kept = *c;
    event *e = c->event;

    if (k->is_on && c->kind == WAIT && is_captured(k, e)) k->joined[c->stream] = true;
    if (!k->is_on || !k->joined[c->stream]) {
        if (c->kind == RECORD) e->in_graph = 0;
        return put_now(u, c, false, err);
    }
    if (c->kind == WAIT) {
        if (!is_captured(k, e)) {
            k->failed = true;
            return kt_fail(err, KT_E_INVALID,
                           "%s: a stream that is captured waits for an event from before the "
                           "capture",
                           u->device->facts.name);
        }
        for (int i = 0; i < KT_STREAM_COUNT; i++)
            if (e->seen[i] > k->seen[c->stream][i]) k->seen[c->stream][i] = e->seen[i];
        kept.point = e->in_graph - 1;
    } else if (c->kind == RECORD) {
        kept.point = k->graph->n_points++;
        e->in_graph = kept.point + 1;
        e->capture = k->number;
        memcpy(e->seen, k->seen[c->stream], sizeof e->seen);
    } else {
        k->seen[c->stream][c->stream] = ++k->work[c->stream];
    }
    return keep(u, &kept, err);
}

static kt_status capture_begin(kt_device *d, kt_stream s, kt_err *err) {
    emulated *u = d->self;
    capture *k = &u->capture;

    KT_TRY(check_fault(u, err));
    *k = (capture){.number = k->number + 1, .is_on = true, .graph = calloc(1, sizeof *k->graph)};
    if (!k->graph) {
        k->is_on = false;
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a graph", d->facts.name);
    }
    k->graph->stream = s;
    k->joined[s] = true;
    return KT_OK;
}

static void graph_drop(kt_device *d, kt_device_graph *handle) {
    graph *g = handle->handle;

    (void)d;
    if (!g) return;
    free(g->command);
    free(g->point);
    free(g);
}

static kt_status capture_end(kt_device *d, kt_stream s, kt_device_graph *out, kt_err *err) {
    emulated *u = d->self;
    capture *k = &u->capture;
    graph *g = k->graph;
    kt_status st = KT_OK;

    k->is_on = false;
    k->graph = NULL;
    out->handle = g;
    if (k->failed)
        st = kt_fail(err, KT_E_INVALID, "%s: the capture failed before it ended", d->facts.name);
    for (int i = 0; st == KT_OK && i < KT_STREAM_COUNT; i++)
        if (k->joined[i] && k->seen[s][i] != k->work[i])
            st = kt_fail(err, KT_E_INVALID,
                         "%s: a capture ended before its stream %d waited for stream %d",
                         d->facts.name, (int)s, i);
    if (st == KT_OK && g->n_points > 0 &&
        !(g->point = calloc((size_t)g->n_points, sizeof *g->point)))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for a graph", d->facts.name);
    if (st != KT_OK) {
        graph_drop(d, out);
        out->handle = NULL;
    }
    return st;
}

static kt_status replay(kt_device *d, kt_stream s, const kt_device_graph *handle, kt_err *err) {
    const graph *g = handle->handle;

    for (size_t i = 0; i < g->n; i++) {
        command c = g->command[i];
        if (c.stream == g->stream)
            c.stream = s;
        else if (c.stream == s)
            c.stream = g->stream;
        if (c.kind == RECORD || c.kind == WAIT) c.event = &g->point[c.point];
        KT_TRY(put_now(d->self, &c, true, err));
    }
    return KT_OK;
}

/* ---- memory ---- */

static kt_status alloc_any(kt_device *d, size_t bytes, bool is_host, void **out, kt_err *err) {
    emulated *u = d->self;

    KT_TRY(check_fault(u, err));
    return kt_emulated_alloc(&u->memory, d->facts.name, bytes, is_host, out, err);
}

static kt_status alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    return alloc_any(d, bytes, false, out, err);
}

static kt_status host_alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    return alloc_any(d, bytes, true, out, err);
}

static kt_status pin(kt_device *d, void *p, size_t bytes, kt_err *err) {
    emulated *u = d->self;

    KT_TRY(check_fault(u, err));
    return kt_emulated_pin(&u->memory, d->facts.name, p, bytes, err);
}

static void free_any(kt_device *d, void *p) {
    emulated *u = d->self;
    bool damaged;
    char why[128];

    wait_idle(u);
    if (!kt_emulated_free(&u->memory, p, &damaged)) {
        snprintf(why, sizeof why, "%p was freed, where nothing is allocated", p);
        kt_device_lose(d, KT_E_INVALID, why, NULL);
    } else if (damaged) {
        snprintf(why, sizeof why, "bytes beside the block at %p were written", p);
        kt_device_lose(d, KT_E_INVALID, why, NULL);
    }
}

static kt_status memory(kt_device *d, uint64_t *free_bytes, uint64_t *bytes, kt_err *err) {
    const emulated *u = d->self;

    (void)err;
    *free_bytes = u->memory.limit - u->memory.used;
    *bytes = u->memory.limit;
    return KT_OK;
}

static kt_status check_block(const emulated *u, const char *what, const void *p, size_t bytes,
                             kt_err *err) {
    return kt_emulated_check(&u->memory, u->device->facts.name, what, p, bytes, err);
}

static kt_status check_host(const emulated *u, const char *what, const void *p, size_t bytes,
                            kt_err *err) {
    return kt_emulated_check_host(&u->memory, u->device->facts.name, what, p, bytes, err);
}

static kt_status copy(kt_device *d, kt_stream s, kt_device_way way, void *to, const void *from,
                      size_t bytes, kt_err *err) {
    const command c = {.kind = COPY, .stream = s, .to = to, .from = from, .bytes = bytes};
    emulated *u = d->self;

    if (way == KT_WAY_UP) {
        KT_TRY(check_block(u, "an upload", to, bytes, err));
        KT_TRY(check_host(u, "an upload", from, bytes, err));
    } else if (way == KT_WAY_DOWN) {
        KT_TRY(check_block(u, "a download", from, bytes, err));
        KT_TRY(check_host(u, "a download", to, bytes, err));
    } else {
        KT_TRY(check_block(u, "a copy", to, bytes, err));
        KT_TRY(check_block(u, "a copy", from, bytes, err));
    }
    return put(u, &c, err);
}

static kt_status copy_from(kt_device *d, kt_stream s, void *to, kt_device *other, const void *from,
                           size_t bytes, kt_err *err) {
    const command c = {
        .kind = COPY, .stream = s, .to = to, .from = from, .bytes = bytes, .owner = other->self};

    KT_TRY(check_block(d->self, "a copy", to, bytes, err));
    KT_TRY(check_block(other->self, "a copy", from, bytes, err));
    return put(d->self, &c, err);
}

static kt_status clear(kt_device *d, kt_stream s, void *p, size_t bytes, kt_err *err) {
    const command c = {.kind = CLEAR, .stream = s, .to = p, .bytes = bytes};

    KT_TRY(check_block(d->self, "a clear", p, bytes, err));
    return put(d->self, &c, err);
}

/* ---- launches ---- */

static kt_status load(kt_device *d, kt_device_code *code, kt_err *err) {
    for (int i = 0; i < code->kernel->entry_count; i++)
        if (!code->kernel->entry[i].emulated)
            return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s: it has no emulated form", d->facts.name,
                           code->kernel->entry[i].name);
    return KT_OK;
}

static void unload(kt_device *d, kt_device_code *code) {
    (void)d, (void)code;
}

static kt_status run(kt_device *d, kt_stream s, const kt_device_launch *l, kt_err *err) {
    command c = {.kind = LAUNCH, .stream = s, .launch = *l};
    emulated *u = d->self;

    memcpy(c.parameters, l->parameters, l->parameter_bytes);
    for (size_t at = 0; at + 8 <= l->parameter_bytes; at += 8) {
        uint64_t word;
        memcpy(&word, c.parameters + at, sizeof word);
        if (kt_emulated_is_foreign(&u->memory, word))
            return kt_fail(err, KT_E_INVALID,
                           "%s: %s: the parameter at byte %zu, 0x%llx, is memory of the host",
                           d->facts.name, l->code->kernel->entry[l->entry].name, at,
                           (unsigned long long)word);
    }
    return put(u, &c, err);
}

static kt_status call(kt_device *d, kt_stream s, kt_device_function *f, void *arg, kt_err *err) {
    const command c = {.kind = CALL, .stream = s, .function = f, .to = arg};
    return put(d->self, &c, err);
}

static kt_status poke(kt_device *d, kt_stream s, bool *is_idle, kt_err *err) {
    emulated *u = d->self;
    const queue *q = &u->queue[s];

    pthread_mutex_lock(&u->lock);
    let_functions_end(u);
    *is_idle = q->done == q->put;
    if (!*is_idle) demand(u, s, q->done + 1);
    pthread_mutex_unlock(&u->lock);
    return check_fault(u, err);
}

/* ---- events ---- */

static kt_status event_make(kt_device *d, kt_device_event *e, kt_err *err) {
    e->handle = calloc(1, sizeof(event));
    if (!e->handle) return kt_fail(err, KT_E_NOMEM, "%s: no memory for an event", d->facts.name);
    return KT_OK;
}

static void event_drop(kt_device *d, kt_device_event *e) {
    (void)d;
    free(e->handle);
}

static kt_status record(kt_device *d, kt_stream s, kt_device_event *e, kt_err *err) {
    const command c = {.kind = RECORD, .stream = s, .event = e->handle};
    return put(d->self, &c, err);
}

static kt_status wait(kt_device *d, kt_stream s, kt_device *of, const kt_device_event *e,
                      kt_err *err) {
    const command c = {.kind = WAIT, .stream = s, .event = e->handle, .owner = of->self};
    return put(d->self, &c, err);
}

static kt_status check_outside(const kt_device *d, const event *e, kt_err *err) {
    if (e->in_graph == 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID,
                   "%s: an event that was recorded in a graph means nothing "
                   "outside of it",
                   d->facts.name);
}

static kt_status sync(kt_device *d, const kt_device_event *handle, kt_err *err) {
    emulated *u = d->self;
    const kt_emulated_block *b;
    char why[128];

    if (handle) {
        const event *e = handle->handle;
        KT_TRY(check_outside(d, e, err));
        pthread_mutex_lock(&u->lock);
        demand(u, e->stream, e->place);
        while (e->passed < e->issued) pthread_cond_wait(&u->progress, &u->lock);
        pthread_mutex_unlock(&u->lock);
        return check_fault(u, err);
    }
    wait_idle(u);
    KT_TRY(check_fault(u, err));
    b = kt_emulated_damaged(&u->memory);
    if (!b) return KT_OK;
    snprintf(why, sizeof why, "bytes beside the block of %zu bytes at %p were written", b->bytes,
             (const void *)b->data);
    return kt_device_lose(d, KT_E_INVALID, why, err);
}

static kt_status passed(kt_device *d, const kt_device_event *handle, bool *out, kt_err *err) {
    const event *e = handle->handle;
    emulated *u = d->self;

    KT_TRY(check_outside(d, e, err));
    pthread_mutex_lock(&u->lock);
    let_functions_end(u);
    demand(u, e->stream, e->place);
    *out = e->passed >= e->issued;
    pthread_mutex_unlock(&u->lock);
    return check_fault(u, err);
}

static kt_status elapsed(kt_device *d, const kt_device_event *from, const kt_device_event *to,
                         double *ms, kt_err *err) {
    const event *a = from->handle, *b = to->handle;
    emulated *u = d->self;
    bool ok;

    KT_TRY(check_outside(d, a, err));
    KT_TRY(check_outside(d, b, err));
    pthread_mutex_lock(&u->lock);
    ok = a->passed >= a->issued && b->passed >= b->issued;
    *ms = (double)(b->time_ns - a->time_ns) * 1e-6;
    pthread_mutex_unlock(&u->lock);
    KT_TRY(check_fault(u, err));
    if (ok) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%s: the time between events of which one has not passed",
                   d->facts.name);
}

/* ---- the device ---- */

static void finish(kt_device *d) {
    wait_idle(d->self);
}

static void close_device(kt_device *d) {
    emulated *u = d->self;

    pthread_mutex_lock(&u->lock);
    u->is_ending = true;
    for (int i = 0; i < KT_STREAM_COUNT; i++) pthread_cond_broadcast(&u->queue[i].work);
    pthread_mutex_unlock(&u->lock);
    for (int i = 0; i < KT_STREAM_COUNT; i++) {
        queue *q = &u->queue[i];
        if (q->has_thread) pthread_join(q->thread, NULL);
        pthread_cond_destroy(&q->work);
        free(q->ring);
    }
    kt_pool_destroy(u->pool);
    kt_emulated_free_all(&u->memory);
    pthread_cond_destroy(&u->progress);
    pthread_mutex_destroy(&u->lock);
    pthread_mutex_destroy(&u->launching);
    free(u);
}

static kt_status start_streams(emulated *u, const char *name, kt_err *err) {
    for (int i = 0; i < KT_STREAM_COUNT; i++) {
        queue *q = &u->queue[i];
        q->ring = calloc(DEPTH, sizeof *q->ring);
        q->depth = DEPTH;
        if (!q->ring) return kt_fail(err, KT_E_NOMEM, "%s: no memory for a stream", name);
        if (pthread_create(&q->thread, NULL, work, q) != 0)
            return kt_fail(err, KT_E_NOMEM, "%s: no thread for a stream", name);
        q->has_thread = true;
    }
    return KT_OK;
}

static kt_status start(emulated *u, const char *name, kt_err *err) {
    const kt_pool_options how = {.n_threads = u->threads, .spin_ns = -1, .no_pin = 1};

    if (u->threads > 1) {
        const kt_status st = kt_pool_create(&how, &u->pool, err);
        if (st != KT_OK) return kt_fail_prefix(err, st, "%s", name);
    }
    return start_streams(u, name, err);
}

static const kt_cuda_target *find_target(const char *name) {
    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, name) == 0) return &kt_cuda_targets[i];
    return NULL;
}

static kt_status open_device(kt_device *d, const kt_device_options *o, kt_err *err) {
    const char *target = o->target ? o->target : "80";
    pthread_condattr_t clock;
    kt_status st;
    emulated *u;

    snprintf(d->facts.name, sizeof d->facts.name, "emulated");
    d->facts.target = find_target(target);
    d->facts.multiprocessors = 2;
    d->facts.maps_pinned = true;
    d->facts.memory_bytes = d->facts.free_bytes = o->memory_bytes ? o->memory_bytes : 1 << 30;
    if (!d->facts.target)
        return kt_fail(err, KT_E_INVALID, "emulated: target '%s' is none of kttune compile's",
                       target);
    if (o->ordinal != 0)
        return kt_fail(err, KT_E_NOT_FOUND, "emulated: device %d, there is only 0", o->ordinal);
    if (o->threads < 0 || o->threads > MAX_PARTS)
        return kt_fail(err, KT_E_INVALID, "emulated: %d threads, expected 0 to %d", o->threads,
                       MAX_PARTS);
    u = calloc(1, sizeof *u);
    if (!u) return kt_fail(err, KT_E_NOMEM, "emulated: no memory for the device");
    u->device = d;
    u->options = o->emulator;
    u->memory.limit = d->facts.memory_bytes;
    u->fail_after = o->fail_after;
    u->threads = o->threads > 0 ? o->threads : 1;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    for (int i = 0; i < KT_STREAM_COUNT; i++) {
        u->queue[i].u = u;
        pthread_cond_init(&u->queue[i].work, &clock);
    }
    pthread_condattr_destroy(&clock);
    pthread_cond_init(&u->progress, NULL);
    pthread_mutex_init(&u->lock, NULL);
    pthread_mutex_init(&u->launching, NULL);
    d->self = u;
    st = start(u, d->facts.name, err);
    if (st != KT_OK) close_device(d);
    return st;
}

const kt_device_class kt_device_class_emulated = {
    .name = "emulated",
    .open = open_device,
    .finish = finish,
    .close = close_device,
    .alloc = alloc,
    .free = free_any,
    .host_alloc = host_alloc,
    .host_free = free_any,
    .pin = pin,
    .unpin = free_any,
    .memory = memory,
    .copy = copy,
    .copy_from = copy_from,
    .clear = clear,
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
};
