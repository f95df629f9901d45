/* Weights of a layer: found and checked by whoever asks, packed on the team's thread.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/experts_graph.h"
#include "dispatch/model/needs.h"
#include "kernels/formats/format.h"
#include "runtime/model/bytes.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/packer.h"
#include "runtime/moe/moe_impl.h"

void kt_moe_weights_destroy(kt_moe_weights *w) {
    if (!w) return;
    kt_model_plan_deinit(&w->plan);
    kt_graph_deinit(&w->graph);
    for (int i = 0; i < KT_MOE_MAX_NODES; i++) kt_buffer_destroy(&w->packed[i]);
    free(w->expert);
    free(w);
}

/* ---- packing, on the team's thread ---- */

typedef struct loading {
    kt_moe *moe;
    const kt_checkpoint *checkpoint;
    kt_moe_weights *weights; /* becomes the layer's, or is ended */
    kt_status status;
    kt_err *err;
} loading;

/* Where the channels of each node begin. Experts that cannot be cut stay whole, unless somebody
 * insists. */
static kt_status cut(loading *l, kt_placing *place, kt_err *err) {
    const kt_moe_team *t = l->moe->team;
    kt_err why = {KT_OK, ""};
    kt_status st;

    l->weights->n_nodes = place->n = 1;
    if (t->nodes.n == 1) return KT_OK;
    st = kt_node_plan_cut(&t->nodes, &place->whole, place->begin, &why);
    if (st != KT_OK && t->is_node_wish) return kt_fail(err, st, "%s", why.message);
    if (st == KT_OK) l->weights->n_nodes = place->n = t->nodes.n;
    return KT_OK;
}

/* Memory of each node for what it has of every expert. */
static kt_status place_experts(loading *l, kt_placing *place, kt_err *err) {
    kt_moe_weights *w = l->weights;
    const size_t n = (size_t)place->count;

    KT_TRY(cut(l, place, err));
    w->expert = malloc(n * (size_t)place->n * sizeof *w->expert);
    place->at = malloc(n * (size_t)place->n * sizeof *place->at);
    if (!w->expert || !place->at) return kt_fail(err, KT_E_NOMEM, "no memory for %zu experts", n);
    for (int i = 0; i < place->n; i++) {
        const size_t first = (size_t)i * n;
        if (place->n > 1) {
            w->slice[i] = kt_moe_slice_layer(&place->whole, place->begin[i], place->begin[i + 1],
                                             w->expert + first);
            place->bytes[i] = kt_bytes_round(kt_moe_expert_bytes(&w->slice[i]));
        }
        KT_TRY(kt_moe_take(n * place->bytes[i], l->moe->team->nodes.memory[i], &w->packed[i], err));
        for (size_t e = 0; e < n; e++)
            w->expert[first + e] = place->at[first + e] =
                (uint8_t *)w->packed[i].data + e * place->bytes[i];
    }
    return KT_OK;
}

static kt_status pack(loading *l, const kt_problem_plan *part, kt_err *err) {
    kt_packer_request request = {.checkpoint = l->checkpoint,
                                 .graph = &l->weights->graph,
                                 .plan = &l->weights->plan,
                                 .pool = l->moe->team->pool};
    kt_placing place = {
        .whole = l->weights->layer, .count = l->moe->experts, .bytes = {part->bytes}};
    kt_packer packer;
    kt_status st = place_experts(l, &place, err);

    request.n_nodes = place.n;
    if (st == KT_OK) {
        st = kt_packer_init(&packer, &request, err);
        if (st == KT_OK) st = kt_packer_start(&packer, err);
        if (st == KT_OK) st = kt_packer_experts(&packer, 0, 0, &place, err);
        if (st == KT_OK) st = kt_packer_failure(&packer, err);
        kt_packer_deinit(&packer);
    }
    free(place.at);
    return st;
}

static kt_status load(loading *l, kt_err *err) {
    kt_moe *m = l->moe;
    kt_moe_weights *w = l->weights;
    const kt_problem_plan *part;

    KT_TRY(kt_model_plan_make(m->team->planner, &w->graph, m->quant, KT_W_BF16,
                              kt_pool_threads(m->team->pool), m->max_tokens, m->max_tokens,
                              &w->plan, err));
    part = kt_model_plan_run(&w->plan, 0, 0);
    w->layer = kt_problem_plan_layer(part);
    w->layer.cuts = &w->plan.layer.cuts;
    w->layer.glu = m->glu;
    KT_TRY(pack(l, part, err));
    w->layer.experts = w->expert;
    return kt_moe_team_reserve(m->team, m, w, err);
}

static void run_load(void *arg) {
    loading *l = arg;
    kt_moe_weights *ended = l->weights;

    l->status = load(l, l->err);
    if (l->status == KT_OK) {
        pthread_mutex_lock(&l->moe->team->lock); /* callers ask whether there are any */
        ended = l->moe->weights;
        l->moe->weights = l->weights;
        pthread_mutex_unlock(&l->moe->team->lock);
    }
    kt_moe_weights_destroy(ended);
}

/* ---- what is loaded ---- */

static kt_status check_weight(const kt_moe *m, const kt_weight *w, kt_err *err) {
    if (w->count != m->experts || w->k != m->hidden || w->n != m->intermediate)
        return kt_fail(err, KT_E_MISMATCH,
                       "%lld experts, hidden size %lld, intermediate %lld, expected the layer's "
                       "%lld, %lld, %lld",
                       (long long)w->count, (long long)w->k, (long long)w->n, (long long)m->experts,
                       (long long)m->hidden, (long long)m->intermediate);
    return KT_OK;
}

/* The graph is transferred. */
static kt_status replace(kt_moe *m, const kt_checkpoint *checkpoint, kt_graph *graph, kt_err *err) {
    loading l = {.moe = m, .checkpoint = checkpoint, .err = err};
    kt_status st = check_weight(m, &graph->weights[0], err);

    if (st == KT_OK) st = kt_graph_check_quant(graph, m->quant, "the layer", err);
    if (st == KT_OK && !(l.weights = calloc(1, sizeof *l.weights)))
        st = kt_fail(err, KT_E_NOMEM, "no memory for a layer's weights");
    if (st != KT_OK) {
        kt_graph_deinit(graph);
        return st;
    }
    l.weights->graph = *graph;
    l.weights->graph.weights[0].topk = m->topk;
    kt_moe_team_do(m->team, run_load, &l);
    return l.status;
}

kt_status kt_moe_load(kt_moe *m, const char *model, int64_t layer, kt_err *err) {
    kt_model_dir dir = {0};
    kt_graph graph = {0};
    kt_status st;

    if (!model) return kt_fail(err, KT_E_INVALID, "kt_moe_load: model is NULL");
    st = kt_model_dir_read(model, &dir, err);
    if (st == KT_OK && !dir.checkpoint) st = kt_fail(err, dir.why.status, "%s", dir.why.message);
    if (st == KT_OK) st = kt_experts_graph_of_layer(&dir.graph, layer, &graph, err);
    if (st == KT_OK) st = replace(m, dir.checkpoint, &graph, err);
    if (st != KT_OK && *dir.name)
        kt_fail_prefix(err, st, "%.100s, layer %lld", dir.name, (long long)layer);
    kt_model_dir_deinit(&dir);
    return st;
}

/* ---- from memory ---- */

static kt_status read_dtype(const kt_moe_tensor *from, kt_tensor *to, kt_err *err) {
    char name[24] = "w";
    const size_t n = from->dtype ? strlen(from->dtype) : 0;
    int format;

    for (int d = 0; n && d < KT_DTYPE_COUNT; d++)
        if (strcmp(kt_dtype_name((kt_dtype)d), from->dtype) == 0) {
            to->dtype = (kt_dtype)d;
            return KT_OK;
        }
    for (size_t i = 0; i < n && i + 2 < sizeof name; i++)
        name[1 + i] = (char)tolower((unsigned char)from->dtype[i]);
    format = kt_weight_format_parse(name);
    if (n + 2 > sizeof name || format < 0 || !kt_format_find((kt_weight_format)format)->block_bytes)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "tensor '%.100s': dtype '%.40s', expected BF16, F16, F32, F8_E4M3, I32 or a "
                       "GGUF block such as Q4_K",
                       from->name, n ? from->dtype : "");
    to->dtype = KT_DTYPE_U8;
    to->blocks = (kt_weight_format)format;
    return KT_OK;
}

/* Bytes of the last dimension. */
static kt_status row_bytes(const kt_moe_tensor *from, const kt_tensor *to, size_t *out,
                           kt_err *err) {
    const int64_t k = from->rank ? from->shape[from->rank - 1] : 1;
    size_t scales;

    *out = (size_t)k * kt_dtype_bytes(to->dtype);
    if (to->blocks == KT_W_NONE) return KT_OK;
    return kt_format_sizes(kt_format_find(to->blocks), 1, k, out, &scales, err);
}

/* Rows that lie apart are copied to *copy, which the caller frees. */
static kt_status read_tensor(const kt_moe_tensor *from, kt_tensor *to, void **copy, kt_err *err) {
    size_t bytes;
    int64_t rows = 1;

    if (!from->name || !from->data || from->rank < 0 || from->rank > 4)
        return kt_fail(err, KT_E_INVALID, "tensor '%.100s': rank %d, data %s, expected up to 4",
                       from->name ? from->name : "", (int)from->rank,
                       from->data ? "given" : "NULL");
    *to = (kt_tensor){.name = from->name, .rank = from->rank, .data = from->data};
    KT_TRY(read_dtype(from, to, err));
    for (int i = 0; i < from->rank; i++) {
        if (from->shape[i] < 1 || from->shape[i] > (int64_t)1 << 40)
            return kt_fail(err, KT_E_INVALID, "tensor '%.100s': dimension %d is %lld", from->name,
                           i, (long long)from->shape[i]);
        to->shape[i] = from->shape[i];
        if (i + 1 < from->rank && __builtin_mul_overflow(rows, from->shape[i], &rows))
            return kt_fail(err, KT_E_INVALID, "tensor '%.100s' is too large", from->name);
    }
    KT_TRY(row_bytes(from, to, &bytes, err));
    if (__builtin_mul_overflow(bytes, (size_t)rows, &to->bytes))
        return kt_fail(err, KT_E_INVALID, "tensor '%.100s' is too large", from->name);
    if (!from->row_bytes || from->row_bytes == (int64_t)bytes) return KT_OK;
    if (from->row_bytes < (int64_t)bytes)
        return kt_fail(err, KT_E_INVALID, "tensor '%.100s': row_bytes %lld, expected %zu or more",
                       from->name, (long long)from->row_bytes, bytes);
    if (!(*copy = malloc(to->bytes)))
        return kt_fail(err, KT_E_NOMEM, "no memory for tensor '%.100s'", from->name);
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)*copy + (size_t)r * bytes, (const char *)from->data + r * from->row_bytes,
               bytes);
    to->data = *copy;
    return KT_OK;
}

static kt_status read_packing(const char *word, kt_int4_packing *out, kt_err *err) {
    *out = KT_INT4_AWQ;
    if (!word || strcmp(word, "awq") == 0) return KT_OK;
    *out = KT_INT4_GPTQ;
    if (strcmp(word, "gptq") == 0) return KT_OK;
    *out = KT_INT4_GPTQ_V2;
    if (strcmp(word, "gptq_v2") == 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "packing '%.40s', expected awq, gptq or gptq_v2", word);
}

static kt_status load_tensors(kt_moe *m, const kt_tensor *tensors, size_t n,
                              kt_int4_packing packing, kt_err *err) {
    const kt_experts_shape shape = {m->experts, m->topk, m->hidden, m->intermediate};
    kt_buffer none = {0};
    kt_checkpoint *checkpoint;
    kt_graph graph = {0};
    kt_status st;

    KT_TRY(kt_checkpoint_of_memory("tensors in memory", tensors, n, &none, &checkpoint, err));
    st = kt_experts_graph_of_tensors(&shape, checkpoint, packing, &graph, err);
    if (st == KT_OK) st = replace(m, checkpoint, &graph, err);
    kt_checkpoint_close(checkpoint);
    return st;
}

kt_status kt_moe_load_from_tensors(kt_moe *m, const kt_moe_tensor *tensors, size_t n,
                                   const char *packing, kt_err *err) {
    kt_tensor *list = calloc(n + 1, sizeof *list);
    void **copies = calloc(n + 1, sizeof *copies);
    kt_int4_packing order;
    kt_status st = read_packing(packing, &order, err);

    if (st == KT_OK && (!list || !copies))
        st = kt_fail(err, KT_E_NOMEM, "no memory for a list of %zu tensors", n);
    for (size_t i = 0; st == KT_OK && i < n; i++)
        st = read_tensor(&tensors[i], &list[i], &copies[i], err);
    if (st == KT_OK) st = load_tensors(m, list, n, order, err);
    for (size_t i = 0; copies && i < n; i++) free(copies[i]);
    free(copies);
    free(list);
    return st;
}
