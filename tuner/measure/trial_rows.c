/* Norms and routers under the clock, shared out as in runtime/exec/ops. What a step meets for the
 * first time rotates through memory: of a norm its weights and rows, of a router its weights. What
 * a router's rows become (logits, choice) stays hot, as do the rows that a norm writes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/router/router_blocks.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial_ops.h"

enum { CHOSEN_ROWS = 8, TASK_FLOATS = 1 << 15 }; /* of a task */

typedef struct rows_state {
    const kt_trial_setup *setup;
    const kt_choice *choice; /* the selected one */
    kt_cold_bank bank;       /* owned; of NORM: rows, gates if any, weights */
    const float *cold;       /* of the call in hand, a slot of the bank */
    float *x, *y;            /* ROUTER: rows, logits. NORM: y alone */
    float *route_weight;
    int32_t *expert_id;
    int64_t rows_of_task;
    kt_router_blocks blocks;
    kt_phase phases[2];
    int n_phases;
} rows_state;

/* ---- norms ---- */

static int has_gates(const kt_trial_setup *s) {
    return s->norm != KT_NORM_RMS;
}

static void run_norm(void *arg, int64_t begin, int64_t end, int tid) {
    const rows_state *s = arg;
    const kt_problem *p = &s->setup->problem;
    const int64_t floats = p->m * p->k, last = end * s->rows_of_task;
    const kt_norm_call call = {.x = s->cold,
                               .ldx = p->k,
                               .w = s->cold + floats * (has_gates(s->setup) ? 2 : 1),
                               .eps = 1e-6f,
                               .y = s->y,
                               .ldy = p->k,
                               .k = p->k,
                               .row_begin = begin * s->rows_of_task,
                               .row_end = last < p->m ? last : p->m,
                               .kind = s->setup->norm,
                               .z = s->cold + floats,
                               .ldz = p->k};

    (void)tid;
    s->choice->variant->norm(&call);
}

/* ---- routers ---- */

static void score(const rows_state *s, const kt_router_span *span) {
    const kt_problem *p = &s->setup->problem;
    const kt_router_call call = {.problem = p,
                                 .x = s->x,
                                 .ldx = p->k,
                                 .w = s->cold,
                                 .logits = s->y,
                                 .ldl = p->n,
                                 .row_begin = span->row_begin,
                                 .row_end = span->row_end,
                                 .expert_begin = span->expert_begin,
                                 .expert_end = span->expert_end};

    s->choice->variant->router(&call);
}

static int64_t cut(void *arg, int n_threads) {
    rows_state *s = arg;

    s->blocks = kt_router_cut(s->setup->problem.m, s->setup->problem.n, n_threads);
    return s->blocks.n;
}

static void run_scores(void *arg, int64_t begin, int64_t end, int tid) {
    const rows_state *s = arg;
    kt_router_span span;

    (void)tid;
    while (begin < end) {
        begin += kt_router_take(&s->blocks, begin, end, &span);
        score(s, &span);
    }
}

static void run_choice(void *arg, int64_t begin, int64_t end, int tid) {
    const rows_state *s = arg;
    const kt_router_rule *rule = s->setup->rule;
    const int64_t m = s->setup->problem.m, last = end * CHOSEN_ROWS < m ? end * CHOSEN_ROWS : m;

    (void)tid;
    for (int64_t r = begin * CHOSEN_ROWS; rule && r < last; r++)
        kt_router_select(rule, s->y + r * rule->experts, s->expert_id + r * rule->topk,
                         s->route_weight + r * rule->topk);
}

static void make_phases(rows_state *s) {
    const kt_problem *p = &s->setup->problem;

    s->n_phases = 1;
    if (p->op == KT_OP_NORM) {
        s->rows_of_task = p->k < TASK_FLOATS ? TASK_FLOATS / p->k : 1;
        s->phases[0] = (kt_phase){
            .run = run_norm, .arg = s, .n_tasks = (p->m + s->rows_of_task - 1) / s->rows_of_task};
        return;
    }
    s->phases[0] =
        (kt_phase){.prepare = cut, .run = run_scores, .arg = s, .grain = KT_ROUTER_GRAIN};
    s->phases[1] =
        (kt_phase){.run = run_choice, .arg = s, .n_tasks = (p->m + CHOSEN_ROWS - 1) / CHOSEN_ROWS};
    s->n_phases = 2;
}

/* ---- life ---- */

static void destroy(kt_trial *t) {
    rows_state *s = t->state;
    if (!s) return;
    kt_cold_bank_destroy(&s->bank);
    free(s->x);
    free(s->y);
    free(s->route_weight);
    free(s->expert_id);
    free(s);
    t->state = NULL;
}

static float *floats_of(int64_t n, uint64_t seed) {
    const size_t bytes = (size_t)n * sizeof(float);
    float *x = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (x) kt_synthetic_rows(x, (size_t)n, seed);
    return x;
}

/* Numbers that rotate; of a BF16 router two in a float. */
static int64_t cold_floats(const kt_trial_setup *s) {
    const kt_problem *p = &s->problem;

    if (p->op == KT_OP_NORM) return p->m * p->k * (has_gates(s) ? 2 : 1) + p->k;
    return p->weights == KT_W_BF16 ? (p->n * p->k + 1) / 2 : p->n * p->k;
}

static kt_status fill_bank(rows_state *s, kt_err *err) {
    const kt_problem *p = &s->setup->problem;
    const int64_t n = cold_floats(s->setup);
    float *cold = floats_of(n, 3);
    kt_status st;

    if (!cold) return kt_fail(err, KT_E_NOMEM, "trial: no memory for %lld floats", (long long)n);
    for (int64_t i = 0; p->op == KT_OP_ROUTER && p->weights == KT_W_BF16 && i < n; i++) {
        const uint32_t one = kt_f32_to_bf16(cold[i]), pair = one | one << 16;
        memcpy(&cold[i], &pair, sizeof pair);
    }
    st = kt_cold_bank_create(cold, (size_t)n * sizeof *cold, 1, s->setup->banks->rotation_bytes,
                             &s->bank, err);
    free(cold);
    return st;
}

static kt_status create(kt_trial *t, kt_err *err) {
    rows_state *s = calloc(1, sizeof *s);
    const kt_problem *p = &t->setup.problem;
    const kt_router_rule *rule = t->setup.rule;
    const size_t chosen = rule ? (size_t)(p->m * rule->topk) : 1;

    if (!s) return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    t->state = s;
    s->setup = &t->setup;
    if (p->op == KT_OP_ROUTER && rule) KT_TRY(kt_router_rule_check(rule, err));
    s->x = floats_of(p->op == KT_OP_ROUTER ? p->m * p->k : 1, 1);
    s->y = floats_of(p->op == KT_OP_ROUTER ? p->m * p->n : p->m * p->k, 2);
    s->route_weight = calloc(chosen, sizeof *s->route_weight);
    s->expert_id = calloc(chosen, sizeof *s->expert_id);
    if (!s->x || !s->y || !s->route_weight || !s->expert_id)
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %lld rows", (long long)p->m);
    KT_TRY(fill_bank(s, err));
    make_phases(s);
    return KT_OK;
}

static void select_contender(kt_trial *t, int contender) {
    rows_state *s = t->state;
    s->choice = &t->setup.choices[contender];
}

static void call(kt_trial *t) {
    rows_state *s = t->state;
    s->cold = kt_cold_bank_next(&s->bank);
    kt_pool_run(t->setup.pool, s->phases, s->n_phases);
}

const kt_trial_ops kt_trial_rows = {
    .create = create, .destroy = destroy, .select = select_contender, .call = call};
