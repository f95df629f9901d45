/* Rotary embedding of heads, in place. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/step.h"

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_rope_problem(n->out.width / n->node->size, n->node->size);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for a rotary embedding");
}

/* Back: the same with sines negated, a row at a time. */
static void rotate_back(const kt_exec_node *n, const kt_rope_call *forth, int64_t row) {
    const int64_t half = forth->rotary_dim / 2;
    const float *angle = forth->cos_sin + (int64_t)forth->positions[row] * forth->rotary_dim;
    const int32_t first = 0;
    float back[KT_ROPE_BACK_MOST];
    kt_rope_call call = *forth;

    for (int64_t i = 0; i < half; i++) back[i] = angle[i], back[half + i] = -angle[half + i];
    call.x = forth->x + row * forth->ld;
    call.cos_sin = back;
    call.positions = &first;
    call.row_begin = 0;
    call.row_end = 1;
    n->choice->variant->rope(&call);
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_rope_rule *rotation = &s->graph->rotations[n->node->rotation];
    kt_rope_call call = {.x = n->out.x,
                         .ld = n->out.ld,
                         .heads = n->out.width / n->node->size,
                         .head_dim = n->node->size,
                         .rotary_dim = rotation->rotary_dim,
                         .cos_sin = s->cos_sin[n->node->rotation],
                         .positions = s->positions,
                         .interleaved = rotation->interleaved,
                         .row_begin = begin,
                         .row_end = end};

    if (!n->node->is_inverse) {
        n->choice->variant->rope(&call);
        return;
    }
    for (int64_t r = begin; r < end; r++) rotate_back(n, &call, r);
}

const kt_exec_op kt_exec_op_rope = {.kind = KT_NODE_ROPE, .init = init, .rows = rows};
