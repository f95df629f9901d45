/* Attention over the keys that an indexer picks, in this layer or in one before whose picks it
 * repeats: the list lies where layers share it, until the next layer with an indexer. A row's
 * scores, its picked keys and its result depend on nothing but its own sequence: neither chunks nor
 * threads change a bit. Rows that see no more keys than may be picked meet them all.
 *
 * Many rows are shared out whole, scored and picked in one phase, gathered and met in the next. Of
 * a few rows the phases share out keys (scores), pieces of the picked ones (gathering), and heads
 * (attention). SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "dispatch/model/node_problems.h"
#include "kernels/attn/attn_common.h"
#include "kernels/indexer/index_pick.h"
#include "runtime/exec/step.h"

#define SCORED 256     /* keys of a task; a multiple of a page */
#define GATHERED 64    /* picked keys of a task */
#define LEAST_HEADS 16 /* of a task: each loads the keys for itself (attn_job.c) */

/* Of a thread while there are many rows, of a row while there are few. */
typedef struct sparse_room {
    float *score;  /* [max_context] of every key; of a thread, KT_STEP_SCORED_ROWS times */
    uint8_t *keys; /* [topk] rows of the cache */
    float *scales; /* [topk] */
} sparse_room;

/* What all such layers share: they are of one kind (kt_model_kv_shape), one runs after the other.
 */
typedef struct sparse_shared {
    kt_problem problem, index_problem;
    const kt_choice *index;
    sparse_room *room;    /* [threads, at least KT_STEP_FEW_ROWS] */
    int32_t *picked;      /* [max_rows][topk] */
    uint8_t *attn, *dots; /* [threads] scratch of the variants */
    size_t attn_bytes, dots_bytes;
    int64_t parts; /* of a few rows' heads */
} sparse_shared;

/* ---- setting up ---- */

static int64_t most_picked(const kt_exec_node *n) {
    const int64_t topk = n->node->index.topk, context = n->step->max_context;
    return topk < context ? topk : context;
}

/* Query heads as `parts` kv heads: tasks of a row that share its keys. */
static kt_problem problem_of_parts(const kt_problem *p, int64_t parts) {
    kt_problem part = *p;
    part.kv_heads *= parts;
    return part;
}

static bool can_halve(const kt_problem *p, int64_t parts) {
    const int64_t heads = p->n / parts;
    return heads % 2 == 0 && heads / 2 >= LEAST_HEADS;
}

static int make_room(kt_exec_node *n, sparse_room *r, int scored_rows) {
    kt_step *s = n->step;
    const size_t picked = (size_t)most_picked(n);

    r->score = kt_step_alloc(s, (size_t)(scored_rows * s->max_context) * sizeof(float));
    r->keys = kt_step_alloc(s, picked * (size_t)n->node->attention.k * 2 + 4096);
    r->scales = kt_step_alloc(s, picked * sizeof(float));
    return r->score && r->keys && r->scales;
}

static int make_shared(kt_exec_node *n, sparse_shared *h) {
    kt_step *s = n->step;
    const int rooms = s->n_threads > KT_STEP_FEW_ROWS ? s->n_threads : KT_STEP_FEW_ROWS;
    const size_t threads = (size_t)s->n_threads;

    for (int64_t parts = 1;; parts *= 2) {
        const kt_problem p = problem_of_parts(&h->problem, parts);
        const size_t bytes = kt_step_scratch_of(n->choice, &p);
        if (bytes > h->attn_bytes) h->attn_bytes = bytes;
        if (!can_halve(&h->problem, parts)) break;
    }
    h->dots_bytes = kt_step_scratch_of(h->index, &h->index_problem);
    h->attn = kt_step_alloc(s, threads * h->attn_bytes);
    h->dots = kt_step_alloc(s, threads * h->dots_bytes);
    h->picked = kt_step_alloc(s, (size_t)(s->max_rows * most_picked(n)) * sizeof *h->picked);
    h->room = kt_step_alloc(s, (size_t)rooms * sizeof *h->room);
    for (int t = 0; h->room && t < rooms; t++)
        if (!make_room(n, &h->room[t], t < s->n_threads ? KT_STEP_SCORED_ROWS : 1)) return 0;
    return h->attn && h->dots && h->picked && h->room;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    const kt_problem problem =
        kt_attn_problem(&n->node->attention, s->plan->kv, s->plan->max_context);
    const kt_problem index = kt_index_problem(&n->node->index, s->plan->max_context);
    sparse_shared *h;

    n->choice = kt_model_plan_simple(s->plan, &problem);
    n->many = kt_model_plan_simple(s->plan, &index);
    if (!n->choice || !n->many) return kt_fail(err, KT_E_INTERNAL, "no plan for sparse attention");
    for (kt_exec_node *e = s->exec; e < n && !n->state; e++)
        if (e->node->kind == KT_NODE_ATTEND_SPARSE) n->state = e->state;
    if (n->state) return KT_OK;
    h = kt_step_alloc(s, sizeof *h);
    n->state = h;
    if (h) *h = (sparse_shared){.problem = problem, .index_problem = index, .index = n->many};
    return h && make_shared(n, h) ? KT_OK
                                  : kt_fail(err, KT_E_NOMEM, "no memory for sparse attention");
}

/* ---- where a row's keys lie ---- */

static bool is_picky(const kt_exec_node *n, int64_t row) {
    return kt_step_keys_of(n->step, row) > n->node->index.topk;
}

/* Copy picked keys [begin, end) of a row. */
static void gather(const kt_exec_node *n, int64_t row, int64_t begin, int64_t end,
                   const sparse_room *to) {
    const kt_step *s = n->step;
    const sparse_shared *h = n->state;
    const kt_page_pool *p = s->pages;
    const size_t bytes = (size_t)n->node->attention.k * kt_attn_item_bytes(s->plan->kv);
    const uint8_t *rows = kt_pages_rows(p, n->node->plane, 0, 0);
    const float *scales = kt_pages_scales(p, n->node->plane, 0, 0);
    const int32_t *picked = h->picked + row * most_picked(n);
    const uint32_t *page = kt_step_pages_of(n->step, row);

    for (int64_t i = begin; i < end; i++) {
        const uint32_t number = page[picked[i] / KT_PAGE_TOKENS];
        const int64_t place = picked[i] % KT_PAGE_TOKENS;
        memcpy(to->keys + (size_t)i * bytes, rows + number * p->page_bytes + (size_t)place * bytes,
               bytes);
        if (scales) to->scales[i] = scales[(int64_t)number * KT_PAGE_TOKENS + place];
    }
}

/* ---- what the phases do ---- */

/* Keys [begin, end), at most those that the first row sees, for rows [row, last) of one sequence;
 * their scores lie max_context apart. */
static void score(const kt_exec_node *n, int64_t row, int64_t last, int64_t begin, int64_t end,
                  float *out, int tid) {
    const sparse_shared *h = n->state;
    const int64_t dim = n->node->index.dim;
    const uint32_t *page = kt_step_pages_of(n->step, row);

    if (end > kt_step_keys_of(n->step, row)) end = kt_step_keys_of(n->step, row);
    for (int64_t key = begin, next; key < end; key = next) {
        const uint16_t *keys =
            kt_pages_index(n->step->pages, n->node->plane, page[key / KT_PAGE_TOKENS]);
        next = kt_step_end_of_run(page, key, end);
        h->index->variant->index(
            &(kt_index_call){.problem = &h->index_problem,
                             .config = &h->index->config,
                             .q = n->in2.x + row * n->in2.ld,
                             .ldq = n->in2.ld,
                             .w = n->in3.x + row * n->in3.ld,
                             .ldw = n->in3.ld,
                             .keys = keys + key % KT_PAGE_TOKENS * dim,
                             .ldk = dim,
                             .n_keys = next - key,
                             .row_end = last - row,
                             .score = out + key,
                             .lds = n->step->max_context,
                             .scratch = h->dots + (size_t)tid * h->dots_bytes});
    }
}

static void pick(const kt_exec_node *n, int64_t row, const float *scores) {
    const sparse_shared *h = n->state;

    kt_index_pick(scores, kt_step_keys_of(n->step, row), n->node->index.topk,
                  h->picked + row * most_picked(n));
}

/* Part `part` of the row's heads over its keys, gathered in `from` where they were picked. */
static void attend(const kt_exec_node *n, int64_t row, int64_t part, int64_t parts,
                   const sparse_room *from, int tid) {
    const kt_step *s = n->step;
    const sparse_shared *h = n->state;
    const kt_problem problem = problem_of_parts(&h->problem, parts);
    const int64_t topk = n->node->index.topk;
    const int32_t last = (int32_t)((is_picky(n, row) ? topk : kt_step_keys_of(n->step, row)) - 1);
    const kt_page_pool *p = s->pages;
    const float *scales = kt_pages_scales(p, n->node->plane, 0, 0);
    kt_attn_call call = {.problem = &problem,
                         .config = &n->choice->config,
                         .q = n->in.x + row * n->in.ld,
                         .ldq = n->in.ld,
                         .k = kt_pages_rows(p, n->node->plane, 0, 0),
                         .k_scale = scales,
                         .page = kt_step_pages_of(n->step, row),
                         .page_stride = KT_PAGE_TOKENS * p->shape.head_dim,
                         .scale_page_stride = KT_PAGE_TOKENS,
                         .ldkv = n->node->attention.k,
                         .ldv = n->node->attention.k,
                         .kv_head = part,
                         .scale = (float)n->node->attention.scale,
                         .position = &last,
                         .row_end = 1,
                         .sink = n->weight3 ? n->weight3->data[0] : NULL,
                         .out = n->out.x + row * n->out.ld,
                         .ldo = n->out.ld,
                         .scratch = h->attn + (size_t)tid * h->attn_bytes};

    if (is_picky(n, row)) {
        call.page = NULL;
        call.k = from->keys;
        call.k_scale = scales ? from->scales : NULL;
    }
    call.v = call.k;
    call.v_scale = call.k_scale;
    n->choice->variant->attn(&call);
}

/* ---- many rows ---- */

static int64_t count_rows(void *arg, int n_threads) {
    (void)n_threads;
    return ((const kt_exec_node *)arg)->step->rows;
}

static int64_t count_groups(void *arg, int n_threads) {
    return (count_rows(arg, n_threads) + KT_STEP_SCORED_ROWS - 1) / KT_STEP_SCORED_ROWS;
}

/* Rows [row, last) of one sequence: the keys that all of them see together, then what each sees
 * beyond them. */
static void pick_together(const kt_exec_node *n, int64_t row, int64_t last, int tid) {
    const sparse_shared *h = n->state;
    const int64_t common = kt_step_keys_of(n->step, row), context = n->step->max_context;

    score(n, row, last, 0, common, h->room[tid].score, tid);
    for (int64_t r = row; r < last; r++) {
        float *own = h->room[tid].score + (r - row) * context;
        score(n, r, r + 1, common, kt_step_keys_of(n->step, r), own, tid);
        pick(n, r, own);
    }
}

static void pick_groups(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    int64_t rows_end = end * KT_STEP_SCORED_ROWS;

    if (rows_end > n->step->rows) rows_end = n->step->rows;
    for (int64_t row = begin * KT_STEP_SCORED_ROWS, last; row < rows_end; row = last) {
        const int64_t most = row / KT_STEP_SCORED_ROWS * KT_STEP_SCORED_ROWS + KT_STEP_SCORED_ROWS;
        last = kt_step_end_of_sequence(n->step, row, most < rows_end ? most : rows_end);
        while (row < last && !is_picky(n, row)) row++;
        if (row < last) pick_together(n, row, last, tid);
    }
}

static void attend_rows(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const sparse_shared *h = n->state;

    for (int64_t r = begin; r < end; r++) {
        if (is_picky(n, r)) gather(n, r, 0, n->node->index.topk, &h->room[tid]);
        attend(n, r, 0, 1, &h->room[tid], tid);
    }
}

/* ---- few rows ---- */

/* Tasks of `size` of the keys that the longest row sees, if it picks. */
static int64_t count_scored(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    int64_t most = 0;

    (void)n_threads;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r) && kt_step_keys_of(n->step, r) > most)
            most = kt_step_keys_of(n->step, r);
    return (most + SCORED - 1) / SCORED;
}

static void score_some(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const sparse_shared *h = n->state;

    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r)) score(n, r, r + 1, begin * SCORED, end * SCORED, h->room[r].score, tid);
}

/* Picks on one thread: microseconds. */
static int64_t count_gathered(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    const sparse_shared *h = n->state;
    int64_t n_picky = 0;

    (void)n_threads;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r)) {
            if (!n->node->index.repeats) pick(n, r, h->room[r].score);
            n_picky++;
        }
    return n_picky ? (n->node->index.topk + GATHERED - 1) / GATHERED : 0;
}

static void gather_some(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const sparse_shared *h = n->state;
    const int64_t topk = n->node->index.topk;
    const int64_t last = end * GATHERED < topk ? end * GATHERED : topk;

    (void)tid;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r)) gather(n, r, begin * GATHERED, last, &h->room[r]);
}

static int64_t count_heads(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    sparse_shared *h = n->state;

    h->parts = 1;
    while (n_threads > 1 && n->step->rows * h->parts < 2 * (int64_t)n_threads &&
           can_halve(&h->problem, h->parts))
        h->parts *= 2;
    return n->step->rows * h->parts;
}

static void attend_heads(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const sparse_shared *h = n->state;

    for (int64_t i = begin; i < end; i++)
        attend(n, i / h->parts, i % h->parts, h->parts, &h->room[i / h->parts], tid);
}

/* ---- the op ---- */

/* Without scoring and picking where an earlier layer's list is met. */
static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    int at = 0;

    if (!is_few) {
        if (!n->node->index.repeats)
            out[at++] =
                (kt_phase){.prepare = count_groups, .run = pick_groups, .arg = n, .grain = 1};
        out[at++] = (kt_phase){.prepare = count_rows, .run = attend_rows, .arg = n, .grain = 1};
        return at;
    }
    if (!n->node->index.repeats)
        out[at++] = (kt_phase){.prepare = count_scored, .run = score_some, .arg = n, .grain = 1};
    out[at++] = (kt_phase){.prepare = count_gathered, .run = gather_some, .arg = n, .grain = 1};
    out[at++] = (kt_phase){.prepare = count_heads, .run = attend_heads, .arg = n, .grain = 1};
    return at;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

static kt_step_kind time_before(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_INDEX;
}

/* Index keys are read by every row for itself only where there are few; picked keys always. */
static void count(kt_exec_node *n) {
    const kt_index_rule *index = &n->node->index;
    const kt_attention *a = &n->node->attention;
    const double row_bytes = (double)a->k * (double)kt_attn_item_bytes(n->step->plan->kv);
    double scored = 0, met = 0, longest = 0;

    for (int64_t r = 0; r < n->step->rows; r++) {
        const double keys = (double)kt_step_keys_of(n->step, r);
        met += is_picky(n, r) ? (double)index->topk : keys;
        if (!is_picky(n, r) || index->repeats) continue;
        scored += keys;
        if (keys > longest) longest = keys;
    }
    kt_step_count(n->step, KT_STEP_INDEX, 2 * scored * (double)(index->heads * index->dim),
                  2 * longest * (double)index->dim);
    kt_step_count(n->step, KT_STEP_ATTN, 2 * met * (double)(a->heads * (a->k + a->v)),
                  met * row_bytes);
}

const kt_exec_op kt_exec_op_attend_sparse = {.kind = KT_NODE_ATTEND_SPARSE,
                                             .init = init,
                                             .phases = phases,
                                             .time = time_of,
                                             .time_before = time_before,
                                             .count = count};
