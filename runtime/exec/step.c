/* Writing the programs of a step and running them. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/step.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/rope/rope_table.h"

#define FEW_ROWS 4      /* up to here serial row work costs less than another synchronisation */
#define ROWS_PER_TASK 8 /* of row work in the program for many rows */
#define MAX_PHASES_PER_LAYER 12

/* ---- phases ---- */

/* Serial row work and the number of tasks. */
static int64_t start(kt_step_op *op, int n_threads) {
    kt_step *s = op->step;

    if (op->before) op->before(s, op->layer, 0, s->rows);
    if (op->bind) op->bind(s, op->layer);
    if (op->rows) return (s->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    return op->inner.prepare ? op->inner.prepare(op->inner.arg, n_threads) : op->inner.n_tasks;
}

/* Runs before each phase, on one thread. */
static int64_t prepare(void *arg, int n_threads) {
    kt_step_op *op = arg;
    kt_step *s = op->step;
    int64_t tasks;

    if (s->is_profiled) {
        int64_t now = kt_clock_ns();
        s->profile.kind[s->last_kind].time_ns += now - s->stamp_ns;
        s->stamp_ns = now;
        s->last_kind = op->kind;
    }
    tasks = start(op, n_threads);
    if (s->recorder && op->note) op->note(s, op->layer);
    if (s->importance && op->observe) op->observe(s, op->layer);
    if (s->is_profiled) {
        int64_t now = kt_clock_ns();
        s->profile.kind[KT_STEP_ROWS].time_ns += now - s->stamp_ns;
        s->profile.serial_ns += now - s->stamp_ns;
        s->stamp_ns = now;
        if (op->count) op->count(s, op->layer);
    }
    return tasks;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    int64_t last = end * ROWS_PER_TASK, rows = op->step->rows;
    int64_t since = op->step->is_profiled ? kt_clock_ns() : 0;

    if (op->rows)
        op->rows(op->step, op->layer, begin * ROWS_PER_TASK, last < rows ? last : rows);
    else
        op->inner.run(op->inner.arg, begin, end, tid);
    if (op->step->is_profiled) op->step->busy[tid].ns += kt_clock_ns() - since;
}

/* ---- programs ---- */

typedef struct writer {
    kt_step *step;
    kt_step_program *program;
    kt_step_op *ops; /* one per phase */
    int is_few;
} writer;

static kt_step_op *push(writer *w, kt_step_kind kind, int64_t layer, int64_t grain) {
    kt_step_op *op = &w->ops[w->program->count];

    *op = (kt_step_op){.step = w->step, .kind = kind, .layer = layer};
    w->program->phases[w->program->count++] =
        (kt_phase){.prepare = prepare, .run = run, .arg = op, .grain = grain};
    return op;
}

/* Add a phase that row work comes before: inside it for few rows, as a phase of its own for many. */
static kt_step_op *add(writer *w, kt_step_kind kind, int64_t layer, kt_row_work *before,
                       void (*bind)(kt_step *, int64_t), kt_phase inner) {
    kt_step_op *op;

    if (before && !w->is_few) push(w, KT_STEP_ROWS, layer, 1)->rows = before;
    op = push(w, kind, layer, inner.grain);
    w->program->phases[w->program->count - 1].grain_at = inner.grain_at;
    if (w->is_few) op->before = before;
    op->bind = bind;
    op->inner = inner;
    return op;
}

static void write_attention(writer *w, int64_t l) {
    kt_phase gemm = kt_gemm_group_phase(&w->step->gemm_group);
    kt_phase attn[KT_ATTN_PHASES];
    kt_step_op *op = add(w, KT_STEP_QKV, l, kt_step_attn_norm, kt_step_bind_qkv, gemm);

    op->count = kt_step_count_qkv;
    op->observe = kt_step_observe_qkv;
    kt_attn_job_phases(&w->step->attn, attn);
    add(w, KT_STEP_ATTN, l, kt_step_rope_and_cache, kt_step_bind_attn, attn[0])->count =
        kt_step_count_attn;
    if (w->is_few) add(w, KT_STEP_ATTN, l, NULL, NULL, attn[1]); /* many rows are never split */
    op = add(w, KT_STEP_O, l, kt_step_encode_attended, kt_step_bind_o, gemm);
    op->count = kt_step_count_o;
    op->observe = kt_step_observe_o;
}

static void write_feed_forward(writer *w, int64_t l) {
    int is_moe = w->step->config->is_moe[l], n_phases = KT_MOE_PHASES;
    kt_step_ffn *ffn = is_moe ? &w->step->moe : &w->step->dense;
    kt_row_work *before = kt_step_ffn_norm;
    kt_phase phases[KT_MOE_NODES_PHASES];
    kt_step_op *op = NULL;

    if (is_moe && !w->is_few) {
        op = push(w, KT_STEP_ROUTER, l, 1);
        op->rows = kt_step_norm_and_route;
        op->count = kt_step_count_router;
        before = NULL;
    }
    if (is_moe && w->is_few) { /* the router's experts shared out, not its rows */
        op = add(w, KT_STEP_ROUTER, l, kt_step_ffn_norm, NULL, (kt_phase){0});
        op->inner = kt_step_router_phase(op);
        op->count = kt_step_count_router;
        before = kt_step_select;
    }
    if (ffn->nodes) {
        kt_moe_nodes_phases(ffn->nodes, phases);
        n_phases = KT_MOE_NODES_PHASES;
    } else {
        kt_moe_job_phases(&ffn->job, phases);
    }
    for (int i = 0; i < n_phases; i++) {
        op = add(w, KT_STEP_FFN, l, i ? NULL : before, i ? NULL : kt_step_bind_ffn, phases[i]);
        if (i == 0) op->observe = kt_step_observe_gate_up;
    }
    op->observe = kt_step_observe_down;
    op->count = kt_step_count_ffn;
    op->note = is_moe ? kt_step_note_experts : NULL;
}

static kt_status write_program(kt_step *s, kt_step_program *program, int is_few, kt_err *err) {
    int64_t layers = s->config->layers;
    size_t room = (size_t)(layers + 1) * MAX_PHASES_PER_LAYER;
    writer w = {.step = s, .program = program, .is_few = is_few};
    kt_step_op *op;

    w.ops = kt_arena_alloc(&s->arena, room * sizeof *w.ops, sizeof(void *));
    program->phases = kt_arena_alloc(&s->arena, room * sizeof *program->phases, sizeof(void *));
    if (!w.ops || !program->phases)
        return kt_fail(err, KT_E_NOMEM, "no memory for the phases of a step");
    for (int64_t l = 0; l < layers; l++) {
        write_attention(&w, l);
        write_feed_forward(&w, l);
    }
    op = add(&w, KT_STEP_HEAD, layers, kt_step_final_norm, kt_step_bind_head,
             kt_gemm_group_phase(&s->gemm_group));
    op->count = kt_step_count_head;
    op->observe = kt_step_observe_head;
    return KT_OK;
}

/* ---- working memory ---- */

static size_t act_bytes(const kt_model_plan *plan) {
    size_t most = 0;

    for (int i = 0; i < KT_PART_COUNT; i++) {
        const kt_problem *p = &plan->part[i].problem;
        size_t bytes;
        if (!plan->part[i].is_used) continue;
        bytes = kt_act_row_bytes(p->acts, p->k);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Place every array in one buffer; base NULL only counts. */
static size_t lay_out(kt_step *s, uint8_t *base, int64_t max_context) {
    const kt_model_config *c = s->config;
    size_t attn_bytes =
        kt_attn_job_bytes(&s->plan->attn, &s->plan->attn_problem, max_context, s->n_threads);
    size_t rows = (size_t)s->max_rows, f32 = sizeof(float);
    size_t heads = (size_t)((c->heads + 2 * c->kv_heads) * c->head_dim);
    const struct {
        void *target;
        size_t bytes;
    } arrays[] = {
        {&s->x, rows * (size_t)c->hidden * f32},
        {&s->normed, rows * (size_t)c->hidden * f32},
        {&s->qkv, rows * heads * f32},
        {&s->attended, rows * (size_t)(c->heads * c->head_dim) * f32},
        {&s->router_logits, rows * (size_t)c->experts * f32},
        {&s->route_weight, rows * (size_t)c->topk * f32},
        {&s->expert_id, rows * (size_t)c->topk * sizeof *s->expert_id},
        {&s->ones, rows * f32},
        {&s->zeros, rows * sizeof *s->zeros},
        {&s->positions, rows * sizeof *s->positions},
        {&s->acts, rows * act_bytes(s->plan)},
        {&s->cos_sin, (size_t)(max_context * c->rotary_dim) * f32},
        {&s->gemm_scratch, (size_t)s->n_threads * s->gemm_group.scratch_stride},
        {&s->attn_workspace, attn_bytes},
    };
    size_t used = 0;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *place = base ? base + used : NULL;
        memcpy(arrays[i].target, &place, sizeof place);
        used += (arrays[i].bytes + 63) / 64 * 64;
    }
    return used;
}

/* The same call over the memory nodes, each with working memory of its own. */
static kt_status init_nodes(kt_step *s, const kt_node_plan *plan, const kt_moe_layer *layers,
                            kt_step_ffn *ffn, kt_err *err) {
    kt_moe_nodes *n = kt_arena_alloc(&s->arena, sizeof *n, 64);

    if (!n) return kt_fail(err, KT_E_NOMEM, "no memory for the memory nodes");
    memset(n, 0, sizeof *n);
    n->n_nodes = plan->n;
    n->x = ffn->job.x, n->ldx = ffn->job.ldx;
    n->out = ffn->job.out, n->ldo = ffn->job.ldo;
    n->accumulate = ffn->job.accumulate;
    n->expert_id = ffn->job.expert_id, n->route_weight = ffn->job.route_weight;
    for (int i = 0; i < plan->n; i++) {
        size_t bytes = kt_moe_nodes_bytes(&layers[i], s->max_rows, s->n_threads);
        n->layer[i] = &layers[i];
        n->threads[i] = plan->threads[i];
        KT_TRY(kt_buffer_create(bytes, KT_PAGES_ADVISED, plan->memory[i], &ffn->workspace[i], err));
        n->workspace[i] = ffn->workspace[i].data;
    }
    ffn->nodes = n;
    return kt_moe_nodes_init(n, s->max_rows, err);
}

/* A feed-forward job: of the MoE layers, or of the dense ones where every row goes to expert 0 with
 * weight 1. */
static kt_status init_ffn(kt_step *s, const kt_node_plan *nodes, kt_step_ffn *ffn, int is_moe,
                          kt_err *err) {
    kt_moe_job *job = &ffn->job;
    int64_t layer = 0;
    size_t bytes;

    while (layer < s->config->layers && s->config->is_moe[layer] != is_moe) layer++;
    if (layer == s->config->layers) return KT_OK;
    job->layer = &kt_weights_layer(s->weights, layer)->ffn;
    job->x = s->normed;
    job->ldx = job->ldo = s->config->hidden;
    job->out = s->x;
    job->accumulate = 1;
    job->expert_id = is_moe ? s->expert_id : s->zeros;
    job->route_weight = is_moe ? s->route_weight : s->ones;
    if (nodes->n > 1)
        return init_nodes(s, nodes, kt_weights_layer(s->weights, layer)->node_ffn, ffn, err);
    bytes = kt_moe_workspace_bytes(job->layer, s->max_rows, s->n_threads);
    job->workspace = kt_arena_alloc(&s->arena, bytes, 64);
    if (!job->workspace) return kt_fail(err, KT_E_NOMEM, "no memory for the feed-forward layers");
    return kt_moe_job_init(job, s->max_rows, s->n_threads, bytes, err);
}

static kt_status init_attn(kt_step *s, int64_t max_context, kt_err *err) {
    const kt_model_config *c = s->config;
    size_t bytes =
        kt_attn_job_bytes(&s->plan->attn, &s->plan->attn_problem, max_context, s->n_threads);

    s->attn = (kt_attn_job){.choice = &s->plan->attn,
                            .problem = s->plan->attn_problem,
                            .q = s->qkv,
                            .ldq = (c->heads + 2 * c->kv_heads) * c->head_dim,
                            .ldkv = c->head_dim,
                            .scale = (float)(1.0 / sqrt((double)c->head_dim)),
                            .position = s->positions,
                            .out = s->attended,
                            .ldo = c->heads * c->head_dim};
    return kt_attn_job_init(&s->attn, max_context, s->n_threads, s->attn_workspace, bytes, err);
}

static size_t gemm_scratch_bytes(const kt_model_plan *plan) {
    static const kt_part parts[] = {KT_PART_QKV, KT_PART_O, KT_PART_HEAD};
    size_t most = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const kt_part_plan *p = &plan->part[parts[i]];
        size_t bytes = kt_gemm_scratch_bytes(&p->problem, &p->choices, plan->max_rows);
        if (bytes > most) most = bytes;
    }
    return most;
}

#define POSITIONS_PER_TASK 64

typedef struct angle_task {
    const kt_step *step;
    int64_t positions;
} angle_task;

static void fill_angles(void *arg, int64_t begin, int64_t end, int tid) {
    const angle_task *t = arg;
    const kt_model_config *c = t->step->config;
    int64_t first = begin * POSITIONS_PER_TASK, last = end * POSITIONS_PER_TASK;

    (void)tid;
    if (last > t->positions) last = t->positions;
    kt_rope_table(c->rope_theta, c->rotary_dim, first, last - first,
                  t->step->cos_sin + first * c->rotary_dim);
}

static kt_status set_up(kt_step *s, const kt_model_config *config, const kt_model_plan *plan,
                        const kt_weights *weights, const kt_node_plan *nodes, kt_pool *pool,
                        int64_t max_context, kt_err *err) {
    angle_task angles = {.step = s, .positions = max_context};
    kt_phase phase = {.run = fill_angles,
                      .arg = &angles,
                      .n_tasks = (max_context + POSITIONS_PER_TASK - 1) / POSITIONS_PER_TASK};

    s->config = config;
    s->plan = plan;
    s->weights = weights;
    s->rule = (kt_router_rule){.score = KT_ROUTER_SOFTMAX,
                               .experts = config->experts,
                               .topk = config->topk,
                               .norm_topk_prob = config->normalise_topk};
    s->n_threads = kt_pool_threads(pool);
    s->max_rows = plan->max_rows;
    s->gemm_group =
        (kt_gemm_group){.jobs = &s->gemm, .n_jobs = 1, .scratch_stride = gemm_scratch_bytes(plan)};
    if (plan->part[KT_PART_EXPERT].is_used) KT_TRY(kt_router_rule_check(&s->rule, err));
    KT_TRY(kt_buffer_create(lay_out(s, NULL, max_context), KT_PAGES_ADVISED, -1, &s->buffer, err));
    lay_out(s, s->buffer.data, max_context);
    for (int64_t r = 0; r < s->max_rows; r++) s->ones[r] = 1.0f;
    s->gemm_group.scratch = s->gemm_group.scratch_stride ? s->gemm_scratch : NULL;
    kt_pool_run(pool, &phase, 1);
    KT_TRY(init_attn(s, max_context, err));
    KT_TRY(init_ffn(s, nodes, &s->moe, 1, err));
    KT_TRY(init_ffn(s, nodes, &s->dense, 0, err));
    s->busy = kt_arena_alloc(&s->arena, (size_t)s->n_threads * sizeof *s->busy, 64);
    if (!s->busy) return kt_fail(err, KT_E_NOMEM, "no memory for the profile");
    KT_TRY(write_program(s, &s->few, 1, err));
    return write_program(s, &s->many, 0, err);
}

kt_status kt_step_init(kt_step *s, const kt_model_config *config, const kt_model_plan *plan,
                       const kt_weights *weights, const kt_node_plan *nodes, kt_pool *pool,
                       int64_t max_context, kt_err *err) {
    kt_status st;

    memset(s, 0, sizeof *s);
    st = set_up(s, config, plan, weights, nodes, pool, max_context, err);
    if (st == KT_OK) return KT_OK;
    kt_step_deinit(s);
    memset(s, 0, sizeof *s);
    return st;
}

void kt_step_deinit(kt_step *s) {
    kt_buffer_destroy(&s->buffer);
    for (int i = 0; i < KT_MOE_MAX_NODES; i++) {
        kt_buffer_destroy(&s->moe.workspace[i]);
        kt_buffer_destroy(&s->dense.workspace[i]);
    }
    kt_arena_deinit(&s->arena);
}

/* A row at position p attends to p + 1 tokens. */
static void record(const kt_step *s, int64_t time_ns) {
    kt_recorded_step step = {.decode = s->is_decode ? s->rows : 0,
                             .prefill = s->is_decode ? 0 : s->rows,
                             .logits = s->n_out,
                             .context = s->first_position + (s->rows + 1) / 2,
                             .time_ns = time_ns};
    kt_recorder_end(s->recorder, &step);
}

void kt_step_run(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                 int64_t first_position) {
    const kt_step_program *program = rows <= FEW_ROWS ? &s->few : &s->many;
    int64_t begin = s->is_profiled || s->recorder ? kt_clock_ns() : 0;

    s->rows = rows;
    s->first_position = first_position;
    for (int64_t r = 0; r < rows; r++) {
        s->positions[r] = (int32_t)(first_position + r);
        kt_weights_embed(s->weights, tokens[r], s->x + r * s->config->hidden);
    }
    s->last_kind = KT_STEP_ROWS;
    s->stamp_ns = begin;
    if (s->recorder) kt_recorder_begin(s->recorder);
    kt_pool_limit(pool, kt_layer_plan_threads(&s->plan->layer, rows, s->n_threads));
    kt_pool_run(pool, program->phases, program->count);
    kt_pool_limit(pool, s->n_threads);
    if (s->recorder) record(s, kt_clock_ns() - begin);
    if (!s->is_profiled) return;
    s->profile.kind[s->last_kind].time_ns += kt_clock_ns() - s->stamp_ns;
    s->profile.time_ns += kt_clock_ns() - begin;
}
