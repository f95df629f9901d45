/* Every strategy is an order of all experts of the model, of which the first ones are taken.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/hot_experts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "runtime/model/expert_load.h"

#define SEED 42

typedef enum strategy { UNIFORM, RANDOM, FRONT_LOADING, FREQUENCY, LEARNED, UNKNOWN } strategy;

typedef struct candidate {
    int64_t key; /* smaller is taken first; then by layer and number */
    int layer;   /* among those with experts */
    int weight;
    int32_t id;
    bool is_taken;
} candidate;

typedef struct chooser {
    const kt_graph *graph;
    const kt_hot_request *request;
    candidate *all;
    size_t n;
    int layers;
    int64_t most; /* experts of a layer */
} chooser;

/* ---- words ---- */

static strategy strategy_of(const kt_hot_request *r) {
    static const char *const names[] = {"uniform", "random", "front-loading", "frequency",
                                        "learned"};
    int i = 0;

    if (!r->strategy) return UNIFORM;
    while (i < UNKNOWN && strcmp(names[i], r->strategy) != 0) i++;
    return (strategy)i;
}

bool kt_hot_experts_learn(const kt_hot_request *r) {
    return strategy_of(r) == LEARNED;
}

/* A count, or (is_part) percent; -1 = what fits. */
static bool read_amount(const char *text, double *amount, bool *is_part) {
    char *end;

    *amount = -1;
    *is_part = false;
    if (!text || strcmp(text, "auto") == 0) return true;
    errno = 0;
    *amount = strtod(text, &end);
    *is_part = strcmp(end, "%") == 0;
    if (errno || end == text || (*end && !*is_part) || !(*amount >= 0)) return false;
    return *is_part ? *amount <= 100 : *amount <= 1 << 20 && *amount == (double)(int64_t)*amount;
}

kt_status kt_hot_request_check(const kt_hot_request *r, kt_err *err) {
    double amount;
    bool is_part;

    if (!read_amount(r->amount, &amount, &is_part))
        return kt_fail(err, KT_E_INVALID,
                       "experts on the device: '%.40s', expected a number of each layer, a part "
                       "such as 25%%, or auto",
                       r->amount);
    if (strategy_of(r) == UNKNOWN)
        return kt_fail(err, KT_E_INVALID,
                       "placement of experts: '%.40s', expected uniform, frequency, front-loading, "
                       "random or learned",
                       r->strategy);
    if (strategy_of(r) == FREQUENCY && !r->load)
        return kt_fail(err, KT_E_INVALID,
                       "placement of experts by frequency: no load was given (--expert-load FILE, "
                       "a file of kt serve --record-workload)");
    return KT_OK;
}

double kt_hot_experts_part(const kt_hot_request *r, int64_t experts) {
    double amount;
    bool is_part;

    if (!read_amount(r->amount, &amount, &is_part) || amount < 0 || experts < 1) return 1;
    if (!is_part) amount = 100 * amount / (double)experts;
    return amount < 100 ? amount / 100 : 1;
}

/* ---- orders ---- */

static int compare(const void *a, const void *b) {
    const candidate *p = a, *q = b;

    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    if (p->layer != q->layer) return p->layer < q->layer ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* Each layer's candidates lie one behind the other: their keys become a permutation. */
static void shuffle(chooser *c) {
    kt_rng rng;

    kt_rng_seed(&rng, SEED);
    for (size_t first = 0, end; first < c->n; first = end) {
        end = first;
        while (end < c->n && c->all[end].layer == c->all[first].layer) end++;
        for (size_t i = first; i < end; i++) c->all[i].key = (int64_t)(i - first);
        for (size_t i = end - first; i > 1; i--) {
            const size_t j = first + kt_rng_below(&rng, i);
            const int64_t key = c->all[j].key;
            c->all[j].key = c->all[first + i - 1].key;
            c->all[first + i - 1].key = key;
        }
    }
}

static kt_status order_by_frequency(chooser *c, kt_err *err) {
    int64_t *rows = calloc((size_t)(c->layers * c->most) + 1, sizeof *rows);
    kt_status st;

    if (!rows) return kt_fail(err, KT_E_NOMEM, "no memory for the load of experts");
    st = kt_expert_load_read(c->request->load, c->layers, c->most, rows, err);
    for (size_t i = 0; i < c->n; i++)
        c->all[i].key = -rows[c->all[i].layer * c->most + c->all[i].id];
    free(rows);
    return st;
}

static kt_status order(chooser *c, kt_err *err) {
    strategy s = strategy_of(c->request);

    if (s == LEARNED && c->request->load) s = FREQUENCY;
    switch (s) {
    case RANDOM: shuffle(c); break;
    case FREQUENCY: KT_TRY(order_by_frequency(c, err)); break;
    case FRONT_LOADING: break;
    default:
        for (size_t i = 0; i < c->n; i++) c->all[i].key = c->all[i].id;
    }
    qsort(c->all, c->n, sizeof *c->all, compare);
    return KT_OK;
}

/* ---- choosing ---- */

/* In their order as many as fit: a device that has no room for one takes none behind it. */
static void take_what_fits(chooser *c, int device) {
    const kt_hot_request *r = c->request;
    uint64_t left = r->n_devices > 1 ? r->budgets[device] : r->budget;
    double own = 0, n = 0;

    for (size_t i = 0; i < c->n; i++)
        own += r->n_devices < 2 || r->device_of[c->all[i].weight] == device;
    if (r->share > 0) own *= r->share;
    for (size_t i = 0; i < c->n; i++) {
        candidate *e = &c->all[i];
        if (r->n_devices > 1 && r->device_of[e->weight] != device) continue;
        if (!(n + 1 <= own && r->bytes[e->weight] <= left)) return;
        left -= r->bytes[e->weight];
        e->is_taken = true;
        n++;
    }
}

/* How many of the order are asked for. */
static size_t count_taken(const chooser *c, double amount, bool is_part) {
    double total = 0;

    for (int i = 0; i < c->graph->n_weights; i++) {
        const double count = (double)c->graph->weights[i].count;
        if (c->request->bytes[i] == 0) continue;
        if (is_part)
            total += (double)(int64_t)(count * amount / 100 + 0.5);
        else
            total += amount < count ? amount : count;
    }
    return (size_t)total;
}

static bool is_routed(const kt_graph *g, int weight) {
    return g->weights[weight].kind == KT_WEIGHT_EXPERTS && g->weights[weight].use == KT_USE_EXPERTS;
}

static kt_status collect(chooser *c, kt_err *err) {
    const kt_graph *g = c->graph;
    size_t n = 0;

    for (int i = 0; i < g->n_weights; i++) {
        if (!is_routed(g, i)) continue;
        n += (size_t)g->weights[i].count;
        if (g->weights[i].count > c->most) c->most = g->weights[i].count;
    }
    c->all = calloc(n + 1, sizeof *c->all);
    if (!c->all) return kt_fail(err, KT_E_NOMEM, "no memory to choose of %zu experts", n);
    for (int i = 0; i < g->n_weights; i++) {
        if (!is_routed(g, i)) continue;
        for (int64_t e = 0; c->request->bytes[i] && e < g->weights[i].count; e++)
            c->all[c->n++] = (candidate){.layer = c->layers, .weight = i, .id = (int32_t)e};
        c->layers++;
    }
    return KT_OK;
}

static int compare_ids(const void *a, const void *b) {
    const int32_t *p = a, *q = b;
    return *p < *q ? -1 : *p > *q;
}

static void take(chooser *c) {
    double amount;
    bool is_part;
    size_t n;

    read_amount(c->request->amount, &amount, &is_part);
    for (int d = 0; amount < 0 && (d == 0 || d < c->request->n_devices); d++) take_what_fits(c, d);
    if (amount < 0) return;
    n = count_taken(c, amount, is_part);
    for (size_t i = 0; i < n && i < c->n; i++) c->all[i].is_taken = true;
}

static kt_status list(const chooser *c, kt_arena *arena, kt_hot_experts *out, kt_err *err) {
    for (int w = 0; w < c->graph->n_weights; w++) {
        int32_t *id;
        if (!is_routed(c->graph, w)) continue;
        id = kt_arena_alloc(arena, sizeof *id * (size_t)(c->graph->weights[w].count + 1), 16);
        if (!id) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of a device");
        out[w].id = id;
        for (size_t i = 0; i < c->n; i++)
            if (c->all[i].is_taken && c->all[i].weight == w) id[out[w].n++] = c->all[i].id;
        qsort(id, (size_t)out[w].n, sizeof *id, compare_ids);
    }
    return KT_OK;
}

kt_status kt_hot_experts_choose(const kt_graph *g, const kt_hot_request *r, kt_arena *arena,
                                kt_hot_experts **out, kt_err *err) {
    chooser c = {.graph = g, .request = r};
    kt_status st;

    *out = NULL;
    KT_TRY(kt_hot_request_check(r, err));
    *out = kt_arena_alloc(arena, sizeof **out * (size_t)(g->n_weights + 1), 16);
    if (!*out) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of a device");
    st = collect(&c, err);
    if (st == KT_OK) st = order(&c, err);
    if (st == KT_OK) {
        take(&c);
        st = list(&c, arena, *out, err);
    }
    free(c.all);
    return st;
}
