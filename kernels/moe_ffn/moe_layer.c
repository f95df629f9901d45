/* The fused MoE layer: three phases, in each of which tasks touch disjoint memory.
 *
 *   encode   Tokens are bucketed by expert (serial, a counting sort) and encoded.
 *   gate_up  A task is (active expert, panel, block of its rows) and writes h.
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
#define ENCODE_TASK ((int64_t)16384) /* floats per task beyond that */
/* Output panels per down task at most: a few, or as many as have so much output, which the task meets again
 * with every expert. */
#define DOWN_PANELS 4
#define DOWN_OUT_BYTES ((int64_t)128 << 10)
/* Tiles put an expert's rows into order once a task, which takes as long as a panel or two of them:
 * with many experts to a thread a task is a whole expert, and down has two tasks to a thread while
 * their output stays in L2. */
#define BULK_EXPERTS 16
#define BULK_OUT_BYTES ((int64_t)1 << 20)
/* A thread that shares with nobody streams an expert's panels in one go. */
#define ALONE_TASK_BYTES ((int64_t)1 << 40)

const kt_moe_cut kt_moe_cut_default = {.task_bytes = KT_SHARE_TASK_BYTES,
                                       .tasks_per_thread = KT_SHARE_TASKS_PER_THREAD};

struct kt_moe_state {
    int64_t max_tokens;
    size_t a_stride, h_stride, scratch_stride;
    int32_t *row_begin;   /* [experts + 1] rows of expert e: row_begin[e] .. row_begin[e + 1] */
    int32_t *active;      /* [experts] those with rows, ascending */
    int32_t *order;       /* [experts] the same in the order of gate_up */
    int64_t *task_begin;  /* [experts + 1] gate_up tasks of order[i] */
    int32_t *rows;        /* [max_tokens * topk] token of each row */
    float *route_weight;  /* [max_tokens * topk] */
    char *a;              /* encoded tokens */
    char *h;              /* encoded intermediate rows */
    char *scratch;        /* scratch_stride per thread */
    kt_problem down_half; /* of the layer of this run */
    int64_t n_active, max_rows;
    int64_t encode_rows; /* tokens per encode task */
    kt_moe_cut cut;      /* of this call */
    bool is_bulk;        /* its experts are for tiles, and many to a thread */
    kt_share gate_up;    /* of one expert */
    kt_share down;       /* of the outputs; row_block counts tokens */
};

/* --- the two halves of an expert --------------------------------------------------------------- */

static const kt_choice_map *down_choices(const kt_moe_layer *layer) {
    return layer->down_weights == KT_W_NONE ? layer->choices : layer->down_choices;
}

static int64_t round_up(int64_t n, int64_t multiple) {
    return multiple > 0 ? (n + multiple - 1) / multiple * multiple : n;
}

void kt_moe_halves(const kt_problem *problem, kt_weight_format down, kt_problem *gate_up_half,
                   kt_problem *down_half) {
    *gate_up_half = *down_half = *problem;
    if (down == problem->weights) return;
    gate_up_half->n = round_up(problem->n, kt_p64_k_multiple(problem->weights));
    down_half->weights = down;
    down_half->k = round_up(problem->k, kt_p64_k_multiple(down));
}

size_t kt_moe_down_offset(const kt_moe_layer *layer) {
    return kt_p64_gate_up_bytes(&layer->problem);
}

size_t kt_moe_expert_bytes(const kt_moe_layer *layer) {
    kt_problem half = kt_moe_down_half(layer);
    return kt_moe_down_offset(layer) + kt_p64_down_bytes(&half);
}

void kt_moe_pack(const kt_moe_layer *layer, const kt_matrix *gate, const kt_matrix *up,
                 const kt_matrix *down, void *dst) {
    kt_problem half = kt_moe_down_half(layer);

    layer->choices->choice[0].variant->pack_expert(&layer->problem, gate, up, NULL, dst);
    down_choices(layer)->choice[0].variant->pack_expert(&half, NULL, NULL, down,
                                                        (char *)dst + kt_moe_down_offset(layer));
}

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

/* Per thread, for the needier half. */
static size_t scratch_bytes(const kt_moe_layer *layer, int64_t max_tokens) {
    kt_problem half = kt_moe_down_half(layer);
    size_t gate_up = kt_gemm_scratch_bytes(&layer->problem, layer->choices, max_tokens);
    size_t down = kt_gemm_scratch_bytes(&half, down_choices(layer), max_tokens);
    return gate_up > down ? gate_up : down;
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
    s.scratch_stride = scratch_bytes(layer, max_tokens);
    if (kt_mul_overflow((uint64_t)max_tokens, (uint64_t)q->topk, &slots) || slots > INT32_MAX)
        return 1;
    if (take(base, &used, 1, sizeof s, &self) ||
        take(base, &used, experts + 1, sizeof *s.row_begin, &s.row_begin) ||
        take(base, &used, experts, sizeof *s.active, &s.active) ||
        take(base, &used, experts, sizeof *s.order, &s.order) ||
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

static kt_status check_map(const kt_choice_map *map, const char *layout, const kt_problem *q,
                           kt_err *err) {
    for (int i = 0; i < map->count; i++) {
        const kt_variant *v = map->choice[i].variant;
        if (v->op != KT_OP_MOE_FFN || strcmp(v->layout, layout) != 0)
            return kt_fail(err, KT_E_MISMATCH, "moe layer: %s (%s) beside %s", v->name, v->layout,
                           layout);
        if (!(v->weights & KT_W_BIT(q->weights)) || !(v->acts & 1u << q->acts))
            return kt_fail(err, KT_E_MISMATCH, "moe layer: %s does not read %s weights with %s",
                           v->name, kt_weight_format_name(q->weights), kt_act_format_name(q->acts));
    }
    for (int m = 0; m <= KT_M_DENSE; m++)
        if (map->index[m] >= map->count)
            return kt_fail(err, KT_E_INVALID, "moe layer: m=%d chooses entry %d of %d", m,
                           map->index[m], (int)map->count);
    return KT_OK;
}

static int is_map(const kt_choice_map *map) {
    return map && map->count >= 1 && map->count <= KT_MAX_CHOICES;
}

static kt_status check_ending(const kt_moe_layer *layer, kt_err *err) {
    const kt_glu_rule *g = &layer->glu;
    const kt_moe_bias *b = &layer->bias;

    if ((unsigned)g->kind >= KT_GLU_COUNT || (g->kind != KT_GLU_SILU && !(g->limit > 0)) ||
        (g->kind == KT_GLU_OAI && !(g->alpha > 0)))
        return kt_fail(err, KT_E_INVALID,
                       "moe layer: activation %d with limit %g and alpha %g, expected one of %d "
                       "with positive numbers",
                       (int)g->kind, g->limit, g->alpha, KT_GLU_COUNT);
    if (!b->gate == !b->up && (!b->gate || b->stride >= layer->problem.n)) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "moe layer: biases of gate %s up, %lld apart",
                   b->gate && b->up ? "and" : "without", (long long)b->stride);
}

static kt_status check_layer(const kt_moe_layer *layer, kt_err *err) {
    const kt_problem *q = &layer->problem, half = kt_moe_down_half(layer);
    const char *layout;

    if (q->n <= 0 || q->n % 32 || q->k <= 0 || q->k % 32 || q->experts < 1 || q->topk < 1 ||
        q->experts > INT32_MAX || q->topk > q->experts)
        return kt_fail(err, KT_E_INVALID,
                       "moe layer: intermediate %lld, hidden %lld, %lld experts, top %lld",
                       (long long)q->n, (long long)q->k, (long long)q->experts, (long long)q->topk);
    if (!layer->experts || !is_map(layer->choices) || !is_map(down_choices(layer)))
        return kt_fail(err, KT_E_INVALID, "moe layer: no experts or no choices");
    if (q->k % kt_p64_k_multiple(q->weights) || q->n % kt_p64_k_multiple(half.weights))
        return kt_fail(err, KT_E_INVALID,
                       "moe layer: %lld inputs of %s, %lld inputs of %s: expected whole blocks",
                       (long long)q->k, kt_weight_format_name(q->weights), (long long)q->n,
                       kt_weight_format_name(half.weights));
    KT_TRY(check_ending(layer, err));
    layout = layer->choices->choice[0].variant->layout;
    KT_TRY(check_map(layer->choices, layout, q, err));
    KT_TRY(check_map(down_choices(layer), layout, &half, err));
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

/* What the calls of a task have in common. */
static kt_moe_call call_of(const kt_moe_job *job, int tid) {
    const struct kt_moe_state *s = job->state;
    return (kt_moe_call){.a = s->a,
                         .a_stride = s->a_stride,
                         .h_stride = s->h_stride,
                         .out = job->out,
                         .ldo = job->ldo,
                         .scratch =
                             s->scratch ? s->scratch + (size_t)tid * s->scratch_stride : NULL,
                         .glu = job->layer->glu};
}

static void set_gate_up_bias(kt_moe_call *call, const kt_moe_bias *bias, int32_t expert) {
    if (!bias->gate) return;
    call->gate_bias = bias->gate + expert * bias->stride;
    call->up_bias = bias->up + expert * bias->stride;
}

/* Point the call at rows [begin, end) of s->rows, which belong to one expert. */
static void set_rows(kt_moe_call *call, const struct kt_moe_state *s, int64_t begin, int64_t end) {
    call->rows = s->rows + begin;
    call->route_weight = s->route_weight + begin;
    call->h = s->h + (size_t)begin * s->h_stride;
    call->m = end - begin;
}

static int64_t least(int64_t x, int64_t y) {
    return x < y ? x : y;
}

/* How far apart two positive numbers are, as a ratio of at least 1. */
static double ratio(double x, double y) {
    return x > y ? x / y : y / x;
}

const kt_moe_cut *kt_moe_cut_for(const kt_moe_cuts *cuts, int64_t tokens, double imbalance) {
    int best = -1;

    for (int i = 0; cuts && tokens > 0 && i < cuts->n; i++) {
        double here = ratio((double)cuts->at[i].tokens, (double)tokens);
        double there = best < 0 ? 0 : ratio((double)cuts->at[best].tokens, (double)tokens);
        if (best < 0 || here < there ||
            (here <= there &&
             ratio(cuts->at[i].imbalance, imbalance) < ratio(cuts->at[best].imbalance, imbalance)))
            best = i;
    }
    return best < 0 ? &kt_moe_cut_default : &cuts->at[best].cut;
}

static int64_t rows_of(const struct kt_moe_state *s, int32_t expert) {
    return s->row_begin[expert + 1] - s->row_begin[expert];
}

/* Experts by falling power of two of their rows, ascending within one: near enough to the longest task
 * first, in two passes. */
static void put_in_order(struct kt_moe_state *s) {
    int64_t begin[32] = {0}; /* of the experts with rows in [2^i, 2^(i+1)), the largest i first */

    if (!s->cut.is_largest_first) {
        memcpy(s->order, s->active, (size_t)s->n_active * sizeof *s->order);
        return;
    }
    for (int64_t i = 0; i < s->n_active; i++)
        begin[31 - __builtin_clz((unsigned)rows_of(s, s->active[i]))]++;
    for (int64_t c = 31, sum = 0; c >= 0; c--) {
        int64_t count = begin[c];
        begin[c] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < s->n_active; i++)
        s->order[begin[31 - __builtin_clz((unsigned)rows_of(s, s->active[i]))]++] = s->active[i];
}

static bool is_for_tiles(const kt_moe_layer *layer, int64_t rows) {
    const kt_choice *choice = kt_choice_for(layer->choices, rows < 1 ? 1 : rows);
    return (choice->variant->isa & (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)) != 0;
}

/* By what this call turned out to be. */
static void choose_cut(const kt_moe_job *job, int n_threads) {
    struct kt_moe_state *s = job->state;
    double mean = (double)s->row_begin[job->layer->problem.experts] / (double)s->n_active;
    const kt_moe_cut *cut =
        kt_moe_cut_for(job->layer->cuts, job->tokens, (double)s->max_rows / mean);

    s->cut = *cut;
    s->is_bulk = cut == &kt_moe_cut_default && s->n_active >= BULK_EXPERTS * n_threads &&
                 is_for_tiles(job->layer, (int64_t)mean);
    if (cut == &kt_moe_cut_default && (n_threads == 1 || s->is_bulk))
        s->cut.task_bytes = ALONE_TASK_BYTES;
    put_in_order(s);
}

static int64_t gate_up_prepare(void *arg, int n_threads) {
    const kt_moe_job *job = arg;
    const kt_problem *q = &job->layer->problem;
    struct kt_moe_state *s = job->state;
    int64_t tasks = 0;

    s->cut = kt_moe_cut_default;
    s->is_bulk = false;
    if (!s->n_active) return 0;
    choose_cut(job, n_threads);
    s->gate_up =
        kt_share_cut_by(s->cut.task_bytes, s->cut.tasks_per_thread, q->n / 32,
                        kt_p64_panel_bytes(q->weights, q->k), s->max_rows, s->n_active, n_threads);
    for (int64_t i = 0; i < s->n_active; i++) {
        int64_t m = rows_of(s, s->order[i]);
        int64_t blocks = m <= s->gate_up.row_block ? 1 : kt_share_ceil(m, s->gate_up.row_block);
        s->task_begin[i] = tasks;
        tasks += q->n / 32 * blocks;
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

/* Tasks of an expert walk its panels, row block by row block; those of one block that were taken together are
 * one call. `next` is where the panels of the following task begin. */
static void gate_up_run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_moe_job *job = arg;
    const kt_moe_layer *layer = job->layer;
    const struct kt_moe_state *s = job->state;
    int64_t panels = layer->problem.n / 32, owner = owner_of(s, begin);
    kt_moe_call call = call_of(job, tid);

    call.problem = &layer->problem;
    for (int64_t task = begin; task < end; task += call.panel_end - call.panel_begin) {
        const kt_choice *choice;
        int64_t row, last;
        if (task >= s->task_begin[owner + 1]) owner++;
        row = s->row_begin[s->order[owner]];
        last = s->row_begin[s->order[owner] + 1];
        choice = kt_choice_for(layer->choices, last - row);
        row += (task - s->task_begin[owner]) / panels * s->gate_up.row_block;
        set_rows(&call, s, row, least(last, row + s->gate_up.row_block));
        call.config = &choice->config;
        call.weights = layer->experts[s->order[owner]];
        set_gate_up_bias(&call, &layer->bias, s->order[owner]);
        call.panel_begin = (task - s->task_begin[owner]) % panels;
        call.panel_end = least(panels, call.panel_begin + end - task);
        call.next = NULL;
        if (call.panel_end < panels)
            call.next = kt_p64_gate_up(&layer->problem, call.weights, call.panel_end);
        else if (owner + 1 < s->n_active)
            call.next = layer->experts[s->order[owner + 1]];
        choice->variant->moe_gate_up(&call);
    }
}

/* Every task reads its panels of all active experts, so equal tasks are equal bytes. Tokens are cut
 * only when the panels are too few for the threads. */
static int64_t down_prepare(void *arg, int n_threads) {
    const kt_moe_job *job = arg;
    const kt_problem *q = &job->layer->problem;
    struct kt_moe_state *s = job->state;
    int64_t panels = kt_p64_panels(q->k);
    int64_t tasks_at_least = (int64_t)2 * s->cut.tasks_per_thread * n_threads, most_out;
    size_t panel_bytes;

    if (!job->tokens) return 0;
    s->down_half = kt_moe_down_half(job->layer);
    panel_bytes = kt_p64_panel_bytes(s->down_half.weights, q->n) * (size_t)s->n_active;
    s->down = kt_share_cut_by(s->cut.task_bytes, s->cut.tasks_per_thread, panels, panel_bytes,
                              job->tokens, 1, n_threads);
    /* Wider tasks while threads stay busy. Each reads all of h, which is much with many rows; with one
     * row, an expert's panels are a stream, and every break of it costs (Zen 4, w4g32 at 27 KB a
     * panel: 80 to 87 % of the read ceiling alone, all of it four at a time). */
    while (s->down.panels < DOWN_PANELS && panels >= 2 * s->down.panels * tasks_at_least)
        s->down.panels *= 2;
    while (s->is_bulk && panels >= 4 * s->down.panels * n_threads) s->down.panels *= 2;
    most_out = s->is_bulk ? BULK_OUT_BYTES : DOWN_OUT_BYTES;
    while (s->down.panels > DOWN_PANELS &&
           s->down.panels * job->tokens * (int64_t)sizeof(float) * KT_P64_ROWS > most_out)
        s->down.panels = (s->down.panels + 1) / 2;
    return panels * kt_share_ceil(job->tokens, s->down.row_block);
}

/* First row in [begin, end) whose token is not below `token`. */
static int64_t lower_row(const int32_t *rows, int64_t begin, int64_t end, int64_t token) {
    while (begin < end) {
        int64_t middle = (begin + end) / 2;
        if (rows[middle] < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static void clear_out(const kt_moe_job *job, int64_t token_begin, int64_t token_end,
                      int64_t panel_begin, int64_t panel_end) {
    int64_t column = KT_P64_ROWS * panel_begin;
    int64_t end = least(KT_P64_ROWS * panel_end, job->layer->problem.k);

    for (int64_t t = token_begin; t < token_end; t++)
        memset(job->out + t * job->ldo + column, 0, sizeof(float) * (size_t)(end - column));
}

/* Runs those of tasks [task, end) that lie in one block of tokens; returns how many. */
static int64_t down_tasks(const kt_moe_job *job, int64_t task, int64_t end, int tid) {
    const kt_moe_layer *layer = job->layer;
    const struct kt_moe_state *s = job->state;
    const kt_choice_map *choices = down_choices(layer);
    const size_t half = kt_moe_down_offset(layer);
    int64_t panels = kt_p64_panels(layer->problem.k), token = 0, token_end = job->tokens;
    kt_moe_call call = call_of(job, tid);

    call.problem = &s->down_half;
    if (s->down.row_block < job->tokens) {
        token = task / panels * s->down.row_block;
        token_end = least(job->tokens, token + s->down.row_block);
    }
    call.panel_begin = task % panels;
    call.panel_end = least(panels, call.panel_begin + end - task);
    if (!job->accumulate) clear_out(job, token, token_end, call.panel_begin, call.panel_end);
    for (int64_t i = 0; i < s->n_active; i++) {
        int64_t row = s->row_begin[s->active[i]], last = s->row_begin[s->active[i] + 1];
        const kt_choice *choice = kt_choice_for(choices, last - row);
        if (s->down.row_block < job->tokens) {
            row = lower_row(s->rows, row, last, token);
            last = lower_row(s->rows, row, last, token_end);
            if (row == last) continue;
        }
        set_rows(&call, s, row, last);
        call.config = &choice->config;
        call.weights = (const char *)layer->experts[s->active[i]] + half;
        if (layer->bias.down) call.down_bias = layer->bias.down + s->active[i] * layer->problem.k;
        call.next = NULL;
        if (i + 1 < s->n_active)
            call.next =
                kt_p64_down(call.problem, (const char *)layer->experts[s->active[i + 1]] + half,
                            call.panel_begin);
        else if (call.panel_end < panels)
            call.next = kt_p64_down(call.problem, (const char *)layer->experts[s->active[0]] + half,
                                    call.panel_end);
        choice->variant->moe_down(&call);
    }
    return call.panel_end - call.panel_begin;
}

static void down_run(void *arg, int64_t begin, int64_t end, int tid) {
    while (begin < end) begin += down_tasks(arg, begin, end, tid);
}

void kt_moe_job_phases(kt_moe_job *job, kt_phase phases[KT_MOE_PHASES]) {
    phases[0] = (kt_phase){.prepare = encode_prepare, .run = encode_run, .arg = job};
    phases[1] = (kt_phase){.prepare = gate_up_prepare,
                           .run = gate_up_run,
                           .arg = job,
                           .grain_at = &job->state->gate_up.panels};
    phases[2] = (kt_phase){
        .prepare = down_prepare, .run = down_run, .arg = job, .grain_at = &job->state->down.panels};
}

void kt_moe_job_load(const kt_moe_job *job, int64_t *active_experts, int64_t *max_rows) {
    *active_experts = job->state->n_active;
    *max_rows = job->state->max_rows;
}

int64_t kt_moe_job_rows(const kt_moe_job *job, int64_t expert) {
    return job->state->row_begin[expert + 1] - job->state->row_begin[expert];
}

const void *kt_moe_job_h(const kt_moe_job *job, int64_t expert, int64_t i) {
    const struct kt_moe_state *s = job->state;
    return s->h + (size_t)(s->row_begin[expert] + i) * s->h_stride;
}
