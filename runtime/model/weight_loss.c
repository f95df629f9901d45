/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weight_loss.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "runtime/model/model_plan.h"
#include "runtime/model/tensor_map.h"

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
    kt_tensor_map map;
    const kt_model_dir *dir;
    kt_quant weights;
} lister;

static kt_status push(lister *l, kt_part part, kt_role role, int64_t layer, int64_t expert,
                      const kt_matrix_source *source, kt_err *err) {
    kt_weight_losses *list = l->list;
    matrix m = {.source = *source};
    char name[160];
    size_t data, scales;

    if (list->count == list->room) {
        size_t room = 2 * list->room + 64;
        matrix *more = realloc(list->matrices, room * sizeof *more);
        if (!more) return kt_fail(err, KT_E_NOMEM, "no memory for %zu matrices", room);
        list->matrices = more;
        list->room = room;
    }
    kt_family_tensor_name(l->dir->family, role, layer, expert, name, sizeof name);
    m.result = (kt_weight_loss){
        .name = kt_arena_strndup(&list->arena, name, strlen(name)),
        .role = role,
        .layer = layer,
        .expert = expert,
        .format = kt_format_find(kt_part_format(part, &l->dir->config, l->weights)),
        .rows = source->rows,
        .k = source->k};
    if (!m.result.name) return kt_fail(err, KT_E_NOMEM, "no memory for the names of matrices");
    KT_TRY(kt_format_sizes(m.result.format, source->rows, source->k, &data, &scales, err));
    list->matrices[list->count++] = m;
    return KT_OK;
}

static kt_status push_linear(lister *l, kt_part part, kt_role role, int64_t layer, kt_err *err) {
    kt_matrix_source source;

    KT_TRY(kt_tensor_map_linear(&l->map, role, layer, &source, err));
    return push(l, part, role, layer, -1, &source, err);
}

static kt_status list_layer(lister *l, int64_t layer, kt_err *err) {
    static const kt_role roles[2][3] = {
        {KT_ROLE_GATE, KT_ROLE_UP, KT_ROLE_DOWN},
        {KT_ROLE_EXPERT_GATE, KT_ROLE_EXPERT_UP, KT_ROLE_EXPERT_DOWN}};
    const int is_moe = l->dir->config.is_moe[layer];
    const kt_part part = is_moe ? KT_PART_EXPERT : KT_PART_DENSE;
    kt_matrix_source source[3];

    for (int role = KT_ROLE_Q; role <= KT_ROLE_V; role++)
        KT_TRY(push_linear(l, KT_PART_QKV, (kt_role)role, layer, err));
    KT_TRY(push_linear(l, KT_PART_O, KT_ROLE_O, layer, err));
    for (int64_t e = 0; e < (is_moe ? l->dir->config.experts : 1); e++) {
        KT_TRY(kt_tensor_map_expert(&l->map, layer, e, source, err));
        for (int i = 0; i < 3; i++)
            KT_TRY(push(l, part, roles[is_moe][i], layer, is_moe ? e : -1, &source[i], err));
    }
    return KT_OK;
}

static kt_status list_head(lister *l, kt_err *err) {
    char name[160];
    int tied;

    kt_family_tensor_name(l->dir->family, KT_ROLE_LM_HEAD, 0, 0, name, sizeof name);
    tied = l->dir->config.tied || !kt_checkpoint_find(l->map.checkpoint, name);
    return push_linear(l, KT_PART_HEAD, tied ? KT_ROLE_EMBED : KT_ROLE_LM_HEAD, -1, err);
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
    const kt_format *format = kt_format_find(kt_quant_format(weights));

    if (weights == KT_QUANT_NATIVE)
        return kt_fail(err, KT_E_INVALID, "native weights are not encoded: nothing is lost");
    if (format && !format->encode_rows)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: GGUF blocks are never made from other weights",
                       format->name);
    if (dir->config.stored.experts == KT_W_NONE) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s is stored as %s already, expected floats",
                   dir->name, kt_weight_format_name(dir->config.stored.experts));
}

static kt_status list_all(lister *l, const kt_checkpoint *checkpoint,
                          const kt_checkpoint *importance, kt_err *err) {
    KT_TRY(kt_tensor_map_init(&l->map, checkpoint, l->dir->family, &l->dir->config, false, err));
    l->map.importance = importance;
    for (int64_t i = 0; i < l->dir->config.layers; i++) KT_TRY(list_layer(l, i, err));
    return list_head(l, err);
}

kt_status kt_weight_losses_measure(const kt_model_dir *dir, kt_quant weights,
                                   const kt_checkpoint *importance, kt_pool *pool,
                                   int (*stop)(void *), kt_weight_losses **out, kt_err *err) {
    kt_weight_losses *list = calloc(1, sizeof *list);
    lister l = {.list = list, .dir = dir, .weights = weights};
    kt_checkpoint *checkpoint = NULL;
    kt_status st = list ? check(dir, weights, err)
                        : kt_fail(err, KT_E_NOMEM, "no memory for a list of matrices");

    *out = NULL;
    if (st == KT_OK) st = kt_checkpoint_open(dir->folder, &checkpoint, err);
    if (st == KT_OK) st = list_all(&l, checkpoint, importance, err);
    if (st == KT_OK) st = measure_all(list, checkpoint, pool, stop, err);
    kt_tensor_map_deinit(&l.map);
    kt_checkpoint_close(checkpoint);
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
