/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/synthetic_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "dispatch/model/resolve.h"
#include "runtime/model/synthetic_blocks.h"

#define MAX_WORKLOAD_BYTES ((size_t)1 << 20)
#define DISTINCT_EXPERTS 4
#define STRIDE 1184 /* elements between the beginnings of different tensors in a pool: 37 lines */
#define BLOCK_STRIDE 37 /* blocks, likewise */

/* ---- shape ---- */

static kt_status find_workload(const char *name, kt_model_dir *out, kt_err *err) {
    kt_model_ref ref;

    KT_TRY(kt_model_resolve(name, 1u << KT_MODEL_WORKLOAD, &ref, err));
    strcpy(out->name, ref.name);
    strcpy(out->folder, ref.path);
    return KT_OK;
}

/* value * part / all, rounded up to a multiple of step. */
static int64_t scaled(int64_t value, int64_t part, int64_t all, int64_t step) {
    return (value * part + all * step - 1) / (all * step) * step;
}

/* The config with `layers` layers as a JSON text. Leading dense layers are rounded to nearest. */
static void rewrite(const kt_json *config, int64_t layers, int64_t all, kt_json_writer *w) {
    kt_json_begin_object(w);
    for (size_t i = 0; i < kt_json_length(config); i++) {
        const char *key;
        const kt_json *v = kt_json_member(config, i, &key, NULL);
        kt_json_key(w, key);
        if (strcmp(key, "num_hidden_layers") == 0)
            kt_json_put_int(w, layers);
        else if (strcmp(key, "vocab_size") == 0)
            kt_json_put_int(w, scaled(kt_json_int(v, 0), layers, all, 64));
        else if (strcmp(key, "first_k_dense_replace") == 0)
            kt_json_put_int(w, (kt_json_int(v, 0) * layers * 2 + all) / (2 * all));
        else
            kt_json_put_value(w, v);
    }
    kt_json_end_object(w);
}

static kt_status configure(const kt_json *config, const char *where, kt_model_dir *out,
                           kt_err *err) {
    const kt_graph_request request = {.source = {.json = config, .arch = "", .where = where}};
    return kt_graph_build(&request, &out->graph, err);
}

/* Store the feed-forward matrices of all layers in blocks. */
static void store_blocks(kt_graph *g, kt_weight_format format) {
    for (int i = 0; i < g->n_weights; i++)
        for (int p = 0; g->weights[i].kind == KT_WEIGHT_EXPERTS && p < g->weights[i].n_parts; p++) {
            g->weights[i].part[p].stored = format;
            g->weights[i].part[p].encoding = KT_STORED_BLOCKS;
        }
}

static kt_status configure_layers(const kt_json *workload, int64_t layers, kt_model_dir *out,
                                  int64_t *all, kt_err *err) {
    const kt_json *config = kt_json_get(workload, "config");
    kt_json_writer w = {0};
    kt_json_doc *doc = NULL;
    const char *text;
    size_t size = 0;
    kt_status st;

    if (!config)
        return kt_fail(err, KT_E_NOT_FOUND, "%.200s: has no 'config' to make a model from",
                       out->folder);
    KT_TRY(kt_json_need_int(config, "num_hidden_layers", 1, KT_MAX_LAYERS, out->name, all, err));
    if (layers < 0 || layers > *all)
        return kt_fail(err, KT_E_INVALID, "%lld layers of %s: expected 1 to %lld",
                       (long long)layers, out->name, (long long)*all);
    rewrite(config, layers ? layers : *all, *all, &w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &doc, err)
              : kt_fail(err, KT_E_NOMEM, "no memory for a config");
    if (st == KT_OK) st = configure(kt_json_root(doc), out->name, out, err);
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    return st;
}

/* The format that a key of a workload names; without the key `otherwise`. */
static kt_status read_native(const kt_json *workload, const char *key, const char *where,
                             kt_weight_format otherwise, const kt_format **out, kt_err *err) {
    const char *word = kt_json_string(kt_json_get(workload, key), NULL);
    const int id = word ? kt_weight_format_parse(word) : (int)otherwise;

    *out = id > 0 ? kt_format_find((kt_weight_format)id) : NULL;
    if (*out) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: %s is '%.40s', expected a format", where, key, word);
}

/* As published, without a checkpoint to look at. Few bits are of the routed experts alone, unless
 * the workload says what the others are in. */
static kt_status store_natively(kt_graph *g, const kt_json *workload, const char *where,
                                kt_err *err) {
    const kt_format *experts, *others;

    KT_TRY(read_native(workload, "native_weights", where, KT_W_BF16, &experts, err));
    KT_TRY(read_native(workload, "native_linear", where,
                       experts->bits < 8 ? KT_W_BF16 : experts->id, &others, err));
    for (int i = 0; i < g->n_weights; i++) {
        kt_weight *w = &g->weights[i];
        const bool is_feed_forward = w->kind == KT_WEIGHT_EXPERTS;
        const bool is_linear = w->kind == KT_WEIGHT_MATRIX && w->use == KT_USE_LINEAR;
        const bool is_routed = is_feed_forward && w->use == KT_USE_EXPERTS;
        for (int p = 0; (is_feed_forward || is_linear) && p < w->n_parts; p++)
            w->part[p].stored = is_routed ? experts->id : others->id;
    }
    return KT_OK;
}

static kt_status read_shape(const char *name, int64_t layers, kt_weight_format experts,
                            bool is_native, kt_model_dir *out, int64_t *layers_of_all,
                            kt_err *err) {
    const kt_format *format = kt_format_find(experts);
    kt_json_doc *doc = NULL;
    char *text = NULL;
    size_t size;
    kt_status st;

    KT_TRY(find_workload(name, out, err));
    KT_TRY(kt_file_read(out->folder, MAX_WORKLOAD_BYTES, &text, &size, err));
    st = kt_json_parse(text, size, NULL, &doc, err);
    free(text);
    if (st != KT_OK) return kt_fail_prefix(err, st, "%.200s", out->folder);
    out->shape_id = kt_model_shape_id(kt_json_get(kt_json_root(doc), "config"));
    st = configure_layers(kt_json_root(doc), layers, out, layers_of_all, err);
    if (st == KT_OK && is_native)
        st = store_natively(&out->graph, kt_json_root(doc), out->folder, err);
    kt_json_destroy(doc);
    if (st == KT_OK && format && format->block_bytes) store_blocks(&out->graph, experts);
    return st;
}

kt_status kt_synthetic_dir(const char *name, int64_t layers, kt_weight_format experts,
                           kt_model_dir *out, int64_t *layers_of_all, kt_err *err) {
    int64_t all = 0;
    kt_status st;

    memset(out, 0, sizeof *out);
    st = read_shape(name, layers, experts, false, out, &all, err);
    if (st == KT_OK)
        *layers_of_all = all;
    else
        kt_model_dir_deinit(out);
    return st;
}

kt_status kt_published_dir(const char *name, kt_model_dir *out, kt_err *err) {
    int64_t all;
    kt_status st;

    memset(out, 0, sizeof *out);
    st = read_shape(name, 0, KT_W_NONE, true, out, &all, err);
    if (st != KT_OK) kt_model_dir_deinit(out);
    return st;
}

/* ---- tensors ---- */

enum { POOL_OTHER, POOL_ROUTER, POOL_EMBEDDING, POOL_ONES, POOL_BLOCKS, POOL_IDS, N_POOLS };

static const double deviation[N_POOLS] = {
    KT_SYNTHETIC_OTHER, KT_SYNTHETIC_ROUTER, KT_SYNTHETIC_EMBEDDING, 0, KT_SYNTHETIC_OTHER, 0};

typedef struct builder {
    const kt_model_dir *dir;
    kt_arena arena; /* names */
    kt_tensor *tensors;
    size_t *first; /* byte of its pool that a tensor begins with */
    size_t count, capacity;
    const kt_format *blocks; /* of the feed-forward matrices, or NULL */
    int64_t ids;             /* what the tables of experts by token count to; 0 = there are none */
    int is_short;            /* of memory */
    size_t pool_bytes[N_POOLS];
} builder;

static int pool_of(const kt_weight *w, int part) {
    if (w->kind == KT_WEIGHT_TABLE) return POOL_EMBEDDING;
    if (w->kind == KT_WEIGHT_ROUTER) return POOL_ROUTER;
    if (w->ids) return POOL_IDS;
    if (w->part[part].encoding == KT_STORED_BLOCKS) return POOL_BLOCKS;
    return w->kind == KT_WEIGHT_VECTOR && strstr(w->part[0].name.json, "norm") ? POOL_ONES
                                                                               : POOL_OTHER;
}

static int has_room(builder *b) {
    size_t capacity = 2 * b->capacity + 256;
    kt_tensor *tensors;
    size_t *first;

    if (b->count < b->capacity) return 1;
    tensors = realloc(b->tensors, capacity * sizeof *tensors);
    if (tensors) b->tensors = tensors;
    first = realloc(b->first, capacity * sizeof *first);
    if (first) b->first = first;
    b->is_short |= !tensors || !first;
    if (!b->is_short) b->capacity = capacity;
    return !b->is_short;
}

/* Where a tensor begins in its pool: kinds of tensors, and a few experts, apart from each other. */
static size_t first_of(const kt_weight *w, int kind, int64_t expert) {
    if (w->kind == KT_WEIGHT_ROUTER) return STRIDE * (size_t)w->layer;
    return STRIDE * (size_t)(kind * DISTINCT_EXPERTS + expert % DISTINCT_EXPERTS);
}

/* Until the pools exist a tensor's `file` holds its pool. */
static void add(builder *b, const kt_weight *w, int part, int64_t expert, int kind) {
    kt_weight_part whole = w->part[part];
    const kt_weight_part *p = &w->part[part];
    const kt_format *f = kt_format_find(p->stored);
    kt_tensor t = {.dtype = KT_DTYPE_BF16, .file = pool_of(w, part), .rank = 2};
    size_t first;
    char name[256];

    kt_weight_name(&b->dir->graph, w, part, expert, true, name, sizeof name - 8);
    if (w->kind != KT_WEIGHT_VECTOR) strcat(name, ".weight");
    if (w->at > 0) return; /* the tensor is there: another vector's, too */
    t.name = kt_arena_strndup(&b->arena, name, strlen(name));
    b->is_short |= !t.name;
    if (!has_room(b)) return;
    t.shape[0] = p->n;
    t.shape[1] = p->k;
    if (w->kind == KT_WEIGHT_VECTOR) t.rank = 1;
    if (w->rows) {
        whole.n *= w->step ? w->step : 1;
        t.rank = 2;
        t.shape[0] = w->rows;
        t.shape[1] = whole.n / w->rows;
        p = &whole;
    }
    if (t.file == POOL_BLOCKS) {
        t.dtype = KT_DTYPE_U8;
        t.blocks = p->stored;
        t.bytes = (size_t)(p->n * (p->k / f->block) * f->block_bytes);
        first = first_of(w, kind, expert) / STRIDE * BLOCK_STRIDE * (size_t)f->block_bytes;
        b->blocks = f;
    } else if (t.file == POOL_IDS) {
        t.dtype = KT_DTYPE_I32;
        t.bytes = sizeof(int32_t) * (size_t)(p->n * p->k);
        first = 0;
        b->ids = w->ids;
    } else {
        t.bytes = sizeof(uint16_t) * (size_t)(p->n * p->k);
        first = first_of(w, kind, expert) * sizeof(uint16_t);
    }
    if (first + t.bytes > b->pool_bytes[t.file]) b->pool_bytes[t.file] = first + t.bytes;
    b->first[b->count] = first;
    b->tensors[b->count++] = t;
}

/* All heads are rows of one tensor, which the halves of a head have in common. */
static void add_heads(builder *b, const kt_weight *w, int kind) {
    kt_weight whole = *w;

    if (w->head_at > 0) return;
    whole.part[0].n = w->count * w->head_rows;
    whole.part[0].k = w->is_transposed ? w->n : w->k;
    add(b, &whole, 0, 0, kind);
}

/* A number for each kind of tensor, the same in all layers: its place among the layer's weights. */
static void add_all(builder *b) {
    const kt_graph *g = &b->dir->graph;
    int kind = 0, layer = -1;

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        if (w->layer != layer) kind = w->layer < 0 ? 0 : 2;
        layer = w->layer;
        if (w->kind == KT_WEIGHT_HEADS) {
            add_heads(b, w, kind++);
            continue;
        }
        for (int part = 0; !w->is_tied && part < w->n_parts; part++, kind++)
            for (int64_t e = 0; e < w->count; e++) add(b, w, part, e, kind);
    }
}

/* ---- random numbers ---- */

enum { DRAWS = 4096, PICKS_PER_WORD = 5 }; /* twelve random bits pick one of the draws */

static void fill(uint16_t *out, size_t count, double sigma, kt_rng *rng) {
    uint16_t draw[DRAWS];

    for (int i = 0; i < DRAWS; i++)
        draw[i] = kt_f32_to_bf16(sigma > 0 ? (float)sigma * kt_rng_normal(rng) : 1.0f);
    for (size_t i = 0; i < count;) {
        uint64_t bits = kt_rng_u64(rng);
        for (int j = 0; j < PICKS_PER_WORD && i < count; j++, bits >>= 12)
            out[i++] = draw[bits & (DRAWS - 1)];
    }
}

/* Neighbours differ, so a token's experts do. */
static void count_ids(const builder *b, int32_t *out) {
    for (size_t i = 0; i < b->pool_bytes[POOL_IDS] / sizeof *out; i++)
        out[i] = (int32_t)(i % (size_t)b->ids);
}

static kt_status make_pools(builder *b, uint64_t seed, kt_buffer *memory, kt_err *err) {
    size_t begin[N_POOLS], bytes = 0;
    kt_rng rng;

    for (int i = 0; i < N_POOLS; i++) {
        begin[i] = bytes;
        bytes += (b->pool_bytes[i] + 63) / 64 * 64;
    }
    KT_TRY(kt_buffer_create(bytes, KT_PAGES_ADVISED, -1, memory, err));
    count_ids(b, (int32_t *)(void *)((char *)memory->data + begin[POOL_IDS]));
    kt_rng_seed(&rng, seed);
    for (int i = 0; i < POOL_BLOCKS; i++)
        fill((uint16_t *)(void *)((char *)memory->data + begin[i]),
             b->pool_bytes[i] / sizeof(uint16_t), deviation[i], &rng);
    if (b->blocks)
        kt_synthetic_blocks(b->blocks, b->pool_bytes[POOL_BLOCKS] / (size_t)b->blocks->block_bytes,
                            deviation[POOL_BLOCKS], &rng,
                            (uint8_t *)memory->data + begin[POOL_BLOCKS]);
    for (size_t i = 0; i < b->count; i++) {
        kt_tensor *t = &b->tensors[i];
        t->data = (const uint8_t *)memory->data + begin[t->file] + b->first[i];
    }
    return KT_OK;
}

kt_status kt_synthetic_checkpoint(const kt_model_dir *dir, uint64_t seed, kt_checkpoint **out,
                                  kt_err *err) {
    builder b = {.dir = dir};
    kt_buffer memory = {0};
    kt_status st;

    *out = NULL;
    add_all(&b);
    st = b.is_short ? kt_fail(err, KT_E_NOMEM, "no memory for the tensors of %s", dir->name)
                    : make_pools(&b, seed, &memory, err);
    if (st == KT_OK) st = kt_checkpoint_of_memory(dir->name, b.tensors, b.count, &memory, out, err);
    kt_arena_deinit(&b.arena);
    free(b.tensors);
    free(b.first);
    return st;
}
