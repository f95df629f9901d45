/* Pieces of a stream that repeat become graphs. A piece is its commands one behind the other as
 * bytes; it is looked up by comparing all of them, so that a graph does what it is put for or is
 * not found. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/device_class.h"

enum {
    MOST_PIECES = 512, /* that are remembered, with their graphs */
    LEAST = 3,         /* commands, below which a graph saves nothing */
    ROUND = 16         /* parameters lie as aligned as the driver wants them */
};

typedef struct bytes {
    uint8_t *data;
    size_t n, capacity;
} bytes;

/* One that was put before. */
typedef struct piece {
    uint8_t *data;
    size_t bytes;
    kt_device_graph *graph; /* NULL = seen once, or */
    bool is_refused;        /* the device would not capture it */
    uint64_t used;          /* when */
} piece;

struct kt_gather {
    bool is_on, is_eager, is_putting;
    kt_stream stream;
    bytes now;
    int n_now;
    piece piece[MOST_PIECES];
    int n_pieces, last; /* last: that was found; the next one is often behind it */
    int n_retired;      /* graphs */
    uint64_t clock;
    kt_device_gathered counts;
};

/* ---- keeping ---- */

static kt_status make_room(const kt_device *d, bytes *b, size_t more, kt_err *err) {
    size_t capacity = b->capacity ? b->capacity : 4096;
    uint8_t *data;

    while (capacity < b->n + more) capacity *= 2;
    if (capacity == b->capacity) return KT_OK;
    data = realloc(b->data, capacity);
    if (!data)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu bytes of commands", d->facts.name,
                       capacity);
    b->data = data;
    b->capacity = capacity;
    return KT_OK;
}

static size_t bytes_of(const kt_device_command *c) {
    return (sizeof *c + (size_t)c->parameter_bytes + ROUND - 1) / ROUND * ROUND;
}

/* Field by field: what lies between them must not differ. */
static kt_status keep(kt_device *d, const kt_device_command *c, const void *parameters,
                      kt_err *err) {
    kt_gather *g = d->gather;
    const size_t size = bytes_of(c);
    kt_device_command *to;

    KT_TRY(make_room(d, &g->now, size, err));
    memset(g->now.data + g->now.n, 0, size);
    to = (kt_device_command *)(void *)(g->now.data + g->now.n);
    to->kind = c->kind, to->way = c->way;
    to->to = c->to, to->from = c->from, to->bytes = c->bytes;
    to->function = c->function, to->code = c->code;
    to->entry = c->entry, to->grid_x = c->grid_x, to->grid_y = c->grid_y;
    to->parameter_bytes = c->parameter_bytes;
    if (c->parameter_bytes) memcpy(to + 1, parameters, (size_t)c->parameter_bytes);
    g->now.n += size;
    g->n_now++;
    return KT_OK;
}

bool kt_gather_keep(kt_device *d, kt_stream s, const kt_device_command *c, const void *parameters,
                    kt_status *st, kt_err *err) {
    const kt_gather *g = d->gather;

    if (!g || !g->is_on || g->is_putting || d->is_capturing || s != g->stream) return false;
    *st = keep(d, c, parameters, err);
    return true;
}

/* ---- putting ---- */

static kt_status put(kt_device *d, const kt_device_command *c, kt_err *err) {
    const kt_stream s = d->gather->stream;

    if (c->kind == KT_PUT_COPY) return d->class->copy(d, s, c->way, c->to, c->from, c->bytes, err);
    if (c->kind == KT_PUT_CLEAR) return d->class->clear(d, s, c->to, c->bytes, err);
    if (c->kind == KT_PUT_CALL) return d->class->call(d, s, c->function, c->to, err);
    return d->class->run(d, s,
                         &(kt_device_launch){.code = c->code,
                                             .entry = c->entry,
                                             .grid_x = c->grid_x,
                                             .grid_y = c->grid_y,
                                             .shared_bytes = c->bytes,
                                             .parameters = c + 1,
                                             .parameter_bytes = (size_t)c->parameter_bytes},
                         err);
}

static kt_status put_all(kt_device *d, kt_err *err) {
    const bytes *b = &d->gather->now;

    for (size_t at = 0; at < b->n;) {
        const kt_device_command *c = (const kt_device_command *)(const void *)(b->data + at);
        KT_TRY(put(d, c, err));
        at += bytes_of(c);
    }
    return KT_OK;
}

/* ---- pieces ---- */

static piece *find(kt_gather *g) {
    for (int i = 0; i < g->n_pieces; i++) {
        const int at = (g->last + 1 + i) % g->n_pieces;
        piece *p = &g->piece[at];
        if (p->bytes != g->now.n || memcmp(p->data, g->now.data, g->now.n) != 0) continue;
        g->last = at;
        return p;
    }
    return NULL;
}

/* Freeing a graph waits for the device, which may itself wait for the host that is about to put the
 * rest: graphs go when the next gathering begins, before which nothing waits for the host. */
static void retire(kt_device *d, kt_device_graph *graph) {
    graph->is_retired = true;
    d->gather->n_retired++;
}

static void free_retired(kt_device *d) {
    for (kt_device_graph *g = d->graphs, *next; d->gather->n_retired > 0; g = next) {
        next = g->next;
        if (!g->is_retired) continue;
        kt_device_graph_free(d, g);
        d->gather->n_retired--;
    }
}

static void drop(kt_device *d, piece *p) {
    if (p->graph) {
        d->gather->counts.kept--;
        retire(d, p->graph);
    }
    free(p->data);
    *p = (piece){.data = NULL};
}

/* A place for the piece of now, that of the one used longest ago where there is no other; NULL
 * without memory, which is no error: then it is not remembered. */
static piece *remember(kt_device *d) {
    kt_gather *g = d->gather;
    piece *p = &g->piece[g->n_pieces < MOST_PIECES ? g->n_pieces : 0];
    uint8_t *copy = malloc(g->now.n);

    if (!copy) return NULL;
    for (int i = 0; g->n_pieces == MOST_PIECES && i < MOST_PIECES; i++)
        if (g->piece[i].used < p->used) p = &g->piece[i];
    if (g->n_pieces == MOST_PIECES)
        drop(d, p);
    else
        g->n_pieces++;
    memcpy(copy, g->now.data, g->now.n);
    *p = (piece){.data = copy, .bytes = g->now.n};
    g->last = (int)(p - g->piece);
    return p;
}

/* A driver may not capture what it would do: then it is put as it came, now and later. */
static kt_status capture(kt_device *d, piece *p, kt_err *err) {
    kt_gather *g = d->gather;
    kt_err why = {KT_OK, ""};
    kt_status st = kt_device_capture_begin(d, g->stream, &why), ended = KT_OK;

    if (st == KT_OK) {
        st = put_all(d, &why);
        ended = kt_device_capture_end(d, &p->graph, st == KT_OK ? &why : NULL);
        if (st == KT_OK) st = ended;
    }
    if (st != KT_OK && p->graph) retire(d, p->graph), p->graph = NULL;
    p->is_refused = st != KT_OK;
    if (st == KT_OK) g->counts.captured++, g->counts.kept++;
    if (d->fault.status != KT_OK) return kt_fail(err, st, "%s", why.message);
    if (st == KT_OK) return KT_OK;
    kt_log_write(d->log, KT_LOG_DEBUG, "device", "no graph of %d commands: %s", g->n_now,
                 why.message);
    if (!g->is_eager) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.100s: no graph of %d commands: %.300s", d->facts.name,
                   g->n_now, why.message);
}

static kt_status put_piece(kt_device *d, kt_err *err) {
    kt_gather *g = d->gather;
    piece *p = g->n_now >= LEAST || g->is_eager ? find(g) : NULL;
    const bool is_new = !p;

    g->counts.pieces++;
    if (!p && (g->n_now >= LEAST || g->is_eager)) p = remember(d);
    if (!p && g->is_eager)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a graph of %d commands", d->facts.name,
                       g->n_now);
    if (p) p->used = ++g->clock;
    if (p && !p->graph && (g->is_eager || (!is_new && !p->is_refused))) KT_TRY(capture(d, p, err));
    if (!p || !p->graph) return put_all(d, err);
    g->counts.replayed++;
    return d->class->replay(d, g->stream, p->graph, err);
}

kt_status kt_gather_flush(kt_device *d, kt_stream s, kt_err *err) {
    kt_gather *g = d->gather;
    kt_status st;

    if (!g || g->is_putting || g->n_now == 0) return KT_OK;
    if (s != KT_STREAM_COUNT && s != g->stream) return KT_OK;
    g->is_putting = true;
    st = put_piece(d, err);
    g->is_putting = false;
    g->now.n = 0;
    g->n_now = 0;
    return st;
}

/* ---- */

kt_status kt_device_gather_begin(kt_device *d, kt_stream s, bool eager, kt_err *err) {
    kt_gather *g = d->gather;

    if ((int)s < 0 || s >= KT_STREAM_COUNT)
        return kt_fail(err, KT_E_INVALID, "%s: stream %d, expected 0 to %d", d->facts.name, (int)s,
                       KT_STREAM_COUNT - 1);
    KT_TRY(kt_device_gather_end(d, err));
    if (!g) {
        g = calloc(1, sizeof *g);
        if (!g) return kt_fail(err, KT_E_NOMEM, "%s: no memory to gather commands", d->facts.name);
        d->gather = g;
    }
    free_retired(d);
    g->is_on = true;
    g->is_eager = eager;
    g->stream = s;
    return KT_OK;
}

kt_status kt_device_gather_end(kt_device *d, kt_err *err) {
    kt_status st = KT_OK;

    if (!d->gather) return KT_OK;
    if (d->fault.status == KT_OK) st = kt_gather_flush(d, KT_STREAM_COUNT, err);
    d->gather->is_on = false;
    d->gather->now.n = 0;
    d->gather->n_now = 0;
    return st;
}

kt_device_gathered kt_device_gather_counts(const kt_device *d) {
    return d->gather ? d->gather->counts : (kt_device_gathered){0};
}

/* The graphs go with the device's others. */
void kt_gather_close(kt_device *d) {
    kt_gather *g = d->gather;

    if (!g) return;
    for (int i = 0; i < g->n_pieces; i++) free(g->piece[i].data);
    free(g->now.data);
    free(g);
    d->gather = NULL;
}
