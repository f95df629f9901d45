/* Attention over the blocks of keys that an index picks for each kv head (models_2026.md 6.3). A
 * row's scores, its picked blocks and its result depend on nothing but its own sequence: neither
 * chunks nor threads change a bit. Rows that see no more blocks than may be picked meet them all.
 *
 * Picked blocks are met where they lie: blocks of whole pages as a list of their pages, others
 * gathered. They are ascending and the row's own is the last, so that the row is at the end of the
 * keys it meets.
 *
 * Many rows are shared out whole: scored and picked in one phase, met in the next. Of a few rows
 * the first phase shares out keys. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/attn/attn_common.h"
#include "kernels/indexer/index_pick.h"
#include "runtime/exec/key_blocks.h"
#include "runtime/model/bytes.h"

#define PIECE 512 /* keys that are scored at a time, at most */
#define ROWS 16   /* of a task of attention: they share keys where they meet all */
#define SLACK 256 /* of an allocation: alignment */

/* Of a thread; of a few rows the block scores of all lie in the first. */
typedef struct block_room {
    float *score;         /* [KT_STEP_SCORED_ROWS][heads][PIECE] */
    float *best;          /* [KT_STEP_SCORED_ROWS][heads][blocks] */
    uint32_t *page;       /* [pages of the picked blocks] */
    uint8_t *side[2];     /* gathered keys and values, where blocks are not of whole pages */
    float *side_scale[2]; /* their scales */
} block_room;

/* What all such layers share: they are of one kind, one runs after the other. */
typedef struct block_shared {
    kt_problem problem, index_problem;
    const kt_choice *index;
    block_room *room;     /* [threads] */
    int32_t *picked;      /* [max_rows][heads][topk] */
    uint8_t *attn, *dots; /* [threads] scratch of the variants */
    size_t attn_bytes, dots_bytes;
    bool is_few;
} block_shared;

/* ---- sizes ---- */

static int64_t most_blocks(const kt_step *s, const kt_node *n) {
    return (s->max_context + n->index.block - 1) / n->index.block;
}

static bool has_whole_pages(const kt_node *n) {
    return n->index.block % KT_PAGE_TOKENS == 0;
}

/* Keys of the picked blocks, at most. */
static int64_t most_keys(const kt_step *s, const kt_node *n) {
    const int64_t blocks = most_blocks(s, n);

    return (n->index.topk < blocks ? n->index.topk : blocks) * n->index.block;
}

static size_t side_bytes(const kt_step *s, const kt_node *n) {
    const size_t row = (size_t)n->attention.k * kt_attn_item_bytes(s->plan->kv);

    return has_whole_pages(n) ? 0 : kt_bytes_times(row, most_keys(s, n));
}

size_t kt_blocks_bytes(const kt_step *s, const kt_node *n) {
    const kt_problem problem = kt_attn_problem(&n->attention, s->plan->kv, s->plan->max_context);
    const kt_problem index = kt_index_problem(&n->index, s->plan->max_context);
    const size_t row = sizeof(float) * (size_t)n->index.heads * KT_STEP_SCORED_ROWS;
    size_t room = kt_bytes_times(row, PIECE + most_blocks(s, n));

    room = kt_bytes_add(room, kt_bytes_times(sizeof(uint32_t), most_keys(s, n)));
    room = kt_bytes_add(room, kt_bytes_times(2 * sizeof(float), most_keys(s, n)));
    room = kt_bytes_add(room, kt_bytes_times(side_bytes(s, n), 2));
    room =
        kt_bytes_add(room, kt_step_scratch_of(kt_model_plan_simple(s->plan, &problem), &problem));
    room = kt_bytes_add(room, kt_step_scratch_of(kt_model_plan_simple(s->plan, &index), &index));
    room = kt_bytes_add(room, 8 * SLACK + sizeof(block_room));
    return kt_bytes_add(
        kt_bytes_times(room, s->n_threads + 1),
        kt_bytes_times(sizeof(int32_t) * (size_t)(n->index.heads * n->index.topk), s->max_rows));
}

/* ---- setting up ---- */

static int make_room(kt_exec_node *n, block_room *r) {
    kt_step *s = n->step;
    const size_t heads = (size_t)n->node->index.heads * KT_STEP_SCORED_ROWS;
    const size_t keys = (size_t)most_keys(s, n->node);
    const int has_sides = !has_whole_pages(n->node);

    r->score = kt_step_alloc(s, heads * PIECE * sizeof(float));
    r->best = kt_step_alloc(s, heads * (size_t)most_blocks(s, n->node) * sizeof(float));
    r->page = kt_step_alloc(s, keys / KT_PAGE_TOKENS * sizeof(uint32_t) + sizeof(uint32_t));
    for (int i = 0; i < 2 && has_sides; i++) {
        r->side[i] = kt_step_alloc(s, side_bytes(s, n->node) + SLACK);
        r->side_scale[i] = kt_step_alloc(s, keys * sizeof(float));
        if (!r->side[i] || !r->side_scale[i]) return 0;
    }
    return r->score && r->best && r->page;
}

static int make_shared(kt_exec_node *n, block_shared *h) {
    kt_step *s = n->step;
    const size_t threads = (size_t)s->n_threads;
    const kt_index_rule *index = &n->node->index;

    h->attn_bytes = kt_step_scratch_of(n->choice, &h->problem);
    h->dots_bytes = kt_step_scratch_of(h->index, &h->index_problem);
    h->attn = kt_step_alloc(s, threads * h->attn_bytes);
    h->dots = kt_step_alloc(s, threads * h->dots_bytes);
    h->picked =
        kt_step_alloc(s, (size_t)(s->max_rows * index->heads * index->topk) * sizeof *h->picked);
    h->room = kt_step_alloc(s, threads * sizeof *h->room);
    for (size_t t = 0; h->room && t < threads; t++)
        if (!make_room(n, &h->room[t])) return 0;
    return h->attn && h->dots && h->picked && h->room;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    const kt_problem problem =
        kt_attn_problem(&n->node->attention, s->plan->kv, s->plan->max_context);
    const kt_problem index = kt_index_problem(&n->node->index, s->plan->max_context);
    block_shared *h;

    n->choice = kt_model_plan_simple(s->plan, &problem);
    n->many = kt_model_plan_simple(s->plan, &index);
    if (!n->choice || !n->many)
        return kt_fail(err, KT_E_INTERNAL, "no plan for attention over blocks");
    for (kt_exec_node *e = s->exec; e < n && !n->state; e++)
        if (e->node->kind == KT_NODE_ATTEND_BLOCKS) n->state = e->state;
    if (n->state) return KT_OK;
    h = kt_step_alloc(s, sizeof *h);
    n->state = h;
    if (h) *h = (block_shared){.problem = problem, .index_problem = index, .index = n->many};
    return h && make_shared(n, h) ? KT_OK
                                  : kt_fail(err, KT_E_NOMEM, "no memory for attention over blocks");
}

/* ---- rows and blocks ---- */

static int64_t blocks_of(const kt_exec_node *n, int64_t row) {
    return n->step->positions[row] / n->node->index.block + 1;
}

static bool is_picky(const kt_exec_node *n, int64_t row) {
    return blocks_of(n, row) > n->node->index.topk;
}

static int32_t *picked_of(const kt_exec_node *n, int64_t row, int64_t head) {
    const block_shared *h = n->state;
    const kt_index_rule *index = &n->node->index;

    return h->picked + (row * index->heads + head) * index->topk;
}

/* ---- scores ---- */

/* Raise the block scores [rows * heads][stride] by the scores of keys [begin, end), which lie PIECE
 * apart. */
static void raise_blocks(const float *score, int64_t rows, int64_t begin, int64_t end,
                         int64_t block, float *best, int64_t stride) {
    for (int64_t r = 0; r < rows; r++, score += PIECE, best += stride)
        for (int64_t b = begin / block; b * block < end; b++) {
            const int64_t first = b * block > begin ? b * block : begin;
            const int64_t last = (b + 1) * block < end ? (b + 1) * block : end;
            float most = best[b];
            for (int64_t i = first; i < last; i++)
                most = score[i - begin] > most ? score[i - begin] : most;
            best[b] = most;
        }
}

/* Keys [begin, end) for rows [row, last) of one sequence; block scores of the first row at best. */
static void score(const kt_exec_node *n, int64_t row, int64_t last, int64_t begin, int64_t end,
                  float *best, int tid) {
    const block_shared *h = n->state;
    const kt_index_rule *index = &n->node->index;
    const uint32_t *page = kt_step_pages_of(n->step, row);
    float *part = h->room[tid].score;

    for (int64_t key = begin, next; key < end; key = next) {
        const uint16_t *keys =
            kt_pages_index(n->step->pages, n->node->plane, page[key / KT_PAGE_TOKENS]);
        next = kt_step_end_of_run(page, key, end < key + PIECE ? end : key + PIECE);
        h->index->variant->index(
            &(kt_index_call){.problem = &h->index_problem,
                             .config = &h->index->config,
                             .q = n->in2.x + row * n->in2.ld,
                             .ldq = n->in2.ld,
                             .keys = keys + key % KT_PAGE_TOKENS * index->dim,
                             .ldk = index->dim,
                             .n_keys = next - key,
                             .row_end = last - row,
                             .score = part,
                             .lds = PIECE,
                             .scratch = h->dots + (size_t)tid * h->dots_bytes});
        raise_blocks(part, (last - row) * index->heads, key, next, index->block, best,
                     most_blocks(n->step, n->node));
    }
}

static void clear(const kt_exec_node *n, int64_t rows, float *best) {
    const int64_t count = rows * n->node->index.heads * most_blocks(n->step, n->node);

    for (int64_t i = 0; i < count; i++) best[i] = -INFINITY;
}

/* best: block scores of the row's heads. The last blocks are met in any case. */
static void pick(const kt_exec_node *n, int64_t row, float *best) {
    const kt_index_rule *index = &n->node->index;
    const int64_t blocks = blocks_of(n, row);

    for (int64_t j = 0; j < index->heads; j++, best += most_blocks(n->step, n->node)) {
        for (int64_t b = blocks - index->local; b < blocks; b++) best[b] = INFINITY;
        kt_index_pick(best, blocks, index->topk, picked_of(n, row, j));
    }
}

/* ---- many rows: scores ---- */

static int64_t count_groups(void *arg, int n_threads) {
    (void)n_threads;
    return (((const kt_exec_node *)arg)->step->rows + KT_STEP_SCORED_ROWS - 1) /
           KT_STEP_SCORED_ROWS;
}

/* Rows [row, last) of one sequence: the keys that all of them see together, then what each sees
 * beyond them. */
static void pick_together(const kt_exec_node *n, int64_t row, int64_t last, int tid) {
    const block_shared *h = n->state;
    const int64_t common = kt_step_keys_of(n->step, row);
    const int64_t stride = n->node->index.heads * most_blocks(n->step, n->node);
    float *best = h->room[tid].best;

    clear(n, last - row, best);
    score(n, row, last, 0, common, best, tid);
    for (int64_t r = row; r < last; r++, best += stride) {
        score(n, r, r + 1, common, kt_step_keys_of(n->step, r), best, tid);
        pick(n, r, best);
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

/* ---- few rows: scores ---- */

/* Keys of a task: whole blocks. */
static int64_t share_of(const kt_exec_node *n) {
    const int64_t block = n->node->index.block;

    return (PIECE / 2 + block - 1) / block * block;
}

static float *best_of(const kt_exec_node *n, int64_t row) {
    const block_shared *h = n->state;

    return h->room[0].best + row * n->node->index.heads * most_blocks(n->step, n->node);
}

static int64_t count_shares(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    const block_shared *h = n->state;
    int64_t most = 0;

    (void)n_threads;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r) && kt_step_keys_of(n->step, r) > most)
            most = kt_step_keys_of(n->step, r);
    if (most) clear(n, n->step->rows, h->room[0].best);
    return (most + share_of(n) - 1) / share_of(n);
}

static void score_shares(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;

    for (int64_t r = 0; r < n->step->rows; r++) {
        const int64_t first = begin * share_of(n), keys = kt_step_keys_of(n->step, r);
        const int64_t last = end * share_of(n) < keys ? end * share_of(n) : keys;
        if (is_picky(n, r) && first < last) score(n, r, r + 1, first, last, best_of(n, r), tid);
    }
}

/* ---- attention ---- */

static kt_attn_call call_of(const kt_exec_node *n, int64_t head, int tid) {
    const kt_step *s = n->step;
    const block_shared *h = n->state;
    const kt_page_pool *p = s->pages;
    const int plane = n->node->plane;

    return (kt_attn_call){.problem = &h->problem,
                          .config = &n->choice->config,
                          .q = n->in.x,
                          .ldq = n->in.ld,
                          .k = kt_pages_rows(p, plane, 0, head),
                          .v = kt_pages_rows(p, plane, 1, head),
                          .k_scale = kt_pages_scales(p, plane, 0, head),
                          .v_scale = kt_pages_scales(p, plane, 1, head),
                          .page_stride = KT_PAGE_TOKENS * p->shape.head_dim,
                          .scale_page_stride = KT_PAGE_TOKENS,
                          .ldkv = n->node->attention.k,
                          .kv_head = head,
                          .scale = (float)n->node->attention.scale,
                          .position = s->positions,
                          .sink = n->weight3 ? n->weight3->data[0] : NULL,
                          .out = n->out.x,
                          .ldo = n->out.ld,
                          .scratch = h->attn + (size_t)tid * h->attn_bytes};
}

/* Rows [row, last) of one sequence, which meet all keys that they see. */
static void attend_all(const kt_exec_node *n, int64_t row, int64_t last, int64_t head, int tid) {
    kt_attn_call call = call_of(n, head, tid);

    call.page = kt_step_pages_of(n->step, row);
    call.row_begin = row;
    call.row_end = last;
    n->choice->variant->attn(&call);
}

/* Pages of the picked blocks, the row's own only as far as it sees. */
static void list_pages(const kt_exec_node *n, int64_t row, const int32_t *picked, uint32_t *out) {
    const int64_t of_block = n->node->index.block / KT_PAGE_TOKENS;
    const int64_t end = (kt_step_keys_of(n->step, row) + KT_PAGE_TOKENS - 1) / KT_PAGE_TOKENS;
    const uint32_t *page = kt_step_pages_of(n->step, row);

    for (int64_t i = 0; i < n->node->index.topk; i++)
        for (int64_t p = picked[i] * of_block; p < (picked[i] + 1) * of_block && p < end; p++)
            *out++ = page[p];
}

/* Keys (side 0) or values of the picked blocks, one behind the other. */
static void gather(const kt_exec_node *n, int64_t row, const int32_t *picked, int64_t head,
                   int side, const block_room *to) {
    const kt_step *s = n->step;
    const kt_page_pool *p = s->pages;
    const int64_t block = n->node->index.block, keys = kt_step_keys_of(n->step, row);
    const size_t bytes = (size_t)n->node->attention.k * kt_attn_item_bytes(s->plan->kv);
    const uint8_t *rows = kt_pages_rows(p, n->node->plane, side, head);
    const float *scales = kt_pages_scales(p, n->node->plane, side, head);
    const uint32_t *page = kt_step_pages_of(n->step, row);
    int64_t at = 0;

    for (int64_t i = 0; i < n->node->index.topk; i++) {
        const int64_t first = picked[i] * block, last = first + block < keys ? first + block : keys;
        for (int64_t key = first; key < last; key++, at++) {
            const uint32_t number = page[key / KT_PAGE_TOKENS];
            const int64_t place = key % KT_PAGE_TOKENS;
            memcpy(to->side[side] + (size_t)at * bytes,
                   rows + number * p->page_bytes + (size_t)place * bytes, bytes);
            if (scales) to->side_scale[side][at] = scales[(int64_t)number * KT_PAGE_TOKENS + place];
        }
    }
}

static void attend_picked(const kt_exec_node *n, int64_t row, int64_t head, int tid) {
    const block_shared *h = n->state;
    const kt_index_rule *index = &n->node->index;
    const int32_t *picked = picked_of(n, row, head);
    const block_room *room = &h->room[tid];
    const int32_t last =
        (int32_t)((index->topk - 1) * index->block + n->step->positions[row] % index->block);
    kt_attn_call call = call_of(n, head, tid);

    call.q += row * call.ldq;
    call.out += row * call.ldo;
    call.position = &last;
    call.row_end = 1;
    if (has_whole_pages(n->node)) {
        list_pages(n, row, picked, room->page);
        call.page = room->page;
    } else {
        for (int side = 0; side < 2; side++) gather(n, row, picked, head, side, room);
        call.k = room->side[0];
        call.v = room->side[1];
        if (call.k_scale) call.k_scale = room->side_scale[0];
        if (call.v_scale) call.v_scale = room->side_scale[1];
    }
    n->choice->variant->attn(&call);
}

static int64_t rows_of_task(const kt_exec_node *n) {
    const block_shared *h = n->state;

    return h->is_few ? 1 : ROWS;
}

static int64_t count_tasks(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    const int64_t rows = rows_of_task(n);

    (void)n_threads;
    return (n->step->rows + rows - 1) / rows * n->node->attention.kv_heads;
}

static int64_t count_tasks_few(void *arg, int n_threads) {
    kt_exec_node *n = arg;
    block_shared *h = n->state;

    h->is_few = true;
    for (int64_t r = 0; r < n->step->rows; r++) /* on one thread: microseconds */
        if (is_picky(n, r)) pick(n, r, best_of(n, r));
    return count_tasks(arg, n_threads);
}

static int64_t count_tasks_many(void *arg, int n_threads) {
    kt_exec_node *n = arg;
    block_shared *h = n->state;

    h->is_few = false;
    return count_tasks(arg, n_threads);
}

static void attend_rows(const kt_exec_node *n, int64_t begin, int64_t end, int64_t head, int tid) {
    for (int64_t row = begin, last; row < end; row = last) {
        const int64_t most = kt_step_end_of_sequence(n->step, row, end);
        last = row;
        while (last < most && !is_picky(n, last)) last++;
        if (last > row) attend_all(n, row, last, head, tid);
        for (; last < most; last++) attend_picked(n, last, head, tid);
    }
}

/* Tasks of one kv head follow each other: its keys are in a cache. */
static void attend_tasks(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const int64_t rows = rows_of_task(n), groups = (n->step->rows + rows - 1) / rows;

    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % groups * rows;
        const int64_t last = first + rows < n->step->rows ? first + rows : n->step->rows;
        attend_rows(n, first, last, i / groups, tid);
    }
}

/* ---- the op ---- */

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    out[0] = (kt_phase){.prepare = is_few ? count_shares : count_groups,
                        .run = is_few ? score_shares : pick_groups,
                        .arg = n,
                        .grain = 1};
    out[1] = (kt_phase){.prepare = is_few ? count_tasks_few : count_tasks_many,
                        .run = attend_tasks,
                        .arg = n,
                        .grain = 1};
    return 2;
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
    const double row_bytes =
        (double)(a->kv_heads * (a->k + a->v)) * (double)kt_attn_item_bytes(n->step->plan->kv);
    double scored = 0, met = 0, longest = 0;

    for (int64_t r = 0; r < n->step->rows; r++) {
        const double keys = (double)kt_step_keys_of(n->step, r);
        met += is_picky(n, r) ? (double)(index->topk * index->block) : keys;
        if (!is_picky(n, r)) continue;
        scored += keys;
        if (keys > longest) longest = keys;
    }
    kt_step_count(n->step, KT_STEP_INDEX, 2 * scored * (double)(index->heads * index->dim),
                  2 * longest * (double)index->dim);
    kt_step_count(n->step, KT_STEP_ATTN, 2 * met * (double)(a->heads * (a->k + a->v)),
                  met * row_bytes);
}

const kt_exec_op kt_exec_op_attend_blocks = {.kind = KT_NODE_ATTEND_BLOCKS,
                                             .init = init,
                                             .phases = phases,
                                             .time = time_of,
                                             .time_before = time_before,
                                             .count = count};
