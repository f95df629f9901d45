/* Linear attention by the gated delta rule: a state per value head that a sequence keeps.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "runtime/exec/step.h"

typedef struct delta_state {
    kt_problem problem;
    const kt_choice *choice; /* of the program that runs */
    uint8_t *scratch;        /* [threads] */
    size_t scratch_bytes;    /* of a thread */
} delta_state;

static size_t scratch_of(const kt_choice *c, const kt_problem *p) {
    size_t bytes = c->variant->workspace_bytes ? c->variant->workspace_bytes(p, &c->config) : 0;

    return (bytes + 63) / 64 * 64;
}

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
    d->scratch_bytes = scratch_of(n->choice, &few);
    of_many = scratch_of(n->many, &many);
    if (of_many > d->scratch_bytes) d->scratch_bytes = of_many;
    d->scratch = kt_step_alloc(s, d->scratch_bytes * (size_t)s->n_threads + 64);
    n->state = d;
    return d->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for linear attention");
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const kt_step *s = n->step;
    const delta_state *d = n->state;
    const kt_delta_rule *r = &n->node->delta;
    const int64_t keys = r->key_heads * r->k;
    kt_delta_call call = {.problem = &d->problem,
                          .config = &d->choice->config,
                          .q = n->in.x,
                          .k = n->in.x + keys,
                          .v = n->in.x + 2 * keys,
                          .ld = n->in.ld,
                          .b = n->in2.x,
                          .a = n->in2.x + r->heads,
                          .ldba = n->in2.ld,
                          .decay = n->weight->data[0],
                          .dt_bias = n->weight2->data[0],
                          .state = s->state + s->slot_at[n->node->slot],
                          .z = n->in3.x,
                          .ldz = n->in3.ld,
                          .norm = n->weight3->data[0],
                          .eps = (float)n->node->eps,
                          .out = n->out.x,
                          .ldo = n->out.ld,
                          .position = s->first_position,
                          .rows = s->rows,
                          .head_begin = begin,
                          .head_end = end,
                          .scratch = d->scratch + (size_t)tid * d->scratch_bytes};

    d->choice->variant->delta(&call);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.run = run, .arg = n, .n_tasks = n->node->delta.heads};
    return 1;
}

static void bind(kt_exec_node *n) {
    delta_state *d = n->state;

    d->choice = n->step->rows < 8 ? n->choice : n->many;
    d->problem.m = n->step->rows;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

/* Decay, read-out, update and output: four passes over the state. */
static void count(kt_exec_node *n) {
    const kt_delta_rule *r = &n->node->delta;
    const double size = (double)(r->heads * r->k * r->v);

    kt_step_count(n->step, KT_STEP_ATTN, 7 * (double)n->step->rows * size, 8 * size);
}

const kt_exec_op kt_exec_op_delta = {.kind = KT_NODE_DELTA,
                                     .init = init,
                                     .phases = phases,
                                     .bind = bind,
                                     .time = time_of,
                                     .count = count};
