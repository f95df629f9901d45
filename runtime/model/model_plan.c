/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model_plan.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/attn/attn_common.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/moe_ffn/moe_layer.h"
#include "runtime/model/bytes.h"

typedef struct maker {
    kt_planner *planner;
    kt_model_plan *plan;
    kt_err *err;
} maker;

/* ---- packed weights ---- */

/* Can the matrices be of their formats? */
static kt_status check_shape(const kt_problem *p, kt_err *err) {
    const kt_format *format = kt_format_find(p->weights);
    const kt_format *down = kt_format_find(p->down != KT_W_NONE ? p->down : p->weights);
    size_t data, scales;

    KT_TRY(kt_format_sizes(format, p->n, p->k, &data, &scales, err));
    if (p->op == KT_OP_GEMM) return KT_OK;
    return kt_format_sizes(down, p->k, p->n, &data, &scales, err);
}

/* Gate with up and down are two problems when their formats differ; they meet in one encoding. */
static kt_status resolve_mixed(maker *m, kt_problem_plan *p) {
    kt_problem halves[2], whole = p->problem;
    kt_plan_source source;

    p->down_choices = kt_arena_alloc(&m->plan->arena, sizeof *p->down_choices, 64);
    if (!p->down_choices) return kt_fail(m->err, KT_E_NOMEM, "no memory for a plan");
    kt_moe_halves(&whole, whole.down, &halves[0], &halves[1]);
    for (int i = 0; i < 2; i++) halves[i].down = KT_W_NONE;
    halves[0].acts = kt_plan_acts(m->planner, &halves[0]);
    halves[1].acts = kt_plan_acts(m->planner, &halves[1]);
    if (halves[0].acts != halves[1].acts) {
        const int has_bf16 = halves[0].acts == KT_A_BF16 || halves[1].acts == KT_A_BF16;
        halves[0].acts = halves[1].acts = has_bf16 ? KT_A_BF16 : KT_A_INT8_G32;
    }
    p->problem.acts = halves[0].acts;
    KT_TRY(kt_plan_resolve(m->planner, &halves[0], m->plan->threads, m->plan->max_rows,
                           KT_DECODE_SHARE, &p->choices, &p->source, m->err));
    KT_TRY(kt_plan_resolve(m->planner, &halves[1], m->plan->threads, m->plan->max_rows,
                           KT_DECODE_SHARE, p->down_choices, &source, m->err));
    for (int i = 0; i < KT_PLAN_TIMES; i++) p->source.time_ns[i] += source.time_ns[i];
    return KT_OK;
}

kt_moe_layer kt_problem_plan_layer(const kt_problem_plan *p) {
    return (kt_moe_layer){.problem = p->problem,
                          .choices = &p->choices,
                          .encode = p->encode.variant,
                          .down_weights = p->problem.down,
                          .down_choices = p->down_choices};
}

/* ---- latent attention with wide keys and values ---- */

kt_problem kt_expand_attn_problem(const kt_model_plan *plan, const kt_node *n) {
    const kt_weight *keys = &plan->graph->weights[n->weight];
    const kt_weight *values = &plan->graph->weights[n->weight2];
    const int64_t k = keys->k + n->attention.k - n->attention.v;

    return (kt_problem){.op = KT_OP_ATTN,
                        .weights = KT_W_BF16,
                        .m = plan->max_rows,
                        .n = n->attention.heads,
                        .k = k,
                        .kv_heads = n->attention.heads,
                        .v = values->n == k ? 0 : values->n,
                        .context = plan->max_context};
}

kt_problem kt_expand_head_problem(const kt_problem *attn) {
    kt_problem p = *attn;

    p.n = p.kv_heads = 1;
    return p;
}

kt_problem kt_expand_keys_problem(const kt_graph *g, const kt_node *n) {
    const kt_weight *keys = &g->weights[n->weight];

    return (kt_problem){.op = KT_OP_GEMM, .weights = KT_W_BF16, .n = keys->k, .k = keys->n};
}

const kt_problem_plan *kt_model_plan_expand_keys(const kt_model_plan *plan, const kt_node *n) {
    const kt_problem keys = kt_expand_keys_problem(plan->graph, n);

    for (int i = 0; i < plan->n_problems; i++)
        if (kt_need_is_same(&plan->problems[i].problem, &keys)) return &plan->problems[i];
    return NULL;
}

/* Panels as the step turns them (exec/expand.c), one encoding of the latents for both halves. */
static bool can_expand(const kt_model_plan *plan, const kt_node *n) {
    const kt_problem_plan *keys = kt_model_plan_expand_keys(plan, n);
    const kt_problem_plan *absorbed = kt_model_plan_run(plan, n->weight, 0);
    const kt_problem_plan *values = kt_model_plan_run(plan, n->weight2, 0);
    const kt_problem_plan *all[] = {keys, absorbed, values};

    for (int i = 0; i < 3; i++)
        if (!all[i] || all[i]->problem.weights != KT_W_BF16 ||
            strcmp(all[i]->choices.choice[0].variant->layout, "p64") != 0)
            return false;
    return keys->problem.acts == values->problem.acts;
}

/* Rows from which on a step is faster expanded. That costs each key (nope + v) * latent products
 * per head, an eighth more where its row has to be decoded and encoded, and saves each pair of a
 * query and a key what rows of the cache are longer than wide ones; integer products, which do
 * half as much again, save less (those of 16-bit words do not: wide keys have them, too). Measured
 * on Zen 4 (kernels/attn/NOTES.md): of DeepSeek-V3's heads both are even at about 150 rows with
 * BF16, 200 with FP8 and 390 with INT8; this says 171, 195 and 364. */
static int64_t rows_to_expand_from(const kt_model_plan *plan, const kt_node *n) {
    const kt_attention *a = &n->attention;
    const kt_problem p = kt_attn_problem(a, plan->kv, plan->max_context);
    const bool is_integer = kt_model_plan_simple(plan, &p)->variant->numerics == KT_NUM_ACTS8;
    const double nope = (double)plan->graph->weights[n->weight].k;
    const double v = (double)plan->graph->weights[n->weight2].n, latent = (double)a->v;
    const double narrow = (double)a->k + latent, wide = nope + (double)a->k - latent + v;
    const double cost = (nope + v) * latent * (kt_attn_has_scales(plan->kv) ? 1.125 : 1);
    const double saved = narrow / (is_integer ? 1.5 : 1) - wide;

    return saved > 0 ? (int64_t)ceil(cost / saved) : 0;
}

static const kt_node *latent_node(const kt_graph *g) {
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_ATTEND && g->nodes[i].in2.width > 0) return &g->nodes[i];
    return NULL;
}

void kt_model_plan_set_expand(kt_model_plan *plan, int64_t rows) {
    const kt_node *n = latent_node(plan->graph);
    const kt_problem p = n ? kt_expand_attn_problem(plan, n) : (kt_problem){0};

    if (n && kt_model_plan_simple(plan, &p) && can_expand(plan, n))
        plan->expand_rows = rows > plan->max_rows ? 0 : rows;
}

static kt_status resolve_run(maker *m, const char *role, const kt_problem *problem, int *index) {
    kt_model_plan *plan = m->plan;
    kt_problem_plan *p = plan->problems;
    kt_problem encode = {.op = KT_OP_ENCODE, .n = 1};
    kt_moe_layer layer;

    for (*index = 0; *index < plan->n_problems; p++, ++*index)
        if (kt_need_is_same(&p->problem, problem)) return KT_OK;
    *p = (kt_problem_plan){.role = role, .problem = *problem};
    KT_TRY(check_shape(&p->problem, m->err));
    if (problem->down != KT_W_NONE) {
        KT_TRY(resolve_mixed(m, p));
    } else {
        p->problem.acts = kt_plan_acts(m->planner, problem);
        KT_TRY(kt_plan_resolve(m->planner, &p->problem, plan->threads, plan->max_rows,
                               KT_DECODE_SHARE, &p->choices, &p->source, m->err));
    }
    encode.acts = p->problem.acts;
    encode.k = p->problem.k;
    KT_TRY(kt_plan_resolve_simple(m->planner, &encode, plan->threads, &p->encode, m->err));
    layer = kt_problem_plan_layer(p);
    p->bytes = problem->op == KT_OP_MOE_FFN
                   ? kt_moe_expert_bytes(&layer)
                   : p->choices.choice[0].variant->packed_bytes(&p->problem);
    p->bytes = (p->bytes + 63) / 64 * 64;
    plan->n_problems++;
    return KT_OK;
}

static kt_status resolve_weights(maker *m) {
    const kt_graph *g = m->plan->graph;

    for (int i = 0; i < g->n_weights; i++) {
        kt_run runs[KT_WEIGHT_PARTS];
        int n = kt_weight_runs(&g->weights[i], m->plan->quant, runs);
        for (int r = 0; r < n; r++)
            KT_TRY(resolve_run(m, g->weights[i].role, &runs[r].problem, &m->plan->of_run[i][r]));
    }
    return KT_OK;
}

/* ---- the rest ---- */

kt_problem kt_norm_problem(int64_t width) {
    return (kt_problem){.op = KT_OP_NORM, .n = 1, .k = width};
}

kt_problem kt_rope_problem(int64_t heads, int64_t size) {
    return (kt_problem){.op = KT_OP_ROPE, .n = heads, .k = size};
}

kt_problem kt_router_problem(const kt_weight *router, int64_t topk) {
    return (kt_problem){.op = KT_OP_ROUTER,
                        .weights = kt_weight_kept_as(router),
                        .n = router->n,
                        .k = router->k,
                        .topk = topk};
}

static int is_same_simple(const kt_problem *a, const kt_problem *b) {
    return a->op == b->op && a->weights == b->weights && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->kv_heads == b->kv_heads && a->v == b->v && a->window == b->window &&
           a->topk == b->topk;
}

static const kt_simple_plan *find_simple(const kt_model_plan *plan, const kt_problem *problem) {
    for (int i = 0; i < plan->n_simple; i++)
        if (is_same_simple(&plan->simple[i].problem, problem)) return &plan->simple[i];
    return NULL;
}

const kt_choice *kt_model_plan_simple(const kt_model_plan *plan, const kt_problem *problem) {
    const kt_simple_plan *s = find_simple(plan, problem);
    return s ? &s->choice : NULL;
}

const kt_attn_choices *kt_model_plan_attn(const kt_model_plan *plan, const kt_problem *problem) {
    const kt_simple_plan *s = find_simple(plan, problem);
    return s ? &s->by_size : NULL;
}

static kt_status resolve_simple(maker *m, kt_problem problem) {
    kt_simple_plan *s = &m->plan->simple[m->plan->n_simple];

    if (kt_model_plan_simple(m->plan, &problem)) return KT_OK;
    *s = (kt_simple_plan){.problem = problem};
    KT_TRY(kt_plan_resolve_simple(m->planner, &problem, m->plan->threads, &s->choice, m->err));
    m->plan->n_simple++;
    return KT_OK;
}

/* One row or many, over short, usual and long contexts: what the table says of each, without a row
 * of this cache what is expected. Where that is one variant for all, and where bits are kept, one
 * choice is for all. */
static kt_status resolve_attn(maker *m, const kt_attention *a) {
    static const int64_t rows[] = {1, 64}, keys[] = {2048, 8192, 32768};
    kt_problem p = kt_attn_problem(a, m->plan->kv, m->plan->max_context);
    bool differ = false;
    kt_simple_plan *s;
    kt_attn_choices *c;

    _Static_assert(sizeof rows / sizeof *rows * (sizeof keys / sizeof *keys) == KT_ATTN_SIZES,
                   "room for every size");
    KT_TRY(resolve_simple(m, p));
    if (kt_planner_keeps_bits(m->planner)) return KT_OK;
    for (s = m->plan->simple; !is_same_simple(&s->problem, &p);) s++;
    c = &s->by_size;
    c->n = 0;
    for (int i = 0; i < KT_ATTN_SIZES; i++, c->n++) {
        c->at[i].rows = p.m = rows[i % 2];
        c->at[i].keys = p.context = keys[i / 2];
        KT_TRY(kt_plan_resolve_simple(m->planner, &p, m->plan->threads, &c->at[i].choice, m->err));
        differ |= c->at[i].choice.variant != s->choice.variant;
    }
    if (!differ && !kt_planner_has_rows(m->planner, &p)) c->n = 0;
    return KT_OK;
}

static kt_status resolve_node(maker *m, const kt_node *n) {
    const kt_model_plan *p = m->plan;

    switch (n->kind) {
    case KT_NODE_RMS: return resolve_simple(m, kt_norm_problem(n->in.width));
    case KT_NODE_HEAD: return resolve_simple(m, kt_norm_problem(n->in.width));
    case KT_NODE_GATE: return resolve_simple(m, kt_norm_problem(n->out.width));
    case KT_NODE_RMS_HEADS: return resolve_simple(m, kt_norm_problem(n->size));
    case KT_NODE_HYPER_MIX:
    case KT_NODE_HYPER_END: return resolve_simple(m, kt_stream_problem(n));
    case KT_NODE_KEEP_ENTRY:
        KT_TRY(resolve_simple(m, kt_norm_problem(n->in.width)));
        return resolve_simple(m, kt_rope_problem(1, n->in.width));
    case KT_NODE_PICK_ENTRIES:
        return resolve_simple(m, kt_index_problem(&n->index, p->max_context));
    case KT_NODE_ROPE: return resolve_simple(m, kt_rope_problem(n->out.width / n->size, n->size));
    case KT_NODE_ATTEND_SPARSE:
    case KT_NODE_ATTEND_BLOCKS:
        KT_TRY(resolve_simple(m, kt_index_problem(&n->index, p->max_context)));
        return resolve_simple(m, kt_attn_problem(&n->attention, p->kv, p->max_context));
    case KT_NODE_ATTEND: return resolve_attn(m, &n->attention);
    case KT_NODE_ATTEND_ENTRIES:
        return resolve_simple(m, kt_attn_problem(&n->attention, p->kv, p->max_context));
    case KT_NODE_ROUTE:
        return resolve_simple(m, kt_router_problem(&p->graph->weights[n->weight], n->routing.topk));
    case KT_NODE_CONV:
        KT_TRY(resolve_simple(m, kt_conv_problem(n, 1)));
        return resolve_simple(m, kt_conv_problem(n, p->max_rows));
    case KT_NODE_DELTA:
        KT_TRY(resolve_simple(m, kt_delta_problem(n, 1)));
        return resolve_simple(m, kt_delta_problem(n, p->max_rows));
    default: return KT_OK;
    }
}

/* All latent attention of a model is of one kind (kt_model_kv_shape). */
static kt_status resolve_latent(maker *m) {
    kt_model_plan *p = m->plan;
    const kt_node *n = latent_node(p->graph);
    kt_problem keys;
    int index;

    if (!n || kt_planner_keeps_bits(m->planner)) return KT_OK;
    keys = kt_expand_keys_problem(p->graph, n);
    KT_TRY(resolve_run(m, "k_b", &keys, &index));
    KT_TRY(resolve_simple(m, kt_expand_attn_problem(p, n)));
    kt_model_plan_set_expand(p, rows_to_expand_from(p, n));
    return KT_OK;
}

static const kt_problem *layer_problem(const kt_model_plan *p) {
    const kt_problem *any = NULL;

    for (int i = 0; i < p->n_problems; i++) {
        const kt_problem *q = &p->problems[i].problem;
        if (q->op != KT_OP_MOE_FFN) continue;
        if (q->experts > 1) return q;
        if (!any) any = q;
    }
    return any;
}

static kt_status make(maker *m) {
    kt_model_plan *p = m->plan;
    const kt_graph *g = p->graph;
    const size_t runs = (size_t)g->n_weights * KT_WEIGHT_PARTS;
    kt_need *needs;
    int n_needs;

    KT_TRY(kt_graph_needs(g, p->quant, &needs, &n_needs, m->err));
    free(needs);
    p->problems = kt_arena_alloc(&p->arena, (size_t)(n_needs + 1) * sizeof *p->problems, 64);
    p->simple = kt_arena_alloc(&p->arena, (size_t)(2 * g->n_nodes + 2) * sizeof *p->simple, 64);
    p->of_run = kt_arena_alloc(&p->arena, runs * sizeof(int), sizeof(int));
    if (!p->problems || !p->simple || !p->of_run)
        return kt_fail(m->err, KT_E_NOMEM, "no memory for a plan");
    KT_TRY(resolve_weights(m));
    if (layer_problem(p)) kt_plan_layer(m->planner, layer_problem(p), p->threads, &p->layer);
    for (int i = 0; i < g->n_nodes; i++) KT_TRY(resolve_node(m, &g->nodes[i]));
    return resolve_latent(m);
}

kt_status kt_model_plan_make(kt_planner *planner, const kt_graph *graph, kt_quant quant,
                             kt_weight_format kv, int threads, int64_t max_rows,
                             int64_t max_context, kt_model_plan *out, kt_err *err) {
    maker m = {planner, out, err};
    kt_status st;

    *out = (kt_model_plan){.graph = graph,
                           .quant = quant,
                           .kv = kv,
                           .threads = threads,
                           .max_rows = max_rows,
                           .max_context = max_context};
    st = make(&m);
    if (st != KT_OK) kt_model_plan_deinit(out);
    return st;
}

void kt_model_plan_deinit(kt_model_plan *plan) {
    kt_arena_deinit(&plan->arena);
    memset(plan, 0, sizeof *plan);
}

const kt_problem_plan *kt_model_plan_run(const kt_model_plan *plan, int weight, int run) {
    return &plan->problems[plan->of_run[weight][run]];
}

const kt_problem_plan *kt_model_plan_role(const kt_model_plan *plan, const char *role) {
    for (int i = 0; i < plan->graph->n_weights; i++)
        if (strcmp(plan->graph->weights[i].role, role) == 0) return kt_model_plan_run(plan, i, 0);
    return NULL;
}

/* ---- bytes ---- */

static size_t kept_bytes(const kt_weight *w) {
    size_t data = 0, scales = 0;

    if (kt_format_sizes(kt_format_find(kt_weight_kept_as(w)), w->n,
                        w->kind == KT_WEIGHT_VECTOR ? 1 : w->k, &data, &scales, NULL) != KT_OK)
        return SIZE_MAX;
    return kt_bytes_round(data);
}

size_t kt_model_plan_bytes(const kt_model_plan *plan, int weight) {
    const kt_weight *w = &plan->graph->weights[weight];
    kt_run runs[KT_WEIGHT_PARTS];
    const kt_away *away = plan->away ? &plan->away[weight] : NULL;
    const int64_t here = w->count - (away ? away->n_experts : 0);
    int n = kt_weight_runs(w, plan->quant, runs);
    size_t total = 0;

    if (away && away->is_whole) return 0;
    if (n == 0) return kept_bytes(w);
    for (int r = 0; r < n; r++) {
        const kt_problem_plan *p = kt_model_plan_run(plan, weight, r);
        total =
            kt_bytes_add(total, kt_bytes_times(p->bytes, w->kind == KT_WEIGHT_MATRIX ? 1 : here));
    }
    return total;
}

size_t kt_model_plan_weight_bytes(const kt_model_plan *plan) {
    size_t total = 0;

    for (int i = 0; i < plan->graph->n_weights; i++)
        total = kt_bytes_add(total, kt_model_plan_bytes(plan, i));
    return total;
}
