/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/joined.h"

#include <string.h>

static bool is_same_view(const kt_view *a, const kt_view *b) {
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

static bool is_same_layout(const kt_choice_map *a, const kt_choice_map *b) {
    if (!a || !b) return a == b;
    return strcmp(a->choice[0].variant->layout, b->choice[0].variant->layout) == 0;
}

/* Can the variants of one plan read what the other's have packed? */
static bool is_same_form(const kt_problem_plan *a, const kt_problem_plan *b) {
    const kt_problem *p = &a->problem, *q = &b->problem;

    return p->n == q->n && p->k == q->k && p->weights == q->weights && p->down == q->down &&
           p->acts == q->acts && p->act == q->act && a->bytes == b->bytes &&
           is_same_layout(&a->choices, &b->choices) &&
           is_same_layout(a->down_choices, b->down_choices);
}

/* One ending for all experts of a call: no biases, which lie apart. */
static bool is_same_ending(const kt_node *a, const kt_node *b) {
    const bool has_bias = a->weight2 >= 0 || a->weight4 >= 0 || b->weight2 >= 0 || b->weight4 >= 0;

    return !has_bias && a->glu.kind == b->glu.kind && a->glu.limit == b->glu.limit &&
           a->glu.alpha == b->glu.alpha;
}

static bool may_join(const kt_model_plan *plan, const kt_node *routed, const kt_node *shared) {
    return !plan->away && routed->kind == KT_NODE_EXPERTS && routed->is_routed &&
           shared->kind == KT_NODE_EXPERTS && !shared->is_routed &&
           routed->layer == shared->layer && is_same_view(&routed->in, &shared->in) &&
           is_same_view(&routed->out, &shared->out) && is_same_ending(routed, shared) &&
           is_same_form(kt_model_plan_run(plan, routed->weight, 0),
                        kt_model_plan_run(plan, shared->weight, 0));
}

const kt_node *kt_joined_shared(const kt_model_plan *plan, const kt_node *routed) {
    const kt_node *next = routed + 1;

    if (next >= plan->graph->nodes + plan->graph->n_nodes) return NULL;
    return may_join(plan, routed, next) ? next : NULL;
}

const kt_node *kt_joined_routed(const kt_model_plan *plan, const kt_node *shared) {
    if (shared == plan->graph->nodes) return NULL;
    return may_join(plan, shared - 1, shared) ? shared - 1 : NULL;
}

const kt_node *kt_joined_experts_of(const kt_graph *graph, const kt_node *route) {
    for (const kt_node *n = route + 1; n < graph->nodes + graph->n_nodes; n++)
        if (n->kind == KT_NODE_EXPERTS && n->is_routed) return n;
    return NULL;
}

kt_problem kt_joined_problem(const kt_model_plan *plan, const kt_node *routed) {
    kt_problem p = kt_model_plan_run(plan, routed->weight, 0)->problem;

    if (!kt_joined_shared(plan, routed)) return p;
    p.experts++;
    p.topk++;
    return p;
}
