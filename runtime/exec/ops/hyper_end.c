/* Residual streams end as one row. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/hyper/hyper.h"
#include "runtime/exec/step.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    const kt_problem problem = kt_stream_problem(n->node);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for residual streams");
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_stream_rule *rule = &n->node->streams;
    const float *base = n->weight2->data[0], *scale = n->weight3->data[0];
    const kt_problem problem = kt_stream_problem(n->node);
    float m[KT_HYPER_MOST];

    (void)s;
    for (int64_t r = begin; r < end; r++) {
        const float *x = n->in.x + r * n->in.ld;
        n->choice->variant->router(&(kt_router_call){.problem = &problem,
                                                     .x = x,
                                                     .ldx = n->in.ld,
                                                     .w = n->weight->data[0],
                                                     .logits = m,
                                                     .ldl = rule->count,
                                                     .row_end = 1,
                                                     .expert_end = rule->count});
        kt_hyper_weights(m, kt_hyper_factor(x, n->in.width, (float)rule->norm_eps), base, scale[0],
                         rule->count, (float)rule->eps);
        kt_hyper_collapse(x, m, rule->count, n->out.width, n->out.x + r * n->out.ld);
    }
}

const kt_exec_op kt_exec_op_hyper_end = {.kind = KT_NODE_HYPER_END, .init = init, .rows = rows};
