/* Loading weights: everything that can be wrong with a checkpoint is found before the first byte is
 * packed (packer.h); then a buffer for each layer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/model/bytes.h"
#include "runtime/model/weights_impl.h"

#define RESERVE ((size_t)64 << 20) /* for everything that is not weights */
#define GIB (1024.0 * 1024.0 * 1024.0)
#define BYTES_PER_GIFT ((size_t)16 << 20)

/* State of one load. */
typedef struct loader {
    const kt_weights_request *request;
    kt_weights *weights;
    kt_packer packer;
    uint8_t *base; /* bump allocation in the current buffer */
    size_t used, limit;
} loader;

/* NULL when the buffer is full; the caller compares `used` with `limit` at the end. */
static void *take(loader *l, size_t bytes) {
    size_t begin = l->used;

    l->used += kt_bytes_round(bytes);
    return l->used <= l->limit ? l->base + begin : NULL;
}

/* ---- memory ---- */

kt_status kt_weights_watch(const kt_weights_request *r, size_t bytes, const char *what,
                           kt_err *err) {
    const uint64_t left =
        r->available ? r->available(r->available_arg) : kt_memory_available_bytes();

    if (left >= bytes && left - bytes >= RESERVE) return KT_OK;
    return kt_fail(
        err, KT_E_NOMEM,
        "loading was stopped at %s: it takes %.2f GiB of memory and %.2f are left; other "
        "programs have taken some since loading began",
        what, (double)bytes / GIB, (double)left / GIB);
}

static kt_status watch_layer(const loader *l, int64_t layer, kt_err *err) {
    const kt_graph *g = l->request->graph;
    char what[64] = "what is outside of layers";
    size_t bytes = 0;

    for (int i = 0; i < g->n_weights; i++)
        if ((g->weights[i].layer < 0 ? g->numbers.layers : g->weights[i].layer) == layer)
            bytes = kt_bytes_add(bytes, kt_model_plan_bytes(l->request->plan, i));
    if (layer < g->numbers.layers)
        snprintf(what, sizeof what, "layer %lld of %lld", (long long)layer + 1,
                 (long long)g->numbers.layers);
    return kt_weights_watch(l->request, bytes, what, err);
}

typedef struct giving {
    const kt_buffer *buffer;
    atomic_int bad;
    kt_err why;
} giving;

static void give_pages(void *arg, int64_t begin, int64_t end, int tid) {
    giving *g = arg;
    kt_err why;
    (void)tid;

    for (int64_t i = begin; i < end; i++)
        if (kt_buffer_populate(g->buffer, (size_t)i * BYTES_PER_GIFT, BYTES_PER_GIFT, &why) !=
                KT_OK &&
            !atomic_exchange(&g->bad, 1))
            g->why = why;
}

kt_status kt_weights_take(kt_weights *w, kt_pool *pool, size_t bytes, int node, kt_buffer *out,
                          kt_err *err) {
    giving g = {.buffer = out};
    kt_phase phase = {.run = give_pages, .arg = &g};

    KT_TRY(kt_buffer_reserve(bytes, KT_PAGES_ADVISED, node, out, err));
    w->bytes += out->bytes;
    phase.n_tasks = (int64_t)((out->mapped_bytes + BYTES_PER_GIFT - 1) / BYTES_PER_GIFT);
    kt_pool_run(pool, &phase, 1);
    if (!atomic_load(&g.bad)) return KT_OK;
    if (err) *err = g.why;
    return g.why.status;
}

/* ---- matrices ---- */

static kt_status load_matrix(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    kt_loaded *to = &l->weights->loaded[weight];
    kt_run runs[KT_WEIGHT_PARTS];
    int n = kt_weight_runs(w, l->request->plan->quant, runs);
    kt_matrix_source source;

    for (int r = 0; r < n; r++) {
        const kt_problem_plan *p = kt_model_plan_run(l->request->plan, weight, r);
        uint8_t *packed = take(l, p->bytes);
        KT_TRY(kt_weight_source(&l->packer.finder, w, runs[r].first, runs[r].n, 0, &source, err));
        if (packed) kt_packer_dense(&l->packer, p, &source, packed);
        to->data[r] = packed;
    }
    return KT_OK;
}

static kt_status load_heads(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    kt_loaded *to = &l->weights->loaded[weight];
    const size_t bytes = kt_model_plan_run(l->request->plan, weight, 0)->bytes;
    uint8_t *packed = take(l, (size_t)w->count * bytes);

    to->data[0] = packed;
    to->head_bytes = bytes;
    return packed ? kt_packer_heads(&l->packer, weight, packed, err) : KT_OK;
}

/* ---- experts ---- */

static kt_moe_layer layer_of(const kt_problem_plan *part, const kt_moe_cuts *cuts) {
    kt_moe_layer layer = kt_problem_plan_layer(part);

    layer.cuts = cuts;
    return layer;
}

kt_status kt_weights_check_nodes(const kt_model_plan *plan, const kt_node_plan *nodes,
                                 kt_err *err) {
    int64_t begin[KT_MOE_MAX_NODES + 1];

    for (int i = 0; nodes->n > 1 && i < plan->n_problems; i++) {
        kt_moe_layer layer = layer_of(&plan->problems[i], NULL);
        if (layer.problem.op == KT_OP_MOE_FFN) KT_TRY(kt_node_plan_cut(nodes, &layer, begin, err));
    }
    return KT_OK;
}

/* Where the experts that are here lie, one behind the other; NULL = another device has it. */
static void place_each(const kt_placing *p, const kt_away *away, uint8_t *base, size_t bytes,
                       uint8_t **at) {
    for (int64_t e = 0; e < p->count; e++) {
        at[e] = away && away->expert && away->expert[e] ? NULL : base;
        if (at[e]) base += bytes;
    }
}

static kt_status place_slices(kt_weights *w, const kt_weights_request *r, int weight, kt_placing *p,
                              kt_err *err) {
    const kt_away *away = r->plan->away ? &r->plan->away[weight] : NULL;
    const size_t n = (size_t)p->count, here = n - (size_t)(away ? away->n_experts : 0);

    KT_TRY(kt_node_plan_cut(r->nodes, &p->whole, p->begin, err));
    for (int i = 0; i < p->n; i++) {
        kt_moe_layer slice = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1], NULL);
        kt_buffer *b = &w->slices[weight * p->n + i];
        p->bytes[i] = kt_bytes_round(kt_moe_expert_bytes(&slice));
        KT_TRY(kt_weights_take(w, r->pool, here * p->bytes[i], r->nodes->memory[i], b, err));
        place_each(p, away, b->data, p->bytes[i], p->at + (size_t)i * n);
    }
    return KT_OK;
}

kt_status kt_weights_place(kt_weights *w, const kt_weights_request *r, int weight, uint8_t *base,
                           kt_placing *p, kt_err *err) {
    const kt_weight *of = &r->graph->weights[weight];
    const kt_problem_plan *part = kt_model_plan_run(r->plan, weight, 0);
    const size_t n = (size_t)part->problem.experts;

    *p = (kt_placing){.n = r->nodes->n, .count = part->problem.experts, .bytes = {part->bytes}};
    p->whole = layer_of(part, of->use == KT_USE_EXPERTS ? &r->plan->layer.cuts : NULL);
    p->at = kt_arena_alloc(&w->arena, sizeof *p->at * n * (size_t)p->n, sizeof *p->at);
    if (!p->at) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %d", of->layer);
    if (p->n > 1) return place_slices(w, r, weight, p, err);
    place_each(p, r->plan->away ? &r->plan->away[weight] : NULL, base, part->bytes, p->at);
    return KT_OK;
}

kt_status kt_weights_finish_experts(kt_weights *weights, int weight, const kt_placing *p,
                                    kt_err *err) {
    kt_loaded *w = &weights->loaded[weight];
    const size_t n = (size_t)p->count;
    kt_moe_layer *parts;

    w->experts = p->whole;
    if (p->n == 1) {
        w->experts.experts = (const void *const *)p->at;
        return KT_OK;
    }
    parts = kt_arena_alloc(&weights->arena, sizeof *parts * (size_t)p->n, sizeof(void *));
    if (!parts) return kt_fail(err, KT_E_NOMEM, "no memory for the memory nodes of experts");
    for (int i = 0; i < p->n; i++)
        parts[i] = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1],
                                      (const void *const *)(p->at + (size_t)i * n));
    w->node_experts = parts;
    return KT_OK;
}

static kt_status load_experts(loader *l, int weight, kt_err *err) {
    uint8_t *base = NULL;
    kt_placing place;

    if (l->request->nodes->n == 1) {
        base = take(l, kt_model_plan_bytes(l->request->plan, weight));
        if (!base) return KT_OK; /* told at the layer's end */
    }
    KT_TRY(kt_weights_place(l->weights, l->request, weight, base, &place, err));
    KT_TRY(kt_packer_experts(&l->packer, weight, 0, &place, err));
    return kt_weights_finish_experts(l->weights, weight, &place, err);
}

/* ---- vectors, routers, tables ---- */

static kt_status load_small(loader *l, int weight, kt_err *err) {
    kt_loaded *to = &l->weights->loaded[weight];
    const kt_tensor *t;
    uint8_t *out;
    size_t bytes;

    KT_TRY(kt_packer_find_small(&l->packer, weight, &t, &bytes, err));
    if (!t) return KT_OK;
    to->format = kt_weight_kept_as(&l->request->graph->weights[weight]);
    to->data[0] = out = take(l, bytes);
    if (out) kt_packer_small(&l->packer, weight, t, out);
    return KT_OK;
}

/* ---- the whole ---- */

static kt_status load_weight(loader *l, int weight, kt_err *err) {
    if (l->request->plan->away && l->request->plan->away[weight].is_whole) return KT_OK;
    switch (l->request->graph->weights[weight].kind) {
    case KT_WEIGHT_MATRIX: return load_matrix(l, weight, err);
    case KT_WEIGHT_HEADS: return load_heads(l, weight, err);
    case KT_WEIGHT_EXPERTS: return load_experts(l, weight, err);
    default: return load_small(l, weight, err);
    }
}

/* Weights of one layer (layers = outside), whose buffer has `bytes`. */
static kt_status load_layer(loader *l, int64_t layer, size_t bytes, kt_err *err) {
    const kt_graph *g = l->request->graph;

    KT_TRY(watch_layer(l, layer, err));
    if (bytes > 0) { /* else another device has it, or the memory nodes have all of it */
        KT_TRY(kt_buffer_reserve(bytes, KT_PAGES_ADVISED, -1, &l->weights->buffers[layer], err));
        l->weights->bytes += l->weights->buffers[layer].bytes;
        KT_TRY(kt_packer_fresh(&l->packer, &l->weights->buffers[layer], err));
    }
    l->base = l->weights->buffers[layer].data;
    l->used = 0;
    l->limit = bytes;
    for (int i = 0; i < g->n_weights; i++) {
        const int64_t of = g->weights[i].layer < 0 ? g->numbers.layers : g->weights[i].layer;
        if (of == layer) KT_TRY(load_weight(l, i, err));
    }
    if (l->used <= l->limit) return kt_packer_fresh(&l->packer, NULL, err);
    return kt_fail(err, KT_E_INTERNAL, "layer %lld needs more than the %zu bytes counted",
                   (long long)layer, bytes);
}

/* Between layers: did a thread fail, does the caller still want the model? */
static kt_status pause_here(const loader *l, kt_err *err) {
    const kt_weights_request *r = l->request;

    KT_TRY(kt_packer_failure(&l->packer, err));
    if (r->cancel && r->cancel(r->cancel_arg))
        return kt_fail(err, KT_E_CANCELLED, "loading was interrupted");
    return KT_OK;
}

static kt_status run_load(loader *l, size_t *bytes, kt_err *err) {
    const kt_graph *g = l->request->graph;
    const int64_t layers = g->numbers.layers;

    KT_TRY(kt_packer_check(&l->packer, err));
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const size_t size = kt_model_plan_bytes(l->request->plan, i);
        if (w->kind != KT_WEIGHT_EXPERTS || l->request->nodes->n == 1)
            bytes[w->layer < 0 ? layers : w->layer] += size;
    }
    KT_TRY(kt_packer_start(&l->packer, err));
    for (int64_t i = layers; i >= 0; i--) {
        const int64_t layer = i == layers ? layers : layers - 1 - i;
        KT_TRY(load_layer(l, layer, bytes[layer], err));
        KT_TRY(pause_here(l, err));
    }
    return KT_OK;
}

static kt_weights *create(const kt_graph *graph, int n_nodes) {
    kt_weights *w = calloc(1, sizeof *w);

    if (!w) return NULL;
    w->graph = graph;
    w->loaded = calloc((size_t)graph->n_weights, sizeof *w->loaded);
    w->buffers = calloc((size_t)graph->numbers.layers + 1, sizeof *w->buffers);
    w->slices = calloc((size_t)graph->n_weights * (size_t)n_nodes, sizeof *w->slices);
    w->n_nodes = n_nodes;
    if (w->loaded && w->buffers && w->slices) return w;
    kt_weights_destroy(w);
    return NULL;
}

static kt_status pack(kt_weights *w, const kt_weights_request *request, kt_err *err) {
    loader l = {.request = request, .weights = w};
    const kt_packer_request packing = {.checkpoint = request->checkpoint,
                                       .graph = request->graph,
                                       .plan = request->plan,
                                       .importance = request->importance,
                                       .allow_nonfinite = request->allow_nonfinite,
                                       .has_twins = request->has_twins,
                                       .n_nodes = request->nodes->n,
                                       .pool = request->pool,
                                       .log = request->log};
    size_t *bytes = calloc((size_t)request->graph->numbers.layers + 1, sizeof *bytes);
    kt_status st = bytes ? kt_packer_init(&l.packer, &packing, err)
                         : kt_fail(err, KT_E_NOMEM, "no memory for the model");

    if (st == KT_OK) st = run_load(&l, bytes, err);
    kt_packer_deinit(&l.packer);
    free(bytes);
    return st;
}

kt_status kt_weights_load(const kt_weights_request *request, kt_weights **out, kt_err *err) {
    kt_weights *w = create(request->graph, request->nodes->n);
    kt_status st;

    *out = NULL;
    if (!w) return kt_fail(err, KT_E_NOMEM, "no memory for the model");
    st = kt_checkpoint_panels(request->checkpoint) ? kt_weights_map_panels(w, request, err)
                                                   : pack(w, request, err);
    if (st != KT_OK) {
        kt_weights_destroy(w);
        return st;
    }
    *out = w;
    return KT_OK;
}

void kt_weights_destroy(kt_weights *w) {
    if (!w) return;
    for (int64_t i = 0; w->buffers && i <= w->graph->numbers.layers; i++)
        kt_buffer_destroy(&w->buffers[i]);
    for (int i = 0; w->slices && i < w->graph->n_weights * w->n_nodes; i++)
        kt_buffer_destroy(&w->slices[i]);
    kt_checkpoint_close(w->panels);
    kt_arena_deinit(&w->arena);
    free(w->slices);
    free(w->loaded);
    free(w->buffers);
    free(w);
}

const kt_loaded *kt_weights_at(const kt_weights *w, int weight) {
    return &w->loaded[weight];
}

void kt_weights_embed(const kt_weights *w, int32_t token, float *out, double *scratch) {
    const kt_weight *table = &w->graph->weights[w->graph->embedding];
    const kt_loaded *at = &w->loaded[w->graph->embedding];
    kt_matrix rows = {.format = at->format, .n = table->n, .k = table->k, .data = at->data[0]};
    kt_tensor row = {.dtype = at->format == KT_W_BF16 ? KT_DTYPE_BF16 : KT_DTYPE_F32,
                     .data = at->data[0]};

    if (at->format == KT_W_BF16 || at->format == KT_W_F32) {
        kt_tensor_read_f32(&row, token * table->k, table->k, out);
        return;
    }
    kt_format_find(at->format)->decode_row(&rows, token, scratch);
    for (int64_t i = 0; i < table->k; i++) out[i] = (float)scratch[i];
}

size_t kt_weights_bytes(const kt_weights *w) {
    return w->bytes;
}
