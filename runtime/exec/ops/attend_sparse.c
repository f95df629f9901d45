/* Attention over the keys that an indexer picks: one row at a time, all of it by one thread, so
 * that neither chunks nor threads change a bit. Rows that see no more keys than may be picked
 * meet them all. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"
#include "runtime/exec/step.h"

/* Of one thread. */
typedef struct sparse_scratch {
    float *score;  /* [max_context] of every key */
    float *order;  /* [max_context] to find the smallest score that is picked */
    uint8_t *keys; /* [topk] rows of the cache */
    float *scales; /* [topk] */
    uint8_t *attn; /* of the attention variant */
} sparse_scratch;

typedef struct sparse_state {
    kt_problem problem;
    sparse_scratch *scratch; /* [threads] */
} sparse_state;

static int64_t most_picked(const kt_exec_node *n) {
    const int64_t topk = n->node->index.topk, context = n->step->max_context;
    return topk < context ? topk : context;
}

static int make_scratch(kt_exec_node *n, sparse_scratch *t) {
    kt_step *s = n->step;
    const sparse_state *state = n->state;
    const kt_attention *a = &n->node->attention;
    const size_t context = (size_t)s->max_context, picked = (size_t)most_picked(n);
    const kt_variant *v = n->choice->variant;

    t->score = kt_step_alloc(s, context * sizeof(float));
    t->order = kt_step_alloc(s, context * sizeof(float));
    t->keys = kt_step_alloc(s, picked * (size_t)a->k * 2 + 4096);
    t->scales = kt_step_alloc(s, picked * sizeof(float));
    t->attn = kt_step_alloc(s, v->workspace_bytes(&state->problem, &n->choice->config) + 64);
    return t->score && t->order && t->keys && t->scales && t->attn;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    sparse_state *state = kt_step_alloc(s, sizeof *state);
    kt_exec_node *first = NULL;

    if (!state) return kt_fail(err, KT_E_NOMEM, "no memory for sparse attention");
    state->problem = kt_attn_problem(&n->node->attention, s->plan->kv, s->plan->max_context);
    n->choice = kt_model_plan_simple(s->plan, &state->problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for attention");
    n->state = state;
    for (kt_exec_node *e = s->exec; e < n && !first; e++)
        if (e->node->kind == KT_NODE_ATTEND_SPARSE) first = e;
    if (first) { /* all layers are of one kind (kt_model_kv_shape) and run one after the other */
        state->scratch = ((const sparse_state *)first->state)->scratch;
        return KT_OK;
    }
    state->scratch = kt_step_alloc(s, (size_t)s->n_threads * sizeof *state->scratch);
    for (int t = 0; state->scratch && t < s->n_threads; t++)
        if (!make_scratch(n, &state->scratch[t])) state->scratch = NULL;
    return state->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for sparse attention");
}

/* ---- which keys ---- */

/* score(key) = sum over heads of weight * max(0, query . key). */
static void score_keys(const kt_exec_node *n, int64_t row, int64_t n_keys, float *score) {
    const kt_step *s = n->step;
    const int64_t dim = n->node->index.dim, heads = n->node->index.heads;
    const uint32_t *page = kt_step_span_of(s, row)->page;
    const float *query = n->in2.x + row * n->in2.ld, *weight = n->in3.x + row * n->in3.ld;

    for (int64_t i = 0; i < n_keys; i++) {
        float key[4096], sum = 0;
        const uint16_t *keys = kt_pages_index(s->pages, n->node->plane, page[i / KT_PAGE_TOKENS]) +
                               i % KT_PAGE_TOKENS * dim;
        for (int64_t d = 0; d < dim; d++) key[d] = kt_bf16_to_f32(keys[d]);
        for (int64_t h = 0; h < heads; h++) {
            float part[8] = {0}, product = 0;
            for (int64_t d = 0; d + 8 <= dim; d += 8)
                for (int j = 0; j < 8; j++) part[j] += query[h * dim + d + j] * key[d + j];
            for (int64_t d = dim / 8 * 8; d < dim; d++) product += query[h * dim + d] * key[d];
            for (int j = 0; j < 8; j++) product += part[j];
            if (product > 0) sum += weight[h] * product;
        }
        score[i] = sum;
    }
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Copy the rows of the topk best keys, lower positions first among equals, in the order of
 * positions. */
static void gather(const kt_exec_node *n, const uint32_t *page, int64_t n_keys, int64_t picked,
                   sparse_scratch *t) {
    const kt_step *s = n->step;
    const size_t row = (size_t)n->node->attention.k * kt_attn_item_bytes(s->plan->kv);
    const uint8_t *rows = kt_pages_rows(s->pages, n->node->plane, 0, 0);
    const float *scales = kt_pages_scales(s->pages, n->node->plane, 0, 0);
    int64_t equals = picked, at = 0;
    float least;

    memcpy(t->order, t->score, (size_t)n_keys * sizeof *t->order);
    qsort(t->order, (size_t)n_keys, sizeof *t->order, descending);
    least = t->order[picked - 1];
    for (int64_t i = 0; i < n_keys; i++) equals -= t->score[i] > least;
    for (int64_t i = 0; i < n_keys && at < picked; i++) {
        uint32_t number;
        int64_t place;
        if (t->score[i] < least || (t->score[i] == least && equals-- <= 0)) continue;
        number = page[i / KT_PAGE_TOKENS];
        place = i % KT_PAGE_TOKENS;
        memcpy(t->keys + (size_t)at * row,
               rows + number * s->pages->page_bytes + (size_t)place * row, row);
        if (scales) t->scales[at] = scales[number * s->pages->page_scales + place];
        at++;
    }
}

/* ---- the phase ---- */

static void run_row(const kt_exec_node *n, int64_t row, sparse_scratch *t) {
    const kt_step *s = n->step;
    const sparse_state *state = n->state;
    const int64_t n_keys = s->positions[row] + 1, topk = n->node->index.topk;
    const int64_t picked = n_keys < topk ? n_keys : topk;
    const int32_t last = (int32_t)(picked - 1);
    const kt_page_pool *p = s->pages;
    const float *scales = kt_pages_scales(p, n->node->plane, 0, 0);
    kt_attn_call call = {.problem = &state->problem,
                         .config = &n->choice->config,
                         .q = n->in.x + row * n->in.ld,
                         .ldq = n->in.ld,
                         .k = kt_pages_rows(p, n->node->plane, 0, 0),
                         .page = kt_step_span_of(s, row)->page,
                         .page_stride =
                             (int64_t)(p->page_bytes / kt_attn_item_bytes(p->shape.format)),
                         .scale_page_stride = p->page_scales,
                         .ldkv = n->node->attention.k,
                         .ldv = n->node->attention.k,
                         .scale = (float)n->node->attention.scale,
                         .position = &last,
                         .row_end = 1,
                         .out = n->out.x + row * n->out.ld,
                         .ldo = n->out.ld,
                         .scratch = t->attn};

    call.k_scale = scales;
    if (n_keys > topk) {
        score_keys(n, row, n_keys, t->score);
        gather(n, call.page, n_keys, picked, t);
        call.page = NULL;
        call.k = t->keys;
        call.k_scale = scales ? t->scales : NULL;
    }
    call.v = call.k;
    call.v_scale = call.k_scale;
    n->choice->variant->attn(&call);
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;

    for (int64_t r = begin; r < end; r++)
        run_row(n, r, &((const sparse_state *)n->state)->scratch[tid]);
}

static int64_t count_rows(void *arg, int n_threads) {
    (void)n_threads;
    return ((const kt_exec_node *)arg)->step->rows;
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    (void)is_few;
    out[0] = (kt_phase){.prepare = count_rows, .run = run, .arg = n, .grain = 1};
    return 1;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

const kt_exec_op kt_exec_op_attend_sparse = {
    .kind = KT_NODE_ATTEND_SPARSE, .init = init, .phases = phases, .time = time_of};
