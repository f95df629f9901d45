/* Which entries a row attends to: those with the highest scores of the indexer. A row that sees no
 * more than may be picked meets them all. Rows are shared out whole; where they are few, the
 * entries that they score. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/compress/entries.h"
#include "kernels/indexer/index_pick.h"
#include "runtime/exec/step.h"
#include "runtime/model/model_dir.h"

#define SCORED 256 /* entries of a task; they are gathered by blocks of 64 */
#define GATHERED 64

/* What layers share: they are alike, one runs after the other. */
typedef struct pick_state {
    kt_problem problem;
    kt_entry_layout layout;
    float *score;   /* [threads, at least KT_STEP_FEW_ROWS][most] */
    uint16_t *keys; /* [threads][GATHERED][dim] */
    uint8_t *scratch;
    size_t scratch_bytes; /* of a thread */
    int64_t most;         /* entries of the longest sequence */
} pick_state;

static kt_status make_room(kt_exec_node *n, pick_state *p, kt_err *err) {
    kt_step *s = n->step;
    const size_t threads = (size_t)s->n_threads;
    const size_t rooms = threads > KT_STEP_FEW_ROWS ? threads : KT_STEP_FEW_ROWS;
    const kt_variant *v = n->choice->variant;

    p->scratch_bytes = v->workspace_bytes ? v->workspace_bytes(&p->problem, &n->choice->config) : 0;
    p->scratch_bytes = (p->scratch_bytes + 64) / 64 * 64;
    p->most = kt_entries_of(s->max_context, n->node->entries.ratio) + 1;
    p->score = kt_step_alloc(s, rooms * (size_t)p->most * sizeof *p->score);
    p->keys = kt_step_alloc(s, threads * GATHERED * (size_t)n->node->index.dim * sizeof *p->keys);
    p->scratch = kt_step_alloc(s, threads * p->scratch_bytes);
    if (p->score && p->keys && p->scratch) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory for picking entries");
}

/* Room is the first such node's. */
static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    pick_state *p = kt_step_alloc(s, sizeof *p);

    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for picking entries");
    n->state = p;
    p->problem = kt_index_problem(&n->node->index, s->plan->max_context);
    n->choice = kt_model_plan_simple(s->plan, &p->problem);
    if (!n->choice) return kt_fail(err, KT_E_INTERNAL, "no plan for an indexer");
    for (const kt_exec_node *e = s->exec; e < n; e++)
        if (e->node->kind == KT_NODE_PICK_ENTRIES && !p->score) *p = *(const pick_state *)e->state;
    p->layout = kt_model_entry_layout(s->graph, s->plan->kv, n->node->plane);
    return p->score ? KT_OK : make_room(n, p, err);
}

static int64_t seen(const kt_exec_node *n, int64_t row) {
    return kt_entries_of(n->step->positions[row] + 1, n->node->entries.ratio);
}

static bool is_picky(const kt_exec_node *n, int64_t row) {
    return seen(n, row) > n->node->index.topk;
}

/* Index keys of entries [begin, end), at most GATHERED, side by side. */
static void gather(const kt_exec_node *n, int64_t row, int64_t begin, int64_t end, uint16_t *to) {
    const pick_state *p = n->state;
    const uint32_t *pages = kt_step_span_of(n->step, row)->page;
    const int64_t dim = n->node->index.dim, ratio = n->node->entries.ratio;

    for (int64_t i = begin; i < end; i++) {
        int64_t page;
        const int64_t room = kt_entry_room(i, ratio, &page);
        const uint8_t *from = kt_pages_entries(n->step->pages, pages[page]) + p->layout.at;
        memcpy(to + (i - begin) * dim,
               from + p->layout.index_at + (size_t)(room * dim) * sizeof *to,
               (size_t)dim * sizeof *to);
    }
}

static void score(const kt_exec_node *n, int64_t row, int64_t begin, int64_t end, float *out,
                  int tid) {
    const pick_state *p = n->state;
    uint16_t *keys = p->keys + tid * GATHERED * n->node->index.dim;

    if (end > seen(n, row)) end = seen(n, row);
    for (int64_t at = begin, last; at < end; at = last) {
        last = end - at < GATHERED ? end : at + GATHERED;
        gather(n, row, at, last, keys);
        n->choice->variant->index(
            &(kt_index_call){.problem = &p->problem,
                             .config = &n->choice->config,
                             .q = n->in.x + row * n->in.ld,
                             .ldq = n->in.ld,
                             .w = n->in2.x + row * n->in2.ld,
                             .ldw = n->in2.ld,
                             .keys = keys,
                             .ldk = n->node->index.dim,
                             .n_keys = last - at,
                             .row_end = 1,
                             .score = out + at,
                             .lds = p->most,
                             .scratch = p->scratch + (size_t)tid * p->scratch_bytes});
    }
}

static void pick(const kt_exec_node *n, int64_t row, const float *scores) {
    int32_t *out = (int32_t *)(void *)(n->out.x + row * n->out.ld);

    kt_index_pick(scores, seen(n, row), n->node->index.topk, out);
}

static int64_t count_rows(void *arg, int n_threads) {
    (void)n_threads;
    return ((const kt_exec_node *)arg)->step->rows;
}

static void pick_rows(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const pick_state *p = n->state;
    float *own = p->score + tid * p->most;

    for (int64_t r = begin; r < end; r++) {
        if (!is_picky(n, r)) continue;
        score(n, r, 0, seen(n, r), own, tid);
        pick(n, r, own);
    }
}

static int64_t count_scored(void *arg, int n_threads) {
    const kt_exec_node *n = arg;
    int64_t most = 0;

    (void)n_threads;
    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r) && seen(n, r) > most) most = seen(n, r);
    return (most + SCORED - 1) / SCORED;
}

static void score_some(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const pick_state *p = n->state;

    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r)) score(n, r, begin * SCORED, end * SCORED, p->score + r * p->most, tid);
}

static void pick_few(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_exec_node *n = arg;
    const pick_state *p = n->state;

    (void)tid;
    for (int64_t r = begin; r < end; r++)
        if (is_picky(n, r)) pick(n, r, p->score + r * p->most);
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    if (!is_few) {
        out[0] = (kt_phase){.prepare = count_rows, .run = pick_rows, .arg = n, .grain = 1};
        return 1;
    }
    out[0] = (kt_phase){.prepare = count_scored, .run = score_some, .arg = n, .grain = 1};
    out[1] = (kt_phase){.prepare = count_rows, .run = pick_few, .arg = n, .grain = 1};
    return 2;
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_INDEX;
}

static void count(kt_exec_node *n) {
    const kt_index_rule *index = &n->node->index;
    double scored = 0;

    for (int64_t r = 0; r < n->step->rows; r++)
        if (is_picky(n, r)) scored += (double)seen(n, r);
    kt_step_count(n->step, KT_STEP_INDEX, 2 * scored * (double)(index->heads * index->dim),
                  2 * scored * (double)index->dim);
}

const kt_exec_op kt_exec_op_pick_entries = {
    .kind = KT_NODE_PICK_ENTRIES, .init = init, .phases = phases, .time = time_of, .count = count};
