/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weight_loss.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "dispatch/model/needs.h"
#include "runtime/model/weight_source.h"

typedef struct matrix {
    kt_weight_loss result;
    kt_matrix_source source;
} matrix;

struct kt_weight_losses {
    kt_arena arena; /* names */
    matrix *matrices;
    size_t count, room;
};

/* ---- the list ---- */

typedef struct lister {
    kt_weight_losses *list;
    kt_weight_finder finder;
    const kt_graph *graph;
    kt_quant weights;
} lister;

static kt_status push(lister *l, const kt_weight *w, int part, int64_t expert,
                      const kt_matrix_source *source, kt_err *err) {
    kt_weight_losses *list = l->list;
    matrix m = {.source = *source};
    char name[240];
    size_t data, scales;

    if (list->count == list->room) {
        size_t room = 2 * list->room + 64;
        matrix *more = realloc(list->matrices, room * sizeof *more);
        if (!more) return kt_fail(err, KT_E_NOMEM, "no memory for %zu matrices", room);
        list->matrices = more;
        list->room = room;
    }
    kt_weight_name(l->graph, w, part, expert, true, name, sizeof name - 8);
    strcat(name, ".weight");
    m.result = (kt_weight_loss){.name = kt_arena_strndup(&list->arena, name, strlen(name)),
                                .role = w->role,
                                .part = part,
                                .layer = w->layer,
                                .expert = w->use == KT_USE_EXPERTS ? expert : -1,
                                .format = kt_format_find(kt_weight_becomes(w, part, l->weights)),
                                .rows = source->rows,
                                .k = source->k};
    if (!m.result.name) return kt_fail(err, KT_E_NOMEM, "no memory for the names of matrices");
    KT_TRY(kt_format_sizes(m.result.format, source->rows, source->k, &data, &scales, err));
    list->matrices[list->count++] = m;
    return KT_OK;
}

static kt_status list_weight(lister *l, const kt_weight *w, kt_err *err) {
    kt_matrix_source source;
    kt_run runs[KT_WEIGHT_PARTS];

    if (w->kind == KT_WEIGHT_HEADS || kt_weight_runs(w, l->weights, runs) == 0) return KT_OK;
    for (int64_t e = 0; e < w->count; e++)
        for (int part = 0; part < w->n_parts; part++) {
            KT_TRY(kt_weight_source(&l->finder, w, part, 1, e, &source, err));
            KT_TRY(push(l, w, part, e, &source, err));
        }
    return KT_OK;
}

/* ---- measuring ---- */

/* A thread's memory: a block of rows as floats, encoded, and a row in double. */
typedef struct desk {
    float *scratch;
    void *encoded;
    double *row;
} desk;

typedef struct measuring {
    matrix *first;
    const kt_checkpoint *checkpoint;
    desk *desks;
    atomic_int is_bad;
    kt_err why;
} measuring;

static void measure(void *arg, int64_t begin, int64_t end, int tid) {
    measuring *w = arg;
    const desk *d = &w->desks[tid];

    for (int64_t i = begin; i < end; i++) {
        matrix *m = &w->first[i];
        kt_err why = {KT_OK, ""};
        if (kt_matrix_source_loss(&m->source, m->result.format, 0, m->source.rows, d->encoded,
                                  d->scratch, d->row, &m->result.loss, &why) != KT_OK &&
            !atomic_exchange(&w->is_bad, 1))
            w->why = why;
        kt_matrix_source_release(&m->source, w->checkpoint);
    }
}

static int make_desks(const kt_weight_losses *list, int threads, kt_arena *arena, measuring *w) {
    size_t widest = 0, encoded = 0;

    for (size_t i = 0; i < list->count; i++) {
        const kt_weight_loss *r = &list->matrices[i].result;
        size_t bytes = kt_matrix_source_loss_bytes(r->format, r->k);
        if ((size_t)r->k > widest) widest = (size_t)r->k;
        if (bytes > encoded) encoded = bytes;
    }
    w->desks = kt_arena_alloc(arena, (size_t)threads * sizeof *w->desks, sizeof(void *));
    for (int t = 0; w->desks && t < threads; t++) {
        desk *d = &w->desks[t];
        d->scratch = kt_arena_alloc(arena, KT_SOURCE_BLOCK * widest * sizeof(float), 64);
        d->encoded = kt_arena_alloc(arena, encoded, 64);
        d->row = kt_arena_alloc(arena, widest * sizeof(double), 64);
        if (!d->scratch || !d->encoded || !d->row) return 0;
    }
    return w->desks != NULL;
}

/* Matrices of a layer together, between which one may stop. */
static kt_status measure_all(kt_weight_losses *list, const kt_checkpoint *checkpoint, kt_pool *pool,
                             int (*stop)(void *), kt_err *err) {
    measuring w = {.checkpoint = checkpoint};
    kt_arena arena = {0};
    kt_status st = make_desks(list, kt_pool_threads(pool), &arena, &w)
                       ? KT_OK
                       : kt_fail(err, KT_E_NOMEM, "no memory for encoding");

    for (size_t begin = 0, end; st == KT_OK && begin < list->count; begin = end) {
        kt_phase phase = {.run = measure, .arg = &w};
        for (end = begin; end < list->count &&
                          list->matrices[end].result.layer == list->matrices[begin].result.layer;)
            end++;
        w.first = &list->matrices[begin];
        phase.n_tasks = (int64_t)(end - begin);
        kt_pool_run(pool, &phase, 1);
        if (atomic_load(&w.is_bad)) st = kt_fail(err, w.why.status, "%s", w.why.message);
        if (st == KT_OK && stop && stop(NULL)) st = kt_fail(err, KT_E_CANCELLED, "interrupted");
    }
    kt_arena_deinit(&arena);
    return st;
}

static kt_status check(const kt_model_dir *dir, kt_quant weights, kt_err *err) {
    if (weights == KT_QUANT_NATIVE)
        return kt_fail(err, KT_E_INVALID, "native weights are not encoded: nothing is lost");
    return kt_graph_check_quant(&dir->graph, weights, dir->name, err);
}

static kt_status list_all(lister *l, const kt_checkpoint *checkpoint,
                          const kt_checkpoint *importance, kt_err *err) {
    KT_TRY(kt_weight_finder_init(&l->finder, checkpoint, l->graph, err));
    l->finder.importance = importance;
    for (int i = 0; i < l->graph->n_weights; i++)
        KT_TRY(list_weight(l, &l->graph->weights[i], err));
    return KT_OK;
}

kt_status kt_weight_losses_measure(const kt_model_dir *dir, kt_quant weights,
                                   const kt_checkpoint *importance, kt_pool *pool,
                                   int (*stop)(void *), kt_weight_losses **out, kt_err *err) {
    kt_weight_losses *list = calloc(1, sizeof *list);
    lister l = {.list = list, .graph = &dir->graph, .weights = weights};
    kt_status st = list ? check(dir, weights, err)
                        : kt_fail(err, KT_E_NOMEM, "no memory for a list of matrices");

    *out = NULL;
    if (st == KT_OK) st = list_all(&l, dir->checkpoint, importance, err);
    if (st == KT_OK) st = measure_all(list, dir->checkpoint, pool, stop, err);
    kt_weight_finder_deinit(&l.finder);
    if (st != KT_OK) {
        kt_weight_losses_destroy(list);
        return st;
    }
    *out = list;
    return KT_OK;
}

void kt_weight_losses_destroy(kt_weight_losses *l) {
    if (!l) return;
    kt_arena_deinit(&l->arena);
    free(l->matrices);
    free(l);
}

size_t kt_weight_losses_count(const kt_weight_losses *l) {
    return l->count;
}

const kt_weight_loss *kt_weight_losses_at(const kt_weight_losses *l, size_t i) {
    return &l->matrices[i].result;
}
