/* Experts and dense products on the emulated device by every kernel that could do them: parts give
 * the bits of the whole, sums add up, rows of 8 bits lose what 8 bits lose.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "dispatch/device/device_experts.h"
#include "dispatch/device/device_gemm.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/formats/gate_inputs.h"

enum { ROWS = 23, SLOTS = 2, EXPERTS = 5, N = 160, K = 64 };

typedef struct scene {
    kt_device *d;
    kt_device_experts e;
    float *x, *out, *route;
    int32_t *id;
    void *scratch;
} scene;

static void *on_device(kt_device *d, const void *data, size_t bytes) {
    void *at;
    kt_err err;

    cr_assert_eq(kt_device_alloc(d, bytes, &at, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_device_upload(d, KT_STREAM_MAIN, at, data, bytes, &err), KT_OK);
    cr_assert_eq(kt_device_sync(d, NULL, &err), KT_OK, "%s", err.message);
    return at;
}

static void make_matrices(kt_device *d, kt_weight_format format, int64_t n, int64_t k,
                          uint64_t seed, kt_device_matrices *out) {
    kt_gate_matrix m;
    size_t bytes;
    void *records;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create(format, n * EXPERTS, k, seed, &m, &err), KT_OK);
    cr_assert_eq(kt_device_weights_bytes(format, n * EXPERTS, k, &bytes, &err), KT_OK);
    records = aligned_alloc(16, bytes);
    cr_assert_eq(kt_device_weights_pack(&m.matrix, 0, n * EXPERTS, records, &err), KT_OK);
    *out = (kt_device_matrices){.at = on_device(d, records, bytes),
                                .bytes = bytes / EXPERTS,
                                .format = format,
                                .n = n,
                                .k = k,
                                .count = EXPERTS};
    free(records);
    kt_gate_matrix_destroy(&m);
}

/* ladder NULL: the default. */
static void open_scene(scene *s, kt_weight_format format, kt_weight_format down,
                       const char *target) {
    const kt_device_options o = {
        .class = "emulated", .target = target, .emulator = {.seed = 3, .lazy = true}};
    float x[ROWS * K], route[ROWS * SLOTS], out[ROWS * N];
    int32_t id[ROWS * SLOTS];
    kt_err err;
    kt_rng rng;

    memset(s, 0, sizeof *s);
    cr_assert_eq(kt_device_open(&o, &s->d, &err), KT_OK, "%s", err.message);
    kt_rng_seed(&rng, 7);
    for (int i = 0; i < ROWS * K; i++) x[i] = kt_rng_normal(&rng);
    for (int i = 0; i < ROWS * N; i++) out[i] = kt_rng_normal(&rng);
    for (int i = 0; i < ROWS * SLOTS; i++) {
        route[i] = kt_rng_uniform(&rng, 0.05f, 1);
        id[i] = i % SLOTS ? (id[i - 1] + 2) % EXPERTS : (int32_t)kt_rng_below(&rng, EXPERTS);
    }
    id[1] = id[8] = id[9] = -1;
    s->x = on_device(s->d, x, sizeof x);
    s->out = on_device(s->d, out, sizeof out);
    s->route = on_device(s->d, route, sizeof route);
    s->id = on_device(s->d, id, sizeof id);
    make_matrices(s->d, format, N, K, 1, &s->e.gate);
    make_matrices(s->d, format, N, K, 2, &s->e.up);
    make_matrices(s->d, down, K, N, 3, &s->e.down);
    s->e.slots = SLOTS;
}

static void take_ladder(scene *s, const kt_device_ladder *ladder) {
    const kt_device_matrices gate = s->e.gate, up = s->e.up, down = s->e.down;
    kt_err err;

    s->e = (kt_device_experts){.gate = gate, .up = up, .down = down, .slots = SLOTS};
    cr_assert_eq(kt_device_experts_make(s->d, ladder, ROWS, &s->e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(s->e.rows, ROWS);
    cr_assert_eq(kt_device_alloc(s->d, kt_device_experts_scratch(&s->e), &s->scratch, &err), KT_OK);
}

static kt_device_job job_of(const scene *s, uint32_t encodings) {
    return kt_device_experts_job(&s->e.gate, &s->e.down, SLOTS, encodings);
}

/* `rows` rows, `part` of them at once. */
static void run(scene *s, int64_t rows, int64_t part, bool accumulate, float *out) {
    const kt_device_experts_call call = {.in = {s->x, K, K},
                                         .out = {s->out, K, K},
                                         .id = s->id,
                                         .route = s->route,
                                         .rows = rows,
                                         .accumulate = accumulate,
                                         .scratch = s->scratch};
    kt_err err;

    s->e.rows = part;
    cr_assert_eq(kt_device_experts_put(s->d, &s->e, &call, &err), KT_OK, "%s", err.message);
    cr_assert_eq(
        kt_device_download(s->d, KT_STREAM_MAIN, out, s->out, (size_t)rows * K * sizeof *out, &err),
        KT_OK);
    cr_assert_eq(kt_device_sync(s->d, NULL, &err), KT_OK, "%s", err.message);
}

static double relative_error(const float *got, const float *want, int n) {
    double error = 0, all = 0;

    for (int i = 0; i < n; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        all += (double)want[i] * (double)want[i];
    }
    return sqrt(error / all);
}

Test(device_experts, parts_give_the_same_bits_and_sums_add_up, .timeout = 60) {
    float whole[ROWS * K], parts[ROWS * K], twice[ROWS * K];
    kt_device_ladder ladder;
    kt_device_job job;
    scene s;

    open_scene(&s, KT_W_BF16, KT_W_INT4_G32, NULL);
    job = job_of(&s, KT_CUDA_ROWS_BF16);
    kt_device_ladder_default(&job, kt_device_about(s.d)->target, &ladder);
    take_ladder(&s, &ladder);
    run(&s, ROWS, ROWS, false, whole);
    run(&s, ROWS, 10, false, parts);
    run(&s, ROWS, 10, true, twice);
    for (int i = 0; i < ROWS * K; i++) {
        cr_assert_eq(whole[i], parts[i], "row %d, column %d: %g in parts, %g at once", i / K, i % K,
                     parts[i], whole[i]);
        cr_assert_eq(twice[i], 2 * whole[i], "row %d, column %d", i / K, i % K);
    }
    for (int i = 0; i < K; i++) /* both experts of row 4 are elsewhere */
        cr_assert_eq(whole[4 * K + i], 0);
    kt_device_close(s.d);
}

/* One config of each kernel, the one with the smallest tiles. */
static int one_of_each(const kt_device_job *job, int64_t rows, const char *target,
                       kt_device_choice *out) {
    static kt_device_choice all[4096];
    const kt_cuda_target *t = &kt_cuda_targets[0];
    int n, kept = 0;

    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, target) == 0) t = &kt_cuda_targets[i];
    n = kt_device_choices_of(job, rows, t, all, 4096);
    cr_assert(n > 0 && n <= 4096, "%d choices", n);
    cr_assert_eq(n, kt_device_choices_of(job, rows, t, NULL, 0));
    for (int i = 0; i < n; i++)
        if (kept == 0 || all[i].kernel != out[kept - 1].kernel) out[kept++] = all[i];
    return kept;
}

static void check_experts(kt_weight_format format, const char *target, int n_kernels) {
    float want[ROWS * K], got[ROWS * K];
    kt_device_choice each[8];
    kt_device_ladder ladder;
    kt_device_job job;
    scene s;
    int n;

    open_scene(&s, format, format, target);
    job = job_of(&s, KT_CUDA_ROWS_BF16 | KT_CUDA_ROWS_INT8 | KT_CUDA_ROWS_E4M3);
    kt_device_ladder_default(&job, kt_device_about(s.d)->target, &ladder);
    take_ladder(&s, &ladder);
    run(&s, ROWS, ROWS, false, want);
    n = one_of_each(&job, ROWS, target, each);
    cr_expect_eq(n, n_kernels, "%d kernels for format %d on sm_%s", n, (int)format, target);
    for (int i = 0; i < n; i++) {
        const double most = each[i].kernel->rows == KT_CUDA_ROWS_BF16   ? 0.01
                            : each[i].kernel->rows == KT_CUDA_ROWS_INT8 ? 0.03
                                                                        : 0.08;
        ladder = (kt_device_ladder){.n = 1, .choice = {each[i]}, .most = {INT64_MAX}};
        take_ladder(&s, &ladder);
        memset(got, 0, sizeof got);
        run(&s, ROWS, ROWS, false, got);
        cr_expect_leq(relative_error(got, want, ROWS * K), most, "%s: %g", each[i].kernel->name,
                      relative_error(got, want, ROWS * K));
    }
    kt_device_close(s.d);
}

/* Without a table: what runs for so many tokens of 4 experts, of which each takes 2. */
static void expect_default(const char *target, kt_weight_format format, int64_t tokens,
                           const char *kernel, int32_t bm, int32_t bn) {
    const kt_device_job job = {.op = KT_OP_MOE_FFN,
                               .weights = format,
                               .down = format,
                               .n = N,
                               .k = K,
                               .experts = 4,
                               .topk = 2,
                               .encodings = KT_CUDA_ROWS_BF16};
    const kt_device_choice *c;
    kt_device_ladder ladder;

    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, target) == 0)
            kt_device_ladder_default(&job, &kt_cuda_targets[i], &ladder);
    c = &ladder.choice[kt_device_ladder_rung(&ladder, tokens)];
    cr_expect(strcmp(c->kernel->name, kernel) == 0 && c->config.value[0] == bm &&
                  c->config.value[1] == bn,
              "sm_%s, format %d, %d tokens: %s of %d x %d", target, (int)format, (int)tokens,
              c->kernel->name, (int)c->config.value[0], (int)c->config.value[1]);
}

Test(device_experts, warpgroups_are_the_default_where_there_are_any) {
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT4_G32};

    for (int i = 0; i < 2; i++) {
        expect_default("80", formats[i], 20, "moe_tiles", 16, 128);
        expect_default("80", formats[i], 21, "moe_tiles", 32, 128);
        expect_default("80", formats[i], 100000, "moe_tiles", 64, 128);
        expect_default("90a", formats[i], 40, "moe_tiles", 32, 128);
        expect_default("90a", formats[i], 41, "moe_tiles", 64, 128);
        expect_default("90a", formats[i], 128, "moe_tiles", 64, 128);
        expect_default("90a", formats[i], 129, "moe_wgmma", 128, 128);
        expect_default("90a", formats[i], 512, "moe_wgmma", 128, 128);
        expect_default("120", formats[i], 513, "moe_tiles", 64, 128);
    }
    expect_default("90a", KT_W_BF16, 513, "moe_wgmma", 128, 256);
    expect_default("90a", KT_W_INT4_G32, 513, "moe_wgmma", 256, 128);
}

Test(device_experts, every_kernel_does_the_same_work, .timeout = 60) {
    check_experts(KT_W_INT4_G32, "80", 2);
    check_experts(KT_W_BF16, "90a", 2);
    check_experts(KT_W_FP8_B128, "120", 2);
    check_experts(KT_W_FP8_B128, "90a", 3);
}

/* ---- dense ---- */

static void run_gemm(kt_device *d, const kt_device_gemm *g, const float *x, float *y, void *scratch,
                     float *out) {
    const kt_device_gemm_call call = {
        .x = x, .y = y, .ldx = K, .ldy = N, .rows = ROWS, .scratch = scratch};
    kt_err err;

    cr_assert_eq(kt_device_gemm_put(d, g, &call, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_device_download(d, KT_STREAM_MAIN, out, y, ROWS * N * sizeof *out, &err),
                 KT_OK);
    cr_assert_eq(kt_device_sync(d, NULL, &err), KT_OK, "%s", err.message);
}

Test(device_gemm, every_kernel_does_the_same_work, .timeout = 60) {
    static const struct {
        kt_weight_format format;
        const char *target;
        int n;
    } cases[] = {{KT_W_INT8_CHANNEL, "80", 2}, {KT_W_FP8_CHANNEL, "89", 2}, {KT_W_BF16, "80", 1}};

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float want[ROWS * N], got[ROWS * N];
        kt_device_choice each[8];
        kt_device_ladder ladder;
        kt_device_job job;
        scene s;
        kt_err err;
        int n;

        open_scene(&s, cases[c].format, cases[c].format, cases[c].target);
        s.e.gate.count = 1;
        job = kt_device_gemm_job(&s.e.gate, 7);
        n = one_of_each(&job, ROWS, cases[c].target, each);
        cr_expect_eq(n, cases[c].n, "%d kernels", n);
        kt_device_ladder_default(&job, kt_device_about(s.d)->target, &ladder);
        for (int i = -1; i < n; i++) {
            kt_device_gemm g;
            void *scratch;
            if (i >= 0)
                ladder = (kt_device_ladder){.n = 1, .choice = {each[i]}, .most = {INT64_MAX}};
            cr_assert_eq(kt_device_gemm_make(s.d, &s.e.gate, &ladder, ROWS, &g, &err), KT_OK, "%s",
                         err.message);
            cr_assert_eq(kt_device_alloc(s.d, kt_device_gemm_scratch(&g, ROWS), &scratch, &err),
                         KT_OK);
            run_gemm(s.d, &g, s.x, s.out, scratch, i < 0 ? want : got);
            if (i >= 0)
                cr_expect_leq(relative_error(got, want, ROWS * N), 0.06, "%s",
                              each[i].kernel->name);
        }
        kt_device_close(s.d);
    }
}

/* A kernel of at most 8 rows takes 23 in three turns, which rows of a list name or not. */
Test(device_gemm, few_rows_take_turns, .timeout = 60) {
    float want[ROWS * N], got[ROWS * N];
    int32_t list[ROWS];
    kt_device_gemm_call call = {.ldx = K, .ldy = N, .rows = ROWS};
    kt_device_ladder ladder;
    kt_device_gemm g;
    kt_device_job job;
    scene s;
    kt_err err;

    open_scene(&s, KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL, "80");
    s.e.gate.count = 1;
    job = kt_device_gemm_job(&s.e.gate, 7);
    kt_device_ladder_default(&job, kt_device_about(s.d)->target, &ladder);
    cr_expect_eq(ladder.most[0], 16);
    for (int i = 0; i < 2; i++) {
        const kt_device_choice c = ladder.choice[1 - i]; /* tiles, then few rows */
        void *scratch;
        const kt_device_ladder one = {.n = 1, .choice = {c}, .most = {INT64_MAX}};
        cr_assert_eq(kt_device_is_few(c.kernel), i == 1);
        cr_assert_eq(kt_device_gemm_make(s.d, &s.e.gate, &one, ROWS, &g, &err), KT_OK);
        cr_assert_eq(kt_device_alloc(s.d, kt_device_gemm_scratch(&g, ROWS), &scratch, &err), KT_OK);
        run_gemm(s.d, &g, s.x, s.out, scratch, i == 0 ? want : got);
    }
    cr_expect_leq(relative_error(got, want, ROWS * N), 0.01);
    for (int r = 0; r < ROWS; r++) list[r] = ROWS - 1 - r;
    call.x = s.x, call.y = s.out, call.x_row = on_device(s.d, list, sizeof list);
    cr_assert_eq(kt_device_gemm_put(s.d, &g, &call, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_device_download(s.d, KT_STREAM_MAIN, want, s.out, sizeof want, &err), KT_OK);
    cr_assert_eq(kt_device_sync(s.d, NULL, &err), KT_OK, "%s", err.message);
    for (int r = 0; r < ROWS; r++)
        cr_expect_arr_eq(want + r * N, got + list[r] * N, N * sizeof *got, "row %d", r);
    kt_device_close(s.d);
}

/* ---- choices ---- */

Test(device_choice, rows_of_8_bits_are_for_weights_that_the_cpu_meets_so) {
    kt_problem p = {.op = KT_OP_MOE_FFN, .weights = KT_W_INT4_G32, .n = 64, .k = 128};

    cr_expect_eq(kt_device_job_of(&p, false).encodings, KT_CUDA_ROWS_BF16 | KT_CUDA_ROWS_INT8);
    cr_expect_eq(kt_device_job_of(&p, true).encodings, KT_CUDA_ROWS_BF16);
    p.down = KT_W_BF16;
    cr_expect_eq(kt_device_job_of(&p, false).encodings, KT_CUDA_ROWS_BF16);
    p.weights = KT_W_FP8_B128, p.down = KT_W_NONE;
    cr_expect_eq(kt_device_job_of(&p, false).encodings, KT_CUDA_ROWS_BF16 | KT_CUDA_ROWS_E4M3);
    p.weights = KT_W_BF16;
    cr_expect_eq(kt_device_job_of(&p, false).encodings, KT_CUDA_ROWS_BF16);
}

Test(device_choice, words_name_a_kernel_and_its_config) {
    const kt_problem p = {.op = KT_OP_GEMM, .weights = KT_W_Q8_0, .n = 64, .k = 128};
    const kt_device_job job = kt_device_job_of(&p, false);
    kt_device_choice all[2048], back;
    char text[96];
    kt_err err;
    const int n = kt_device_choices_of(&job, 40, &kt_cuda_targets[0], all, 2048);

    for (int i = 0; i < n && i < 2048; i++) {
        kt_device_config_format(&all[i], text, sizeof text);
        cr_assert_eq(kt_device_choice_parse(all[i].kernel->name, text, &job, &back, &err), KT_OK,
                     "%s", err.message);
        cr_assert(kt_device_choice_equal(&all[i], &back), "%s", text);
    }
    cr_expect_eq(kt_device_choice_parse("gemm_decode", "warps=8", &job, &back, &err), KT_E_FORMAT);
    cr_expect_not_null(strstr(err.message, "lacks 'tiles'"), "%s", err.message);
    cr_expect_eq(kt_device_choice_parse("gemm_decode", "warps=8,tiles=3", &job, &back, &err),
                 KT_E_FORMAT);
    cr_expect_eq(kt_device_choice_parse("gemm_decode", "warps=8,bad=3", &job, &back, &err),
                 KT_E_FORMAT);
    cr_expect_eq(kt_device_choice_parse("gemm_decode", "format=2", &job, &back, &err), KT_E_FORMAT);
    cr_expect_eq(kt_device_choice_parse("nothing", "", &job, &back, &err), KT_E_FORMAT);
}
