/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_attn.h"

#include <string.h>

#include "base/err.h"

enum { SPLIT = 0, JOIN = 1 /* entries of attn_decode and attn_latent */, MAX_GRID_Y = 65535 };

/* ---- shapes and kernels ---- */

static const kt_cuda_kernel *kernel_of(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    return NULL;
}

int32_t kt_device_attn_cache(kt_weight_format format) {
    return format == KT_W_INT8_CHANNEL  ? KT_ATTN_INT8
           : format == KT_W_FP8_CHANNEL ? KT_ATTN_FP8
                                        : KT_ATTN_BF16;
}

static kt_attn_shape shape_of(const kt_graph *g, const kt_node *n, kt_weight_format format) {
    const kt_attention *a = &n->attention;
    return (kt_attn_shape){.heads = (int32_t)a->heads,
                           .kv_heads = (int32_t)a->kv_heads,
                           .k = (int32_t)a->k,
                           .v = (int32_t)a->v,
                           .window = (int32_t)a->window,
                           .cache = kt_device_attn_cache(format),
                           .is_shared = g->planes[n->plane].v == 0};
}

bool kt_device_attn_find(const char *name, const kt_attn_shape *shape, const kt_cuda_target *target,
                         kt_device_attn_way *out) {
    const kt_cuda_kernel *kernel = kernel_of(name);

    if (!kernel || !kt_attn_config(kernel, shape, target, &out->config)) return false;
    out->kernel = kernel;
    out->pairs = strcmp(name, "attn_decode") == 0 ? 16 : out->config.value[3];
    return true;
}

static bool find_ways(const kt_attn_shape *shape, const kt_cuda_target *target,
                      kt_device_attn_way *few, kt_device_attn_way *many) {
    memset(many, 0, sizeof *many);
    memset(few, 0, sizeof *few);
    if (shape->is_shared) return kt_device_attn_find("attn_latent", shape, target, few);
    return kt_device_attn_find("attn_decode", shape, target, few) &&
           kt_device_attn_find("attn_prefill", shape, target, many);
}

/* Tiles of max_rows rows: each span has one that is not full, each row one if they are bound. */
static int64_t most_tiles(const kt_attn_shape *shape, int pairs, int64_t max_rows) {
    return max_rows * (shape->heads / shape->kv_heads / pairs + 1) + 1;
}

const char *kt_device_attn_refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_attn_shape shape = shape_of(ask->graph, n, ask->kv.format);
    kt_device_attn_way few, many;

    if (ask->kv.head_dim != n->attention.k) return "pages have rows of another size than keys";
    if (!shape.is_shared && shape.v != shape.k)
        return "pages have rows of another size than values";
    if (ask->max_context >= 1 << 30) return "contexts of over 2^30 tokens";
    if (!find_ways(&shape, ask->target, &few, &many))
        return shape.is_shared
                   ? "latent rows that attn_latent has no code for (sizes of 32, values "
                     "of 16 up to 512)"
                   : "heads that attn_decode or attn_prefill has no code for (sizes of "
                     "16 up to 256)";
    if (most_tiles(&shape, few.pairs, ask->max_rows) > MAX_GRID_Y)
        return "steps of so many rows have more tiles than a grid has";
    return NULL;
}

/* ---- setting up ---- */

int kt_device_processors(const kt_device_step *d) {
    const int n = kt_device_about(d->device)->multiprocessors;
    return n > 0 ? n : 1;
}

size_t kt_device_attn_scratch(const kt_device_attn *a, const kt_device_step *d) {
    const size_t bytes = kt_attn_most_part_bytes(&a->shape, a->few.pairs, kt_device_processors(d));
    return (bytes + 255) / 256 * 256;
}

static bool is_same(const kt_device_attn *a, const kt_attn_shape *s, int32_t topk, int64_t most) {
    return a->topk == topk && a->most == most && a->shape.heads == s->heads &&
           a->shape.kv_heads == s->kv_heads && a->shape.k == s->k && a->shape.v == s->v &&
           a->shape.window == s->window && a->shape.cache == s->cache &&
           a->shape.is_shared == s->is_shared;
}

/* Nodes of a step lie as the graph's do. */
static kt_device_attn *find_shared(const kt_device_node *n, const kt_attn_shape *shape,
                                   int32_t topk, int64_t most) {
    const kt_device_node *first = n - (n->node - n->step->graph->nodes);

    for (const kt_device_node *e = first; e < n; e++) {
        const bool is_attention =
            e->op && e->state &&
            (e->node->kind == KT_NODE_ATTEND || e->node->kind == KT_NODE_ATTEND_SPARSE ||
             e->node->kind == KT_NODE_ATTEND_BLOCKS);
        if (is_attention && is_same(*(kt_device_attn *const *)e->state, shape, topk, most))
            return *(kt_device_attn *const *)e->state;
    }
    return NULL;
}

kt_status kt_device_attn_init(kt_device_node *n, int32_t topk, int64_t most, kt_device_attn **out,
                              kt_err *err) {
    kt_device_step *d = n->step;
    const kt_attn_shape shape = shape_of(d->graph, n->node, d->plan->kv);
    kt_device_attn *a = find_shared(n, &shape, topk, most);

    *out = a;
    if (a) return KT_OK;
    a = kt_device_step_alloc(d, sizeof *a);
    if (!a) return kt_fail(err, KT_E_NOMEM, "no memory for attention");
    *a = (kt_device_attn){.shape = shape, .topk = topk, .most = most};
    if (!find_ways(&shape, kt_device_about(d->device)->target, &a->few, &a->many))
        return kt_fail(err, KT_E_UNSUPPORTED, "attention of heads of %d numbers: no device code",
                       (int)shape.k);
    a->room = kt_device_step_alloc(d, (size_t)most_tiles(&a->shape, a->few.pairs, d->max_rows) *
                                          sizeof *a->room);
    if (!a->room) return kt_fail(err, KT_E_NOMEM, "no memory for tiles of attention");
    KT_TRY(kt_device_step_code(d, a->few.kernel->name, &a->few.config, &a->few.code, err));
    if (a->many.kernel)
        KT_TRY(kt_device_step_code(d, a->many.kernel->name, &a->many.config, &a->many.code, err));
    kt_device_step_need(d, kt_device_attn_scratch(a, d));
    *out = a;
    return KT_OK;
}

kt_status kt_device_attn_sinks(kt_device_node *n, const float **out, kt_err *err) {
    const void *sinks = NULL;

    if (n->node->weight3 >= 0)
        KT_TRY(kt_device_load_small(n->step, n->node->weight3, &sinks, NULL, err));
    *out = sinks;
    return KT_OK;
}

/* ---- lists of a step ---- */

static bool goes(const kt_device_attn *a, const kt_device_attn_way *way,
                 const kt_attn_sequence *s) {
    if (!a->many.kernel) return way == &a->few;
    return (way == &a->few) == kt_attn_is_few(&a->shape, s);
}

/* The last rows of a sequence meet most keys: their tiles come first. */
static void turn(kt_attn_tile *tile, int64_t n) {
    for (int64_t i = 0; i < n / 2; i++) {
        const kt_attn_tile x = tile[i];
        tile[i] = tile[n - 1 - i];
        tile[n - 1 - i] = x;
    }
}

static kt_status list_tiles(kt_device_attn *a, kt_device_attn_way *way, kt_device_step *d,
                            kt_err *err) {
    const void *at = NULL;

    way->tiles = way->longest = 0;
    if (!way->kernel) return KT_OK;
    for (int i = 0; i < d->n_spans; i++) {
        const kt_device_span *span = &d->host_span[i];
        const kt_attn_sequence s = {span->first_row, span->rows, span->position,
                                    d->host_first_page[i]};
        int64_t keys = (int64_t)span->position + span->rows;
        if (!goes(a, way, &s) || (a->most && keys > a->most)) continue;
        if (a->shape.window && keys > a->shape.window) keys = a->shape.window + span->rows - 1;
        if (a->topk && keys > a->topk) keys = a->topk;
        if (keys > way->longest) way->longest = keys;
        way->tiles +=
            kt_attn_cut_rows(&a->shape, &s, way->pairs, a->topk > 0, a->room + way->tiles);
    }
    turn(a->room, way->tiles);
    if (way->tiles == 0) return KT_OK;
    KT_TRY(kt_device_stage(d, a->room, (size_t)way->tiles * sizeof *a->room, &at, err));
    way->tile = at;
    way->splits = 1;
    way->split_keys = 1 << 30;
    if (way == &a->few)
        kt_attn_cut_keys(&a->shape, way->tiles, way->longest, kt_device_processors(d),
                         &way->split_keys, &way->splits);
    return KT_OK;
}

static kt_status make_lists(kt_device_attn *a, kt_device_step *d, kt_err *err) {
    if (a->has_lists && a->step == d->number) return KT_OK;
    a->has_lists = false;
    KT_TRY(list_tiles(a, &a->few, d, err));
    KT_TRY(list_tiles(a, &a->many, d, err));
    a->has_lists = true;
    a->step = d->number;
    return KT_OK;
}

/* ---- launches ---- */

kt_attn_kept kt_device_attn_kept(const kt_device_step *d, int cache, int plane, int which) {
    const kt_device_pages *p = &d->pages;
    const int64_t row = p->shape.head_dim * (cache == KT_ATTN_BF16 ? 2 : 1);
    const int64_t first = p->plane_row[plane] + which * p->shape.kv_heads * p->n * KT_ATTN_PAGE;

    return (kt_attn_kept){.rows = p->rows + first * row,
                          .scale = p->scales ? p->scales + first : NULL,
                          .row = row,
                          .page = KT_ATTN_PAGE * row,
                          .head = p->n * KT_ATTN_PAGE * row,
                          .scale_head = p->n * KT_ATTN_PAGE};
}

kt_status kt_device_attn_put_way(kt_device_step *d, int32_t kv_heads, const kt_device_attn_way *way,
                                 const kt_attn_paged *common, kt_err *err) {
    const size_t shared = way->kernel ? way->kernel->shared_bytes(&way->config, 0) : 0;
    const int y = (int)way->tiles;
    kt_attn_paged call = *common;

    if (way->tiles == 0) return KT_OK;
    call.tile = way->tile;
    call.splits = way->splits;
    call.split_keys = way->split_keys;
    KT_TRY(kt_device_put(d, way->code, SPLIT, kv_heads * way->splits, y, shared, &call, sizeof call,
                         err));
    if (way->splits == 1) return KT_OK;
    return kt_device_put(d, way->code, JOIN, kv_heads * way->pairs, y, shared, &call, sizeof call,
                         err);
}

kt_status kt_device_attn_put(kt_device_node *n, kt_device_attn *a, const float *sink,
                             const int32_t *picked, kt_err *err) {
    const kt_device_step *d = n->step;
    const int plane = n->node->plane;
    kt_attn_paged call = {.q = n->in.x,
                          .ldq = n->in.ld,
                          .k = kt_device_attn_kept(d, a->shape.cache, plane, 0),
                          .v = kt_device_attn_kept(d, a->shape.cache, plane, !a->shape.is_shared),
                          .position = d->position,
                          .page = d->page,
                          .sink = sink,
                          .picked = picked,
                          .topk = a->topk,
                          .out = n->out.x,
                          .ldo = n->out.ld,
                          .part = d->scratch,
                          .scale = (float)n->node->attention.scale,
                          .heads = a->shape.heads,
                          .kv_heads = a->shape.kv_heads,
                          .window = a->shape.window};

    KT_TRY(make_lists(a, n->step, err));
    KT_TRY(kt_device_attn_put_way(n->step, a->shape.kv_heads, &a->few, &call, err));
    return kt_device_attn_put_way(n->step, a->shape.kv_heads, &a->many, &call, err);
}
