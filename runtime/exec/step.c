/* Setting a step up and running it. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/step.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/model/family.h"
#include "runtime/exec/segments.h"
#include "runtime/model/model_dir.h"

const kt_exec_op *kt_exec_op_find(kt_node_kind kind) {
    for (size_t i = 0; i < kt_builtin_exec_op_count; i++)
        if (kt_builtin_exec_ops[i]->kind == kind) return kt_builtin_exec_ops[i];
    return NULL;
}

void *kt_step_alloc(kt_step *s, size_t bytes) {
    return kt_arena_alloc(&s->arena, bytes, 64);
}

static kt_rows rows_of(const kt_step *s, const kt_view *v) {
    return (kt_rows){s->values + s->value_at[v->value] * s->max_rows + v->at,
                     s->graph->width[v->value], v->width};
}

static kt_status init_nodes(kt_step *s, kt_err *err) {
    const kt_graph *g = s->graph;

    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        kt_exec_node *e = &s->exec[i];
        *e = (kt_exec_node){.node = n, .op = kt_exec_op_find(n->kind), .step = s};
        if (kt_step_is_away(s, i)) continue;
        if (!e->op)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%s: this build has no operation of kind %d that layer %d needs",
                           g->family->name, (int)n->kind, n->layer);
        e->in = rows_of(s, &n->in);
        e->in2 = rows_of(s, &n->in2);
        e->in3 = rows_of(s, &n->in3);
        e->out = rows_of(s, &n->out);
        if (n->weight >= 0) e->weight = kt_weights_at(s->weights, n->weight);
        if (n->weight2 >= 0) e->weight2 = kt_weights_at(s->weights, n->weight2);
        if (n->weight3 >= 0) e->weight3 = kt_weights_at(s->weights, n->weight3);
        if (n->weight4 >= 0) e->weight4 = kt_weights_at(s->weights, n->weight4);
        if (e->op->init) KT_TRY(e->op->init(e, err));
    }
    return KT_OK;
}

static kt_status place_slots(kt_step *s, kt_err *err) {
    int64_t at = 0;

    s->slot_at = kt_step_alloc(s, (size_t)(s->graph->n_slots + 1) * sizeof *s->slot_at);
    if (!s->slot_at) return kt_fail(err, KT_E_NOMEM, "no memory for the states of a step");
    for (int i = 0; i < s->graph->n_slots; i++) {
        s->slot_at[i] = at;
        at += kt_model_slot_floats(s->graph, i);
    }
    return KT_OK;
}

static kt_status make_spans(kt_step *s, kt_err *err) {
    const size_t rows = (size_t)s->max_rows;

    s->spans = kt_step_alloc(s, rows * sizeof *s->spans);
    s->attn_spans = kt_step_alloc(s, rows * sizeof *s->attn_spans);
    s->span_of = kt_step_alloc(s, rows * sizeof *s->span_of);
    s->out_of = kt_step_alloc(s, rows * sizeof *s->out_of);
    if (s->spans && s->attn_spans && s->span_of && s->out_of) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory for the spans of a step");
}

static kt_status set_up(kt_step *s, kt_pool *pool, kt_err *err) {
    s->exec = kt_step_alloc(s, (size_t)s->graph->n_nodes * sizeof *s->exec);
    s->busy = kt_step_alloc(s, (size_t)s->n_threads * sizeof *s->busy);
    s->embedding_row = kt_step_alloc(s, (size_t)s->graph->numbers.hidden * sizeof(double));
    if (!s->exec || !s->busy || !s->embedding_row)
        return kt_fail(err, KT_E_NOMEM, "no memory for the nodes of a step");
    KT_TRY(make_spans(s, err));
    KT_TRY(place_slots(s, err));
    KT_TRY(kt_step_lay_out(s, pool, err));
    if (s->place) KT_TRY(kt_segments_init(s, err));
    KT_TRY(init_nodes(s, err));
    KT_TRY(kt_step_compile(s, &s->few, 1, false, err));
    KT_TRY(kt_step_compile(s, &s->many, 0, false, err));
    if (!s->graph->draft_hidden) return KT_OK;
    KT_TRY(kt_step_compile(s, &s->few_drafts, 1, true, err));
    return kt_step_compile(s, &s->many_drafts, 0, true, err);
}

kt_status kt_step_init(kt_step *s, const kt_graph *graph, const kt_model_plan *plan,
                       const kt_weights *weights, const kt_node_plan *nodes,
                       const struct kt_placement *place, kt_pool *pool, int64_t max_context,
                       kt_err *err) {
    kt_status st;

    memset(s, 0, sizeof *s);
    s->graph = graph;
    s->plan = plan;
    s->weights = weights;
    s->nodes = nodes;
    s->place = place;
    s->n_threads = kt_pool_threads(pool);
    s->max_rows = plan->max_rows;
    s->max_context = max_context;
    st = set_up(s, pool, err);
    if (st == KT_OK) return KT_OK;
    kt_step_deinit(s);
    memset(s, 0, sizeof *s);
    return st;
}

void kt_step_deinit(kt_step *s) {
    kt_buffer_destroy(&s->buffer);
    for (int f = 0; f < s->n_ffn; f++)
        for (int i = 0; i < KT_MOE_MAX_NODES; i++) kt_buffer_destroy(&s->ffn[f].workspace[i]);
    kt_arena_deinit(&s->arena);
}

/* A row at position p attends to p + 1 tokens. */
static void record(const kt_step *s, int64_t time_ns) {
    kt_recorded_step step = {.logits = s->n_out, .time_ns = time_ns};
    int64_t context = 0;

    for (int i = 0; i < s->n_spans; i++) {
        const kt_step_span *p = &s->spans[i];
        if (p->rows == 1 && p->position > 0) step.decode++;
        context += p->rows * (p->position + (p->rows + 1) / 2);
    }
    step.prefill = s->rows - step.decode;
    step.context = context / s->rows;
    kt_recorder_end(s->recorder, &step);
}

/* What ops look up by row. */
static void number_rows(kt_step *s) {
    for (int i = 0; i < s->n_spans; i++) {
        const kt_step_span *p = &s->spans[i];
        s->attn_spans[i] =
            (kt_attn_span){.page = p->page, .first_row = p->first_row, .rows = p->rows};
        for (int64_t r = 0; r < p->rows; r++) {
            s->positions[p->first_row + r] = (int32_t)(p->position + r);
            s->span_of[p->first_row + r] = i;
        }
    }
    for (int64_t r = 0; r < s->rows; r++) s->out_of[r] = -1;
    for (int64_t i = 0; i < s->n_out; i++) s->out_of[s->out_row[i]] = (int32_t)i;
}

static kt_status run_program(kt_step *s, const kt_step_program *program, kt_pool *pool,
                             const atomic_bool *stop, kt_err *err) {
    if (s->place) return kt_segments_run(s, program, pool, stop, err);
    if (kt_pool_run_until(pool, program->phases, program->count, stop)) return KT_OK;
    return kt_fail(err, KT_E_CANCELLED, "stopped within a step");
}

kt_status kt_step_run(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                      const atomic_bool *stop, kt_err *err) {
    const kt_step_program *program = rows <= KT_STEP_FEW_ROWS ? &s->few : &s->many;
    int64_t begin = s->is_profiled || s->recorder ? kt_clock_ns() : 0;
    float *x = s->values + s->value_at[0] * s->max_rows;
    kt_status st;

    s->rows = rows;
    s->tokens = tokens;
    number_rows(s);
    for (int64_t r = 0; r < rows; r++)
        kt_weights_embed(s->weights, tokens[r], x + r * s->graph->numbers.hidden, s->embedding_row);
    s->last_kind = KT_STEP_ROWS;
    s->stamp_ns = begin;
    if (s->recorder) kt_recorder_begin(s->recorder);
    s->is_mapped = s->expert_map && kt_expert_map_begin(s->expert_map);
    kt_pool_limit(pool, kt_layer_plan_threads(&s->plan->layer, rows, s->n_threads));
    st = run_program(s, program, pool, stop, err);
    kt_pool_limit(pool, s->n_threads);
    if (s->recorder && st == KT_OK) record(s, kt_clock_ns() - begin);
    if (!s->is_profiled) return st;
    s->profile.kind[s->last_kind].time_ns += kt_clock_ns() - s->stamp_ns;
    s->profile.time_ns += kt_clock_ns() - begin;
    return st;
}

kt_status kt_step_run_drafts(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                             kt_err *err) {
    kt_step_program *few = &s->few_drafts, *many = &s->many_drafts;
    kt_recorder *recorder = s->recorder;
    kt_importance *importance = s->importance;
    float *x = s->values + s->value_at[0] * s->max_rows;
    const int is_profiled = s->is_profiled;
    kt_status st;

    s->rows = rows;
    s->tokens = tokens;
    s->recorder = NULL;
    s->importance = NULL;
    s->is_mapped = false;
    s->is_profiled = 0;
    s->hidden = NULL;
    number_rows(s);
    for (int64_t r = 0; r < rows; r++)
        kt_weights_embed(s->weights, tokens[r], x + r * s->graph->numbers.hidden, s->embedding_row);
    kt_pool_limit(pool, kt_layer_plan_threads(&s->plan->layer, rows, s->n_threads));
    st = run_program(s, rows <= KT_STEP_FEW_ROWS ? few : many, pool, NULL, err);
    kt_pool_limit(pool, s->n_threads);
    s->recorder = recorder;
    s->importance = importance;
    s->is_profiled = is_profiled;
    return st;
}

float *kt_step_draft_hidden(const kt_step *s, int64_t row) {
    const int value = s->graph->draft_hidden;
    return s->values + s->value_at[value] * s->max_rows + row * s->graph->width[value];
}

const float *kt_step_residual(const kt_step *s, int64_t row) {
    return s->values + s->value_at[0] * s->max_rows + row * s->graph->numbers.hidden;
}

/* ---- what ops share ---- */

void kt_step_bring_state(const kt_step *s, const kt_step_span *span, int slot, int64_t at,
                         int64_t count) {
    const int64_t first = s->slot_at[slot] + at;

    if (span->from != span->to)
        memcpy(span->to + first, span->from + first, (size_t)count * sizeof *span->to);
}

void kt_step_count(kt_step *s, kt_step_kind kind, double ops, double bytes) {
    s->profile.kind[kind].ops += ops;
    s->profile.kind[kind].bytes += bytes;
}

void kt_norm_rows(const kt_choice *choice, const float *x, int64_t ldx, const float *w, float eps,
                  float *y, int64_t ldy, int64_t k, int64_t begin, int64_t end) {
    kt_norm_call call = {.x = x,
                         .ldx = ldx,
                         .w = w,
                         .eps = eps,
                         .y = y,
                         .ldy = ldy,
                         .k = k,
                         .row_begin = begin,
                         .row_end = end};
    choice->variant->norm(&call);
}

void kt_step_copy_hidden(const kt_step *s, int64_t index, const kt_rows *x, int64_t begin,
                         int64_t end) {
    for (int64_t r = begin; s->hidden && r < end; r++)
        memcpy(s->hidden + index * s->hidden_stride + r * x->width, x->x + r * x->ld,
               sizeof *x->x * (size_t)x->width);
}

static kt_unit unit_of(const kt_model_plan *plan, const char *role) {
    const kt_problem_plan *p = kt_model_plan_role(plan, role);

    switch (p ? p->problem.acts : KT_A_F32) {
    case KT_A_INT8_G32:
    case KT_A_INT8_G16P2: return KT_UNIT_INT8;
    case KT_A_BF16: return KT_UNIT_BF16;
    default: return KT_UNIT_F32;
    }
}

void kt_step_profile_reset(kt_step *s) {
    static const char *const names[KT_STEP_KINDS] = {
        [KT_STEP_ROWS] = "rows",      [KT_STEP_QKV] = "qkv",     [KT_STEP_HEADS] = "heads",
        [KT_STEP_CONV] = "conv",      [KT_STEP_DELTA] = "delta", [KT_STEP_INDEX] = "index",
        [KT_STEP_ATTN] = "attention", [KT_STEP_O] = "o",         [KT_STEP_ROUTER] = "router",
        [KT_STEP_FFN] = "ffn",        [KT_STEP_HEAD] = "lm_head"};
    const char *ffn = kt_model_plan_role(s->plan, "experts") ? "experts" : "dense_ffn";

    _Static_assert((int)KT_STEP_KINDS == KT_PROFILE_KINDS, "the profile has every kind");
    memset(&s->profile, 0, sizeof s->profile);
    memset(s->busy, 0, (size_t)s->n_threads * sizeof *s->busy);
    for (int i = 0; i < KT_STEP_KINDS; i++) s->profile.kind[i].name = names[i];
    for (int i = 0; i < s->plan->n_simple; i++)
        if (s->plan->simple[i].problem.op == KT_OP_ATTN &&
            s->plan->simple[i].choice.variant->numerics == KT_NUM_BF16_F32)
            s->profile.kind[KT_STEP_ATTN].unit = KT_UNIT_BF16;
    s->profile.kind[KT_STEP_QKV].unit = unit_of(s->plan, "qkv");
    s->profile.kind[KT_STEP_HEADS].unit = unit_of(s->plan, "k_b");
    s->profile.kind[KT_STEP_O].unit = unit_of(s->plan, "o");
    s->profile.kind[KT_STEP_FFN].unit = unit_of(s->plan, ffn);
    s->profile.unit = s->profile.kind[KT_STEP_FFN].unit;
    s->profile.kind[KT_STEP_HEAD].unit = unit_of(s->plan, "lm_head");
}

int64_t kt_step_end_of_run(const uint32_t *page, int64_t key, int64_t end) {
    int64_t i = key / KT_PAGE_TOKENS;

    while ((i + 1) * KT_PAGE_TOKENS < end && page[i + 1] == page[i] + 1) i++;
    return (i + 1) * KT_PAGE_TOKENS < end ? (i + 1) * KT_PAGE_TOKENS : end;
}

size_t kt_step_scratch_of(const kt_choice *c, const kt_problem *p) {
    const size_t bytes =
        c && c->variant->workspace_bytes ? c->variant->workspace_bytes(p, &c->config) : 0;

    return bytes ? (bytes + 63) / 64 * 64 : 64;
}

void kt_step_run_spans(const kt_exec_node *n, int64_t each, int64_t begin, int64_t end,
                       void (*run)(const kt_exec_node *n, const kt_step_span *span, int64_t first,
                                   int64_t last)) {
    for (int64_t task = begin; task < end;) {
        int64_t first = task % each, last = each - first < end - task ? each : first + end - task;
        run(n, &n->step->spans[task / each], first, last);
        task += last - first;
    }
}
