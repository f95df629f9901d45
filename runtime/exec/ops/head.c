/* The end: norm and lm_head of the rows whose logits are asked for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/ops/linear.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_norm_problem(n->in.width);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for the last norm");
    return kt_exec_linear_init(n, err);
}

static void norm(const kt_exec_node *n, int64_t begin, int64_t end) {
    kt_norm_rows(n->choice, n->in.x, n->in.ld, n->weight2->data[0], (float)n->node->eps, n->out.x,
                 n->out.ld, n->in.width, begin, end);
}

/* Rows without logits are skipped, unless their hidden state is asked for. Those with logits are
 * encoded one behind the other, a run of them at once. */
static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    if (s->hidden) norm(n, begin, end);
    kt_step_copy_hidden(s, s->graph->numbers.layers, &n->out, begin, end);
    for (int64_t r = begin, last; r < end; r = last) {
        last = r + 1;
        if (s->out_of[r] < 0) continue;
        while (last < end && s->out_of[last] >= 0) last++;
        if (!s->hidden) norm(n, r, last);
        kt_exec_linear_encode(n->state, &n->out, r, last, s->out_of[r] - r);
    }
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    kt_exec_linear *l = n->state;

    (void)is_few;
    out[0] = kt_gemm_group_phase(&l->group);
    return 1;
}

static void bind(kt_exec_node *n) {
    const kt_step *s = n->step;
    kt_exec_linear *l = n->state;

    l->job[0].m = s->n_out;
    l->job[0].c = s->logits;
    l->job[0].ldc = s->graph->numbers.vocab;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_HEAD;
}

static void count(kt_exec_node *n) {
    kt_exec_linear_count(n, KT_STEP_HEAD, n->step->n_out);
}

static void observe(kt_exec_node *n) {
    for (int64_t i = 0; i < n->step->n_out; i++)
        kt_importance_add(n->step->importance, n->node->weight, 0, 0,
                          n->out.x + n->step->out_row[i] * n->out.ld);
}

const kt_exec_op kt_exec_op_head = {.kind = KT_NODE_HEAD,
                                    .init = init,
                                    .rows = rows,
                                    .phases = phases,
                                    .bind = bind,
                                    .time = time_of,
                                    .count = count,
                                    .observe = observe};
