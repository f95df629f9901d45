/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/layer_trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/disturbance.h"
#include "tuner/measure/synthetic.h"

/* Samples shorter than this are repeated within one reading of the clock. */
static const double sample_goal_ns = 100000;
enum { MAX_REPEATS = 1000 };

/* One way, ready to run. */
typedef struct way {
    kt_moe_layer layer;
    kt_moe_cuts cuts;
    kt_cold_bank *bank; /* borrowed */
    int repeats;        /* of all layers in one sample; 0 = never run */
    double sample_ns;   /* of the last one, with its gap */
} way;

struct kt_layer_trial {
    kt_layer_setup setup;
    way ways[KT_LAYER_WAYS];
    kt_moe_job *jobs;    /* [n_layers], owned: they share one workspace, as layers of a step do */
    kt_phase *phases;    /* [n_layers * KT_MOE_PHASES], owned */
    const void **slots;  /* [experts], owned: what layer.experts points to */
    float *route_weight; /* [tokens * topk], owned */
    kt_buffer rows, workspace;
    float *x, *out;
    kt_disturbance disturbance;
    double longest_ns;
};

void kt_layer_trial_destroy(kt_layer_trial *t) {
    if (!t) return;
    kt_pool_limit(t->setup.pool, kt_pool_threads(t->setup.pool));
    kt_pool_spin(t->setup.pool, 0);
    kt_buffer_destroy(&t->rows);
    kt_buffer_destroy(&t->workspace);
    kt_disturbance_deinit(&t->disturbance);
    free(t->jobs);
    free(t->phases);
    free((void *)t->slots);
    free(t->route_weight);
    free(t);
}

static kt_status allocate(kt_layer_trial *t, kt_err *err) {
    const kt_problem *q = &t->setup.problem;
    size_t tokens = (size_t)t->setup.tokens, n = (size_t)t->setup.n_layers;
    size_t floats = (tokens * (size_t)q->k + 15) / 16 * 16;

    t->jobs = calloc(n, sizeof *t->jobs);
    t->phases = calloc(n * KT_MOE_PHASES, sizeof *t->phases);
    t->slots = calloc((size_t)q->experts, sizeof *t->slots);
    t->route_weight = calloc(tokens * (size_t)q->topk, sizeof *t->route_weight);
    if (!t->jobs || !t->phases || !t->slots || !t->route_weight)
        return kt_fail(err, KT_E_NOMEM, "layer trial: no memory");
    for (size_t i = 0; i < tokens * (size_t)q->topk; i++)
        t->route_weight[i] = 1.0f / (float)q->topk;
    KT_TRY(kt_buffer_create(2 * floats * sizeof(float), KT_PAGES_ADVISED, -1, &t->rows, err));
    t->x = t->rows.data;
    t->out = t->x + floats;
    kt_synthetic_rows(t->x, tokens * (size_t)q->k, 7);
    return KT_OK;
}

static kt_status make_ways(kt_layer_trial *t, kt_err *err) {
    const kt_layer_setup *s = &t->setup;

    kt_banks_new_cell(s->banks);
    for (int i = 0; i < s->n_ways; i++) {
        way *w = &t->ways[i];
        w->cuts.n = 1;
        w->cuts.at[0].tokens = s->tokens;
        w->cuts.at[0].imbalance = 1;
        w->cuts.at[0].cut = s->ways[i].cut;
        w->layer = (kt_moe_layer){.problem = s->problem,
                                  .experts = t->slots,
                                  .choices = s->ways[i].choices,
                                  .encode = s->encode,
                                  .cuts = &w->cuts};
        w->layer.problem.m = 0;
        /* Twice topk, so that calls of one token never meet: the rotation makes large models cold. */
        KT_TRY(kt_banks_get(s->banks, &s->problem, s->ways[i].choices->choice[0].variant,
                            2 * s->problem.topk, &w->bank, err));
    }
    return KT_OK;
}

/* Point all jobs at a way. */
static kt_status select_way(kt_layer_trial *t, int i, kt_err *err) {
    const kt_layer_setup *s = &t->setup;
    int threads = kt_pool_threads(s->pool);

    for (int64_t e = 0; e < s->problem.experts; e++)
        t->slots[e] = kt_cold_bank_next(t->ways[i].bank);
    for (int l = 0; l < s->n_layers; l++) {
        kt_moe_job *job = &t->jobs[l];
        job->layer = &t->ways[i].layer;
        KT_TRY(kt_moe_job_init(job, s->tokens, threads, t->workspace.bytes, err));
        kt_moe_job_phases(job, &t->phases[l * KT_MOE_PHASES]);
    }
    kt_pool_limit(s->pool, s->ways[i].threads > 0 ? s->ways[i].threads : threads);
    kt_pool_spin(s->pool, s->ways[i].spin_ns);
    return KT_OK;
}

static kt_status make_jobs(kt_layer_trial *t, kt_err *err) {
    const kt_layer_setup *s = &t->setup;
    size_t most = 0;

    for (int i = 0; i < s->n_ways; i++) {
        size_t bytes =
            kt_moe_workspace_bytes(&t->ways[i].layer, s->tokens, kt_pool_threads(s->pool));
        if (bytes > most) most = bytes;
    }
    KT_TRY(kt_buffer_create(most, KT_PAGES_ADVISED, -1, &t->workspace, err));
    for (int l = 0; l < s->n_layers; l++)
        t->jobs[l] =
            (kt_moe_job){.layer = &t->ways[0].layer,
                         .x = t->x,
                         .ldx = s->problem.k,
                         .tokens = s->tokens,
                         .expert_id = s->expert_id + (int64_t)l * s->tokens * s->problem.topk,
                         .route_weight = t->route_weight,
                         .out = t->out,
                         .ldo = s->problem.k,
                         .workspace = t->workspace.data};
    for (int i = s->n_ways; i-- > 0;) KT_TRY(select_way(t, i, err));
    return KT_OK;
}

kt_status kt_layer_trial_create(const kt_layer_setup *setup, kt_layer_trial **out, kt_err *err) {
    kt_layer_trial *t = calloc(1, sizeof *t);
    kt_status st;

    *out = NULL;
    if (!t) return kt_fail(err, KT_E_NOMEM, "layer trial: no memory");
    t->setup = *setup;
    kt_disturbance_init(&t->disturbance, kt_pool_threads(setup->pool));
    st = setup->n_ways >= 1 && setup->n_ways <= KT_LAYER_WAYS && setup->n_layers >= 1 &&
                 setup->tokens >= 1
             ? KT_OK
             : kt_fail(err, KT_E_INVALID, "layer trial: %d ways, %d layers, %lld tokens",
                       setup->n_ways, setup->n_layers, (long long)setup->tokens);
    if (st == KT_OK) st = allocate(t, err);
    if (st == KT_OK) st = make_ways(t, err);
    if (st == KT_OK) st = make_jobs(t, err);
    if (st != KT_OK) {
        kt_layer_trial_destroy(t);
        return st;
    }
    *out = t;
    return KT_OK;
}

/* What a server does alone between two steps: the workers see nothing to do. */
static void keep_busy(int64_t ns) {
    int64_t end = kt_clock_ns() + ns;
    while (kt_clock_ns() < end) continue;
}

/* Every layer has weights of its own: each run moves all experts on through the bank. */
static double run_once(kt_layer_trial *t, way *w) {
    const kt_layer_setup *s = &t->setup;
    int64_t start, ns = 0;

    if (s->gap_ns > 0) keep_busy(s->gap_ns);
    for (int l = 0; l < s->n_layers; l++) {
        for (int64_t e = 0; e < s->problem.experts; e++) t->slots[e] = kt_cold_bank_next(w->bank);
        start = kt_clock_ns();
        kt_pool_run(s->pool, &t->phases[l * KT_MOE_PHASES], KT_MOE_PHASES);
        ns += kt_clock_ns() - start;
    }
    return (double)ns;
}

static double sample(void *arg, int contender) {
    kt_layer_trial *t = arg;
    way *w = &t->ways[contender];
    int64_t begin = kt_clock_ns();
    double ns = 0;

    select_way(t, contender, NULL); /* succeeded when the trial was made */
    if (w->repeats == 0) {          /* pages and code the first time, the length the second */
        run_once(t, w);
        ns = sample_goal_ns / run_once(t, w);
        w->repeats = ns > MAX_REPEATS ? MAX_REPEATS : ns < 1 ? 1 : (int)ns + 1;
        ns = 0;
    }
    for (int i = 0; i < w->repeats; i++) ns += run_once(t, w);
    w->sample_ns = (double)(kt_clock_ns() - begin);
    if (w->sample_ns > t->longest_ns) t->longest_ns = w->sample_ns;
    return (ns > 1 ? ns : 1) / w->repeats / t->setup.n_layers;
}

static double predict(void *arg, int contender) {
    const kt_layer_trial *t = arg;
    return t->ways[contender].repeats > 0 ? t->ways[contender].sample_ns : 3 * t->longest_ns;
}

static int64_t disturbances(void *arg) {
    kt_layer_trial *t = arg;
    return kt_disturbance_count(&t->disturbance);
}

kt_stopwatch kt_layer_trial_stopwatch(kt_layer_trial *t) {
    return (kt_stopwatch){
        .arg = t, .sample = sample, .predict_ns = predict, .disturbances = disturbances};
}
