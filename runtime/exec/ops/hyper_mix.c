/* Residual streams become one row, which half a layer begins with; behind it the node leaves how
 * they are mixed behind that half, and zeros for its result (kernels/hyper). Few rows share the
 * products over threads, many rows themselves. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/hyper/hyper.h"
#include "runtime/exec/step.h"

#define OUTPUTS 4 /* of a task */

static kt_status init(kt_exec_node *n, kt_err *err) {
    const kt_problem problem = kt_stream_problem(n->node);

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    return n->choice ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for residual streams");
}

/* What of a row of out is what. */
static float *join_of(const kt_exec_node *n, int64_t row) {
    return n->out.x + row * n->out.ld + n->in.width / n->node->streams.count;
}

static void products(const kt_exec_node *n, int64_t begin, int64_t end, int64_t first,
                     int64_t last) {
    kt_problem problem = kt_stream_problem(n->node);
    const kt_router_call call = {.problem = &problem,
                                 .x = n->in.x,
                                 .ldx = n->in.ld,
                                 .w = n->weight->data[0],
                                 .logits = join_of(n, 0),
                                 .ldl = n->out.ld,
                                 .row_begin = begin,
                                 .row_end = end,
                                 .expert_begin = first,
                                 .expert_end = last};

    problem.m = n->step->rows;
    n->choice->variant->router(&call);
}

static void mix(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_stream_rule *rule = &n->node->streams;
    const int64_t hidden = n->in.width / rule->count;

    (void)s;
    for (int64_t r = begin; r < end; r++) {
        const float *x = n->in.x + r * n->in.ld;
        float *out = n->out.x + r * n->out.ld, *m = join_of(n, r);
        const float factor = kt_hyper_factor(x, n->in.width, (float)rule->norm_eps);
        kt_hyper_coefficients(m, factor, n->weight2->data[0], n->weight3->data[0], rule->count,
                              rule->iterations, (float)rule->eps);
        kt_hyper_collapse(x, m, rule->count, hidden, out);
        memset(out + n->out.width - hidden, 0, (size_t)hidden * sizeof *out);
    }
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    products(n, begin, end, 0, kt_hyper_outputs(n->node->streams.count));
    mix(s, n, begin, end);
}

static void run_few(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const int64_t outputs = kt_hyper_outputs(n->node->streams.count), last = end * OUTPUTS;

    (void)tid;
    products(n, 0, n->step->rows, begin * OUTPUTS, last < outputs ? last : outputs);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    const int64_t outputs = kt_hyper_outputs(n->node->streams.count);

    if (!is_few) return 0;
    out[0] = (kt_phase){.run = run_few, .arg = n, .n_tasks = (outputs + OUTPUTS - 1) / OUTPUTS};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ROWS;
}

const kt_exec_op kt_exec_op_hyper_mix = {.kind = KT_NODE_HYPER_MIX,
                                         .init = init,
                                         .rows = rows,
                                         .phases = phases,
                                         .after = mix,
                                         .time = time_of};
