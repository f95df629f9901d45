/* Loading weights: everything that can be wrong with a checkpoint is found before the first byte is
 * packed, so that the packing tasks cannot fail.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weights.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/err.h"
#include "runtime/loader/finite.h"
#include "runtime/model/tensor_map.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define ROWS_PER_TASK 128 /* a block of rows that share scales is not cut */
#define VALUES_PER_TASK (1 << 20)

static const kt_role biases[] = {KT_ROLE_Q_BIAS, KT_ROLE_K_BIAS, KT_ROLE_V_BIAS, KT_ROLE_O_BIAS};
enum { N_BIASES = sizeof biases / sizeof *biases };

struct kt_weights {
    const kt_model_config *config;
    kt_arena arena;
    kt_layer_weights *layers;
    const float *final_norm;
    const void *head, *embedding;
    kt_weight_format embedding_format;
    kt_buffer *buffers; /* one per layer, the last for embedding and head */
    kt_buffer *slices;  /* [layers][nodes] of the experts, when they are split */
    int n_nodes;
    size_t bytes;
};

/* An expert that is packed, and the stored bytes it was made of. */
typedef struct twin {
    const kt_part_plan *part;
    const uint8_t *stored[3];
    uint8_t *const *placed;
} twin;

#define MAX_TWINS 16

/* State of one load. staging holds one plain matrix for all threads, or a slice per thread for the
 * three matrices of an expert. */
typedef struct loader {
    const kt_weights_request *request;
    kt_weights *weights;
    kt_tensor_map map;
    kt_buffer staging;
    size_t staging_slice, staging_expert; /* of a thread; of them for an expert before it is cut */
    float *scratch;                       /* [threads][KT_SOURCE_BLOCK * widest k] */
    size_t scratch_floats;
    uint8_t *base; /* bump allocation in the current buffer */
    size_t used, limit;
    atomic_int bad; /* a row could not be taken */
    kt_err why;     /* of the first that could not */
    twin twins[MAX_TWINS];
    int n_twins;
} loader;

static size_t round64(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* NULL when the buffer is full; the caller compares `used` with `limit` at the end. */
static void *take(loader *l, size_t bytes) {
    size_t begin = l->used;

    l->used += round64(bytes);
    return l->used <= l->limit ? l->base + begin : NULL;
}

/* ---- sizes ---- */

/* Routers and the embedding keep BF16; other float types are widened. */
static size_t stored_bytes(const kt_tensor *t) {
    size_t bytes = t->dtype == KT_DTYPE_F16 ? 2 * t->bytes : t->bytes;
    return round64(bytes);
}

/* Find and check all tensors of a layer; adds what its buffer must hold. */
static kt_status measure_layer(loader *l, int64_t layer, size_t *bytes, kt_err *err) {
    const kt_model_config *c = l->request->config;
    const kt_model_plan *plan = l->request->plan;
    static const kt_role norms[] = {KT_ROLE_ATTN_NORM, KT_ROLE_FFN_NORM, KT_ROLE_Q_NORM,
                                    KT_ROLE_K_NORM};
    const kt_part_plan *ffn = &plan->part[c->is_moe[layer] ? KT_PART_EXPERT : KT_PART_DENSE];
    int n_biases = c->attention_bias ? N_BIASES : 0;
    kt_matrix_source source[3];
    const kt_tensor *t;

    *bytes = plan->part[KT_PART_QKV].bytes + plan->part[KT_PART_O].bytes;
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        KT_TRY(kt_tensor_map_need(&l->map, norms[i], layer, 0, &t, err));
        *bytes += round64(sizeof(float) * (size_t)t->shape[0]);
    }
    for (int i = 0; i < n_biases; i++) {
        KT_TRY(kt_tensor_map_need(&l->map, biases[i], layer, 0, &t, err));
        *bytes += round64(sizeof(float) * (size_t)t->shape[0]);
    }
    KT_TRY(kt_tensor_map_qkv(&l->map, layer, source, err));
    KT_TRY(kt_tensor_map_linear(&l->map, KT_ROLE_O, layer, source, err));
    for (int64_t e = 0; e < ffn->problem.experts; e++)
        KT_TRY(kt_tensor_map_expert(&l->map, layer, e, source, err));
    if (l->request->nodes->n == 1) *bytes += (size_t)ffn->problem.experts * ffn->bytes;
    if (!c->is_moe[layer]) return KT_OK;
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_ROUTER, layer, 0, &t, err));
    *bytes += stored_bytes(t);
    return KT_OK;
}

/* lm_head of its own, or the embedding when tied or absent. */
static kt_status head_source(loader *l, kt_matrix_source *out, kt_err *err) {
    char name[160];
    int tied;

    kt_family_tensor_name(l->request->family, KT_ROLE_LM_HEAD, 0, 0, name, sizeof name);
    tied = l->request->config->tied || !kt_checkpoint_find(l->request->checkpoint, name);
    return kt_tensor_map_linear(&l->map, tied ? KT_ROLE_EMBED : KT_ROLE_LM_HEAD, 0, out, err);
}

static kt_status measure_ends(loader *l, size_t *bytes, kt_err *err) {
    kt_matrix_source head;
    const kt_tensor *t;

    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_FINAL_NORM, 0, 0, &t, err));
    *bytes = round64(sizeof(float) * (size_t)t->shape[0]);
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_EMBED, 0, 0, &t, err));
    *bytes += stored_bytes(t);
    KT_TRY(head_source(l, &head, err));
    *bytes += l->request->plan->part[KT_PART_HEAD].bytes;
    return KT_OK;
}

static size_t plain_size(const kt_problem *p, int64_t n, int64_t k) {
    size_t data, scales;

    kt_format_find(p->weights)->plain_bytes(n, k, &data, &scales);
    return round64(data) + round64(scales);
}

/* Staging for the largest dense matrix and for one expert per thread, and conversion scratch. */
static kt_status make_staging(loader *l, kt_err *err) {
    const kt_part_plan *part = l->request->plan->part;
    int threads = kt_pool_threads(l->request->pool);
    size_t whole = 0, slice = 0;
    int64_t widest = 0;

    for (int i = 0; i < KT_PART_COUNT; i++) {
        const kt_problem *p = &part[i].problem;
        size_t size;
        if (!part[i].is_used) continue;
        widest = p->k > widest ? p->k : widest;
        if (p->op == KT_OP_GEMM) {
            size = plain_size(p, p->n, p->k);
            whole = size > whole ? size : whole;
            continue;
        }
        widest = p->n > widest ? p->n : widest;
        size = 2 * plain_size(p, p->n, p->k) + plain_size(p, p->k, p->n);
        if (l->request->nodes->n > 1 && part[i].bytes > l->staging_expert)
            l->staging_expert = part[i].bytes;
        slice = size > slice ? size : slice;
    }
    slice += l->staging_expert;
    if (slice * (size_t)threads > whole) whole = slice * (size_t)threads;
    l->staging_slice = slice;
    KT_TRY(kt_buffer_create(whole, KT_PAGES_ADVISED, -1, &l->staging, err));
    l->scratch_floats = (size_t)(KT_SOURCE_BLOCK * widest);
    l->scratch = malloc(sizeof *l->scratch * l->scratch_floats * (size_t)threads);
    return l->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for conversion");
}

/* The first failure of any thread is the one that is told. */
static void note_failure(loader *l, const kt_err *why) {
    if (!atomic_exchange(&l->bad, 1)) l->why = *why;
}

/* ---- numbers that are not finite ---- */

/* Returns 0, and notes why, when rows [begin, end) of a matrix must not be loaded. They are about to be
 * packed, so looking at them costs a second pass over what is in a cache. */
static int rows_are_finite(loader *l, const kt_matrix_source *s, int64_t begin, int64_t end) {
    kt_err why;

    if (l->request->allow_nonfinite ||
        kt_matrix_source_check_finite(l->request->checkpoint, s, begin, end, &why) == KT_OK)
        return 1;
    note_failure(l, &why);
    return 0;
}

typedef struct tensor_check {
    loader *loader;
    const kt_tensor *tensor;
    int64_t count;
} tensor_check;

static void check_part(void *arg, int64_t begin, int64_t end, int tid) {
    const tensor_check *t = arg;
    int64_t first = begin * VALUES_PER_TASK, last = end * VALUES_PER_TASK;
    kt_err why;
    (void)tid;

    if (last > t->count) last = t->count;
    if (kt_tensor_check_finite(t->loader->request->checkpoint, t->tensor, first, last - first,
                               &why) != KT_OK)
        note_failure(t->loader, &why);
}

/* A tensor that is no matrix of a plan: norm, bias, router, embedding. */
static void check_tensor(loader *l, const kt_tensor *t) {
    tensor_check check = {l, t, (int64_t)(t->bytes / kt_dtype_bytes(t->dtype))};
    kt_phase phase = {.run = check_part,
                      .arg = &check,
                      .n_tasks = (check.count + VALUES_PER_TASK - 1) / VALUES_PER_TASK};

    if (l->request->allow_nonfinite) return;
    if (phase.n_tasks > 1)
        kt_pool_run(l->request->pool, &phase, 1);
    else
        check_part(&check, 0, 1, 0);
}

/* ---- dense matrices: rows shared out, then packed ---- */

typedef struct dense_task {
    loader *loader;
    const kt_matrix_source *source;
    const kt_format *format; /* NULL: the rows are borrowed, look at them only */
    void *data, *scales;
} dense_task;

static void encode_rows(void *arg, int64_t begin, int64_t end, int tid) {
    dense_task *t = arg;
    int64_t last = end * ROWS_PER_TASK < t->source->rows ? end * ROWS_PER_TASK : t->source->rows;
    float *scratch = t->loader->scratch + (size_t)tid * t->loader->scratch_floats;
    kt_err why;

    if (!rows_are_finite(t->loader, t->source, begin * ROWS_PER_TASK, last)) return;
    if (t->format && kt_matrix_source_encode(t->source, t->format, begin * ROWS_PER_TASK, last,
                                             t->data, t->scales, scratch, &why) != KT_OK)
        note_failure(t->loader, &why);
}

static const void *load_dense(loader *l, kt_part part, const kt_matrix_source *source) {
    const kt_part_plan *p = &l->request->plan->part[part];
    const kt_format *format = kt_format_find(p->problem.weights);
    void *packed = take(l, p->bytes);
    dense_task task = {.loader = l, .source = source};
    kt_phase phase = {.run = encode_rows,
                      .arg = &task,
                      .n_tasks = (source->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK};
    kt_matrix w;

    if (!packed) return NULL;
    if (!kt_matrix_source_borrow(source, p->problem.weights, &w)) {
        size_t data, scales;
        format->plain_bytes(source->rows, source->k, &data, &scales);
        task.format = format;
        task.data = l->staging.data;
        task.scales = scales ? (uint8_t *)l->staging.data + round64(data) : NULL;
        w = (kt_matrix){.format = p->problem.weights,
                        .n = source->rows,
                        .k = source->k,
                        .data = task.data,
                        .scales = task.scales};
    }
    kt_pool_run(l->request->pool, &phase, 1);
    p->choices.choice[0].variant->pack_gemm(&p->problem, &w, packed);
    kt_matrix_source_release(source, l->request->checkpoint);
    return packed;
}

/* ---- experts: one task each ---- */

/* Where the experts of a layer go: whole into the layer's buffer, or a slice of each into every node's memory. */
typedef struct placing {
    kt_moe_layer whole;
    int n;
    int64_t begin[KT_MOE_MAX_NODES + 1]; /* channels of each node */
    size_t bytes[KT_MOE_MAX_NODES];      /* of a slice, rounded up to 64 */
    uint8_t **at;                        /* [n][experts]; in the weights' arena */
} placing;

typedef struct expert_task {
    loader *loader;
    const kt_part_plan *part;
    const placing *place;
    kt_matrix_source (*source)[3];
    uint8_t *const *
        *twin; /* [experts] place.at of the same expert, packed before or by the first pass; NULL */
    int is_copying; /* the second pass */
} expert_task;

static kt_moe_layer layer_of(const kt_part_plan *part, const kt_moe_cuts *cuts) {
    return (kt_moe_layer){.problem = part->problem,
                          .choices = &part->choices,
                          .encode = part->encode.variant,
                          .cuts = cuts};
}

static kt_status cut(const kt_moe_layer *whole, const kt_node_plan *nodes, int64_t *begin,
                     kt_err *err) {
    double share[KT_MOE_MAX_NODES];

    for (int i = 0; i < nodes->n; i++) share[i] = nodes->has_equal_shares ? 1 : nodes->threads[i];
    return kt_moe_cut_channels(whole, share, nodes->n, begin, err);
}

kt_status kt_weights_check_nodes(const kt_model_plan *plan, const kt_node_plan *nodes,
                                 kt_err *err) {
    static const kt_part parts[] = {KT_PART_EXPERT, KT_PART_DENSE};
    int64_t begin[KT_MOE_MAX_NODES + 1];

    for (size_t i = 0; nodes->n > 1 && i < sizeof parts / sizeof *parts; i++) {
        const kt_part_plan *part = &plan->part[parts[i]];
        kt_moe_layer layer = layer_of(part, NULL);
        if (part->is_used) KT_TRY(cut(&layer, nodes, begin, err));
    }
    return KT_OK;
}

/* Memory of a layer's experts, on the nodes that will read it. */
static kt_status place_experts(loader *l, int64_t layer, const kt_part_plan *part, placing *p,
                               kt_err *err) {
    const kt_node_plan *nodes = l->request->nodes;
    const size_t n = (size_t)part->problem.experts;

    *p = (placing){.n = nodes->n, .bytes = {part->bytes}};
    p->whole =
        layer_of(part, l->request->config->is_moe[layer] ? &l->request->plan->layer.cuts : NULL);
    p->at = kt_arena_alloc(&l->weights->arena, sizeof *p->at * n * (size_t)p->n, sizeof *p->at);
    if (!p->at)
        return kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %lld",
                       (long long)layer);
    if (p->n > 1) KT_TRY(cut(&p->whole, nodes, p->begin, err));
    for (int i = 0; i < p->n; i++) {
        uint8_t *base;
        if (p->n > 1) {
            kt_moe_layer slice = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1], NULL);
            kt_buffer *b = &l->weights->slices[layer * p->n + i];
            p->bytes[i] = round64(kt_moe_expert_bytes(&slice));
            KT_TRY(kt_buffer_create(n * p->bytes[i], KT_PAGES_ADVISED, nodes->memory[i], b, err));
            l->weights->bytes += b->bytes;
            base = b->data;
        } else {
            base = take(l, n * part->bytes);
            if (!base)
                return kt_fail(err, KT_E_INTERNAL, "layer %lld has no room for its experts",
                               (long long)layer);
        }
        for (size_t e = 0; e < n; e++) p->at[(size_t)i * n + e] = base + e * p->bytes[i];
    }
    return KT_OK;
}

/* The layers as they run. */
static kt_status finish_layer(loader *l, int64_t layer, const placing *p, kt_err *err) {
    kt_layer_weights *w = &l->weights->layers[layer];
    const size_t n = (size_t)p->whole.problem.experts;
    kt_moe_layer *parts;

    w->ffn = p->whole;
    if (p->n == 1) {
        w->ffn.experts = (const void *const *)p->at;
        return KT_OK;
    }
    parts = kt_arena_alloc(&l->weights->arena, sizeof *parts * (size_t)p->n, sizeof(void *));
    if (!parts)
        return kt_fail(err, KT_E_NOMEM, "no memory for the nodes of layer %lld", (long long)layer);
    for (int i = 0; i < p->n; i++)
        parts[i] = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1],
                                      (const void *const *)(p->at + (size_t)i * n));
    w->node_ffn = parts;
    return KT_OK;
}

static const uint8_t *stored_bytes_of(const kt_matrix_source *s) {
    const kt_tensor *t = s->piece[0].tensor;
    return t->data + (size_t)(s->piece[0].first_row * s->k) * kt_dtype_bytes(t->dtype);
}

/* An expert of the same stored bytes, if there is one; else this one is remembered. */
static uint8_t *const *find_twin(loader *l, const kt_part_plan *part, const kt_matrix_source s[3],
                                 uint8_t *const *placed) {
    twin me = {.part = part, .placed = placed};

    for (int i = 0; i < 3; i++) me.stored[i] = stored_bytes_of(&s[i]);
    for (int i = 0; i < l->n_twins; i++)
        if (l->twins[i].part == part &&
            memcmp(l->twins[i].stored, me.stored, sizeof me.stored) == 0)
            return l->twins[i].placed;
    if (l->n_twins < MAX_TWINS) l->twins[l->n_twins++] = me;
    return NULL;
}

/* Plain form of one matrix: borrowed, or converted at *staging which moves on. */
static kt_matrix plain_matrix(loader *l, const kt_matrix_source *source, kt_weight_format id,
                              uint8_t **staging, int tid) {
    const kt_format *format = kt_format_find(id);
    float *scratch = l->scratch + (size_t)tid * l->scratch_floats;
    kt_matrix w;
    size_t data, scales;
    kt_err why;

    if (kt_matrix_source_borrow(source, id, &w)) return w;
    format->plain_bytes(source->rows, source->k, &data, &scales);
    w = (kt_matrix){.format = id, .n = source->rows, .k = source->k, .data = *staging};
    w.scales = scales ? *staging + round64(data) : NULL;
    if (kt_matrix_source_encode(source, format, 0, source->rows, *staging,
                                scales ? *staging + round64(data) : NULL, scratch, &why) != KT_OK)
        note_failure(l, &why);
    *staging += round64(data) + round64(scales);
    return w;
}

static void pack_expert(const expert_task *t, int64_t e, int tid) {
    const kt_problem *problem = &t->part->problem;
    const placing *p = t->place;
    uint8_t *staging = (uint8_t *)t->loader->staging.data + (size_t)tid * t->loader->staging_slice;
    uint8_t *packed = p->at[e];
    kt_matrix w[3];

    for (int i = 0; i < 3; i++)
        if (!rows_are_finite(t->loader, &t->source[e][i], 0, t->source[e][i].rows)) return;
    if (p->n > 1) {
        packed = staging;
        staging += t->loader->staging_expert;
    }
    for (int i = 0; i < 3; i++)
        w[i] = plain_matrix(t->loader, &t->source[e][i], problem->weights, &staging, tid);
    t->part->choices.choice[0].variant->pack_expert(problem, &w[0], &w[1], &w[2], packed);
    for (int i = 0; p->n > 1 && i < p->n; i++)
        kt_moe_slice_pack(&p->whole, packed, p->begin[i], p->begin[i + 1],
                          p->at[i * problem->experts + e]);
    for (int i = 0; i < 3; i++)
        kt_matrix_source_release(&t->source[e][i], t->loader->request->checkpoint);
}

static void pack_experts(void *arg, int64_t begin, int64_t end, int tid) {
    const expert_task *t = arg;
    const int64_t n = t->part->problem.experts;

    for (int64_t e = begin; e < end; e++) {
        for (int i = 0; t->is_copying && t->twin[e] && i < t->place->n; i++)
            memcpy(t->place->at[i * n + e], t->twin[e][i * n], t->place->bytes[i]);
        if (!t->is_copying && !t->twin[e]) pack_expert(t, e, tid);
    }
}

static kt_status fill_experts(loader *l, int64_t layer, expert_task *task, kt_err *err) {
    const kt_part_plan *part = task->part;
    kt_phase phase = {.run = pack_experts, .arg = task, .n_tasks = part->problem.experts};

    for (int64_t e = 0; e < part->problem.experts; e++) {
        KT_TRY(kt_tensor_map_expert(&l->map, layer, e, task->source[e], err));
        if (l->request->has_twins)
            task->twin[e] = find_twin(l, part, task->source[e], task->place->at + e);
    }
    kt_pool_run(l->request->pool, &phase, 1);
    task->is_copying = 1;
    if (l->request->has_twins) kt_pool_run(l->request->pool, &phase, 1);
    return KT_OK;
}

static kt_status load_experts(loader *l, int64_t layer, kt_err *err) {
    const kt_model_config *c = l->request->config;
    const kt_part_plan *part =
        &l->request->plan->part[c->is_moe[layer] ? KT_PART_EXPERT : KT_PART_DENSE];
    size_t n = (size_t)part->problem.experts;
    placing place;
    expert_task task = {.loader = l, .part = part, .place = &place};
    kt_status st;

    KT_TRY(place_experts(l, layer, part, &place, err));
    task.source = calloc(n, sizeof *task.source);
    task.twin = calloc(n, sizeof *task.twin);
    st =
        task.source && task.twin
            ? fill_experts(l, layer, &task, err)
            : kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %lld", (long long)layer);
    free(task.source);
    free(task.twin);
    return st == KT_OK ? finish_layer(l, layer, &place, err) : st;
}

/* ---- small tensors ---- */

static const float *load_f32(loader *l, const kt_tensor *t) {
    int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));
    float *out = take(l, sizeof *out * (size_t)count);

    check_tensor(l, t);
    if (out) kt_tensor_read_f32(t, 0, count, out);
    return out;
}

/* BF16 as it is, other types as f32. */
static const void *load_stored(loader *l, const kt_tensor *t, kt_weight_format *format) {
    void *out;

    *format = t->dtype == KT_DTYPE_BF16 ? KT_W_BF16 : KT_W_F32;
    if (*format == KT_W_F32) return load_f32(l, t);
    check_tensor(l, t);
    out = take(l, t->bytes);
    if (out) memcpy(out, t->data, t->bytes);
    return out;
}

/* Those of q, k and v one after the other, as their rows are in the stacked projection. */
static kt_status load_biases(loader *l, int64_t layer, kt_err *err) {
    kt_layer_weights *w = &l->weights->layers[layer];
    const kt_model_config *c = l->request->config;
    int64_t count = (c->heads + 2 * c->kv_heads) * c->head_dim, done = 0;
    float *qkv = take(l, sizeof *qkv * (size_t)count);
    const kt_tensor *t;

    for (int i = 0; i < N_BIASES - 1; i++) {
        KT_TRY(kt_tensor_map_need(&l->map, biases[i], layer, 0, &t, err));
        check_tensor(l, t);
        if (qkv) kt_tensor_read_f32(t, 0, t->shape[0], qkv + done);
        done += t->shape[0];
    }
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_O_BIAS, layer, 0, &t, err));
    w->qkv_bias = qkv;
    w->o_bias = load_f32(l, t);
    return KT_OK;
}

static kt_status load_small(loader *l, int64_t layer, kt_err *err) {
    kt_layer_weights *w = &l->weights->layers[layer];
    const struct {
        kt_role role;
        const float **target;
    } norms[] = {{KT_ROLE_ATTN_NORM, &w->attn_norm},
                 {KT_ROLE_FFN_NORM, &w->ffn_norm},
                 {KT_ROLE_Q_NORM, &w->q_norm},
                 {KT_ROLE_K_NORM, &w->k_norm}};
    const kt_tensor *t;

    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        KT_TRY(kt_tensor_map_need(&l->map, norms[i].role, layer, 0, &t, err));
        *norms[i].target = load_f32(l, t);
    }
    if (l->request->config->attention_bias) KT_TRY(load_biases(l, layer, err));
    if (!l->request->config->is_moe[layer]) return KT_OK;
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_ROUTER, layer, 0, &t, err));
    w->router = load_stored(l, t, &w->router_format);
    return KT_OK;
}

/* ---- the whole ---- */

static kt_status start_buffer(loader *l, int64_t index, size_t bytes, kt_err *err) {
    kt_buffer *b = &l->weights->buffers[index];

    KT_TRY(kt_buffer_create(bytes, KT_PAGES_ADVISED, -1, b, err));
    l->base = b->data;
    l->used = 0;
    l->limit = bytes;
    l->weights->bytes += b->bytes;
    return KT_OK;
}

static kt_status load_layer(loader *l, int64_t layer, size_t bytes, kt_err *err) {
    kt_layer_weights *w = &l->weights->layers[layer];
    kt_matrix_source source;

    KT_TRY(start_buffer(l, layer, bytes, err));
    KT_TRY(load_small(l, layer, err));
    KT_TRY(kt_tensor_map_qkv(&l->map, layer, &source, err));
    w->qkv = load_dense(l, KT_PART_QKV, &source);
    KT_TRY(kt_tensor_map_linear(&l->map, KT_ROLE_O, layer, &source, err));
    w->o = load_dense(l, KT_PART_O, &source);
    KT_TRY(load_experts(l, layer, err));
    if (l->used > l->limit)
        return kt_fail(err, KT_E_INTERNAL, "layer %lld needs more than the %zu bytes counted",
                       (long long)layer, bytes);
    return KT_OK;
}

static kt_status load_ends(loader *l, size_t bytes, kt_err *err) {
    kt_weights *w = l->weights;
    kt_matrix_source source;
    const kt_tensor *t;

    KT_TRY(start_buffer(l, l->request->config->layers, bytes, err));
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_FINAL_NORM, 0, 0, &t, err));
    w->final_norm = load_f32(l, t);
    KT_TRY(kt_tensor_map_need(&l->map, KT_ROLE_EMBED, 0, 0, &t, err));
    w->embedding = load_stored(l, t, &w->embedding_format);
    kt_checkpoint_release(l->request->checkpoint, t, 0, t->bytes);
    KT_TRY(head_source(l, &source, err));
    w->head = load_dense(l, KT_PART_HEAD, &source);
    if (l->used > l->limit)
        return kt_fail(err, KT_E_INTERNAL,
                       "embedding and head need more than the %zu bytes counted", bytes);
    return KT_OK;
}

static kt_status check_memory(size_t bytes, kt_err *err) {
    uint64_t available = kt_memory_available_bytes();

    if (bytes <= available) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "the packed weights need %.1f GiB, %.1f GiB are available",
                   (double)bytes / GIB, (double)available / GIB);
}

/* What a layer takes besides its buffer. */
static size_t split_bytes(const loader *l, int64_t layer) {
    const kt_part part = l->request->config->is_moe[layer] ? KT_PART_EXPERT : KT_PART_DENSE;
    const kt_part_plan *p = &l->request->plan->part[part];
    return l->request->nodes->n > 1 ? (size_t)p->problem.experts * p->bytes : 0;
}

/* Between layers: did a thread fail, does the caller still want the model? */
static kt_status pause_here(const loader *l, kt_err *err) {
    const kt_weights_request *r = l->request;

    if (atomic_load(&l->bad)) {
        if (err) *err = l->why;
        return l->why.status;
    }
    if (r->cancel && r->cancel(r->cancel_arg))
        return kt_fail(err, KT_E_CANCELLED, "loading was interrupted");
    return KT_OK;
}

static kt_status run_load(loader *l, size_t *bytes, kt_err *err) {
    int64_t layers = l->request->config->layers;
    size_t total = 0;

    for (int64_t i = 0; i < layers; i++) {
        KT_TRY(measure_layer(l, i, &bytes[i], err));
        total += bytes[i] + split_bytes(l, i);
    }
    KT_TRY(measure_ends(l, &bytes[layers], err));
    kt_tensor_map_report(&l->map, l->request->log);
    KT_TRY(check_memory(total + bytes[layers], err));
    KT_TRY(make_staging(l, err));
    KT_TRY(load_ends(l, bytes[layers], err));
    KT_TRY(pause_here(l, err));
    for (int64_t i = 0; i < layers; i++) {
        KT_TRY(load_layer(l, i, bytes[i], err));
        KT_TRY(pause_here(l, err));
    }
    return KT_OK;
}

static kt_weights *create(const kt_model_config *config, int n_nodes) {
    kt_weights *w = calloc(1, sizeof *w);

    if (!w) return NULL;
    w->config = config;
    w->layers = calloc((size_t)config->layers, sizeof *w->layers);
    w->buffers = calloc((size_t)config->layers + 1, sizeof *w->buffers);
    w->slices = calloc((size_t)config->layers * (size_t)n_nodes, sizeof *w->slices);
    w->n_nodes = n_nodes;
    if (w->layers && w->buffers && w->slices) return w;
    kt_weights_destroy(w);
    return NULL;
}

kt_status kt_weights_load(const kt_weights_request *request, kt_weights **out, kt_err *err) {
    loader l = {.request = request};
    size_t *bytes = calloc((size_t)request->config->layers + 1, sizeof *bytes);
    kt_status st;

    *out = NULL;
    l.weights = create(request->config, request->nodes->n);
    st = bytes && l.weights ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the model");
    if (st == KT_OK)
        st = kt_tensor_map_init(&l.map, request->checkpoint, request->family, request->config,
                                request->weights == KT_QUANT_NATIVE, err);
    l.map.importance = request->importance;
    l.map.allows_nonfinite = request->allow_nonfinite;
    if (st == KT_OK) st = run_load(&l, bytes, err);
    kt_tensor_map_deinit(&l.map);
    kt_buffer_destroy(&l.staging);
    free(l.scratch);
    free(bytes);
    if (st != KT_OK) {
        kt_weights_destroy(l.weights);
        return st;
    }
    *out = l.weights;
    return KT_OK;
}

void kt_weights_destroy(kt_weights *w) {
    if (!w) return;
    for (int64_t i = 0; w->buffers && i <= w->config->layers; i++)
        kt_buffer_destroy(&w->buffers[i]);
    for (int64_t i = 0; w->slices && i < w->config->layers * w->n_nodes; i++)
        kt_buffer_destroy(&w->slices[i]);
    kt_arena_deinit(&w->arena);
    free(w->slices);
    free(w->layers);
    free(w->buffers);
    free(w);
}

const kt_layer_weights *kt_weights_layer(const kt_weights *w, int64_t layer) {
    return &w->layers[layer];
}

const float *kt_weights_final_norm(const kt_weights *w) {
    return w->final_norm;
}

const void *kt_weights_head(const kt_weights *w) {
    return w->head;
}

void kt_weights_embed(const kt_weights *w, int32_t token, float *out) {
    kt_tensor row = {.dtype = w->embedding_format == KT_W_BF16 ? KT_DTYPE_BF16 : KT_DTYPE_F32,
                     .data = w->embedding};
    kt_tensor_read_f32(&row, token * w->config->hidden, w->config->hidden, out);
}

size_t kt_weights_bytes(const kt_weights *w) {
    return w->bytes;
}
