/* Attention over what was kept. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "runtime/exec/expand.h"

static int is_same(const kt_problem *a, const kt_problem *b, const kt_attn_job *job, float scale) {
    return a->n == b->n && a->k == b->k && a->kv_heads == b->kv_heads && a->v == b->v &&
           a->window == b->window && job->scale == scale;
}

/* The job of this problem; the layers that have it share it. */
static kt_status find_job(kt_exec_node *n, const kt_problem *problem, kt_step_attn **out,
                          kt_err *err) {
    kt_step *s = n->step;
    const float scale = (float)n->node->attention.scale;
    kt_step_attn *a = s->attn;
    const kt_attn_choices *choices;
    const kt_choice *largest;
    size_t bytes;
    void *workspace;

    for (int i = 0; i < s->n_attn; i++, a++)
        if (is_same(&a->problem, problem, &a->job, scale)) {
            *out = a;
            return KT_OK;
        }
    if (s->n_attn == KT_STEP_SHARED)
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d kinds of attention", KT_STEP_SHARED);
    choices = kt_model_plan_attn(s->plan, problem);
    largest = kt_attn_largest(choices, n->choice, problem);
    bytes = kt_attn_job_bytes(largest, problem, s->max_context, s->n_threads);
    workspace = kt_step_alloc(s, bytes);
    if (!workspace) return kt_fail(err, KT_E_NOMEM, "no memory for attention");
    a->problem = *problem;
    a->job = (kt_attn_job){.choice = largest,
                           .choices = choices,
                           .problem = *problem,
                           .ldkv = n->node->attention.k,
                           .scale = scale,
                           .position = s->positions};
    s->n_attn++;
    *out = a;
    KT_TRY(kt_attn_job_init(&a->job, s->max_context, s->n_threads, workspace, bytes, err));
    a->job.choice = n->choice;
    return KT_OK;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_problem problem =
        kt_attn_problem(&n->node->attention, n->step->plan->kv, n->step->plan->max_context);
    kt_step_attn *a = NULL;

    n->choice = kt_model_plan_simple(n->step->plan, &problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for attention");
    KT_TRY(find_job(n, &problem, &a, err));
    n->state = a;
    if (a->expand || !kt_expand_is_planned(n->step->plan, n->node)) return KT_OK;
    a->expand = kt_step_alloc(n->step, sizeof *a->expand);
    if (!a->expand) return kt_fail(err, KT_E_NOMEM, "no memory for attention");
    return kt_expand_init(a->expand, n, err);
}

/* Rows that are expanded go first, in a phase of their own. */
static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    kt_step_attn *a = n->state;
    int count = 0;

    if (a->expand && !is_few) out[count++] = kt_expand_phase(a->expand);
    kt_attn_job_phases(&a->job, out + count);
    return count + KT_ATTN_PHASES;
}

static void bind(kt_exec_node *n) {
    const kt_step *s = n->step;
    const kt_page_pool *p = s->pages;
    const int plane = n->node->plane, shared = p->shape.has_shared_rows;
    const kt_absorbed rest = kt_expand_rest(s, n->node);
    kt_step_attn *a = n->state;
    kt_attn_job *job = &a->job;

    if (a->expand) a->expand->node = n;

    job->q = n->in.x;
    job->ldq = n->in.ld;
    job->out = n->out.x;
    job->ldo = n->out.ld;
    job->sink = n->weight3 ? n->weight3->data[0] : NULL;
    job->k = kt_pages_rows(p, plane, 0, 0);
    job->v = kt_pages_rows(p, plane, !shared, 0);
    job->k_scale = kt_pages_scales(p, plane, 0, 0);
    job->v_scale = kt_pages_scales(p, plane, !shared, 0);
    job->page_stride = KT_PAGE_TOKENS * p->shape.head_dim;
    job->head_stride = p->n * job->page_stride;
    job->scale_page_stride = KT_PAGE_TOKENS;
    job->scale_stride = p->n * KT_PAGE_TOKENS;
    job->rows = rest.rows;
    job->spans = s->attn_spans + rest.first_span;
    job->n_spans = rest.n_spans;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

/* Pairs of a query and a key: row r of a span meets position + r + 1 keys, or those of a window. */
static double pairs_of(const kt_step_span *p, int64_t window) {
    int64_t few = p->rows; /* rows that see all keys before them */

    if (window > 0 && p->position + few > window)
        few = p->position < window ? window - p->position : 0;
    return (double)few * (double)(2 * p->position + few + 1) / 2 +
           (double)(p->rows - few) * (double)window;
}

static double keys_of(const kt_step_span *p, int64_t window) {
    const int64_t all = p->position + p->rows, seen = window + p->rows - 1;
    return (double)(window > 0 && seen < all ? seen : all);
}

/* Each pair is met once for the score and once for the value. */
static void count(kt_exec_node *n) {
    kt_step *s = n->step;
    const kt_attention *a = &n->node->attention;
    const kt_absorbed rest = kt_expand_rest(s, n->node);
    double pairs = 0, keys = 0;
    kt_kv_shape one_layer = s->pages->shape;

    for (int i = 0; i < s->n_spans; i++) {
        const kt_step_span *p = &s->spans[i];
        keys += keys_of(p, a->window);
        if (i >= rest.first_span && i < rest.first_span + rest.n_spans)
            pairs += pairs_of(p, a->window);
    }
    one_layer.layers = 1;
    one_layer.index_dim = 0; /* its keys are not read here */
    kt_step_count(s, KT_STEP_ATTN,
                  2 * pairs * (double)(a->heads * (a->k + a->v)) + kt_expand_ops(n),
                  keys * (double)kt_kv_page_bytes(&one_layer) / KT_PAGE_TOKENS);
}

const kt_exec_op kt_exec_op_attend = {.kind = KT_NODE_ATTEND,
                                      .init = init,
                                      .phases = phases,
                                      .bind = bind,
                                      .time = time_of,
                                      .count = count};
