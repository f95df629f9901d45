/* RMSNorm of each head of a row, in place; or of all of them together.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/step.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_norm_problem(n->node->size);

    n->state = NULL;
    if (!n->weight) { /* a norm without weights */
        float *ones = kt_step_alloc(n->step, (size_t)n->node->size * sizeof *ones);
        if (!ones) return kt_fail(err, KT_E_NOMEM, "no memory for a norm of heads");
        for (int64_t i = 0; i < n->node->size; i++) ones[i] = 1.0f;
        n->state = ones;
    }
    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for a norm of heads");
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const int64_t size = n->node->size;
    const float *w = n->weight ? n->weight->data[0] : n->state;

    (void)s;
    for (int64_t r = begin; r < end; r++) {
        float *x = n->out.x + r * n->out.ld;
        kt_norm_rows(n->choice, x, size, w, (float)n->node->eps, x, size, size, 0,
                     n->out.width / size);
    }
}

const kt_exec_op kt_exec_op_rms_heads = {.kind = KT_NODE_RMS_HEADS, .init = init, .rows = rows};
