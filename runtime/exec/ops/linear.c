/* Matrices of one input: to a value of their own, to the residual, and the head's to the logits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/ops/linear.h"

#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"

/* An encoding that this input has already, or a new one behind those before. */
static void add_encoding(kt_exec_linear *l, const kt_problem_plan *p, uint8_t *acts,
                         int64_t max_rows, int *index) {
    const size_t stride = kt_act_row_bytes(p->problem.acts, p->problem.k);
    size_t used = 0;

    for (int i = 0; i < l->n_encodings; i++) {
        if (l->encoding[i].acts == p->problem.acts) {
            *index = i;
            return;
        }
        used += (l->encoding[i].stride * (size_t)max_rows + 63) / 64 * 64;
    }
    *index = l->n_encodings++;
    l->encoding[*index] =
        (kt_exec_encoding){p->problem.acts, p->encode.variant, acts + used, stride};
}

kt_status kt_exec_linear_init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    const kt_weight *w = &s->graph->weights[n->node->weight];
    kt_exec_linear *l = kt_step_alloc(s, sizeof *l);
    kt_run runs[KT_WEIGHT_PARTS];

    if (!l) return kt_fail(err, KT_E_NOMEM, "no memory for a matrix product");
    l->group = (kt_gemm_group){.jobs = l->job,
                               .n_jobs = kt_weight_runs(w, s->plan->quant, runs),
                               .scratch = s->gemm_stride ? s->gemm_scratch : NULL,
                               .scratch_stride = s->gemm_stride};
    for (int r = 0; r < l->group.n_jobs; r++) {
        const kt_problem_plan *p = kt_model_plan_run(s->plan, n->node->weight, r);
        int e = 0;
        add_encoding(l, p, s->acts, s->max_rows, &e);
        l->plan[r] = p;
        l->job[r] = (kt_gemm_job){.problem = &p->problem,
                                  .choices = &p->choices,
                                  .weights = n->weight->data[r],
                                  .a = l->encoding[e].rows,
                                  .a_stride = l->encoding[e].stride,
                                  .c = n->out.x + runs[r].at,
                                  .ldc = n->out.ld,
                                  .accumulate = n->node->accumulate};
    }
    n->state = l;
    return KT_OK;
}

void kt_exec_linear_encode(const kt_exec_linear *l, const kt_rows *x, int64_t begin, int64_t end,
                           int64_t shift) {
    for (int i = 0; i < l->n_encodings; i++) {
        kt_encode_call call = {.x = x->x - shift * x->ld,
                               .ldx = x->ld,
                               .k = x->width,
                               .out = l->encoding[i].rows,
                               .out_stride = l->encoding[i].stride,
                               .row_begin = begin + shift,
                               .row_end = end + shift};
        l->encoding[i].variant->encode(&call);
    }
}

void kt_exec_linear_count(kt_exec_node *n, kt_step_kind kind, int64_t rows) {
    const kt_exec_linear *l = n->state;

    for (int r = 0; r < l->group.n_jobs && rows > 0; r++) {
        const kt_problem *p = &l->plan[r]->problem;
        kt_step_count(n->step, kind, 2 * (double)rows * (double)p->n * (double)p->k,
                      (double)l->plan[r]->bytes);
    }
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    (void)s;
    kt_exec_linear_encode(n->state, &n->in, begin, end, 0);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    kt_exec_linear *l = n->state;

    (void)is_few;
    out[0] = kt_gemm_group_phase(&l->group);
    return 1;
}

static void bind(kt_exec_node *n) {
    kt_exec_linear *l = n->state;

    for (int r = 0; r < l->group.n_jobs; r++) l->job[r].m = n->step->rows;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    return n->node->accumulate ? KT_STEP_O : KT_STEP_QKV;
}

static void count(kt_exec_node *n) {
    kt_exec_linear_count(n, time_of(n), n->step->rows);
}

static void observe(kt_exec_node *n) {
    for (int64_t r = 0; r < n->step->rows; r++)
        kt_importance_add(n->step->importance, n->node->weight, 0, 0, n->in.x + r * n->in.ld);
}

const kt_exec_op kt_exec_op_linear = {.kind = KT_NODE_LINEAR,
                                      .init = kt_exec_linear_init,
                                      .rows = rows,
                                      .phases = phases,
                                      .bind = bind,
                                      .time = time_of,
                                      .count = count,
                                      .observe = observe};
