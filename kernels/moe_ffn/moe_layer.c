/* The fused MoE layer: three phases, in each of which tasks touch disjoint memory.
 *
 *   encode   Tokens are bucketed by expert (serial, a counting sort) and encoded.
 *   gate_up  A task is (active expert, run of panels, block of its rows) and writes h.
 *   down     A task owns output columns of some tokens and walks the active experts in ascending
 *            order, so every output is summed in one order whatever the threads: same bits.
 *
 * The rows of an expert lie together, tokens ascending; so do their h slots. Experts differ in how
 * many rows they have: the variant is chosen for each by its own count.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/moe_ffn/moe_layer.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/formats/share.h"
#include "kernels/gemm/gemm_job.h"

#define LINE ((size_t)64)
/* Floats that one thread encodes in about the time that waking another would take. */
#define ENCODE_ALONE ((int64_t)16384)
#define ENCODE_TASK ((int64_t)16384)
/* Output panels per down task at most: h of all experts is read once per task. */
#define DOWN_RUN 4

struct kt_moe_state {
    int64_t max_tokens;
    size_t a_stride, h_stride, scratch_stride;
    int32_t *row_begin;  /* [experts + 1] rows of expert e: row_begin[e] .. row_begin[e + 1] */
    int32_t *active;     /* [experts] those with rows, ascending */
    int64_t *task_begin; /* [experts + 1] gate_up tasks of active[i] */
    int32_t *rows;       /* [max_tokens * topk] token of each row */
    float *route_weight; /* [max_tokens * topk] */
    char *a;             /* encoded tokens */
    char *h;             /* encoded intermediate rows */
    char *scratch;       /* scratch_stride per thread */
    int64_t n_active, max_rows;
    int64_t encode_rows; /* tokens per encode task */
    int64_t row_block;   /* gate_up: rows per task at most */
    int64_t panel_runs;  /* gate_up: tasks along the panels of one expert */
    int64_t down_runs;   /* down: tasks along the output panels */
    int64_t down_tokens; /* down: tokens per task */
};

/* --- workspace ------------------------------------------------------------------------------ */

/* Take `count` items of `bytes` from the workspace, on a line of their own. base may be NULL: then
 * only *used grows. Nonzero on overflow. */
static int take(char *base, uint64_t *used, uint64_t count, uint64_t bytes, void *slot) {
    uint64_t size;
    char *at = base ? base + *used : NULL;

    if (kt_mul_overflow(count, bytes, &size) || kt_add_overflow(size, LINE - 1, &size)) return 1;
    size = size / LINE * LINE;
    memcpy(slot, &at, sizeof at);
    return kt_add_overflow(*used, size, used);
}

/* Lay out a workspace at base (NULL = only measure). Nonzero when the sizes overflow. */
static int lay_out(const kt_moe_layer *layer, int64_t max_tokens, int n_threads, char *base,
                   kt_moe_job *job, uint64_t *bytes) {
    const kt_problem *q = &layer->problem;
    struct kt_moe_state s = {.max_tokens = max_tokens};
    uint64_t experts = (uint64_t)q->experts, slots, used = 0;
    char *self;

    s.a_stride = kt_act_row_bytes(q->acts, q->k);
    s.h_stride = kt_act_row_bytes(q->acts, q->n);
    s.scratch_stride = kt_gemm_scratch_bytes(q, layer->choices, max_tokens);
    if (kt_mul_overflow((uint64_t)max_tokens, (uint64_t)q->topk, &slots) || slots > INT32_MAX)
        return 1;
    if (take(base, &used, 1, sizeof s, &self) ||
        take(base, &used, experts + 1, sizeof *s.row_begin, &s.row_begin) ||
        take(base, &used, experts, sizeof *s.active, &s.active) ||
        take(base, &used, experts + 1, sizeof *s.task_begin, &s.task_begin) ||
        take(base, &used, slots, sizeof *s.rows, &s.rows) ||
        take(base, &used, slots, sizeof *s.route_weight, &s.route_weight) ||
        take(base, &used, (uint64_t)max_tokens, s.a_stride, &s.a) ||
        take(base, &used, slots, s.h_stride, &s.h) ||
        take(base, &used, (uint64_t)n_threads, s.scratch_stride, &s.scratch))
        return 1;
    *bytes = used;
    if (!base) return used > SIZE_MAX;
    if (!s.scratch_stride) s.scratch = NULL;
    memcpy(self, &s, sizeof s);
    job->state = (struct kt_moe_state *)(void *)self;
    return 0;
}

size_t kt_moe_workspace_bytes(const kt_moe_layer *layer, int64_t max_tokens, int n_threads) {
    uint64_t bytes;
    if (max_tokens < 1 || n_threads < 1) return SIZE_MAX;
    return lay_out(layer, max_tokens, n_threads, NULL, NULL, &bytes) ? SIZE_MAX : (size_t)bytes;
}

static kt_status check_layer(const kt_moe_layer *layer, kt_err *err) {
    const kt_problem *q = &layer->problem;
    const kt_choice_map *map = layer->choices;

    if (q->n <= 0 || q->n % 32 || q->k <= 0 || q->k % 32 || q->experts < 1 || q->topk < 1 ||
        q->experts > INT32_MAX || q->topk > q->experts)
        return kt_fail(err, KT_E_INVALID,
                       "moe layer: intermediate %lld, hidden %lld, %lld experts, top %lld",
                       (long long)q->n, (long long)q->k, (long long)q->experts, (long long)q->topk);
    if (!layer->experts || !map || map->count < 1 || map->count > KT_MAX_CHOICES)
        return kt_fail(err, KT_E_INVALID, "moe layer: no experts or no choices");
    for (int i = 0; i < map->count; i++) {
        const kt_variant *v = map->choice[i].variant;
        if (v->op != KT_OP_MOE_FFN || strcmp(v->layout, map->choice[0].variant->layout) != 0)
            return kt_fail(err, KT_E_MISMATCH, "moe layer: %s (%s) beside %s (%s)", v->name,
                           v->layout, map->choice[0].variant->name, map->choice[0].variant->layout);
    }
    for (int m = 0; m <= KT_M_DENSE; m++)
        if (map->index[m] >= map->count)
            return kt_fail(err, KT_E_INVALID, "moe layer: m=%d chooses entry %d of %d", m,
                           map->index[m], (int)map->count);
    if (!layer->encode || layer->encode->op != KT_OP_ENCODE ||
        !(layer->encode->acts & 1u << q->acts))
        return kt_fail(err, KT_E_MISMATCH, "moe layer: %s does not encode %s",
                       layer->encode ? layer->encode->name : "nothing",
                       kt_act_format_name(q->acts));
    return KT_OK;
}

kt_status kt_moe_job_init(kt_moe_job *job, int64_t max_tokens, int n_threads,
                          size_t workspace_bytes, kt_err *err) {
    size_t needed;
    uint64_t bytes;

    job->state = NULL;
    KT_TRY(check_layer(job->layer, err));
    if (max_tokens < 1 || n_threads < 1 || job->tokens > max_tokens)
        return kt_fail(err, KT_E_INVALID, "moe job: %lld tokens of at most %lld on %d threads",
                       (long long)job->tokens, (long long)max_tokens, n_threads);
    needed = kt_moe_workspace_bytes(job->layer, max_tokens, n_threads);
    if (needed > workspace_bytes || !job->workspace || (uintptr_t)job->workspace % LINE)
        return kt_fail(err, KT_E_INVALID,
                       "moe job: workspace of %zu bytes at %p, expected %zu aligned to 64",
                       workspace_bytes, job->workspace, needed);
    if (lay_out(job->layer, max_tokens, n_threads, job->workspace, job, &bytes))
        return kt_fail(err, KT_E_INTERNAL, "moe job: workspace size overflows");
    job->state->n_active = job->state->max_rows = 0;
    return KT_OK;
}

/* --- phase 1: bucket and encode -------------------------------------------------------------- */

/* Counting sort of the used slots by expert; stable, so the tokens of an expert ascend. */
static void bucket(const kt_moe_job *job) {
    struct kt_moe_state *s = job->state;
    int64_t experts = job->layer->problem.experts, topk = job->layer->problem.topk;
    int32_t *begin = s->row_begin;

    memset(begin, 0, (size_t)(experts + 1) * sizeof *begin);
    for (int64_t i = 0; i < job->tokens * topk; i++)
        if ((uint32_t)job->expert_id[i] < experts) begin[job->expert_id[i] + 1]++;
    s->n_active = s->max_rows = 0;
    for (int64_t e = 0; e < experts; e++) {
        int32_t count = begin[e + 1];
        if (count) s->active[s->n_active++] = (int32_t)e;
        if (count > s->max_rows) s->max_rows = count;
        begin[e + 1] += begin[e];
    }
    /* Filling moves begin[e] to its end, which is begin[e + 1]: shift back afterwards. */
    for (int64_t t = 0, i = 0; t < job->tokens; t++)
        for (int64_t j = 0; j < topk; j++, i++) {
            int32_t e = job->expert_id[i], at;
            if ((uint32_t)e >= experts) continue;
            at = begin[e]++;
            s->rows[at] = (int32_t)t;
            s->route_weight[at] = job->route_weight[i];
        }
    memmove(begin + 1, begin, (size_t)experts * sizeof *begin);
    begin[0] = 0;
}

static void encode(const kt_moe_job *job, int64_t begin, int64_t end) {
    kt_encode_call call = {.x = job->x,
                           .ldx = job->ldx,
                           .k = job->layer->problem.k,
                           .out = job->state->a,
                           .out_stride = job->state->a_stride,
                           .row_begin = begin,
                           .row_end = end < job->tokens ? end : job->tokens};
    job->layer->encode->encode(&call);
}

static int64_t encode_prepare(void *arg, int n_threads) {
    const kt_moe_job *job = arg;
    int64_t k = job->layer->problem.k;

    assert(job->tokens >= 0 && job->tokens <= job->state->max_tokens);
    bucket(job);
    if (n_threads == 1 || job->tokens * k <= ENCODE_ALONE) {
        encode(job, 0, job->tokens);
        return 0;
    }
    job->state->encode_rows = ENCODE_TASK > k ? ENCODE_TASK / k : 1;
    return kt_share_ceil(job->tokens, job->state->encode_rows);
}

static void encode_run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_moe_job *job = arg;
    (void)tid;
    encode(job, begin * job->state->encode_rows, end * job->state->encode_rows);
}

/* --- phases 2 and 3 -------------------------------------------------------------------------- */

/* What every call of an expert has in common. */
static kt_moe_call call_of(const kt_moe_job *job, int32_t expert, int tid,
                           const kt_choice **choice) {
    const kt_moe_layer *layer = job->layer;
    const struct kt_moe_state *s = job->state;
    int64_t row = s->row_begin[expert];
    int64_t m = s->row_begin[expert + 1] - row;

    *choice = kt_choice_for(layer->choices, m);
    return (kt_moe_call){.problem = &layer->problem,
                         .config = &(*choice)->config,
                         .weights = layer->experts[expert],
                         .a = s->a,
                         .a_stride = s->a_stride,
                         .rows = s->rows + row,
                         .route_weight = s->route_weight + row,
                         .m = m,
                         .h = s->h + (size_t)row * s->h_stride,
                         .h_stride = s->h_stride,
                         .out = job->out,
                         .ldo = job->ldo,
                         .scratch =
                             s->scratch ? s->scratch + (size_t)tid * s->scratch_stride : NULL};
}

/* Keep rows [begin, end) of a call. */
static void narrow(kt_moe_call *call, int64_t begin, int64_t end) {
    call->rows += begin;
    call->route_weight += begin;
    call->h = (char *)call->h + (size_t)begin * call->h_stride;
    call->m = end - begin;
}

static int64_t gate_up_prepare(void *arg, int n_threads) {
    const kt_moe_job *job = arg;
    const kt_problem *q = &job->layer->problem;
    struct kt_moe_state *s = job->state;
    int64_t tasks = 0;
    kt_share share;

    if (!s->n_active) return 0;
    share = kt_share_cut(q->n / 32, kt_p64_panel_bytes(q->weights, q->k), s->max_rows, s->n_active,
                         n_threads);
    s->panel_runs = share.panel_runs;
    s->row_block = share.row_block;
    for (int64_t i = 0; i < s->n_active; i++) {
        int32_t e = s->active[i];
        s->task_begin[i] = tasks;
        tasks += share.panel_runs *
                 kt_share_ceil(s->row_begin[e + 1] - s->row_begin[e], share.row_block);
    }
    s->task_begin[s->n_active] = tasks;
    return tasks;
}

/* Index of the active expert that a gate_up task belongs to. */
static int64_t owner_of(const struct kt_moe_state *s, int64_t task) {
    int64_t low = 0, high = s->n_active;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (s->task_begin[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tasks walk the panels inside a row block; `next` is where the panels of the next task begin. */
static void gate_up_run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_moe_job *job = arg;
    const kt_problem *q = &job->layer->problem;
    const struct kt_moe_state *s = job->state;
    int64_t panels = q->n / 32, owner = owner_of(s, begin);

    for (int64_t task = begin; task < end; task++) {
        const kt_choice *choice;
        kt_moe_call call;
        int64_t local, run, row;
        if (task >= s->task_begin[owner + 1]) owner++;
        local = task - s->task_begin[owner];
        run = local % s->panel_runs;
        row = local / s->panel_runs * s->row_block;
        call = call_of(job, s->active[owner], tid, &choice);
        narrow(&call, row, call.m - row < s->row_block ? call.m : row + s->row_block);
        call.panel_begin = panels * run / s->panel_runs;
        call.panel_end = panels * (run + 1) / s->panel_runs;
        if (run + 1 < s->panel_runs)
            call.next = kt_p64_gate_up(q, call.weights, call.panel_end);
        else if (owner + 1 < s->n_active)
            call.next = job->layer->experts[s->active[owner + 1]];
        choice->variant->moe_gate_up(&call);
    }
}

/* Byte-balanced: every task reads its panels of all active experts. Tokens are cut only when the
 * panels are too few for the threads. */
static int64_t down_prepare(void *arg, int n_threads) {
    const kt_moe_job *job = arg;
    const kt_problem *q = &job->layer->problem;
    struct kt_moe_state *s = job->state;
    int64_t panels = kt_p64_panels(q->k);
    size_t panel_bytes = kt_p64_panel_bytes(q->weights, q->n) * (size_t)s->n_active;
    kt_share share;

    if (!job->tokens) return 0;
    share = kt_share_cut(panels, panel_bytes, job->tokens, 1, n_threads);
    s->down_runs = share.panel_runs;
    if (s->max_rows > 1 && share.row_block == job->tokens) {
        /* Rows share what a task reads of h, so wider tasks while the threads stay busy. */
        int64_t fewest = (int64_t)2 * KT_SHARE_TASKS_PER_THREAD * n_threads;
        int64_t wide = kt_share_ceil(panels, DOWN_RUN);
        int64_t runs = wide > fewest ? wide : fewest;
        if (runs < s->down_runs) s->down_runs = runs;
    }
    s->down_tokens = share.row_block;
    return s->down_runs * kt_share_ceil(job->tokens, s->down_tokens);
}

/* First row in rows[0, m) whose token is not below `token`. */
static int64_t lower_row(const int32_t *rows, int64_t m, int64_t token) {
    int64_t low = 0;
    while (m > 0) {
        int64_t half = m / 2;
        if (rows[low + half] < token) {
            low += half + 1;
            m -= half + 1;
        } else {
            m = half;
        }
    }
    return low;
}

static void clear_out(const kt_moe_job *job, int64_t token_begin, int64_t token_end,
                      int64_t panel_begin, int64_t panel_end) {
    int64_t k = job->layer->problem.k;
    int64_t column = KT_P64_ROWS * panel_begin, end = KT_P64_ROWS * panel_end;
    size_t bytes = sizeof(float) * (size_t)((end < k ? end : k) - column);

    for (int64_t t = token_begin; t < token_end; t++)
        memset(job->out + t * job->ldo + column, 0, bytes);
}

static void down_task(const kt_moe_job *job, int64_t task, int tid) {
    const kt_problem *q = &job->layer->problem;
    const struct kt_moe_state *s = job->state;
    int64_t panels = kt_p64_panels(q->k), run = task % s->down_runs;
    int64_t panel_begin = panels * run / s->down_runs;
    int64_t panel_end = panels * (run + 1) / s->down_runs;
    int64_t token_begin = task / s->down_runs * s->down_tokens;
    int64_t token_end = token_begin + s->down_tokens;
    int all_tokens = s->down_tokens >= job->tokens;

    if (token_end > job->tokens) token_end = job->tokens;
    if (!job->accumulate) clear_out(job, token_begin, token_end, panel_begin, panel_end);
    for (int64_t i = 0; i < s->n_active; i++) {
        const kt_choice *choice;
        kt_moe_call call = call_of(job, s->active[i], tid, &choice);
        if (!all_tokens)
            narrow(&call, lower_row(call.rows, call.m, token_begin),
                   lower_row(call.rows, call.m, token_end));
        if (!call.m) continue;
        call.panel_begin = panel_begin;
        call.panel_end = panel_end;
        if (i + 1 < s->n_active)
            call.next = kt_p64_down(q, job->layer->experts[s->active[i + 1]], panel_begin);
        else if (panel_end < panels)
            call.next = kt_p64_down(q, job->layer->experts[s->active[0]], panel_end);
        choice->variant->moe_down(&call);
    }
}

static void down_run(void *arg, int64_t begin, int64_t end, int tid) {
    for (int64_t task = begin; task < end; task++) down_task(arg, task, tid);
}

void kt_moe_job_phases(kt_moe_job *job, kt_phase phases[KT_MOE_PHASES]) {
    phases[0] = (kt_phase){.prepare = encode_prepare, .run = encode_run, .arg = job};
    phases[1] = (kt_phase){.prepare = gate_up_prepare, .run = gate_up_run, .arg = job};
    phases[2] = (kt_phase){.prepare = down_prepare, .run = down_run, .arg = job};
}

void kt_moe_job_load(const kt_moe_job *job, int64_t *active_experts, int64_t *max_rows) {
    *active_experts = job->state->n_active;
    *max_rows = job->state->max_rows;
}
