/* Windows of tokens are pooled to entries, channel by channel (kernels/compress/entries.h); what a
 * window is not yet a sequence keeps as a state. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/compress/entries.h"
#include "runtime/exec/step.h"

#define CHANNELS 64 /* of a task */

static int64_t blocks(const kt_exec_node *n) {
    return (n->node->size + CHANNELS - 1) / CHANNELS;
}

static void run_span(const kt_exec_node *n, const kt_step_span *span, int64_t begin, int64_t end) {
    const kt_step *s = n->step;
    const int64_t dim = n->node->size, halves = n->in.width / dim;
    kt_pool_call call = {.values = n->in.x + span->first_row * n->in.ld,
                         .gates = n->in2.x + span->first_row * n->in2.ld,
                         .ldv = n->in.ld,
                         .ldg = n->in2.ld,
                         .ape = n->weight->data[0],
                         .state = span->to + s->slot_at[n->node->slot],
                         .out = n->out.x + span->first_row * n->out.ld,
                         .ldo = n->out.ld,
                         .dim = dim,
                         .halves = halves,
                         .ratio = n->node->entries.ratio,
                         .position = span->position,
                         .rows = span->rows,
                         .channel_begin = begin * CHANNELS,
                         .channel_end = end * CHANNELS};

    if (call.channel_end > dim) call.channel_end = dim;
    for (int64_t part = 0; part < 3 * halves; part++)
        kt_step_bring_state(s, span, n->node->slot, part * dim + call.channel_begin,
                            call.channel_end - call.channel_begin);
    kt_pool_rows(&call);
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

/* Two rows in, and the state of every sequence. */
static void count(kt_exec_node *n) {
    const double width = (double)n->in.width, rows = (double)n->step->rows;

    kt_step_count(n->step, KT_STEP_CONV, 8 * width * rows,
                  4 * width * (2 * rows + 6 * (double)n->step->n_spans));
}

const kt_exec_op kt_exec_op_compress = {
    .kind = KT_NODE_COMPRESS, .phases = phases, .time = time_of, .count = count};
