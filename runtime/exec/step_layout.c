/* Where a step's working memory lies: values by life time, what nodes share, and tables of angles.
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/formats/acts.h"
#include "kernels/rope/rope_table.h"
#include "runtime/exec/key_blocks.h"
#include "runtime/exec/expand.h"
#include "runtime/exec/joined.h"
#include "runtime/exec/step.h"
#include "runtime/exec/step_bytes.h"
#include "runtime/model/bytes.h"

#define POSITIONS_PER_TASK 64
#define LINE 16 /* floats */

/* ---- values ---- */

/* Nodes [first, last] between which a value must keep its memory. */
typedef struct life {
    int first, last;
} life;

/* Those with row work behind their phases that reads values (ATTEND_ENTRIES) do not count. */
static int has_phases(kt_node_kind kind) {
    return kind == KT_NODE_LINEAR || kind == KT_NODE_LINEAR_HEADS || kind == KT_NODE_ATTEND ||
           kind == KT_NODE_EXPERTS || kind == KT_NODE_HEAD || kind == KT_NODE_CONV ||
           kind == KT_NODE_DELTA || kind == KT_NODE_ATTEND_SPARSE ||
           kind == KT_NODE_ATTEND_BLOCKS || kind == KT_NODE_COMPRESS ||
           kind == KT_NODE_PICK_ENTRIES;
}

static void live(life *l, const kt_view *v, int node) {
    if (l[v->value].first < 0) l[v->value].first = node;
    l[v->value].last = node;
}

/* Row work is done together with that of its neighbours, rows in any order: memory is free again
 * only after the phase that the last use waits for. */
static void find_lives(const kt_graph *g, life *l) {
    for (int v = 0; v < g->n_values; v++) l[v] = (life){-1, -1};
    for (int i = 0; i < g->n_nodes; i++) {
        live(l, &g->nodes[i].in, i);
        live(l, &g->nodes[i].in2, i);
        live(l, &g->nodes[i].in3, i);
        live(l, &g->nodes[i].out, i);
    }
    l[0] = (life){0, g->n_nodes};
    for (int v = 1; v < g->n_values; v++)
        while (l[v].last >= 0 && l[v].last + 1 < g->n_nodes &&
               !has_phases(g->nodes[l[v].last].kind))
            l[v].last++;
}

static int64_t padded(int64_t width) {
    return (width + LINE - 1) / LINE * LINE;
}

static int overlap(const life *a, const life *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* Values that are placed and may yet live beside one that is not. */
typedef struct crowd {
    life *lives;  /* of all values */
    int *first;   /* [v]: the first node of any value from v on */
    int *members; /* [count] */
    int count;
} crowd;

static void look_ahead(crowd *c, int n_values) {
    int first = INT_MAX;

    for (int v = n_values - 1; v >= 0; v--) {
        if (c->lives[v].first < first) first = c->lives[v].first;
        c->first[v] = first;
    }
}

static void drop_ended(crowd *c, int v) {
    int kept = 0;

    for (int i = 0; i < c->count; i++)
        if (c->lives[c->members[i]].last >= c->first[v]) c->members[kept++] = c->members[i];
    c->count = kept;
}

/* The lowest place of `width` floats beside all values before v that live at the same time. */
static int64_t place(const kt_step *s, const crowd *c, int v) {
    const int64_t width = padded(s->graph->width[v]);
    int64_t at = 0;
    int moved = 1;

    while (moved) {
        moved = 0;
        for (int i = 0; i < c->count; i++) {
            const int o = c->members[i];
            const int64_t begin = s->value_at[o], end = begin + padded(s->graph->width[o]);
            if (!overlap(&c->lives[o], &c->lives[v]) || end <= at || begin >= at + width) continue;
            at = end;
            moved = 1;
        }
    }
    return at;
}

/* Floats per row of all values. */
static kt_status place_values(kt_step *s, int64_t *floats, kt_err *err) {
    const kt_graph *g = s->graph;
    const size_t n = (size_t)g->n_values;
    crowd c = {.lives = malloc(n * sizeof *c.lives),
               .first = malloc(n * sizeof *c.first),
               .members = malloc(n * sizeof *c.members)};
    kt_status st = KT_OK;

    *floats = 0;
    s->value_at = kt_step_alloc(s, n * sizeof *s->value_at);
    if (!c.lives || !c.first || !c.members || !s->value_at) {
        st = kt_fail(err, KT_E_NOMEM, "no memory for the values of a step");
        goto out;
    }
    find_lives(g, c.lives);
    look_ahead(&c, g->n_values);
    for (int v = 0; v < g->n_values; v++) {
        drop_ended(&c, v);
        s->value_at[v] = place(s, &c, v);
        if (s->value_at[v] + padded(g->width[v]) > *floats)
            *floats = s->value_at[v] + padded(g->width[v]);
        c.members[c.count++] = v;
    }
out:
    free(c.lives);
    free(c.first);
    free(c.members);
    return st;
}

/* ---- what nodes share ---- */

/* Of one row: the encodings that the runs of a node's weight read. */
static size_t node_act_bytes(const kt_step *s, const kt_node *n) {
    const kt_weight *w = &s->graph->weights[n->weight];
    kt_run runs[KT_WEIGHT_PARTS];
    int count = kt_weight_runs(w, s->plan->quant, runs);
    size_t bytes = 0;

    for (int r = 0; r < count; r++) {
        const kt_problem *p = &kt_model_plan_run(s->plan, n->weight, r)->problem;
        bytes += kt_act_row_bytes(p->acts, p->k) * (size_t)w->count;
    }
    return bytes;
}

static void find_shared(const kt_step *s, size_t *acts, size_t *scratch, int64_t *experts,
                        int64_t *topk) {
    *acts = *scratch = 0;
    *experts = *topk = 0;
    for (int i = 0; i < s->graph->n_nodes; i++) {
        const kt_node *n = &s->graph->nodes[i];
        size_t bytes = 0;
        if (n->kind == KT_NODE_LINEAR || n->kind == KT_NODE_HEAD || n->kind == KT_NODE_LINEAR_HEADS)
            bytes = node_act_bytes(s, n);
        if (bytes > *acts) *acts = bytes;
        if (n->kind != KT_NODE_ROUTE) continue;
        if (n->routing.experts > *experts) *experts = n->routing.experts;
        if (n->routing.topk >= *topk) *topk = n->routing.topk + 1; /* and a shared expert */
    }
    for (int i = 0; i < s->plan->n_problems; i++) {
        const kt_problem_plan *p = &s->plan->problems[i];
        size_t bytes = 0;
        if (p->problem.op == KT_OP_GEMM)
            bytes = kt_gemm_scratch_bytes(&p->problem, &p->choices, s->plan->max_rows);
        if (bytes > *scratch) *scratch = bytes;
    }
}

/* Place every array in one buffer; base NULL only counts. */
static size_t lay_out(kt_step *s, uint8_t *base, int64_t floats) {
    size_t rows = (size_t)s->max_rows, f32 = sizeof(float), acts, used = 0;
    int64_t experts, topk, angles = 0;

    find_shared(s, &acts, &s->gemm_stride, &experts, &topk);
    for (int i = 0; i < s->graph->n_rotations; i++) angles += s->graph->rotations[i].rotary_dim;
    const struct {
        void *target;
        size_t bytes;
    } arrays[] = {
        {&s->values, kt_bytes_times(rows * f32, floats)},
        {&s->router_logits, kt_bytes_times(rows * f32, experts)},
        {&s->route_weight, kt_bytes_times(rows * f32, topk)},
        {&s->expert_id, kt_bytes_times(rows * sizeof *s->expert_id, topk)},
        {&s->ones, rows * f32},
        {&s->zeros, rows * sizeof *s->zeros},
        {&s->positions, rows * sizeof *s->positions},
        {&s->acts, kt_bytes_add(kt_bytes_times(acts, s->max_rows), 64 * KT_WEIGHT_PARTS)},
        {&s->angles, kt_bytes_times(kt_bytes_times(f32, s->max_context), angles)},
        {&s->gemm_scratch, kt_bytes_times(s->gemm_stride, s->n_threads)},
    };

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *at = base ? base + used : NULL;
        memcpy(arrays[i].target, &at, sizeof at);
        used = kt_bytes_add(used, kt_bytes_round(arrays[i].bytes));
    }
    return used;
}

/* ---- bytes ---- */

static size_t expert_bytes(const kt_step *s, const kt_moe_layer *layer, int n_nodes) {
    const size_t bytes = n_nodes > 1 ? kt_moe_nodes_bytes(layer, s->max_rows, s->n_threads)
                                     : kt_moe_workspace_bytes(layer, s->max_rows, s->n_threads);

    return kt_bytes_times(bytes, n_nodes);
}

/* Workspaces of the experts' jobs: one for each problem, with and without a shared expert. */
static size_t expert_job_bytes(const kt_step *s, const kt_problem_plan *p, int n_nodes) {
    const kt_graph *g = s->graph;
    kt_moe_layer layer = kt_problem_plan_layer(p);
    size_t apart = 0, joined = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        if (n->kind != KT_NODE_EXPERTS || kt_model_plan_run(s->plan, n->weight, 0) != p) continue;
        layer.problem = n->is_routed ? kt_joined_problem(s->plan, n) : p->problem;
        if (layer.problem.experts > p->problem.experts && !joined)
            joined = expert_bytes(s, &layer, n_nodes);
        else if (layer.problem.experts == p->problem.experts && !apart &&
                 (n->is_routed || !kt_joined_routed(s->plan, n)))
            apart = expert_bytes(s, &layer, n_nodes);
    }
    return kt_bytes_add(apart, joined);
}

/* Workspaces of the jobs that ops make when they are set up (exec/ops/experts.c, attend.c). A
 * node's slice of an expert needs no more than the whole. */
static size_t job_bytes(const kt_step *s, int n_nodes) {
    const kt_model_plan *p = s->plan;
    size_t total = 0;

    for (int i = 0; i < p->n_problems; i++)
        if (p->problems[i].problem.op == KT_OP_MOE_FFN)
            total = kt_bytes_add(total, expert_job_bytes(s, &p->problems[i], n_nodes));
    for (int i = 0; i < p->n_simple; i++) {
        const kt_simple_plan *a = &p->simple[i];
        size_t bytes;
        if (a->problem.op != KT_OP_ATTN || a->problem.m) continue; /* m: of wide keys, no job */
        bytes = kt_attn_job_bytes(kt_attn_largest(&a->by_size, &a->choice, &a->problem),
                                  &a->problem, s->max_context, s->n_threads);
        total = kt_bytes_add(total, bytes ? bytes : SIZE_MAX);
    }
    return total;
}

static size_t workspace_bytes(const kt_step *s, const kt_problem *problem) {
    const kt_choice *c = kt_model_plan_simple(s->plan, problem);

    return c && c->variant->workspace_bytes ? c->variant->workspace_bytes(problem, &c->config) : 0;
}

/* Of sparse attention, which layers share (exec/ops/attend_sparse.c): for each thread, or of a few
 * rows each, scores of all keys and the rows of those that are picked; their numbers; scratch. */
static size_t sparse_bytes(const kt_step *s, const kt_node *n) {
    const kt_problem index = kt_index_problem(&n->index, s->max_context);
    const int rooms = s->n_threads > KT_STEP_FEW_ROWS ? s->n_threads : KT_STEP_FEW_ROWS;
    const int64_t topk = n->index.topk < s->max_context ? n->index.topk : s->max_context;
    const size_t keys = kt_bytes_times(2 * (size_t)n->attention.k + sizeof(float), topk);
    const size_t room = kt_bytes_add(kt_bytes_times(sizeof(float), s->max_context), keys);
    const size_t scored =
        kt_bytes_times(kt_bytes_times(sizeof(float), s->max_context), KT_STEP_SCORED_ROWS - 1);
    size_t total = kt_bytes_times(kt_bytes_add(room, 4096), rooms);

    total = kt_bytes_add(
        total, kt_bytes_times(kt_bytes_add(workspace_bytes(s, &index), scored), s->n_threads));
    return kt_bytes_add(total, kt_bytes_times(kt_bytes_times(sizeof(int32_t), topk), s->max_rows));
}

/* Of attention over entries and of what picks them (exec/ops/attend_entries.c, pick_entries.c),
 * which layers share. */
static size_t entries_bytes(const kt_step *s, const kt_node *n, int64_t keys) {
    const kt_problem problem = kt_attn_problem(&n->attention, s->plan->kv, s->max_context);
    const size_t k = (size_t)n->attention.k;
    const int rooms = s->n_threads > KT_STEP_FEW_ROWS ? s->n_threads : KT_STEP_FEW_ROWS;
    const size_t own = workspace_bytes(s, &problem);

    return kt_bytes_add(
        kt_bytes_times(kt_bytes_add(kt_bytes_times(2 * k + sizeof(float), keys), 4224), rooms),
        kt_bytes_times(kt_bytes_add(own, 64), s->n_threads));
}

static size_t pick_bytes(const kt_step *s, const kt_node *n) {
    const kt_problem index = kt_index_problem(&n->index, s->max_context);
    const int rooms = s->n_threads > KT_STEP_FEW_ROWS ? s->n_threads : KT_STEP_FEW_ROWS;
    const size_t own = kt_bytes_add(workspace_bytes(s, &index), 128 * (size_t)n->index.dim + 128);

    return kt_bytes_add(
        kt_bytes_times(kt_bytes_times(sizeof(float), s->max_context / n->entries.ratio + 16),
                       rooms),
        kt_bytes_times(own, s->n_threads));
}

/* Scratch of recurrent nodes, each its own (exec/ops/delta.c), of sparse attention and of latent
 * attention with wide keys, which layers share. */
static size_t scratch_bytes(const kt_step *s) {
    size_t total = 0, sparse = 0, expand = 0, entries = 0, pick = 0;
    int64_t keys = 0;

    for (int i = 0; i < s->graph->n_nodes; i++) {
        const kt_node *n = &s->graph->nodes[i];
        const kt_problem few = kt_delta_problem(n, 1), many = kt_delta_problem(n, s->max_rows);
        if (n->kind == KT_NODE_DELTA) {
            const size_t a = workspace_bytes(s, &few), b = workspace_bytes(s, &many);
            total = kt_bytes_add(total, kt_bytes_times(a > b ? a : b, s->n_threads));
        }
        if (n->kind == KT_NODE_ATTEND_SPARSE) sparse = sparse_bytes(s, n);
        if (n->kind == KT_NODE_ATTEND_BLOCKS) sparse = kt_blocks_bytes(s, n);
        if (n->kind == KT_NODE_PICK_ENTRIES) pick = pick_bytes(s, n);
        if (n->kind == KT_NODE_ATTEND_ENTRIES) {
            if (kt_node_most_keys(n, s->max_context) > keys)
                keys = kt_node_most_keys(n, s->max_context);
            entries = entries_bytes(s, n, keys);
        }
        if (n->kind == KT_NODE_ATTEND) expand = kt_expand_bytes(s->plan, n, s->n_threads);
    }
    return kt_bytes_add(kt_bytes_add(kt_bytes_add(total, sparse), expand),
                        kt_bytes_add(entries, pick));
}

kt_status kt_step_bytes(const kt_model_plan *plan, int n_nodes, int64_t max_context, size_t *bytes,
                        kt_err *err) {
    kt_step s = {.graph = plan->graph,
                 .plan = plan,
                 .n_threads = plan->threads,
                 .max_rows = plan->max_rows,
                 .max_context = max_context};
    int64_t floats;
    kt_status st = place_values(&s, &floats, err);

    *bytes = 0;
    if (st == KT_OK) *bytes = kt_bytes_add(lay_out(&s, NULL, floats), job_bytes(&s, n_nodes));
    if (st == KT_OK) *bytes = kt_bytes_add(*bytes, scratch_bytes(&s));
    kt_arena_deinit(&s.arena);
    return st;
}

kt_status kt_step_value_floats(const kt_graph *graph, int64_t *floats, kt_err *err) {
    kt_step s = {.graph = graph};
    const kt_status st = place_values(&s, floats, err);

    kt_arena_deinit(&s.arena);
    return st;
}

/* ---- angles ---- */

typedef struct angle_task {
    const kt_step *step;
    int rotation;
} angle_task;

static void fill_angles(void *arg, int64_t begin, int64_t end, int tid) {
    const angle_task *t = arg;
    const kt_rope_rule *r = &t->step->graph->rotations[t->rotation];
    int64_t first = begin * POSITIONS_PER_TASK, last = end * POSITIONS_PER_TASK;

    (void)tid;
    if (last > t->step->max_context) last = t->step->max_context;
    kt_rope_rule_table(r, first, last - first,
                       t->step->cos_sin[t->rotation] + first * r->rotary_dim);
}

static kt_status make_angles(kt_step *s, kt_pool *pool, kt_err *err) {
    float *at = s->angles;

    s->cos_sin = kt_step_alloc(s, (size_t)(s->graph->n_rotations + 1) * sizeof *s->cos_sin);
    if (!s->cos_sin) return kt_fail(err, KT_E_NOMEM, "no memory for tables of angles");
    for (int i = 0; i < s->graph->n_rotations; i++) {
        angle_task task = {s, i};
        kt_phase phase = {.run = fill_angles,
                          .arg = &task,
                          .n_tasks =
                              (s->max_context + POSITIONS_PER_TASK - 1) / POSITIONS_PER_TASK};
        s->cos_sin[i] = at;
        at += s->max_context * s->graph->rotations[i].rotary_dim;
        kt_pool_run(pool, &phase, 1);
    }
    return KT_OK;
}

kt_status kt_step_lay_out(kt_step *s, kt_pool *pool, kt_err *err) {
    int64_t floats;

    KT_TRY(place_values(s, &floats, err));
    KT_TRY(kt_buffer_create(lay_out(s, NULL, floats), KT_PAGES_ADVISED, -1, &s->buffer, err));
    lay_out(s, s->buffer.data, floats);
    for (int64_t r = 0; r < s->max_rows; r++) s->ones[r] = 1.0f;
    return make_angles(s, pool, err);
}
