/* Linear attention by the gated delta rule: a state per value head that a sequence keeps.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "runtime/exec/step.h"

#define MANY_ROWS 8 /* of a span, from which on chunks pay */

typedef struct delta_state {
    kt_problem problem;
    uint8_t *scratch;     /* [threads] */
    size_t scratch_bytes; /* of a thread */
} delta_state;

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    kt_problem few = kt_delta_problem(n->node, 1), many = kt_delta_problem(n->node, s->max_rows);
    delta_state *d = kt_step_alloc(s, sizeof *d);
    size_t of_many;

    n->choice = kt_model_plan_simple(s->plan, &few);
    n->many = kt_model_plan_simple(s->plan, &many);
    if (!d || !n->choice || !n->many)
        return kt_fail(err, d ? KT_E_INTERNAL : KT_E_NOMEM, "no plan for linear attention");
    d->problem = many;
    d->scratch_bytes = kt_step_scratch_of(n->choice, &few);
    of_many = kt_step_scratch_of(n->many, &many);
    if (of_many > d->scratch_bytes) d->scratch_bytes = of_many;
    d->scratch = kt_step_alloc(s, d->scratch_bytes * (size_t)s->n_threads + 64);
    n->state = d;
    return d->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for linear attention");
}

/* Heads [begin, end) of one tile. A row's bits follow from its own sequence: the choice does from
 * the span alone. */
static void run_span(const kt_exec_node *n, const kt_step_span *span, int64_t begin, int64_t end,
                     int tid) {
    const kt_step *s = n->step;
    const delta_state *d = n->state;
    const kt_choice *choice = span->rows < MANY_ROWS ? n->choice : n->many;
    const kt_delta_rule *r = &n->node->delta;
    const int64_t keys = r->key_heads * r->k, tile = kt_delta_tile(r), first = begin / tile * tile;
    const int64_t row = span->first_row, of_head = r->k * r->v;
    const float *q = n->in.x + row * n->in.ld, *b = n->in2.x + row * n->in2.ld + first;
    kt_problem problem = d->problem;
    kt_delta_call call = {.problem = &problem,
                          .config = &choice->config,
                          .q = q,
                          .k = q + keys,
                          .v = q + 2 * keys + first * r->v,
                          .ld = n->in.ld,
                          .b = b,
                          .a = b + r->heads,
                          .ldba = n->in2.ld,
                          .decay = (const float *)n->weight->data[0] + first,
                          .dt_bias = (const float *)n->weight2->data[0] + first,
                          .state = span->to + s->slot_at[n->node->slot] + first * of_head,
                          .z = n->in3.x + row * n->in3.ld + first * r->v,
                          .ldz = n->in3.ld,
                          .norm = n->weight3->data[0],
                          .eps = (float)n->node->eps,
                          .out = n->out.x + row * n->out.ld + first * r->v,
                          .ldo = n->out.ld,
                          .position = span->position,
                          .rows = span->rows,
                          .head_begin = begin - first,
                          .head_end = end - first,
                          .scratch = d->scratch + (size_t)tid * d->scratch_bytes};

    problem.m = span->rows;
    kt_step_bring_state(s, span, n->node->slot, begin * of_head, (end - begin) * of_head);
    choice->variant->delta(&call);
}

/* Tasks are spans x heads; a call is of one tile. */
static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const int64_t each = n->node->delta.heads, tile = kt_delta_tile(&n->node->delta);

    for (int64_t task = begin; task < end;) {
        int64_t first = task % each, last = (first / tile + 1) * tile;
        if (last - first > end - task) last = first + end - task;
        run_span(n, &n->step->spans[task / each], first, last, tid);
        task += last - first;
    }
}

static int64_t count_tasks(void *arg, int n_threads) {
    const kt_exec_node *n = arg;

    (void)n_threads;
    return n->step->n_spans * n->node->delta.heads;
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.prepare = count_tasks, .run = run, .arg = n};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_DELTA;
}

/* Decay, read-out, update and output: four passes over the state. */
static void count(kt_exec_node *n) {
    const kt_delta_rule *r = &n->node->delta;
    const double size = (double)(r->heads * r->k * r->v);

    kt_step_count(n->step, KT_STEP_DELTA, 7 * (double)n->step->rows * size,
                  8 * (double)n->step->n_spans * size);
}

const kt_exec_op kt_exec_op_delta = {
    .kind = KT_NODE_DELTA, .init = init, .phases = phases, .time = time_of, .count = count};
