/* RMSNorm of rows. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/step.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_norm_problem(n->in.width);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for a norm");
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    (void)s;
    kt_norm_rows(n->choice, n->in.x, n->in.ld, n->weight->data[0], (float)n->node->eps, n->out.x,
                 n->out.ld, n->in.width, begin, end);
}

const kt_exec_op kt_exec_op_rms = {.kind = KT_NODE_RMS, .init = init, .rows = rows};
