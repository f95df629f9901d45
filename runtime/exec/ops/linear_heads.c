/* Each head of a row by a matrix of its own: the halves of absorbed latent attention.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"
#include "runtime/exec/expand.h"

typedef struct heads_state {
    kt_gemm_group group;
    const kt_problem_plan *plan;
    size_t stride; /* bytes of an encoded head */
    int64_t count, size, out_size;
} heads_state;

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    const kt_weight *w = &s->graph->weights[n->node->weight];
    heads_state *h = kt_step_alloc(s, sizeof *h);
    kt_gemm_job *jobs = kt_step_alloc(s, (size_t)w->count * sizeof *jobs);

    if (!h || !jobs) return kt_fail(err, KT_E_NOMEM, "no memory for products of heads");
    h->plan = kt_model_plan_run(s->plan, n->node->weight, 0);
    h->stride = kt_act_row_bytes(h->plan->problem.acts, w->k);
    h->count = w->count;
    h->size = n->node->size;
    h->out_size = w->n + n->node->tail;
    h->group = (kt_gemm_group){.jobs = jobs,
                               .n_jobs = (int)w->count,
                               .scratch = s->gemm_stride ? s->gemm_scratch : NULL,
                               .scratch_stride = s->gemm_stride};
    for (int64_t i = 0; i < w->count; i++)
        jobs[i] = (kt_gemm_job){.problem = &h->plan->problem,
                                .choices = &h->plan->choices,
                                .weights = (const uint8_t *)n->weight->data[0] +
                                           (size_t)i * n->weight->head_bytes,
                                .a = s->acts + (size_t)(i * s->max_rows) * h->stride,
                                .a_stride = h->stride,
                                .c = n->out.x + i * h->out_size,
                                .ldc = n->out.ld};
    n->state = h;
    return KT_OK;
}

/* Rows [*first, *first + rows) of the step: all, but those that attention expands. */
static int64_t rows_of(const kt_exec_node *n, int64_t *first) {
    const kt_step *s = n->step;
    kt_absorbed rest;

    *first = 0;
    if (!n->node->latent) return s->rows;
    rest = kt_expand_rest(s, n->node + n->node->latent);
    *first = rest.first_row;
    return rest.rows;
}

/* Encoded, the rows of a head lie together: side by side the heads of a row would be a power of two
 * apart, and all rows of a tile in one set of the caches. */
static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const heads_state *h = n->state;
    const int64_t k = h->plan->problem.k, outputs = h->plan->problem.n;
    kt_encode_call call = {
        .k = k, .out_stride = (size_t)s->max_rows * h->stride, .row_end = h->count};
    int64_t first, last;

    last = rows_of(n, &first);
    last += first;
    if (begin < first) begin = first;
    if (end > last) end = last;
    for (int64_t r = begin; r < end; r++) {
        const float *x = n->in.x + r * n->in.ld;
        call.x = x;
        call.ldx = h->size;
        call.out = s->acts + (size_t)r * h->stride;
        h->plan->encode.variant->encode(&call);
        for (int64_t i = 0; n->node->tail && i < h->count; i++)
            memcpy(n->out.x + r * n->out.ld + i * h->out_size + outputs, x + i * h->size + k,
                   sizeof *x * (size_t)n->node->tail);
    }
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    heads_state *h = n->state;

    (void)is_few;
    out[0] = kt_gemm_group_phase(&h->group);
    return 1;
}

static void bind(kt_exec_node *n) {
    heads_state *h = n->state;
    int64_t first;
    const int64_t rows = rows_of(n, &first);

    for (int64_t i = 0; i < h->group.n_jobs; i++) {
        kt_gemm_job *job = &h->group.jobs[i];
        job->m = rows;
        job->a = n->step->acts + (size_t)(i * n->step->max_rows + first) * h->stride;
        job->c = n->out.x + i * h->out_size + first * n->out.ld;
    }
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_HEADS;
}

static void count(kt_exec_node *n) {
    const heads_state *h = n->state;
    const kt_problem *p = &h->plan->problem;
    int64_t first;
    const int64_t rows = rows_of(n, &first);

    if (rows)
        kt_step_count(n->step, KT_STEP_HEADS,
                      2 * (double)(rows * h->count) * (double)p->n * (double)p->k,
                      (double)h->count * (double)h->plan->bytes);
}

const kt_exec_op kt_exec_op_linear_heads = {.kind = KT_NODE_LINEAR_HEADS,
                                            .init = init,
                                            .rows = rows,
                                            .phases = phases,
                                            .bind = bind,
                                            .time = time_of,
                                            .count = count};
