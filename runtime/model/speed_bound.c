/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/speed_bound.h"

#include <math.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "dispatch/model/node_problems.h"
#include "runtime/exec/batch.h"
#include "runtime/model/model_dir.h"

typedef struct counter {
    const kt_model_plan *plan;
    const kt_ceilings *ceilings;
    kt_speed_bound *out;
    double multiply_ns; /* of a prefill step */
} counter;

static void add_ops(counter *c, double ops, const kt_variant *v) {
    c->out->prefill_ops += ops;
    c->multiply_ns += ops / (kt_variant_gops(v, c->ceilings) * c->plan->threads);
}

/* Routed experts that a step of so many rows meets, when all are alike. */
static double experts_met(const kt_weight *w, int64_t rows) {
    const double all = (double)w->count, share = (double)w->topk / all;

    return all * (1 - pow(1 - share, (double)rows));
}

static void count_weight(counter *c, int weight) {
    const kt_weight *w = &c->plan->graph->weights[weight];
    const double bytes = (double)kt_model_plan_bytes(c->plan, weight);
    const bool is_routed = w->use == KT_USE_EXPERTS;
    const int64_t rows = w->use == KT_USE_HEAD ? 1 : c->plan->max_rows; /* one row has logits */
    kt_run runs[KT_WEIGHT_PARTS];
    const int n = kt_weight_runs(w, c->plan->quant, runs);

    if (w->kind == KT_WEIGHT_TABLE) return; /* a row of it */
    c->out->decode_bytes += is_routed ? bytes * (double)w->topk / (double)w->count : bytes;
    c->out->prefill_bytes += is_routed ? bytes * experts_met(w, rows) / (double)w->count : bytes;
    for (int r = 0; r < n; r++) {
        const kt_problem *p = &runs[r].problem;
        const kt_choice_map *map = &kt_model_plan_run(c->plan, weight, r)->choices;
        const int64_t m = is_routed ? rows * w->topk / w->count : rows;
        double ops = 2 * (double)rows * (double)p->n * (double)p->k;
        if (w->kind == KT_WEIGHT_EXPERTS) ops *= 3 * (double)(is_routed ? w->topk : w->count);
        if (w->kind == KT_WEIGHT_HEADS) ops *= (double)w->count;
        add_ops(c, ops, kt_choice_for(map, m < 1 ? 1 : m)->variant);
    }
}

static void count_attention(counter *c, const kt_node *n, int64_t context) {
    const kt_attention *a = &n->attention;
    const kt_problem problem = kt_attn_problem(a, c->plan->kv, c->plan->max_context);
    const kt_choice *choice = kt_model_plan_simple(c->plan, &problem);
    const bool is_cut = a->window > 0 && a->window < context / 2;
    const double pairs =
        (double)c->plan->max_rows * (is_cut ? (double)a->window : (double)context / 2);
    kt_problem wide, keys;

    if (!choice) return;
    if (!c->plan->expand_rows || n->in2.width == 0) {
        add_ops(c, 2 * pairs * (double)(a->heads * (a->k + a->v)), choice->variant);
        return;
    }
    wide = kt_expand_attn_problem(c->plan, n);
    keys = kt_expand_keys_problem(c->plan->graph, n);
    choice = kt_model_plan_simple(c->plan, &wide);
    add_ops(c, 2 * pairs * (double)(a->heads * (wide.k + (wide.v ? wide.v : wide.k))),
            choice->variant);
    add_ops(c,
            2 * (double)context *
                (double)(a->heads * (keys.n + c->plan->graph->weights[n->weight2].n) * keys.k),
            choice->variant);
}

/* The share of a context's cache that a row reads: layers with a window read that. */
static double share_read(const kt_graph *g, int64_t context) {
    double read = 0, all = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const int64_t window = g->nodes[i].attention.window;
        if (g->nodes[i].kind != KT_NODE_ATTEND) continue;
        read += (double)(window > 0 && window < context ? window : context);
        all += (double)context;
    }
    return all > 0 ? read / all : 1;
}

kt_status kt_speed_bound_count(const kt_model_plan *plan, int64_t context,
                               const kt_ceilings *ceilings, kt_speed_bound *out, kt_err *err) {
    counter c = {plan, ceilings, out, 0};
    const double gbs = kt_stream_gbs(ceilings, plan->threads);
    kt_kv_shape shape;
    double cache, read_ns;

    *out = (kt_speed_bound){0};
    KT_TRY(kt_model_kv_shape(plan->graph, plan->kv, &shape, err));
    cache = (double)kt_kv_page_bytes(&shape) / KT_PAGE_TOKENS * (double)context *
            share_read(plan->graph, context);
    for (int i = 0; i < plan->graph->n_weights; i++) count_weight(&c, i);
    for (int i = 0; i < plan->graph->n_nodes; i++)
        if (plan->graph->nodes[i].kind == KT_NODE_ATTEND)
            count_attention(&c, &plan->graph->nodes[i], context);
    out->decode_bytes += cache;
    out->prefill_bytes += cache / 2;
    out->decode_tps = 1e9 * gbs / out->decode_bytes;
    read_ns = out->prefill_bytes / gbs;
    out->prefill_tps =
        1e9 * (double)plan->max_rows / (read_ns > c.multiply_ns ? read_ns : c.multiply_ns);
    return KT_OK;
}
