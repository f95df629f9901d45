/* A dense GEMM under the clock: the serving phase over encoded rows. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/gemm/gemm_job.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial_ops.h"

typedef struct gemm_state {
    kt_problem problem; /* m = 0, as in serving */
    kt_choice_map map;
    kt_gemm_job job;
    kt_gemm_group group;
    void *a, *scratch;
    float *c;
    kt_cold_bank *bank; /* of the selected contender */
} gemm_state;

static void destroy(kt_trial *t) {
    gemm_state *s = t->state;
    if (!s) return;
    free(s->a);
    free(s->scratch);
    free(s->c);
    free(s);
    t->state = NULL;
}

/* Activations stay hot from call to call, as the step before leaves them. */
static kt_status encode_rows(gemm_state *s, const kt_trial_setup *setup, kt_err *err) {
    const kt_problem *q = &setup->problem;
    size_t stride = kt_act_row_bytes(q->acts, q->k);
    float *x = malloc((size_t)(q->m * q->k) * sizeof *x);
    kt_encode_call call = {.x = x, .ldx = q->k, .k = q->k, .out_stride = stride, .row_end = q->m};

    s->a = aligned_alloc(64, stride * (size_t)q->m);
    s->c = aligned_alloc(64, ((size_t)(q->m * q->n) * sizeof *s->c + 63) / 64 * 64);
    if (!x || !s->a || !s->c) {
        free(x);
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %lld rows", (long long)q->m);
    }
    kt_synthetic_rows(x, (size_t)(q->m * q->k), 7);
    call.out = s->a;
    setup->encode->encode(&call);
    free(x);
    s->job = (kt_gemm_job){.problem = &s->problem,
                           .choices = &s->map,
                           .a = s->a,
                           .a_stride = stride,
                           .m = q->m,
                           .c = s->c,
                           .ldc = q->n};
    return KT_OK;
}

static kt_status make_scratch(gemm_state *s, const kt_trial_setup *setup, kt_err *err) {
    size_t most = 0, threads = (size_t)kt_pool_threads(setup->pool);

    for (int i = 0; i < setup->n_choices; i++) {
        size_t bytes;
        kt_choice_map_single(&s->map, &setup->choices[i]);
        bytes = kt_gemm_scratch_bytes(&s->problem, &s->map, setup->problem.m);
        if (bytes > most) most = bytes;
    }
    s->group = (kt_gemm_group){.jobs = &s->job, .n_jobs = 1};
    if (most == 0) return KT_OK;
    s->scratch = aligned_alloc(64, most * threads);
    if (!s->scratch)
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %zu bytes of scratch",
                       most * threads);
    s->group.scratch = s->scratch;
    s->group.scratch_stride = most;
    return KT_OK;
}

static kt_status create(kt_trial *t, kt_err *err) {
    gemm_state *s = calloc(1, sizeof *s);
    if (!s) return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    t->state = s;
    s->problem = t->setup.problem;
    s->problem.m = 0;
    KT_TRY(encode_rows(s, &t->setup, err));
    return make_scratch(s, &t->setup, err);
}

static void select_contender(kt_trial *t, int contender) {
    gemm_state *s = t->state;
    kt_choice_map_single(&s->map, &t->setup.choices[contender]);
    s->bank = t->entry[contender].bank;
}

static void call(kt_trial *t) {
    gemm_state *s = t->state;
    kt_phase phase;
    s->job.weights = kt_cold_bank_next(s->bank);
    phase = kt_gemm_group_phase(&s->group);
    kt_pool_run(t->setup.pool, &phase, 1);
}

const kt_trial_ops kt_trial_gemm = {
    .create = create, .destroy = destroy, .select = select_contender, .call = call};
