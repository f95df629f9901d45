/* Shapes of a model from its description: what is tuned is what runs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/family.h"
#include "dispatch/model/gguf_meta.h"
#include "dispatch/model/needs.h"
#include "dispatch/model/node_problems.h"
#include "dispatch/model/resolve.h"
#include "kernels/moe_ffn/moe_layer.h"
#include "tuner/space/shapes.h"

/* ---- matrices ---- */

/* A need of the checkpoint's own formats, or of any other. Where both ask for the same matrix it is
 * one entry. */
static kt_status add_dense(kt_shapes *s, const kt_need *need, bool is_native, kt_err *err) {
    const kt_problem *p = &need->problem;
    int i = 0;

    while (!is_native && i < s->n_dense &&
           (s->dense[i].form != KT_DENSE_NATIVE || s->dense[i].n != p->n || s->dense[i].k != p->k ||
            s->dense[i].layers != need->times || strcmp(s->dense[i].name, need->role) != 0))
        i++;
    if (!is_native && i < s->n_dense) {
        s->dense[i].form = KT_DENSE_ALWAYS;
        s->dense[i].is_bf16 = p->weights == KT_W_BF16;
        return KT_OK;
    }
    i = s->n_dense;
    if (i == KT_MAX_DENSE)
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d kinds of dense matrices", KT_MAX_DENSE);
    snprintf(s->dense[i].name, sizeof s->dense[i].name, "%s", need->role);
    s->dense[i].n = p->n;
    s->dense[i].k = p->k;
    s->dense[i].layers = need->times;
    s->dense[i].form = is_native ? KT_DENSE_NATIVE : KT_DENSE_ASKED;
    s->dense[i].native = p->weights;
    s->dense[i].is_bf16 = !is_native && p->weights == KT_W_BF16;
    s->n_dense++;
    return KT_OK;
}

/* ---- feed-forward ---- */

static kt_status add_ffn(kt_shapes *s, const char *role, const kt_problem *p, int64_t matrices,
                         kt_err *err) {
    kt_ffn_shape *f = s->ffn;

    for (; f < s->ffn + s->n_ffn; f++)
        if (f->weights == p->weights && f->n == p->n && f->k == p->k && f->experts == p->experts &&
            f->topk == p->topk && strcmp(f->name, role) == 0) {
            f->matrices += matrices;
            return KT_OK;
        }
    if (s->n_ffn == KT_MAX_FFN)
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d kinds of feed-forward", KT_MAX_FFN);
    *f = (kt_ffn_shape){.weights = p->weights,
                        .n = p->n,
                        .k = p->k,
                        .experts = p->experts,
                        .topk = p->topk,
                        .matrices = matrices};
    snprintf(f->name, sizeof f->name, "%s", role);
    s->n_ffn++;
    return KT_OK;
}

/* As stored; where down has a format of its own, the halves that the plan asks for. */
static kt_status add_native_ffn(kt_shapes *s, const kt_need *need, kt_err *err) {
    kt_problem halves[2], whole = need->problem;

    if (whole.down == KT_W_NONE) return add_ffn(s, need->role, &whole, 3 * need->times, err);
    kt_moe_halves(&whole, whole.down, &halves[0], &halves[1]);
    KT_TRY(add_ffn(s, need->role, &halves[0], 2 * need->times, err));
    return add_ffn(s, need->role, &halves[1], need->times, err);
}

static void note_ffn(kt_shapes *s, const kt_need *need) {
    const kt_problem *p = &need->problem;

    if (p->experts > 1) {
        s->intermediate = p->n;
        s->experts = p->experts;
        s->topk = p->topk;
        s->moe_layers += need->times;
    } else if (strcmp(need->role, "shared") == 0) {
        s->shared_intermediate = p->n;
        s->shared_layers += need->times;
    } else if (strcmp(need->role, "dense_ffn") == 0) {
        s->dense_intermediate = p->n;
        s->dense_layers += need->times;
    }
}

/* The kind with the most matrices among the routed experts comes first: it is what is meant by
 * "the experts". */
static void put_main_first(kt_shapes *s) {
    int best = 0;

    for (int i = 1; i < s->n_ffn; i++) {
        const bool is_routed = s->ffn[i].experts > 1, has_one = s->ffn[best].experts > 1;
        if (is_routed && (!has_one || s->ffn[i].matrices > s->ffn[best].matrices)) best = i;
    }
    if (best) {
        const kt_ffn_shape first = s->ffn[0];
        s->ffn[0] = s->ffn[best];
        s->ffn[best] = first;
    }
    if (s->n_ffn && s->ffn[0].experts > 1) s->native = s->ffn[0].weights;
}

/* ---- what is kept of a sequence ---- */

static kt_status add_kept(kt_shapes *s, const char *name, const kt_problem *p, kt_err *err) {
    for (int i = 0; i < s->n_kept; i++)
        if (kt_same_weights(&s->kept[i].problem, p)) {
            s->kept[i].layers++;
            return KT_OK;
        }
    if (s->n_kept == KT_MAX_KEPT)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%s: more than %d kinds of operations that keep something of a sequence",
                       name, KT_MAX_KEPT);
    snprintf(s->kept[s->n_kept].name, sizeof s->kept[0].name, "%s", name);
    s->kept[s->n_kept].problem = *p;
    s->kept[s->n_kept++].layers = 1;
    return KT_OK;
}

/* With the cache that serving has unless it is told otherwise. */
static kt_status add_attention(const kt_node *n, kt_shapes *s, kt_err *err) {
    const kt_problem p = kt_attn_problem(&n->attention, KT_W_BF16, 0);

    if (n->kind != KT_NODE_ATTEND && n->kind != KT_NODE_ATTEND_SPARSE) return KT_OK;
    return add_kept(s, kt_op_name(p.op), &p, err);
}

static kt_status add_nodes(const kt_graph *graph, kt_shapes *s, kt_err *err) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const kt_node *n = &graph->nodes[i];
        const kt_problem p = n->kind == KT_NODE_CONV    ? kt_conv_problem(n, 0)
                             : n->kind == KT_NODE_DELTA ? kt_delta_problem(n, 0)
                                                        : kt_index_problem(&n->index, 0);
        const bool scores = (n->kind == KT_NODE_ATTEND_SPARSE && !n->index.repeats) ||
                            n->kind == KT_NODE_ATTEND_BLOCKS;
        if (n->kind == KT_NODE_CONV || n->kind == KT_NODE_DELTA || scores)
            KT_TRY(add_kept(s, kt_op_name(p.op), &p, err));
        KT_TRY(add_attention(n, s, err));
    }
    return KT_OK;
}

/* ---- the whole ---- */

/* Formats that are asked for (BF16, INT8, INT4) cut matrices alike. */
static kt_status add_needs(const kt_graph *graph, bool is_native, kt_shapes *s, kt_err *err) {
    kt_need *needs = NULL;
    int n = 0;
    kt_status st =
        kt_graph_needs(graph, is_native ? KT_QUANT_NATIVE : KT_QUANT_INT8, &needs, &n, err);

    for (int i = 0; i < n && st == KT_OK; i++) {
        if (needs[i].problem.op == KT_OP_GEMM)
            st = add_dense(s, &needs[i], is_native, err);
        else if (is_native)
            st = add_native_ffn(s, &needs[i], err);
        else
            note_ffn(s, &needs[i]);
    }
    free(needs);
    return st;
}

kt_status kt_shapes_from_graph(const kt_graph *graph, kt_shapes *out, kt_err *err) {
    kt_shapes s = {
        .hidden = graph->numbers.hidden, .layers = graph->numbers.layers, .native = KT_W_BF16};

    KT_TRY(add_needs(graph, true, &s, err));
    KT_TRY(add_needs(graph, false, &s, err));
    KT_TRY(add_nodes(graph, &s, err));
    put_main_first(&s);
    *out = s;
    return KT_OK;
}

kt_status kt_shapes_from_packed(const kt_json *config, const char *where,
                                const kt_checkpoint *checkpoint, kt_shapes *out, kt_err *err) {
    const kt_graph_request request = {.source = {.json = config, .arch = "", .where = where},
                                      .checkpoint = checkpoint};
    kt_graph graph;
    kt_status st = kt_graph_build(&request, &graph, err);

    if (st != KT_OK) return st;
    st = kt_shapes_from_graph(&graph, out, err);
    if (st == KT_OK) out->shape_id = kt_model_shape_id(config);
    kt_graph_deinit(&graph);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", where);
}

kt_status kt_shapes_from_config(const kt_json *config, const char *where, kt_shapes *out,
                                kt_err *err) {
    return kt_shapes_from_packed(config, where, NULL, out, err);
}

static kt_status from_checkpoint(const kt_checkpoint *c, const char *path, kt_shapes *out,
                                 kt_err *err) {
    const kt_gguf_meta *meta = kt_checkpoint_gguf(c);
    kt_graph_request request = {.checkpoint = c};
    const char *text;
    char arch[64];
    size_t size;
    kt_graph graph;
    kt_status st;

    KT_TRY(kt_gguf_need_string(meta, "general.architecture", &text, &size, err));
    snprintf(arch, sizeof arch, "%.*s", (int)(size < 60 ? size : 60), text);
    request.source = (kt_config_source){.gguf = meta, .arch = arch, .where = path};
    KT_TRY(kt_graph_build(&request, &graph, err));
    st = kt_shapes_from_graph(&graph, out, err);
    kt_graph_deinit(&graph);
    return st;
}

kt_status kt_shapes_from_gguf(const char *path, kt_shapes *out, kt_err *err) {
    kt_checkpoint *c;
    kt_status st;

    KT_TRY(kt_checkpoint_open(path, &c, err));
    st = from_checkpoint(c, path, out, err);
    kt_checkpoint_close(c);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", path);
}
