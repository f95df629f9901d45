/* Attention over the last tokens and over entries that stand for several tokens each, in one
 * softmax with a sink per head (models_2026.md 3.4). A key is its own value.
 *
 * A row's keys are gathered side by side: those of the last tokens, the oldest first, from this
 * step's packed rows or from the ring that its sequence keeps; then entries, in ascending order.
 * What a row computes depends on nothing but its own sequence. The ring is brought up to date when
 * all rows are done. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/attn/attn_common.h"
#include "kernels/compress/entries.h"
#include "runtime/exec/step.h"
#include "runtime/model/model_dir.h"

#define GATHERED 64    /* keys of a task where rows are few */
#define LEAST_HEADS 16 /* of a task: each loads the keys for itself */

/* Of a thread while there are many rows, of a row while there are few. */
typedef struct entries_room {
    uint8_t *keys; /* [most] rows of the cache */
    float *scales; /* [most] */
} entries_room;

/* What nodes share: one runs after the other. */
typedef struct entries_shared {
    entries_room *room; /* [threads, at least KT_STEP_FEW_ROWS] */
    uint8_t *scratch;   /* [threads] */
    size_t scratch_bytes;
    int64_t parts; /* of a few rows' heads */
} entries_shared;

typedef struct entries_state {
    entries_shared *shared;
    kt_problem problem;
    kt_entry_layout layout;
    size_t row_bytes;
} entries_state;

/* ---- setting up ---- */

static kt_problem problem_of_parts(const kt_problem *p, int64_t parts) {
    kt_problem part = *p;
    part.kv_heads *= parts;
    return part;
}

static bool can_halve(const kt_problem *p, int64_t parts) {
    const int64_t heads = p->n / parts;
    return heads % 2 == 0 && heads / 2 >= LEAST_HEADS;
}

static size_t scratch_of(const kt_exec_node *n, const kt_problem *whole) {
    const kt_variant *v = n->choice->variant;
    size_t most = 0;

    for (int64_t parts = 1;; parts *= 2) {
        const kt_problem p = problem_of_parts(whole, parts);
        const size_t bytes = v->workspace_bytes ? v->workspace_bytes(&p, &n->choice->config) : 0;
        if (bytes > most) most = bytes;
        if (!can_halve(whole, parts)) return (most + 64) / 64 * 64;
    }
}

/* The most keys of a row of any such node. */
static int64_t most_keys(const kt_step *s) {
    int64_t most = 0;

    for (int i = 0; i < s->graph->n_nodes; i++) {
        const int64_t keys = kt_node_most_keys(&s->graph->nodes[i], s->max_context);
        if (s->graph->nodes[i].kind == KT_NODE_ATTEND_ENTRIES && keys > most) most = keys;
    }
    return most;
}

static int make_shared(kt_exec_node *n, const kt_problem *problem, entries_shared *h) {
    kt_step *s = n->step;
    const size_t threads = (size_t)s->n_threads;
    const size_t rooms = threads > KT_STEP_FEW_ROWS ? threads : KT_STEP_FEW_ROWS;
    const size_t most = (size_t)most_keys(s), k = (size_t)n->node->attention.k;

    h->scratch_bytes = scratch_of(n, problem);
    h->scratch = kt_step_alloc(s, threads * h->scratch_bytes);
    h->room = kt_step_alloc(s, rooms * sizeof *h->room);
    for (size_t i = 0; h->room && i < rooms; i++) {
        h->room[i].keys = kt_step_alloc(s, most * k * 2 + 4096);
        h->room[i].scales = kt_step_alloc(s, (most + 16) * sizeof(float));
        if (!h->room[i].keys || !h->room[i].scales) return 0;
    }
    return h->scratch && h->room;
}

static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    entries_state *e = kt_step_alloc(s, sizeof *e);

    if (!e) return kt_fail(err, KT_E_NOMEM, "no memory for attention over entries");
    n->state = e;
    e->problem = kt_attn_problem(&n->node->attention, s->plan->kv, s->plan->max_context);
    e->row_bytes = (size_t)n->node->attention.k * kt_attn_item_bytes(s->plan->kv);
    n->choice = kt_model_plan_simple(s->plan, &e->problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for attention over entries");
    if (n->node->plane >= 0)
        e->layout = kt_model_entry_layout(s->graph, s->plan->kv, n->node->plane);
    for (const kt_exec_node *o = s->exec; o < n && !e->shared; o++)
        if (o->node->kind == KT_NODE_ATTEND_ENTRIES)
            e->shared = ((const entries_state *)o->state)->shared;
    if (e->shared) return KT_OK;
    e->shared = kt_step_alloc(s, sizeof *e->shared);
    if (e->shared && make_shared(n, &e->problem, e->shared)) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory for attention over entries");
}

/* ---- a row's keys ---- */

static int64_t first_token(const kt_exec_node *n, int64_t row) {
    const int64_t first = n->step->positions[row] + 1 - n->node->entries.window;
    return first > 0 ? first : 0;
}

static int64_t tokens_of(const kt_exec_node *n, int64_t row) {
    return n->step->positions[row] + 1 - first_token(n, row);
}

static int64_t seen(const kt_exec_node *n, int64_t row) {
    return kt_entries_of(n->step->positions[row] + 1, n->node->entries.ratio);
}

static bool is_picky(const kt_exec_node *n, int64_t row) {
    return n->in3.width > 0 && seen(n, row) > n->node->index.topk;
}

static int64_t keys_of(const kt_exec_node *n, int64_t row) {
    return tokens_of(n, row) + (is_picky(n, row) ? n->node->index.topk : seen(n, row));
}

/* A packed row of a token: this step's, or the ring's as it was before it. */
static const float *packed_row(const kt_exec_node *n, const kt_step_span *span, int64_t token) {
    const int64_t floats = n->in2.width, at = token % n->node->entries.window;

    if (token >= span->position)
        return n->in2.x + (span->first_row + token - span->position) * n->in2.ld;
    return span->from + n->step->slot_at[n->node->slot] + at * floats;
}

static void gather_entry(const kt_exec_node *n, const kt_step_span *span, int64_t entry, int64_t to,
                         const entries_room *room) {
    const entries_state *e = n->state;
    int64_t page;
    const int64_t at = kt_entry_room(entry, n->node->entries.ratio, &page);
    const uint8_t *from = kt_pages_entries(n->step->pages, span->page[page]) + e->layout.at;

    memcpy(room->keys + (size_t)to * e->row_bytes, from + (size_t)at * e->layout.row_bytes,
           e->row_bytes);
    room->scales[to] = ((const float *)(const void *)(from + e->layout.scales_at))[at];
}

/* Keys [begin, end) of a row. */
static void gather(const kt_exec_node *n, int64_t row, int64_t begin, int64_t end,
                   const entries_room *room) {
    const entries_state *e = n->state;
    const kt_step_span *span = kt_step_span_of(n->step, row);
    const int64_t tokens = tokens_of(n, row), first = first_token(n, row);
    const int32_t *picked = (const int32_t *)(const void *)(n->in3.x + row * n->in3.ld);
    const bool picky = is_picky(n, row);

    if (end > keys_of(n, row)) end = keys_of(n, row);
    for (int64_t i = begin; i < end; i++) {
        const int64_t entry = i - tokens;
        const float *token = i < tokens ? packed_row(n, span, first + i) : NULL;
        if (!token) {
            gather_entry(n, span, picky ? picked[entry] : entry, i, room);
            continue;
        }
        memcpy(room->keys + (size_t)i * e->row_bytes, token, e->row_bytes);
        room->scales[i] = token[n->in2.width - 1];
    }
}

/* ---- attention ---- */

static void attend(const kt_exec_node *n, int64_t row, int64_t part, int64_t parts,
                   const entries_room *room, int tid) {
    const entries_state *e = n->state;
    const kt_problem problem = problem_of_parts(&e->problem, parts);
    const bool has_scales = kt_attn_has_scales(n->step->plan->kv);
    const int32_t last = (int32_t)(keys_of(n, row) - 1);

    n->choice->variant->attn(
        &(kt_attn_call){.problem = &problem,
                        .config = &n->choice->config,
                        .q = n->in.x + row * n->in.ld,
                        .ldq = n->in.ld,
                        .k = room->keys,
                        .v = room->keys,
                        .k_scale = has_scales ? room->scales : NULL,
                        .v_scale = has_scales ? room->scales : NULL,
                        .ldkv = problem.k,
                        .ldv = problem.k,
                        .kv_head = part,
                        .scale = (float)n->node->attention.scale,
                        .position = &last,
                        .row_end = 1,
                        .out = n->out.x + row * n->out.ld,
                        .ldo = n->out.ld,
                        .scratch = e->shared->scratch + (size_t)tid * e->shared->scratch_bytes,
                        .sink = n->weight->data[0]});
}

/* ---- phases ---- */

static int64_t count_rows(void *arg, int n_threads) {
    (void)n_threads;
    return ((const kt_exec_node *)arg)->step->rows;
}

static void attend_rows(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const entries_room *room = &((const entries_state *)n->state)->shared->room[tid];

    for (int64_t r = begin; r < end; r++) {
        gather(n, r, 0, keys_of(n, r), room);
        attend(n, r, 0, 1, room, tid);
    }
}

static int64_t count_gathered(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    int64_t most = 0;

    (void)n_threads;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (keys_of(n, r) > most) most = keys_of(n, r);
    return (most + GATHERED - 1) / GATHERED;
}

static void gather_some(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const entries_shared *h = ((const entries_state *)n->state)->shared;

    (void)tid;
    for (int64_t r = 0; r < n->step->rows; r++)
        gather(n, r, begin * GATHERED, end * GATHERED, &h->room[r]);
}

static int64_t count_heads(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    const entries_state *e = n->state;
    entries_shared *h = e->shared;

    h->parts = 1;
    while (n_threads > 1 && n->step->rows * h->parts < 2 * (int64_t)n_threads &&
           can_halve(&e->problem, h->parts))
        h->parts *= 2;
    return n->step->rows * h->parts;
}

static void attend_heads(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const entries_shared *h = ((const entries_state *)n->state)->shared;

    for (int64_t i = begin; i < end; i++)
        attend(n, i / h->parts, i % h->parts, h->parts, &h->room[i / h->parts], tid);
}

/* Every row that the next step may see goes to its place of the ring; the other places come from
 * the state before the step. */
static void keep_row(const kt_exec_node *n, const kt_step_span *span, int64_t token) {
    const int64_t floats = n->in2.width, window = n->node->entries.window;
    const int64_t end = span->position + span->rows;
    float *to = span->to + n->step->slot_at[n->node->slot] + token % window * floats;

    if (token >= end - window)
        memcpy(to, n->in2.x + (span->first_row + token - span->position) * n->in2.ld,
               (size_t)floats * sizeof *to);
}

static void keep_rest(const kt_exec_node *n, const kt_step_span *span) {
    const int64_t floats = n->in2.width, window = n->node->entries.window;
    const int64_t begin = span->position + span->rows - window;

    for (int64_t t = begin > 0 ? begin : 0; t < span->position; t++)
        kt_step_bring_state(n->step, span, n->node->slot, t % window * floats, floats);
}

/* By the row that a span begins with. */
static void after(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
        const kt_step_span *span = kt_step_span_of(s, r);
        if (r == span->first_row) keep_rest(n, span);
        keep_row(n, span, s->positions[r]);
    }
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    if (!is_few) {
        out[0] = (kt_phase){.prepare = count_rows, .run = attend_rows, .arg = n, .grain = 1};
        return 1;
    }
    out[0] = (kt_phase){.prepare = count_gathered, .run = gather_some, .arg = n, .grain = 1};
    out[1] = (kt_phase){.prepare = count_heads, .run = attend_heads, .arg = n, .grain = 1};
    return 2;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_ATTN;
}

static void count(kt_exec_node *n) {
    const entries_state *e = n->state;
    const kt_attention *a = &n->node->attention;
    double met = 0;

    for (int64_t r = 0; r < n->step->rows; r++) met += (double)keys_of(n, r);
    kt_step_count(n->step, KT_STEP_ATTN, 2 * met * (double)(a->heads * (a->k + a->v)),
                  met * (double)e->row_bytes);
}

const kt_exec_op kt_exec_op_attend_entries = {.kind = KT_NODE_ATTEND_ENTRIES,
                                              .init = init,
                                              .phases = phases,
                                              .after = after,
                                              .time = time_of,
                                              .count = count};
