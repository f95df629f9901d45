/* Dense GEMMs as a phase: the bits of one whole call, however the work is cut.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_job.h"
#include "tests/support/guard.h"

extern const kt_variant kt_variant_any_any_p64__scalar;

#define JOBS 3
#define MOST_ROWS 200

typedef struct fixture {
    kt_choice_map map;
    kt_problem problem[JOBS];
    kt_gate_matrix w[JOBS];
    kt_gate_acts a;
    void *packed[JOBS];
    float *want[JOBS], *got[JOBS];
    kt_gemm_job jobs[JOBS];
} fixture;

/* Three matrices of different height over the same rows, as query, key and value have them. */
static void fixture_init(fixture *f) {
    static const int64_t n[JOBS] = {320, 65, 31};
    const kt_variant *v = &kt_variant_any_any_p64__scalar;
    kt_err err = {0};

    memset(f, 0, sizeof *f);
    f->map.count = 1;
    f->map.choice[0].variant = v;
    cr_assert_eq(kt_gate_acts_create(KT_A_INT8_G32, MOST_ROWS, 96, 1, &f->a, &err), KT_OK);
    for (int i = 0; i < JOBS; i++) {
        kt_problem *q = &f->problem[i];
        *q = (kt_problem){.op = KT_OP_GEMM,
                          .weights = KT_W_INT8_CHANNEL,
                          .acts = KT_A_INT8_G32,
                          .n = n[i],
                          .k = 96};
        cr_assert_eq(kt_gate_matrix_create(q->weights, q->n, q->k, 5, &f->w[i], &err), KT_OK);
        f->packed[i] = kt_guard_alloc(v->packed_bytes(q), 64, 0);
        v->pack_gemm(q, &f->w[i].matrix, f->packed[i]);
        f->want[i] = kt_guard_alloc(sizeof(float) * (size_t)(MOST_ROWS * q->n), 4, 0);
        f->got[i] = kt_guard_alloc(sizeof(float) * (size_t)(MOST_ROWS * q->n), 4, 0);
        f->jobs[i] = (kt_gemm_job){.problem = q,
                                   .choices = &f->map,
                                   .weights = f->packed[i],
                                   .a = f->a.rows.data,
                                   .a_stride = f->a.stride,
                                   .c = f->got[i],
                                   .ldc = q->n};
    }
}

static void fixture_deinit(fixture *f) {
    kt_gate_acts_destroy(&f->a);
    for (int i = 0; i < JOBS; i++) {
        kt_gate_matrix_destroy(&f->w[i]);
        kt_guard_free(f->packed[i]);
        kt_guard_free(f->want[i]);
        kt_guard_free(f->got[i]);
    }
}

static void check_run(fixture *f, int n_threads, int64_t m, int accumulate) {
    kt_gemm_group group = {.jobs = f->jobs, .n_jobs = JOBS};
    kt_phase phase = kt_gemm_group_phase(&group);
    static const kt_config config;
    int64_t tasks;

    for (int i = 0; i < JOBS; i++) {
        size_t bytes = sizeof(float) * (size_t)(MOST_ROWS * f->problem[i].n);
        kt_gemm_call call = {.problem = &f->problem[i],
                             .config = &config,
                             .weights = f->packed[i],
                             .a = f->a.rows.data,
                             .a_stride = f->a.stride,
                             .m = m,
                             .panel_end = kt_p64_panels(f->problem[i].n),
                             .c = f->want[i],
                             .ldc = f->problem[i].n,
                             .accumulate = accumulate};
        for (int64_t j = 0; j < MOST_ROWS * f->problem[i].n; j++) f->want[i][j] = (float)(j % 5);
        memcpy(f->got[i], f->want[i], bytes);
        kt_variant_any_any_p64__scalar.gemm(&call);
        f->jobs[i].m = m;
        f->jobs[i].accumulate = accumulate;
    }
    tasks = phase.prepare(phase.arg, n_threads);
    cr_assert_eq(tasks == 0, m == 0);
    for (int64_t t = tasks - tasks % 2; t >= 0; t -= 2) /* pairs, last first, across job borders */
        if (t < tasks) phase.run(phase.arg, t, t + 2 < tasks ? t + 2 : tasks, (int)(t % n_threads));
    for (int i = 0; i < JOBS; i++)
        for (int64_t j = 0; j < MOST_ROWS * f->problem[i].n; j++)
            cr_assert(memcmp(&f->got[i][j], &f->want[i][j], 4) == 0,
                      "threads=%d m=%lld matrix %d element %lld: %.9g, want %.9g", n_threads,
                      (long long)m, i, (long long)j, f->got[i][j], f->want[i][j]);
}

Test(gemm_job, a_group_gives_the_bits_of_whole_calls_on_any_threads) {
    static const int threads[] = {1, 2, 5, 64};
    static const int64_t rows[] = {0, 1, 2, 47, 96, 97, 200};
    fixture f;

    fixture_init(&f);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                check_run(&f, threads[t], rows[i], accumulate);
    fixture_deinit(&f);
}

/* --- what a task is told of the one after it --- */

static const void *next_seen;

static void note_next(const kt_gemm_call *call) {
    next_seen = call->next;
}

Test(gemm_job, a_task_knows_which_weights_come_next) {
    kt_variant v = kt_variant_any_any_p64__scalar;
    const kt_problem q = {
        .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .acts = KT_A_INT8_G32, .n = 128, .k = 4096};
    const size_t panel_bytes = kt_p64_panel_bytes(q.weights, q.k); /* a task each */
    kt_choice_map map = {.count = 1, .choice = {{.variant = &v}}};
    char *weights[2] = {malloc(2 * panel_bytes), malloc(2 * panel_bytes)};
    float *c = malloc(96 * 128 * sizeof *c);
    kt_gemm_job jobs[2];
    kt_gemm_group group = {.jobs = jobs, .n_jobs = 2};
    kt_phase phase = kt_gemm_group_phase(&group);

    v.gemm = note_next;
    for (int i = 0; i < 2; i++)
        jobs[i] = (kt_gemm_job){.problem = &q,
                                .choices = &map,
                                .weights = weights[i],
                                .m = i == 0 ? 96 : 1, /* 4 tasks on two threads, then 2 */
                                .c = c,
                                .ldc = 128};
    const void *const want[6] = {weights[0] + panel_bytes, weights[0],
                                 weights[0] + panel_bytes, weights[1],
                                 weights[1] + panel_bytes, NULL};
    cr_assert_eq(phase.prepare(phase.arg, 2), 6);
    for (int64_t t = 0; t < 6; t++) {
        phase.run(phase.arg, t, t + 1, 0);
        cr_assert_eq(next_seen, want[t], "task %lld of 6 expects other weights", (long long)t);
    }
    for (int i = 0; i < 2; i++) free(weights[i]);
    free(c);
}

static size_t needs_m_lines(const kt_problem *q, const kt_config *config) {
    return (size_t)q->m * (size_t)config->value[0] + 1;
}

Test(gemm_job, scratch_counts_only_the_rows_that_reach_a_choice) {
    kt_variant v = kt_variant_any_any_p64__scalar;
    kt_choice_map map = {.count = 3};
    kt_problem q = {.op = KT_OP_GEMM, .n = 64, .k = 64};

    v.workspace_bytes = needs_m_lines;
    for (int i = 0; i < 3; i++) map.choice[i] = (kt_choice){&v, {{i == 0 ? 1000 : 1}}};
    for (int m = 0; m <= KT_M_DENSE; m++) map.index[m] = m <= 4 ? 0 : m < KT_M_DENSE ? 1 : 2;
    cr_assert_eq(kt_gemm_scratch_bytes(&q, &map, 1), 1024);
    cr_assert_eq(kt_gemm_scratch_bytes(&q, &map, 100), 4032); /* 4 rows at 1000, not 100 */
    cr_assert_eq(kt_gemm_scratch_bytes(&q, &map, 10000), 10048);
    v.workspace_bytes = NULL;
    cr_assert_eq(kt_gemm_scratch_bytes(&q, &map, 10000), 0);
}
