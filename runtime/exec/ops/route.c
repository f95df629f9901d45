/* Which experts a row goes to, and with which weights. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/router/router_blocks.h"
#include "runtime/exec/joined.h"
#include "runtime/exec/step.h"

typedef struct route_state {
    kt_router_blocks blocks; /* of this step's logits */
    kt_router_rule rule;
    kt_problem problem;
    int64_t slots;         /* of a row: topk, and one for a shared expert that runs with them */
    const kt_node *shared; /* that one, or NULL */
    const float *ids;      /* [vocab, topk]: the token says which experts; NULL = it does not */
} route_state;

/* What else runs with the experts that are chosen. */
static void find_shared(kt_exec_node *n) {
    const kt_step *s = n->step;
    const kt_node *experts = kt_joined_experts_of(s->graph, n->node);
    route_state *state = n->state;

    state->slots = state->rule.topk;
    state->shared = experts ? kt_joined_shared(s->plan, experts) : NULL;
    if (state->shared) state->slots++;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    const kt_routing_rule *r = &n->node->routing;
    const kt_weight *w = &n->step->graph->weights[n->node->weight];
    route_state *state = kt_step_alloc(n->step, sizeof *state);

    if (!state) return kt_fail(err, KT_E_NOMEM, "no memory for a router");
    state->problem = kt_router_problem(w, r->topk);
    state->rule = (kt_router_rule){.score = r->score,
                                   .experts = r->experts,
                                   .topk = r->topk,
                                   .norm_topk_prob = r->is_normalised,
                                   .bias = n->weight2 ? n->weight2->data[0] : NULL,
                                   .scale = (float)r->scale};
    if (r->is_hashed) state->ids = n->weight3->data[0];
    if (r->score == KT_ROUTER_SIGMOID_GROUP) {
        state->rule.groups = r->groups;
        state->rule.top_groups = r->top_groups;
    }
    n->state = state;
    find_shared(n);
    n->choice = kt_model_plan_simple(n->step->plan, &state->problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for a router");
    return kt_router_rule_check(&state->rule, err);
}

static void scores(const kt_exec_node *n, const kt_router_span *span) {
    const kt_step *s = n->step;
    const route_state *state = n->state;
    kt_problem problem = state->problem;
    kt_router_call call = {.problem = &problem,
                           .x = n->in.x,
                           .ldx = n->in.ld,
                           .w = n->weight->data[0],
                           .logits = s->router_logits,
                           .ldl = state->rule.experts,
                           .row_begin = span->row_begin,
                           .row_end = span->row_end,
                           .expert_begin = span->expert_begin,
                           .expert_end = span->expert_end};

    problem.m = s->rows;
    n->choice->variant->router(&call);
}

/* A shared expert stands behind the chosen ones, with its gate as its weight. */
static void choose(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const route_state *state = n->state;
    const kt_router_rule *rule = &state->rule;
    const kt_node *shared = state->shared;
    const kt_rows *gate =
        shared && shared->in2.width == 1 ? &s->exec[shared - s->graph->nodes].in2 : NULL;

    for (int64_t r = begin; r < end; r++) {
        int32_t *id = s->expert_id + r * state->slots;
        float *weight = s->route_weight + r * state->slots;
        const float *logits = s->router_logits + r * rule->experts;
        for (int64_t i = 0; state->ids && i < rule->topk; i++)
            id[i] = (int32_t)state->ids[s->tokens[r] * rule->topk + i];
        if (state->ids)
            kt_router_weigh(rule, logits, id, weight);
        else
            kt_router_select(rule, logits, id, weight);
        if (!shared) continue;
        id[rule->topk] = (int32_t)rule->experts;
        weight[rule->topk] = gate ? gate->x[r * gate->ld] : 1.0f;
    }
}

static int64_t prepare(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    route_state *state = n->state;

    state->blocks = kt_router_cut(n->step->rows, n->node->routing.experts, n_threads);
    return state->blocks.n;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const route_state *state = n->state;
    kt_router_span span;

    (void)tid;
    while (begin < end) {
        begin += kt_router_take(&state->blocks, begin, end, &span);
        scores(n, &span);
    }
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.prepare = prepare, .run = run, .arg = n, .grain = KT_ROUTER_GRAIN};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ROUTER;
}

static void count(kt_exec_node *n) {
    const kt_weight *w = &n->step->graph->weights[n->node->weight];
    double size = (double)w->n * (double)w->k, item = n->weight->format == KT_W_BF16 ? 2 : 4;

    kt_step_count(n->step, KT_STEP_ROUTER, 2 * (double)n->step->rows * size, size * item);
}

const kt_exec_op kt_exec_op_route = {.kind = KT_NODE_ROUTE,
                                     .init = init,
                                     .phases = phases,
                                     .after = choose,
                                     .time = time_of,
                                     .count = count};
