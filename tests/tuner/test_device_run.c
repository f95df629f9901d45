/* Tuning of a device, on the emulated one with a pretended clock: who wins, who falls out, what the
 * table then has the runtime do. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/plan/plan_device.h"
#include "kernels/cuda/device_weights.h"
#include "tests/support/temp.h"
#include "tuner/session/device_session.h"
#include "tuner/space/device_prior.h"
#include "tuner/verify/device_gate.h"

static kt_err err;

#define OK(call) cr_assert_eq(call, KT_OK, "%s", err.message)

static const kt_problem small_gemm = {
    .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .acts = KT_A_INT8_G32, .n = 96, .k = 64};
static const kt_problem small_experts = {.op = KT_OP_MOE_FFN,
                                         .weights = KT_W_BF16,
                                         .acts = KT_A_BF16,
                                         .n = 32,
                                         .k = 64,
                                         .experts = 4,
                                         .topk = 2};

typedef struct heard {
    int n_decided, n_skipped, stop_after;
    char last[512];
    kt_device_verdict verdict[16];
} heard;

static void decided(void *arg, const kt_device_verdict *v) {
    heard *h = arg;
    cr_assert_lt(h->n_decided, 16);
    h->verdict[h->n_decided++] = *v;
}

static void skipped(void *arg, const char *what) {
    heard *h = arg;
    h->n_skipped++;
    snprintf(h->last, sizeof h->last, "%s", what);
}

static bool stop(void *arg) {
    const heard *h = arg;
    return h->stop_after && h->n_decided >= h->stop_after;
}

static kt_status tune(const kt_device_options *device, const kt_problem *problems, int n,
                      kt_table *table, heard *h, kt_device_outcome *out) {
    static const int64_t rows[] = {1, 12};
    kt_tune_cell cells[4];
    const kt_cell_list list = {.cells = cells, .n = (size_t)n};
    const kt_device_session session = {.device = device,
                                       .cells = &list,
                                       .rows = rows,
                                       .n_rows = 2,
                                       .threads = 2,
                                       .is_pretended = true,
                                       .most = 3,
                                       .rotation = 1,
                                       .seed = 1,
                                       .deadline_ns = INT64_MAX,
                                       .listener = {decided, skipped, stop, h}};

    for (int i = 0; i < n; i++) cells[i] = (kt_tune_cell){.problem = problems[i], .threads = 2};
    return kt_device_session_run(&session, table, out, &err);
}

/* A row of the CPU: all of a table's members that are asked for. */
static void put_cpu_row(kt_table *t, int64_t m, double ns) {
    kt_table_row row = {.problem = small_experts,
                        .threads = 2,
                        .variant = "x",
                        .time_ns = ns,
                        .ci_low = 1,
                        .ci_high = 1,
                        .default_variant = "x",
                        .default_ns = ns,
                        .status = "tuned"};
    row.problem.m = m;
    OK(kt_table_put(t, &row, &err));
}

Test(device_run, the_best_by_the_clock_wins_and_the_runtime_obeys, .timeout = 60) {
    const kt_device_options o = {.class = "emulated", .emulator = {.seed = 3}};
    const kt_device_job job = kt_device_job_of(&small_gemm, false);
    char folder[512], path[600];
    kt_device_advice advice = {.n_used = 0};
    kt_device_ladder ladder;
    kt_device_outcome out;
    kt_table *t, *back;
    kt_device *d;
    heard h = {0};

    OK(kt_table_create(&t, &err));
    t->fingerprint = (kt_fingerprint){.vendor = "AuthenticAMD",
                                      .microarch = "zen4",
                                      .usable_cores = 2,
                                      .numa_nodes = 1,
                                      .memory_bytes = UINT64_C(24) << 30};
    OK(tune(&o, &small_gemm, 1, t, &h, &out));
    cr_expect(out.n_cells == 2 && out.n_decided == 2 && out.n_lost == 0 && out.n_dropped == 0);
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.kttable.json", folder);
    OK(kt_table_save(t, path, &err));
    OK(kt_table_load(path, &back, &err));
    cr_assert_eq(back->n_device_rows, 2);
    cr_expect_eq(memcmp(back->device_rows, t->device_rows, 2 * sizeof *t->device_rows), 0);
    OK(kt_device_open(&o, &d, &err));
    kt_plan_device_ladder(back, kt_device_about(d), &job, &ladder, &advice);
    cr_expect(advice.n_used == 2 && advice.n_ignored == 0, "%s", advice.note);
    for (int i = 0; i < 2; i++) {
        const int64_t rows = h.verdict[i].row.problem.m;
        const kt_device_choice *c = &ladder.choice[kt_device_ladder_rung(&ladder, rows)];
        static kt_device_choice all[4096];
        const int n = kt_device_choices_of(&job, rows, kt_device_about(d)->target, all, 4096);
        const double won = kt_device_prior_ns(c, &job, rows, kt_device_about(d)->multiprocessors);
        char config[96];
        cr_expect_str_eq(c->kernel->name, h.verdict[i].row.variant);
        cr_expect_str_eq(kt_device_config_format(c, config, sizeof config),
                         h.verdict[i].row.config);
        for (int k = 0; k < n; k++)
            cr_assert_leq(
                won, kt_device_prior_ns(&all[k], &job, rows, kt_device_about(d)->multiprocessors) *
                         (1 + 1e-12));
    }
    back->device_rows[0].row.version++; /* tuned with another kernel */
    advice = (kt_device_advice){.n_used = 0};
    kt_plan_device_ladder(back, kt_device_about(d), &job, &ladder, &advice);
    cr_expect(advice.n_used == 1 && advice.n_ignored == 1 && strstr(advice.note, "version"), "%s",
              advice.note);
    snprintf(back->device_rows[1].device, sizeof back->device_rows[1].device, "another");
    advice = (kt_device_advice){.n_used = 0};
    kt_plan_device_ladder(back, kt_device_about(d), &job, &ladder, &advice);
    cr_expect_eq(advice.n_used, 0);
    cr_expect_str_eq(ladder.choice[0].kernel->name, "gemm_decode");
    cr_expect_str_eq(ladder.choice[1].kernel->name, "gemm_tiles");
    back->device_rows[0].row.version--; /* won with 12 rows, in turns: not for any number of rows */
    back->device_rows[0].row.problem.m = 12;
    kt_plan_device_ladder(back, kt_device_about(d), &job, &ladder, &advice);
    cr_expect_eq(advice.n_used, 1);
    cr_expect_eq(ladder.most[kt_device_ladder_rung(&ladder, 12)], 16);
    cr_expect_str_eq(ladder.choice[kt_device_ladder_rung(&ladder, 17)].kernel->name, "gemm_tiles");
    kt_device_close(d);
    kt_table_destroy(t), kt_table_destroy(back);
    kt_temp_remove(folder);
}

Test(device_run, shares_are_solved_from_the_rates_of_both_sides, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    kt_device_outcome out;
    const kt_table_row *row;
    kt_device_facts f;
    kt_table *t;
    kt_device *d;
    heard h = {0};
    double share;

    OK(kt_table_create(&t, &err));
    put_cpu_row(t, 1, 10000);
    put_cpu_row(t, 6, 40000);
    OK(tune(&o, &small_experts, 1, t, &h, &out));
    cr_assert_eq(out.n_shares, 3, "%d", out.n_shares);
    OK(kt_device_open(&o, &d, &err));
    f = *kt_device_about(d);
    row = &h.verdict[0].row; /* of one token: two experts of one row each */
    share = kt_plan_device_share(t, &f, &small_experts, 2);
    cr_expect_float_eq(share, floor(100 * 20000 / (20000 + row->time_ns)) / 100, 1e-9, "%g", share);
    /* 49152 bytes over the pretended link take less than the CPU's 20 us. */
    cr_expect_eq(kt_plan_device_offload(t, &f, &small_experts, 2), 1);
    cr_expect_eq(kt_plan_device_share(t, &f, &small_experts, 1), -1, "of another pool");
    cr_expect_eq(kt_plan_device_share(t, &f, &small_gemm, 2), -1);
    cr_expect_eq(kt_plan_device_offload(NULL, &f, &small_experts, 2), -1);
    kt_device_close(d);
    kt_table_destroy(t);
}

/* The table is what an earlier run left: of this device, its driver and the kernels of now. */
Test(device_run, an_earlier_runs_rows_are_taken_over, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    kt_device_outcome out;
    kt_table *t;
    heard h = {.stop_after = 1};

    OK(kt_table_create(&t, &err));
    cr_expect_eq(tune(&o, &small_gemm, 1, t, &h, &out), KT_E_CANCELLED);
    h = (heard){0};
    OK(tune(&o, &small_gemm, 1, t, &h, &out));
    cr_expect(out.n_decided == 2 && out.n_reused == 1 && h.n_decided == 1, "%d, %d, %d",
              out.n_decided, out.n_reused, h.n_decided);
    t->device_rows[0].row.version++; /* another kernel's */
    t->device_rows[1].driver++;      /* another driver's */
    h = (heard){0};
    OK(tune(&o, &small_gemm, 1, t, &h, &out));
    cr_expect(out.n_decided == 2 && out.n_reused == 0 && h.n_decided == 2, "%d, %d, %d",
              out.n_decided, out.n_reused, h.n_decided);
    kt_table_destroy(t);
}

Test(device_run, a_lost_device_costs_a_contender_not_the_run, .timeout = 60) {
    const kt_device_options o = {.class = "emulated", .fail_after = 30};
    kt_device_outcome out;
    kt_table *t;
    heard h = {0};

    OK(kt_table_create(&t, &err));
    OK(tune(&o, &small_gemm, 1, t, &h, &out));
    cr_expect(out.n_lost > 0 && h.n_skipped > 0);
    cr_expect_not_null(strstr(h.last, "emulated"), "%s", h.last);
    cr_expect_eq(out.n_cells, 2);
    kt_table_destroy(t);
}

Test(device_run, a_stopped_run_keeps_what_it_decided, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    kt_device_outcome out;
    kt_table *t;
    heard h = {.stop_after = 1};

    OK(kt_table_create(&t, &err));
    cr_expect_eq(tune(&o, &small_gemm, 1, t, &h, &out), KT_E_CANCELLED);
    cr_expect_eq(t->n_device_rows, 1);
    kt_table_destroy(t);
}

static void do_nothing(const void *parameters) {
    (void)parameters;
}

Test(device_gate, what_computes_nothing_is_no_contender, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    const kt_device_job job = kt_device_job_of(&small_gemm, false);
    kt_device_ladder ladder;
    kt_cuda_kernel wrong;
    kt_device_choice c;
    kt_device *d;
    double error;

    OK(kt_device_open(&o, &d, &err));
    kt_device_ladder_default(&job, kt_device_about(d)->target, &ladder);
    c = ladder.choice[0];
    OK(kt_device_gate(d, &job, &c, 1, 1, &error, &err));
    cr_expect(error > 0 && error < 0.01, "%g", error);
    wrong = *c.kernel;
    wrong.entry[0].emulated = do_nothing;
    c.kernel = &wrong;
    cr_expect_eq(kt_device_gate(d, &job, &c, 1, 1, &error, &err), KT_E_MISMATCH);
    cr_expect_not_null(strstr(err.message, "gemm_decode: 1 rows"), "%s", err.message);
    kt_device_close(d);
}

Test(device_bench, the_stopwatch_counts_calls_that_are_held, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    const kt_device_job job = kt_device_job_of(&small_experts, false);
    kt_device_ladder ladder;
    kt_device_bench b;
    float out[3 * 64];
    kt_device *d;
    double ns = 0;
    int local;

    OK(kt_device_open(&o, &d, &err));
    OK(kt_device_bench_open(d, &job, 3, 100000, 1, &b, &err));
    cr_expect_eq(b.copies, 3); /* of 49152 bytes each */
    kt_device_ladder_default(&job, kt_device_about(d)->target, &ladder);
    OK(kt_device_bench_take(&b, &ladder.choice[0], &local, &err));
    OK(kt_device_bench_time(&b, 4, &ns, &err));
    cr_expect_gt(ns, 0);
    OK(kt_device_bench_out(&b, out, &err));
    for (int i = 0; i < 3 * 64; i++) cr_assert(isfinite(out[i]));
    kt_device_bench_close(&b);
    kt_device_close(d);
}

/* One token goes round the experts, so that no call finds the weights of the one before in a cache;
 * what a call reads is what its list names. */
Test(device_bench, calls_of_one_row_read_other_experts_each_time, .timeout = 60) {
    const kt_device_options o = {.class = "emulated"};
    kt_device_job job = kt_device_job_of(&small_experts, false);
    const double expert = 3 * 32 * 64 * 2; /* bytes, in BF16 */
    kt_device_bench b;
    int32_t id[16];
    int used = 0;
    kt_device *d;

    job.experts = 16;
    OK(kt_device_open(&o, &d, &err));
    OK(kt_device_bench_open(d, &job, 1, 1, 1, &b, &err));
    cr_expect(b.copies == 1 && b.n_lists == 8);
    OK(kt_device_download(d, KT_STREAM_MAIN, id, b.id, sizeof id, &err));
    OK(kt_device_sync(d, NULL, &err));
    for (int i = 0; i < 16; i++) cr_expect_eq(id[i], i, "slot %d", i);
    cr_expect_eq(kt_device_bench_bytes(&b, 5), 2 * expert);
    kt_device_bench_close(&b);
    OK(kt_device_bench_open(d, &job, 8, 1, 1, &b, &err));
    cr_expect_eq(kt_device_bench_bytes(&b, 2), (b.used[0] + b.used[1]) / 2.0 * expert);
    OK(kt_device_download(d, KT_STREAM_MAIN, id, b.id, sizeof id, &err));
    OK(kt_device_sync(d, NULL, &err));
    for (int i = 0; i < 16; i++) {
        bool is_new = true;
        for (int k = 0; k < i; k++) is_new = is_new && id[k] != id[i];
        used += is_new;
    }
    cr_expect(b.used[0] == used && used < 16, "%d, counted %d", b.used[0], used);
    kt_device_bench_close(&b);
    OK(kt_device_bench_open(d, &job, 9, 1, 1, &b, &err));
    cr_expect_eq(b.n_lists, 1, "many rows meet most experts anyway");
    kt_device_bench_close(&b);
    kt_device_close(d);
}

Test(device_bench, a_large_matrix_repeats_its_first_rows, .timeout = 60) {
    enum { N = 33000, K = 64, DRAWN_ROWS = (1 << 21) / K };
    const kt_device_options o = {.class = "emulated"};
    const size_t record = kt_device_row_bytes(KT_W_INT8_CHANNEL, K);
    kt_device_job job = kt_device_job_of(&small_gemm, false);
    uint8_t *w = malloc(N * record);
    kt_device_bench b;
    kt_device *d;

    job.n = N, job.k = K;
    OK(kt_device_open(&o, &d, &err));
    OK(kt_device_bench_open(d, &job, 1, 1, 1, &b, &err));
    cr_expect_eq(kt_device_bench_bytes(&b, 3), (double)(N * record));
    OK(kt_device_download(d, KT_STREAM_MAIN, w, b.gate, N * record, &err));
    OK(kt_device_sync(d, NULL, &err));
    for (int i = 1; i < N; i++)
        cr_assert_eq(memcmp(w + (size_t)i * record, w, record) == 0, i == DRAWN_ROWS, "row %d", i);
    cr_expect_eq(memcmp(w + DRAWN_ROWS * record, w, (N - DRAWN_ROWS) * record), 0);
    free(w);
    kt_device_bench_close(&b);
    kt_device_close(d);
}
