/* Causal convolution of each channel, whose last inputs a sequence keeps.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "runtime/exec/step.h"

#define CHANNELS 256 /* of a task; a multiple of 16 */
#define MANY_ROWS 8  /* of a span, which are planned for apart */

static kt_status init(kt_exec_node *n, kt_err *err) {
    const kt_problem few = kt_conv_problem(n->node, 1);
    const kt_problem many = kt_conv_problem(n->node, n->step->max_rows);

    n->choice = kt_model_plan_simple(n->step->plan, &few);
    n->many = kt_model_plan_simple(n->step->plan, &many);
    return n->choice && n->many ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for a convolution");
}

static int64_t blocks(const kt_exec_node *n) {
    return (n->in.width + CHANNELS - 1) / CHANNELS;
}

/* The state is [taps - 1][channels]. */
static void run_span(const kt_exec_node *n, const kt_step_span *span, int64_t begin, int64_t end) {
    const kt_step *s = n->step;
    const kt_choice *choice = span->rows < MANY_ROWS ? n->choice : n->many;
    kt_problem problem = kt_conv_problem(n->node, span->rows);
    kt_conv_call call = {.problem = &problem,
                         .x = n->in.x + span->first_row * n->in.ld,
                         .ldx = n->in.ld,
                         .w = n->weight->data[0],
                         .state = span->to + s->slot_at[n->node->slot],
                         .y = n->out.x + span->first_row * n->out.ld,
                         .ldy = n->out.ld,
                         .rows = span->rows,
                         .channel_begin = begin * CHANNELS,
                         .channel_end = end * CHANNELS};

    if (call.channel_end > n->in.width) call.channel_end = n->in.width;
    for (int64_t tap = 0; tap + 1 < problem.k; tap++)
        kt_step_bring_state(s, span, n->node->slot, tap * problem.n + call.channel_begin,
                            call.channel_end - call.channel_begin);
    choice->variant->conv(&call);
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;

    (void)tid;
    kt_step_run_spans(n, blocks(n), begin, end, run_span);
}

static int64_t count_tasks(void *arg, int n_threads) {
    const kt_exec_node *n = arg;

    (void)n_threads;
    return n->step->n_spans * blocks(n);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.prepare = count_tasks, .run = run, .arg = n};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_CONV;
}

/* Rows in and out, taps, and the state of every sequence: eight operations in 8 bytes are moved,
 * not computed. */
static void count(kt_exec_node *n) {
    const double taps = (double)n->node->size, width = (double)n->in.width;
    const double rows = (double)n->step->rows, spans = (double)n->step->n_spans;

    kt_step_count(n->step, KT_STEP_CONV, 2 * taps * width * rows,
                  4 * width * (2 * rows + taps + 2 * (taps - 1) * spans));
}

const kt_exec_op kt_exec_op_conv = {
    .kind = KT_NODE_CONV, .init = init, .phases = phases, .time = time_of, .count = count};
