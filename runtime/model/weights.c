/* Loading weights: everything that can be wrong with a checkpoint is found before the first byte is
 * packed, so that the packing tasks can fail by single numbers only.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weights.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/err.h"
#include "runtime/loader/finite.h"
#include "runtime/model/weight_source.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define ROWS_PER_TASK 128 /* a block of rows that share scales is not cut */
#define VALUES_PER_TASK (1 << 20)

struct kt_weights {
    const kt_graph *graph;
    kt_arena arena;
    kt_loaded *loaded;
    kt_buffer *buffers; /* [layers + 1]: one per layer, the last for what is outside */
    kt_buffer *slices;  /* [weights][nodes] of the experts, when they are split */
    int n_nodes;
    size_t bytes;
};

/* An expert that is packed, and the stored bytes it was made of. */
typedef struct twin {
    const kt_problem_plan *part;
    const uint8_t *stored[3];
    uint8_t *const *placed;
} twin;

#define MAX_TWINS 16

/* State of one load. staging holds one plain matrix for all threads, or a slice per thread for the
 * three matrices of an expert. */
typedef struct loader {
    const kt_weights_request *request;
    kt_weights *weights;
    kt_weight_finder finder;
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

/* Find and check all tensors of a weight. */
static kt_status check_weight(loader *l, const kt_weight *w, kt_err *err) {
    const kt_tensor *t;
    kt_matrix_source source;
    kt_run runs[KT_WEIGHT_PARTS];
    int n = kt_weight_runs(w, l->request->plan->quant, runs);

    if (n == 0) return kt_weight_tensor(&l->finder, w, &t, err);
    for (int64_t e = 0; w->kind == KT_WEIGHT_HEADS && e < w->count; e++)
        KT_TRY(kt_weight_head_source(&l->finder, w, e, &source, err));
    if (w->kind == KT_WEIGHT_HEADS) return KT_OK;
    for (int64_t e = 0; e < w->count; e++) {
        for (int i = 0; w->kind == KT_WEIGHT_EXPERTS && i < w->n_parts; i++)
            KT_TRY(kt_weight_source(&l->finder, w, i, 1, e, &source, err));
        for (int r = 0; w->kind != KT_WEIGHT_EXPERTS && r < n; r++)
            KT_TRY(kt_weight_source(&l->finder, w, runs[r].first, runs[r].n, e, &source, err));
    }
    return KT_OK;
}

static size_t plain_size(kt_weight_format format, int64_t n, int64_t k) {
    size_t data, scales;

    kt_format_find(format)->plain_bytes(n, k, &data, &scales);
    return round64(data) + round64(scales);
}

/* Staging for the largest dense matrix and for one expert per thread, and conversion scratch. */
static kt_status make_staging(loader *l, kt_err *err) {
    const kt_model_plan *plan = l->request->plan;
    int threads = kt_pool_threads(l->request->pool);
    size_t whole = 0, slice = 0;
    int64_t widest = 0;

    for (int i = 0; i < plan->n_problems; i++) {
        const kt_problem *p = &plan->problems[i].problem;
        size_t size;
        widest = p->k > widest ? p->k : widest;
        if (p->op == KT_OP_GEMM) {
            size = plain_size(p->weights, p->n, p->k);
            whole = size > whole ? size : whole;
            continue;
        }
        widest = p->n > widest ? p->n : widest;
        size = 2 * plain_size(p->weights, p->n, p->k) +
               plain_size(p->down != KT_W_NONE ? p->down : p->weights, p->k, p->n);
        if (l->request->nodes->n > 1 && plan->problems[i].bytes > l->staging_expert)
            l->staging_expert = plan->problems[i].bytes;
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

/* Returns 0, and notes why, when rows [begin, end) of a matrix must not be loaded. They are
 * about to be packed, so looking at them costs a second pass over what is in a cache. */
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

static const void *load_dense(loader *l, const kt_problem_plan *p, const kt_matrix_source *source) {
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

static kt_status load_matrix(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    kt_loaded *to = &l->weights->loaded[weight];
    kt_run runs[KT_WEIGHT_PARTS];
    int n = kt_weight_runs(w, l->request->plan->quant, runs);
    kt_matrix_source source;

    for (int r = 0; r < n; r++) {
        KT_TRY(kt_weight_source(&l->finder, w, runs[r].first, runs[r].n, 0, &source, err));
        to->data[r] = load_dense(l, kt_model_plan_run(l->request->plan, weight, r), &source);
    }
    return KT_OK;
}

/* ---- heads: one task each ---- */

typedef struct head_task {
    loader *loader;
    const kt_weight *w;
    const kt_problem_plan *plan;
    uint8_t *packed;
    kt_matrix_source *source; /* [heads] */
    uint16_t *plain;          /* [threads][2][n * k]: as stored, and turned */
} head_task;

static void pack_heads(void *arg, int64_t begin, int64_t end, int tid) {
    const head_task *t = arg;
    const int64_t n = t->w->n, k = t->w->k;
    uint16_t *stored = t->plain + 2 * n * k * tid, *turned = stored + n * k;
    float *scratch = t->loader->scratch + (size_t)tid * t->loader->scratch_floats;
    kt_err why;

    for (int64_t e = begin; e < end; e++) {
        const kt_matrix_source *s = &t->source[e];
        kt_matrix w = {.format = KT_W_BF16, .n = n, .k = k, .data = stored};
        if (!rows_are_finite(t->loader, s, 0, s->rows)) return;
        if (kt_matrix_source_encode(s, kt_format_find(KT_W_BF16), 0, s->rows, stored, NULL, scratch,
                                    &why) != KT_OK) {
            note_failure(t->loader, &why);
            return;
        }
        for (int64_t r = 0; t->w->is_transposed && r < n; r++)
            for (int64_t i = 0; i < k; i++) turned[r * k + i] = stored[i * n + r];
        if (t->w->is_transposed) w.data = turned;
        t->plan->choices.choice[0].variant->pack_gemm(&t->plan->problem, &w,
                                                      t->packed + (size_t)e * t->plan->bytes);
    }
}

static kt_status load_heads(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    kt_loaded *to = &l->weights->loaded[weight];
    const size_t count = (size_t)w->count;
    head_task task = {.loader = l, .w = w, .plan = kt_model_plan_run(l->request->plan, weight, 0)};
    kt_phase phase = {.run = pack_heads, .arg = &task, .n_tasks = w->count};
    const size_t threads = (size_t)kt_pool_threads(l->request->pool);
    kt_status st = KT_OK;

    task.packed = take(l, count * task.plan->bytes);
    task.source = calloc(count, sizeof *task.source);
    task.plain = malloc(threads * 2 * (size_t)(w->n * w->k) * sizeof *task.plain);
    if (!task.source || !task.plain || !task.packed)
        st = kt_fail(err, KT_E_NOMEM, "no memory for the heads of layer %d", w->layer);
    for (int64_t e = 0; e < w->count && st == KT_OK; e++)
        st = kt_weight_head_source(&l->finder, w, e, &task.source[e], err);
    if (st == KT_OK) kt_pool_run(l->request->pool, &phase, 1);
    to->data[0] = task.packed;
    to->head_bytes = task.plan->bytes;
    free(task.source);
    free(task.plain);
    return st;
}

/* ---- experts: one task each ---- */

/* Where the experts of a layer go: whole into the layer's buffer, or a slice of each into every
 * node's memory. */
typedef struct placing {
    kt_moe_layer whole;
    int n;
    int64_t begin[KT_MOE_MAX_NODES + 1]; /* channels of each node */
    size_t bytes[KT_MOE_MAX_NODES];      /* of a slice, rounded up to 64 */
    uint8_t **at;                        /* [n][experts]; in the weights' arena */
} placing;

typedef struct expert_task {
    loader *loader;
    const kt_problem_plan *part;
    const placing *place;
    kt_matrix_source (*source)[3];
    uint8_t *const *
        *twin; /* [experts] place.at of the same expert, packed before or by the first pass; NULL */
    int is_copying; /* the second pass */
} expert_task;

static kt_moe_layer layer_of(const kt_problem_plan *part, const kt_moe_cuts *cuts) {
    return (kt_moe_layer){.problem = part->problem,
                          .choices = &part->choices,
                          .encode = part->encode.variant,
                          .cuts = cuts,
                          .down_weights = part->problem.down,
                          .down_choices = part->down_choices};
}

static kt_status cut(const kt_moe_layer *whole, const kt_node_plan *nodes, int64_t *begin,
                     kt_err *err) {
    double share[KT_MOE_MAX_NODES];

    for (int i = 0; i < nodes->n; i++) share[i] = nodes->has_equal_shares ? 1 : nodes->threads[i];
    return kt_moe_cut_channels(whole, share, nodes->n, begin, err);
}

kt_status kt_weights_check_nodes(const kt_model_plan *plan, const kt_node_plan *nodes,
                                 kt_err *err) {
    int64_t begin[KT_MOE_MAX_NODES + 1];

    for (int i = 0; nodes->n > 1 && i < plan->n_problems; i++) {
        kt_moe_layer layer = layer_of(&plan->problems[i], NULL);
        if (layer.problem.op == KT_OP_MOE_FFN) KT_TRY(cut(&layer, nodes, begin, err));
    }
    return KT_OK;
}

/* Memory of a layer's experts, on the nodes that will read it. */
static kt_status place_experts(loader *l, int weight, const kt_problem_plan *part, placing *p,
                               kt_err *err) {
    const kt_weight *of = &l->request->graph->weights[weight];
    const kt_node_plan *nodes = l->request->nodes;
    const size_t n = (size_t)part->problem.experts;

    *p = (placing){.n = nodes->n, .bytes = {part->bytes}};
    p->whole = layer_of(part, of->use == KT_USE_EXPERTS ? &l->request->plan->layer.cuts : NULL);
    p->at = kt_arena_alloc(&l->weights->arena, sizeof *p->at * n * (size_t)p->n, sizeof *p->at);
    if (!p->at) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %d", of->layer);
    if (p->n > 1) KT_TRY(cut(&p->whole, nodes, p->begin, err));
    for (int i = 0; i < p->n; i++) {
        uint8_t *base;
        if (p->n > 1) {
            kt_moe_layer slice = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1], NULL);
            kt_buffer *b = &l->weights->slices[weight * p->n + i];
            p->bytes[i] = round64(kt_moe_expert_bytes(&slice));
            KT_TRY(kt_buffer_create(n * p->bytes[i], KT_PAGES_ADVISED, nodes->memory[i], b, err));
            l->weights->bytes += b->bytes;
            base = b->data;
        } else {
            base = take(l, n * part->bytes);
            if (!base)
                return kt_fail(err, KT_E_INTERNAL, "layer %d has no room for its experts",
                               of->layer);
        }
        for (size_t e = 0; e < n; e++) p->at[(size_t)i * n + e] = base + e * p->bytes[i];
    }
    return KT_OK;
}

/* The layers as they run. */
static kt_status finish_layer(loader *l, int weight, const placing *p, kt_err *err) {
    kt_loaded *w = &l->weights->loaded[weight];
    const size_t n = (size_t)p->whole.problem.experts;
    kt_moe_layer *parts;

    w->experts = p->whole;
    if (p->n == 1) {
        w->experts.experts = (const void *const *)p->at;
        return KT_OK;
    }
    parts = kt_arena_alloc(&l->weights->arena, sizeof *parts * (size_t)p->n, sizeof(void *));
    if (!parts) return kt_fail(err, KT_E_NOMEM, "no memory for the memory nodes of experts");
    for (int i = 0; i < p->n; i++)
        parts[i] = kt_moe_slice_layer(&p->whole, p->begin[i], p->begin[i + 1],
                                      (const void *const *)(p->at + (size_t)i * n));
    w->node_experts = parts;
    return KT_OK;
}

static const uint8_t *stored_bytes_of(const kt_matrix_source *s) {
    const kt_tensor *t = s->piece[0].tensor;
    size_t rows = 1;

    for (int i = 0; i + 1 < t->rank; i++) rows *= (size_t)t->shape[i];
    return t->data + t->bytes / rows * (size_t)s->piece[0].first_row;
}

/* An expert of the same stored bytes, if there is one; else this one is remembered. */
static uint8_t *const *find_twin(loader *l, const kt_problem_plan *part,
                                 const kt_matrix_source s[3], uint8_t *const *placed) {
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
        w[i] = plain_matrix(t->loader, &t->source[e][i],
                            i == 2 && problem->down != KT_W_NONE ? problem->down : problem->weights,
                            &staging, tid);
    kt_moe_pack(&p->whole, &w[0], &w[1], &w[2], packed);
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

static kt_status fill_experts(loader *l, const kt_weight *w, expert_task *task, kt_err *err) {
    const kt_problem_plan *part = task->part;
    kt_phase phase = {.run = pack_experts, .arg = task, .n_tasks = part->problem.experts};

    for (int64_t e = 0; e < part->problem.experts; e++) {
        for (int i = 0; i < 3; i++)
            KT_TRY(kt_weight_source(&l->finder, w, i, 1, e, &task->source[e][i], err));
        if (l->request->has_twins)
            task->twin[e] = find_twin(l, part, task->source[e], task->place->at + e);
    }
    kt_pool_run(l->request->pool, &phase, 1);
    task->is_copying = 1;
    if (l->request->has_twins) kt_pool_run(l->request->pool, &phase, 1);
    return KT_OK;
}

static kt_status load_experts(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    const kt_problem_plan *part = kt_model_plan_run(l->request->plan, weight, 0);
    size_t n = (size_t)part->problem.experts;
    placing place;
    expert_task task = {.loader = l, .part = part, .place = &place};
    kt_status st;

    KT_TRY(place_experts(l, weight, part, &place, err));
    task.source = calloc(n, sizeof *task.source);
    task.twin = calloc(n, sizeof *task.twin);
    st = task.source && task.twin
             ? fill_experts(l, w, &task, err)
             : kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %d", w->layer);
    free(task.source);
    free(task.twin);
    return st == KT_OK ? finish_layer(l, weight, &place, err) : st;
}

/* ---- vectors, routers, tables ---- */

static void widen(const kt_tensor *t, const kt_weight *w, bool is_gguf, float *out) {
    int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));

    kt_tensor_read_f32(t, 0, count, out);
    for (int64_t i = 0; w->taps && i < count; i++) /* [channels, taps] turned */
        kt_tensor_read_f32(t, i, 1, &out[i % w->taps * (count / w->taps) + i / w->taps]);
    if (is_gguf) return; /* converters have done what follows */
    for (int64_t i = 0; w->one_plus && i < count; i++) out[i] += 1;
    for (int64_t i = 0; w->negative_exp && i < count; i++) out[i] = -expf(out[i]);
}

static kt_status load_small(loader *l, int weight, kt_err *err) {
    const kt_weight *w = &l->request->graph->weights[weight];
    kt_loaded *to = &l->weights->loaded[weight];
    const kt_tensor *t;
    void *out;

    KT_TRY(kt_weight_tensor(&l->finder, w, &t, err));
    if (!t) return KT_OK;
    to->format = kt_weight_kept_as(w);
    if (w->kind != KT_WEIGHT_VECTOR && t->blocks == KT_W_NONE)
        to->format = t->dtype == KT_DTYPE_BF16 ? KT_W_BF16 : KT_W_F32;
    out = take(l, to->format == KT_W_F32
                      ? sizeof(float) * (size_t)(w->n * (w->kind == KT_WEIGHT_VECTOR ? 1 : w->k))
                      : t->bytes);
    to->data[0] = out;
    if (!out) return KT_OK;
    check_tensor(l, t);
    if (to->format == KT_W_F32)
        widen(t, w, l->request->graph->is_gguf, out);
    else
        memcpy(out, t->data, t->bytes);
    if (w->kind == KT_WEIGHT_TABLE) kt_checkpoint_release(l->request->checkpoint, t, 0, t->bytes);
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

static kt_status load_weight(loader *l, int weight, kt_err *err) {
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

    KT_TRY(start_buffer(l, layer, bytes, err));
    for (int i = 0; i < g->n_weights; i++) {
        const int64_t of = g->weights[i].layer < 0 ? g->numbers.layers : g->weights[i].layer;
        if (of == layer) KT_TRY(load_weight(l, i, err));
    }
    if (l->used <= l->limit) return KT_OK;
    return kt_fail(err, KT_E_INTERNAL, "layer %lld needs more than the %zu bytes counted",
                   (long long)layer, bytes);
}

static kt_status check_memory(size_t bytes, kt_err *err) {
    uint64_t available = kt_memory_available_bytes();

    if (bytes <= available) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "the packed weights need %.1f GiB, %.1f GiB are available",
                   (double)bytes / GIB, (double)available / GIB);
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

/* What is not loaded as it lies although nobody asked for another format: said once for each
 * reason. */
static void tell_changes(const loader *l) {
    const kt_graph *g = l->request->graph;
    double widened = 0, stored = 0;
    int n_pairs = 0, n_floats = 0;

    if (l->request->plan->quant != KT_QUANT_NATIVE) return;
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const bool is_pair = w->kind == KT_WEIGHT_EXPERTS &&
                             kt_weight_becomes(w, 0, KT_QUANT_NATIVE) == KT_W_INT8_G16M;
        const bool is_matrix = w->kind == KT_WEIGHT_EXPERTS || w->kind == KT_WEIGHT_MATRIX;
        n_floats += is_matrix && w->part[0].stored == KT_W_F32;
        if (!is_pair || w->part[0].stored == KT_W_INT8_G16M) continue;
        n_pairs++;
        for (int p = 0; p < 2; p++) {
            const double weights = (double)(w->count * w->n * w->k) / 8;
            stored += weights * kt_format_find(w->part[p].stored)->bits;
            widened += weights * kt_format_find(KT_W_INT8_G16M)->bits;
        }
    }
    if (n_pairs)
        kt_log_write(l->request->log, KT_LOG_WARN, "loader",
                     "gate and up of %d layers are stored in two formats, which no kernel reads "
                     "together: loaded exactly as w8g16m, %.2f GiB instead of %.2f",
                     n_pairs, widened / GIB, stored / GIB);
    if (n_floats)
        kt_log_write(l->request->log, KT_LOG_WARN, "loader",
                     "%d matrices are stored as F32 and become BF16", n_floats);
}

static kt_status run_load(loader *l, size_t *bytes, kt_err *err) {
    const kt_graph *g = l->request->graph;
    const int64_t layers = g->numbers.layers;
    size_t total = 0;

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const size_t size = kt_model_plan_bytes(l->request->plan, i);
        KT_TRY(check_weight(l, w, err));
        total += size;
        if (w->kind != KT_WEIGHT_EXPERTS || l->request->nodes->n == 1)
            bytes[w->layer < 0 ? layers : w->layer] += size;
    }
    kt_weight_finder_report(&l->finder, l->request->log);
    tell_changes(l);
    KT_TRY(check_memory(total, err));
    KT_TRY(make_staging(l, err));
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

kt_status kt_weights_load(const kt_weights_request *request, kt_weights **out, kt_err *err) {
    loader l = {.request = request};
    size_t *bytes = calloc((size_t)request->graph->numbers.layers + 1, sizeof *bytes);
    kt_status st;

    *out = NULL;
    l.weights = create(request->graph, request->nodes->n);
    st = bytes && l.weights ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the model");
    if (st == KT_OK)
        st = kt_weight_finder_init(&l.finder, request->checkpoint, request->graph, err);
    l.finder.importance = request->importance;
    l.finder.allows_nonfinite = request->allow_nonfinite;
    if (st == KT_OK) st = run_load(&l, bytes, err);
    kt_weight_finder_deinit(&l.finder);
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
    for (int64_t i = 0; w->buffers && i <= w->graph->numbers.layers; i++)
        kt_buffer_destroy(&w->buffers[i]);
    for (int i = 0; w->slices && i < w->graph->n_weights * w->n_nodes; i++)
        kt_buffer_destroy(&w->slices[i]);
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
