/* out *= sigmoid(in), element by element. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/step.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_norm_problem(n->out.width);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for gates");
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_norm_call call = {.x = n->out.x,
                               .ldx = n->out.ld,
                               .z = n->in.x,
                               .ldz = n->in.ld,
                               .y = n->out.x,
                               .ldy = n->out.ld,
                               .k = n->out.width,
                               .kind = KT_NORM_SIGMOID,
                               .row_begin = begin,
                               .row_end = end};

    (void)s;
    n->choice->variant->norm(&call);
}

const kt_exec_op kt_exec_op_sigmoid_gate = {.kind = KT_NODE_GATE, .init = init, .rows = rows};
