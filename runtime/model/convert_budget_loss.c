/* What weights lose in each format that a budget may choose: from some rows of some matrices, since
 * rows of a matrix and experts of a layer lose alike. SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "runtime/model/convert_impl.h"
#include "runtime/model/expert_load.h"
#include "runtime/model/weight_source.h"

enum {
    SAMPLE_EXPERTS = 8, /* of a layer: the busiest of a load, or evenly spaced */
    SAMPLE_ROWS = 32,   /* of a block: no candidate's rows share scales */
    SAMPLE_BLOCKS = 2,  /* of a matrix, evenly spaced */
    AT_A_TIME = 256     /* samples between two looks at cancel */
};

/* Rows [begin, end) of one matrix. */
typedef struct budget_sample {
    int side;
    kt_matrix_source source;
    int64_t begin, end;
    double weight; /* of its error in the side's mean */
    double error[KT_W_COUNT];
} budget_sample;

/* A thread's memory, as kt_matrix_source_loss wants it. */
typedef struct budget_desk {
    float *scratch;
    void *encoded;
    double *row;
} budget_desk;

typedef struct budget_measuring {
    kt_convert_work *w;
    kt_budget_side *sides;
    kt_weight_finder finder;
    kt_arena arena;
    budget_sample *samples, *first;
    size_t n, room;
    int64_t *load; /* [layers with experts][most], or NULL */
    int64_t most;
    budget_desk *desks;
    atomic_int is_bad;
    kt_err why;
} budget_measuring;

/* ---- samples ---- */

static kt_status add_block(budget_measuring *m, int side, const kt_matrix_source *source,
                           int64_t begin, double weight, kt_err *err) {
    const int64_t rest = source->rows - begin;

    if (m->n == m->room) {
        const size_t room = 2 * m->room + 256;
        budget_sample *more = realloc(m->samples, room * sizeof *more);
        if (!more) return kt_fail(err, KT_E_NOMEM, "no memory for %zu samples of weights", room);
        m->samples = more;
        m->room = room;
    }
    m->samples[m->n++] = (budget_sample){.side = side,
                                         .source = *source,
                                         .begin = begin,
                                         .end = begin + (rest < SAMPLE_ROWS ? rest : SAMPLE_ROWS),
                                         .weight = weight};
    return KT_OK;
}

static kt_status add_matrix(budget_measuring *m, int side, int part, int64_t expert, double weight,
                            kt_err *err) {
    const kt_weight *w = &m->w->model.graph.weights[m->sides[side].weight];
    kt_matrix_source source;
    int64_t blocks, taken;

    KT_TRY(kt_weight_source(&m->finder, w, part, 1, expert, &source, err));
    blocks = (source.rows + SAMPLE_ROWS - 1) / SAMPLE_ROWS;
    taken = blocks < SAMPLE_BLOCKS ? blocks : SAMPLE_BLOCKS;
    for (int64_t i = 0; i < taken; i++)
        KT_TRY(add_block(m, side, &source, (2 * i + 1) * blocks / (2 * taken) * SAMPLE_ROWS,
                         weight * (double)source.rows / (double)taken, err));
    return KT_OK;
}

/* The busiest expert that is not in `taken` yet, of equals the first. */
static int64_t next_busiest(const int64_t *load, int64_t count, const int64_t *taken, int n) {
    int64_t best = -1;

    for (int64_t e = 0; e < count; e++) {
        bool is_taken = false;
        for (int i = 0; i < n; i++) is_taken |= taken[i] == e;
        if (!is_taken && (best < 0 || load[e] > load[best])) best = e;
    }
    return best;
}

static bool is_routed(const kt_weight *w) {
    return w->kind == KT_WEIGHT_EXPERTS && w->use == KT_USE_EXPERTS;
}

/* Which of the layers with routed experts a weight is. */
static int64_t expert_layer(const kt_graph *g, int weight) {
    int64_t layer = 0;

    for (int i = 0; i < weight; i++) layer += is_routed(&g->weights[i]);
    return layer;
}

static kt_status add_side(budget_measuring *m, int side, kt_err *err) {
    const kt_budget_side *s = &m->sides[side];
    const kt_weight *w = &m->w->model.graph.weights[s->weight];
    const kt_graph *g = &m->w->model.graph;
    const int64_t *load =
        m->load && is_routed(w) ? m->load + expert_layer(g, s->weight) * m->most : NULL;
    const int n = w->kind != KT_WEIGHT_EXPERTS ? 1
                  : w->count < SAMPLE_EXPERTS  ? (int)w->count
                                               : SAMPLE_EXPERTS;
    int64_t taken[SAMPLE_EXPERTS];

    for (int i = 0; i < n; i++) {
        taken[i] = load ? next_busiest(load, w->count, taken, i) : (2 * i + 1) * w->count / (2 * n);
        if (w->kind != KT_WEIGHT_EXPERTS) taken[i] = 0;
        /* One more than was counted: of a layer that no row came to all experts count alike. */
        for (int part = s->first; part < s->first + s->n; part++)
            KT_TRY(add_matrix(m, side, part, taken[i], load ? (double)load[taken[i]] + 1 : 1, err));
    }
    return KT_OK;
}

static kt_status read_load(budget_measuring *m, kt_err *err) {
    const kt_graph *g = &m->w->model.graph;
    int64_t layers = 0;

    if (!m->w->request->load) return KT_OK;
    for (int i = 0; i < g->n_weights; i++) {
        if (!is_routed(&g->weights[i])) continue;
        layers++;
        if (g->weights[i].count > m->most) m->most = g->weights[i].count;
    }
    m->load = calloc((size_t)(layers * m->most) + 1, sizeof *m->load);
    if (!m->load) return kt_fail(err, KT_E_NOMEM, "no memory for the load of experts");
    return kt_expert_load_read(m->w->request->load, layers, m->most, m->load, err);
}

static kt_status list_samples(budget_measuring *m, int n_sides, kt_err *err) {
    KT_TRY(read_load(m, err));
    KT_TRY(kt_weight_finder_init(&m->finder, m->w->model.checkpoint, &m->w->model.graph, err));
    m->finder.importance = m->w->importance;
    for (int side = 0; side < n_sides; side++) KT_TRY(add_side(m, side, err));
    return KT_OK;
}

/* ---- measuring ---- */

static void measure(void *arg, int64_t begin, int64_t end, int tid) {
    budget_measuring *m = arg;
    const budget_desk *d = &m->desks[tid];

    for (int64_t i = begin; i < end; i++) {
        budget_sample *s = &m->first[i];
        kt_err why = {KT_OK, ""};
        for (int f = 0; f < KT_W_COUNT && !atomic_load(&m->is_bad); f++) {
            kt_format_loss loss = {0};
            if (!m->sides[s->side].is_possible[f]) continue;
            if (kt_matrix_source_loss(&s->source, kt_format_find((kt_weight_format)f), s->begin,
                                      s->end, d->encoded, d->scratch, d->row, &loss,
                                      &why) != KT_OK &&
                !atomic_exchange(&m->is_bad, 1))
                m->why = why;
            s->error[f] = loss.weighted_total > 0 ? loss.weighted_sq / loss.weighted_total
                          : loss.energy > 0       ? loss.error_sq / loss.energy
                                                  : 0;
        }
        kt_matrix_source_release(&s->source, m->w->model.checkpoint);
    }
}

static kt_status make_desks(budget_measuring *m, kt_err *err) {
    const int threads = kt_pool_threads(m->w->pool);
    size_t widest = 1, encoded = 64;

    for (size_t i = 0; i < m->n; i++) {
        const kt_matrix_source *s = &m->samples[i].source;
        if ((size_t)s->k > widest) widest = (size_t)s->k;
        for (int f = 0; f < KT_W_COUNT; f++) {
            if (!m->sides[m->samples[i].side].is_possible[f]) continue;
            const size_t bytes =
                kt_matrix_source_loss_bytes(kt_format_find((kt_weight_format)f), s->k);
            if (bytes > encoded) encoded = bytes;
        }
    }
    m->desks = kt_arena_alloc(&m->arena, (size_t)threads * sizeof *m->desks, sizeof(void *));
    for (int t = 0; m->desks && t < threads; t++) {
        budget_desk *d = &m->desks[t];
        d->scratch = kt_arena_alloc(&m->arena, KT_SOURCE_BLOCK * widest * sizeof(float), 64);
        d->encoded = kt_arena_alloc(&m->arena, encoded, 64);
        d->row = kt_arena_alloc(&m->arena, widest * sizeof(double), 64);
        if (!d->scratch || !d->encoded || !d->row) m->desks = NULL;
    }
    return m->desks ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory to measure formats");
}

static kt_status measure_all(budget_measuring *m, kt_err *err) {
    const kt_convert_request *r = m->w->request;

    for (size_t at = 0; at < m->n; at += AT_A_TIME) {
        kt_phase phase = {.run = measure, .arg = m};
        phase.n_tasks = (int64_t)(m->n - at < AT_A_TIME ? m->n - at : AT_A_TIME);
        m->first = &m->samples[at];
        kt_pool_run(m->w->pool, &phase, 1);
        if (atomic_load(&m->is_bad)) return kt_fail(err, m->why.status, "%s", m->why.message);
        if (r->cancel && r->cancel(NULL))
            return kt_fail(err, KT_E_CANCELLED, "interrupted; no format was chosen yet");
    }
    return KT_OK;
}

/* In the order of the samples, whatever thread had them. */
static void sum_up(budget_measuring *m, int n_sides) {
    size_t at = 0;

    for (int side = 0; side < n_sides; side++) {
        kt_budget_side *s = &m->sides[side];
        double total = 0;
        memset(s->error, 0, sizeof s->error);
        for (; at < m->n && m->samples[at].side == side; at++) {
            total += m->samples[at].weight;
            for (int f = 0; f < KT_W_COUNT; f++)
                s->error[f] += m->samples[at].weight * m->samples[at].error[f];
        }
        for (int f = 0; f < KT_W_COUNT && total > 0; f++) s->error[f] /= total;
    }
}

kt_status kt_convert_measure_sides(kt_convert_work *w, kt_budget_side *sides, int n_sides,
                                   kt_err *err) {
    budget_measuring m = {.w = w, .sides = sides};
    kt_status st = list_samples(&m, n_sides, err);

    if (st == KT_OK) st = make_desks(&m, err);
    if (st == KT_OK) st = measure_all(&m, err);
    if (st == KT_OK) sum_up(&m, n_sides);
    kt_weight_finder_deinit(&m.finder);
    kt_arena_deinit(&m.arena);
    free(m.samples);
    free(m.load);
    return st;
}
