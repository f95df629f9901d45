/* Causal convolution of each channel, whose last inputs a sequence keeps.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/step.h"

#define CHANNELS 256 /* of a task; a multiple of 16 */

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem = kt_conv_problem(n->node);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for a convolution");
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const kt_step *s = n->step;
    kt_problem problem = kt_conv_problem(n->node);
    kt_conv_call call = {.problem = &problem,
                         .x = n->in.x,
                         .ldx = n->in.ld,
                         .w = n->weight->data[0],
                         .state = s->state + s->slot_at[n->node->slot],
                         .y = n->out.x,
                         .ldy = n->out.ld,
                         .rows = s->rows,
                         .channel_begin = begin * CHANNELS,
                         .channel_end = end * CHANNELS};

    (void)tid;
    if (call.channel_end > n->in.width) call.channel_end = n->in.width;
    n->choice->variant->conv(&call);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.run = run, .arg = n, .n_tasks = (n->in.width + CHANNELS - 1) / CHANNELS};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

const kt_exec_op kt_exec_op_conv = {
    .kind = KT_NODE_CONV, .init = init, .phases = phases, .time = time_of};
