/* A fused expert layer under the clock. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/buffer.h"
#include "base/err.h"
#include "kernels/moe_ffn/moe_layer.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial_ops.h"

/* From this many rows per expert on, two active experts are enough: each keeps the threads busy for
 * long, and the time per expert no longer depends on how many there are. */
enum { FEW_EXPERTS = 2 };

typedef struct moe_state {
    kt_moe_layer layer;
    kt_moe_job job;
    kt_choice_map map;
    const void **slots; /* [experts], what layer.experts points to; owned */
    kt_buffer rows;     /* 2 MiB pages, as serving has them: x, then out */
    kt_buffer workspace;
    float *x, *out, *route_weight;
    int32_t *expert_id;
    int64_t tokens, active; /* active: experts that move on from call to call; 0 = spread */
    kt_cold_bank *bank;     /* of the selected contender */
} moe_state;

static void destroy(kt_trial *t) {
    moe_state *s = t->state;
    if (!s) return;
    free((void *)s->slots);
    kt_buffer_destroy(&s->rows);
    kt_buffer_destroy(&s->workspace);
    free(s->route_weight);
    free(s->expert_id);
    free(s);
    t->state = NULL;
}

/* Cell: every token to experts 0 .. active-1. Spread: token i to the topk experts after i * topk, so
 * that all get the same number of rows. Equal weights that sum to one. */
static void route(moe_state *s, const kt_problem *q) {
    for (int64_t i = 0; i < s->tokens; i++)
        for (int64_t j = 0; j < q->topk; j++) {
            int64_t id = s->active == 0 ? (i * q->topk + j) % q->experts : j;
            s->expert_id[i * q->topk + j] = s->active > 0 && j >= s->active ? -1 : (int32_t)id;
            s->route_weight[i * q->topk + j] = 1.0f / (float)(s->active > 0 ? s->active : q->topk);
        }
}

static kt_status allocate(moe_state *s, const kt_problem *q, kt_err *err) {
    size_t tokens = (size_t)s->tokens, floats = (tokens * (size_t)q->k + 15) / 16 * 16;

    KT_TRY(kt_buffer_create(2 * floats * sizeof *s->x, KT_PAGES_ADVISED, -1, &s->rows, err));
    s->x = s->rows.data;
    s->out = s->x + floats;
    s->slots = calloc((size_t)q->experts, sizeof *s->slots);
    s->route_weight = calloc(tokens * (size_t)q->topk, sizeof *s->route_weight);
    s->expert_id = calloc(tokens * (size_t)q->topk, sizeof *s->expert_id);
    if (!s->slots || !s->route_weight || !s->expert_id)
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %zu tokens", tokens);
    kt_synthetic_rows(s->x, tokens * (size_t)q->k, 7);
    return KT_OK;
}

static kt_status init_job(kt_trial *t, int contender, kt_err *err) {
    moe_state *s = t->state;
    int threads = kt_pool_threads(t->setup.pool);
    int64_t at;

    kt_choice_map_single(&s->map, &t->setup.choices[contender]);
    s->bank = t->entry[contender].bank;
    at = s->bank->at;
    for (int64_t e = 0; e < t->setup.problem.experts; e++) s->slots[e] = kt_cold_bank_next(s->bank);
    if (s->active > 0) s->bank->at = at; /* calls take the next ones themselves */
    return kt_moe_job_init(&s->job, s->tokens, threads, s->workspace.bytes, err);
}

static kt_status make_workspace(kt_trial *t, kt_err *err) {
    moe_state *s = t->state;
    int threads = kt_pool_threads(t->setup.pool);
    size_t most = 0;

    for (int i = 0; i < t->setup.n_choices; i++) {
        kt_choice_map_single(&s->map, &t->setup.choices[i]);
        size_t bytes = kt_moe_workspace_bytes(&s->layer, s->tokens, threads);
        if (bytes > most) most = bytes;
    }
    KT_TRY(kt_buffer_create(most, KT_PAGES_ADVISED, -1, &s->workspace, err));
    s->job = (kt_moe_job){.layer = &s->layer,
                          .x = s->x,
                          .ldx = t->setup.problem.k,
                          .tokens = s->tokens,
                          .expert_id = s->expert_id,
                          .route_weight = s->route_weight,
                          .out = s->out,
                          .ldo = t->setup.problem.k,
                          .workspace = s->workspace.data};
    for (int i = 0; i < t->setup.n_choices; i++) KT_TRY(init_job(t, i, err));
    return KT_OK;
}

static kt_status create(kt_trial *t, kt_err *err) {
    const kt_problem *q = &t->setup.problem;
    moe_state *s = calloc(1, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    t->state = s;
    s->tokens = t->setup.spread_tokens > 0 ? t->setup.spread_tokens : q->m;
    if (t->setup.spread_tokens == 0) {
        s->active = q->topk;
        if (q->m >= KT_TRIAL_FEW_ROWS && s->active > FEW_EXPERTS) s->active = FEW_EXPERTS;
        t->units = (double)s->active;
    }
    KT_TRY(allocate(s, q, err));
    route(s, q);
    s->layer = (kt_moe_layer){
        .problem = *q, .experts = s->slots, .choices = &s->map, .encode = t->setup.encode};
    s->layer.problem.m = 0;
    return make_workspace(t, err);
}

static void select_contender(kt_trial *t, int contender) {
    init_job(t, contender, NULL); /* succeeded in create */
}

static void call(kt_trial *t) {
    moe_state *s = t->state;
    kt_phase phases[KT_MOE_PHASES];
    for (int64_t e = 0; e < s->active; e++) s->slots[e] = kt_cold_bank_next(s->bank);
    kt_moe_job_phases(&s->job, phases);
    kt_pool_run(t->setup.pool, phases, KT_MOE_PHASES);
}

const kt_trial_ops kt_trial_moe = {
    .create = create, .destroy = destroy, .select = select_contender, .call = call};
