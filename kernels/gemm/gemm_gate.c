/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm/gemm_gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_ref.h"

#define CANARY 0xA5 /* as f32 bytes: a number of magnitude 1e-16, unlike any output */
#define GAP 3       /* floats between rows of c: ldc = n + GAP */

struct kt_gemm_case {
    kt_problem problem;
    uint64_t seed;
    kt_gate_matrix w;
    kt_gate_acts a;
    kt_ref_sum *want;             /* [m, n] */
    const kt_variant *packed_for; /* whose bytes are in packed */
    kt_guard packed;
};

kt_status kt_gemm_case_create(const kt_problem *q, uint64_t seed, kt_gemm_case **out, kt_err *err) {
    kt_gemm_case *c = calloc(1, sizeof *c);
    double *w_row = NULL;
    kt_status st;

    *out = NULL;
    if (!c) return kt_fail(err, KT_E_NOMEM, "gemm gate: no memory");
    c->problem = *q;
    c->seed = seed;
    st = kt_gate_matrix_create(q->weights, q->n, q->k, seed, &c->w, err);
    if (st == KT_OK) st = kt_gate_acts_create(q->acts, q->m, q->k, seed, &c->a, err);
    if (st != KT_OK) goto done;
    kt_gate_matrix_spoil(&c->w, seed);
    c->want = malloc(sizeof *c->want * (size_t)(q->m * q->n) + 1);
    w_row = malloc(sizeof *w_row * (size_t)q->k);
    if (!c->want || !w_row) {
        st = kt_fail(err, KT_E_NOMEM, "gemm gate: no memory for the reference");
        goto done;
    }
    kt_gemm_ref(&c->w.matrix, c->a.decoded, q->m, w_row, c->want);
    *out = c;
    c = NULL;
done:
    free(w_row);
    kt_gemm_case_destroy(c);
    return st;
}

void kt_gemm_case_destroy(kt_gemm_case *c) {
    if (!c) return;
    kt_gate_matrix_destroy(&c->w);
    kt_gate_acts_destroy(&c->a);
    kt_guard_destroy(&c->packed);
    free(c->want);
    free(c);
}

/* The variant's bytes, and proof that pack() wrote exactly packed_bytes. */
static kt_status pack(kt_gemm_case *c, const kt_gate_run *run, kt_err *err) {
    const kt_variant *v = run->variant;
    size_t bytes = v->packed_bytes(run->problem);

    if (c->packed_for == v) return KT_OK;
    c->packed_for = NULL;
    kt_guard_destroy(&c->packed);
    KT_TRY(kt_guard_create(bytes, 64, CANARY, &c->packed, err));
    v->pack_gemm(run->problem, &c->w.matrix, c->packed.data);
    if (!kt_guard_intact(&c->packed))
        return kt_gate_refuse(run, err, "pack_gemm wrote outside its %zu bytes", bytes);
    c->packed_for = v;
    return KT_OK;
}

/* One call's surroundings: guarded output and scratch. */
typedef struct bench {
    const kt_gate_run *run;
    kt_gemm_case *inputs;
    kt_guard c, scratch;
    int64_t ldc;
} bench;

static kt_status bench_init(bench *b, const kt_gate_run *run, kt_gemm_case *inputs, kt_err *err) {
    const kt_problem *q = run->problem;
    size_t floats, scratch_bytes = 0;

    *b = (bench){.run = run, .inputs = inputs, .ldc = q->n + GAP};
    floats = q->m > 0 ? (size_t)((q->m - 1) * b->ldc + q->n) : 0;
    if (run->variant->workspace_bytes)
        scratch_bytes = run->variant->workspace_bytes(q, run->config);
    KT_TRY(kt_guard_create(floats * sizeof(float), 4, CANARY, &b->c, err));
    return kt_guard_create(scratch_bytes, 64, CANARY, &b->scratch, err);
}

static void bench_deinit(bench *b) {
    kt_guard_destroy(&b->c);
    kt_guard_destroy(&b->scratch);
}

/* Run rows [row, row + m) over panels [begin, end). call.problem carries no m: call.m is what counts,
 * as in serving, where one problem serves every batch. */
static void run_rows(const bench *b, int64_t row, int64_t m, int64_t begin, int64_t end,
                     int accumulate) {
    kt_problem q = *b->run->problem;
    const kt_gate_acts *a = &b->inputs->a;
    kt_gemm_call call = {.problem = &q,
                         .config = b->run->config,
                         .weights = b->inputs->packed.data,
                         .a = (const char *)a->rows.data + (size_t)row * a->stride,
                         .a_stride = a->stride,
                         .m = m,
                         .panel_begin = begin,
                         .panel_end = end,
                         .c = (float *)b->c.data + row * b->ldc,
                         .ldc = b->ldc,
                         .accumulate = accumulate,
                         .scratch = b->scratch.bytes ? b->scratch.data : NULL};
    q.m = 0;
    b->run->variant->gemm(&call);
}

/* Nothing but the outputs may change: the gaps between rows, and what lies around the buffers. */
static kt_status check_canaries(const bench *b, kt_err *err) {
    const kt_problem *q = b->run->problem;
    const unsigned char *bytes = b->c.data;

    for (int64_t i = 0; i + 1 < q->m; i++)
        for (size_t g = 0; g < GAP * sizeof(float); g++)
            if (bytes[(size_t)(i * b->ldc + q->n) * sizeof(float) + g] != CANARY)
                return kt_gate_refuse(b->run, err, "wrote past column n of row %lld", (long long)i);
    if (!kt_guard_intact(&b->c)) return kt_gate_refuse(b->run, err, "wrote outside c");
    if (!kt_guard_intact(&b->scratch)) return kt_gate_refuse(b->run, err, "wrote outside scratch");
    if (!kt_guard_intact(&b->inputs->a.rows) || !kt_guard_intact(&b->inputs->packed))
        return kt_gate_refuse(b->run, err, "wrote around an input");
    return KT_OK;
}

static kt_status check_values(const bench *b, int accumulated, kt_gate_sums *sums, kt_err *err) {
    const kt_problem *q = b->run->problem;

    for (int64_t i = 0; i < q->m; i++)
        for (int64_t j = 0; j < q->n; j++) {
            kt_ref_sum sum = b->inputs->want[i * q->n + j];
            double bound = kt_gemm_bound(q, b->run->variant->numerics, &sum);
            double got = ((const float *)b->c.data)[i * b->ldc + j];
            double old = accumulated ? (double)(float)(i - j) : 0;
            /* Adding to what was there: the old value joins the sum as one more term. */
            if (accumulated) bound += 1.01 * 0x1p-24 * (double)(q->k + 2) * fabs(old);
            if (accumulated) bound += 0x1p-23 * fabs(sum.value);
            KT_TRY(kt_gate_element(b->run, i, j, got, sum.value + old, bound, sums, err));
        }
    return KT_OK;
}

/* Are rows [row, row + m) of both outputs the same bits? */
static kt_status check_same(const bench *b, const bench *other, int64_t row, int64_t m,
                            const char *how, kt_err *err) {
    for (int64_t i = row; i < row + m; i++)
        for (int64_t j = 0; j < b->run->problem->n; j++) {
            const float *x = (const float *)b->c.data + i * b->ldc + j;
            const float *y = (const float *)other->c.data + i * b->ldc + j;
            if (!kt_gate_same(x, y))
                return kt_gate_refuse(b->run, err, "c[%lld, %lld] = %.9g, but %.9g %s",
                                      (long long)i, (long long)j, *x, *y, how);
        }
    return KT_OK;
}

static void preset(const bench *b) {
    for (int64_t i = 0; i < b->run->problem->m; i++)
        for (int64_t j = 0; j < b->run->problem->n; j++)
            ((float *)b->c.data)[i * b->ldc + j] = (float)(i - j);
}

/* First, middle and last row by themselves, when the variant takes single rows and promises their bits. */
static kt_status check_rows_alone(const bench *whole, const bench *part, int64_t panels,
                                  kt_err *err) {
    kt_problem one = *whole->run->problem;
    int64_t m = one.m, rows[3] = {0, m / 2, m - 1};

    one.m = 1;
    if (m < 2 || !kt_variant_is_stable(whole->run->variant) ||
        kt_gate_accepts(whole->run->variant, &one, whole->run->config, NULL) != KT_OK)
        return KT_OK;
    for (int i = 0; i < 3; i++) {
        run_rows(part, rows[i], 1, 0, panels, 0);
        KT_TRY(check_same(whole, part, rows[i], 1, "as a row alone", err));
    }
    return KT_OK;
}

static kt_status check_runs(const bench *whole, const bench *part, kt_gate_sums *sums,
                            kt_err *err) {
    int64_t m = whole->run->problem->m, panels = kt_p64_panels(whole->run->problem->n);

    run_rows(whole, 0, m, 0, panels, 0);
    KT_TRY(check_canaries(whole, err));
    KT_TRY(check_values(whole, 0, sums, err));
    for (int64_t p = panels - 1; p >= 0; p--) {
        run_rows(part, 0, m, p, p + 1, 0);
        KT_TRY(check_canaries(part, err));
    }
    KT_TRY(check_same(whole, part, 0, m, "by single panels", err));
    run_rows(part, 0, m, 0, panels / 2, 0);
    run_rows(part, 0, m, panels / 2, panels, 0);
    KT_TRY(check_same(whole, part, 0, m, "in halves", err));
    KT_TRY(check_rows_alone(whole, part, panels, err));
    preset(part);
    run_rows(part, 0, m, 0, panels, 1);
    KT_TRY(check_canaries(part, err));
    return check_values(part, 1, sums, err);
}

kt_status kt_gemm_case_check(kt_gemm_case *c, const kt_variant *v, const kt_config *config,
                             int64_t m, kt_gate_sums *sums, kt_err *err) {
    kt_gate_sums unused = {0};
    kt_problem q = c->problem;
    kt_gate_run run = {v, config, &q, c->seed, "c"};
    bench whole = {0}, part = {0};
    kt_status st;

    if (m < 0 || m > c->problem.m)
        return kt_fail(err, KT_E_INVALID, "gemm gate: %lld rows of a case of %lld", (long long)m,
                       (long long)c->problem.m);
    q.m = m;
    KT_TRY(kt_gate_accepts(v, &q, config, err));
    KT_TRY(pack(c, &run, err));
    st = bench_init(&whole, &run, c, err);
    if (st == KT_OK) st = bench_init(&part, &run, c, err);
    if (st == KT_OK) st = check_runs(&whole, &part, sums ? sums : &unused, err);
    bench_deinit(&whole);
    bench_deinit(&part);
    return st;
}

kt_status kt_gemm_case_rows(kt_gemm_case *c, const kt_variant *v, const kt_config *config,
                            int64_t m, float *out, kt_err *err) {
    kt_problem q = c->problem;
    kt_gate_run run = {v, config, &q, c->seed, "c"};
    bench b = {0};
    kt_status st;

    if (m < 0 || m > c->problem.m)
        return kt_fail(err, KT_E_INVALID, "gemm gate: %lld rows of a case of %lld", (long long)m,
                       (long long)c->problem.m);
    q.m = m;
    KT_TRY(kt_gate_accepts(v, &q, config, err));
    KT_TRY(pack(c, &run, err));
    st = bench_init(&b, &run, c, err);
    if (st == KT_OK) {
        run_rows(&b, 0, m, 0, kt_p64_panels(q.n), 0);
        for (int64_t i = 0; i < m; i++)
            memcpy(out + i * q.n, (const float *)b.c.data + i * b.ldc, (size_t)q.n * sizeof *out);
    }
    bench_deinit(&b);
    return st;
}

kt_status kt_gemm_gate(const kt_variant *v, const kt_config *config, const kt_problem *q,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    kt_gate_sums sums = {0};
    kt_gemm_case *c;
    kt_status st;

    KT_TRY(kt_gate_accepts(v, q, config, err));
    KT_TRY(kt_gemm_case_create(q, seed, &c, err));
    st = kt_gemm_case_check(c, v, config, q->m, &sums, err);
    kt_gemm_case_destroy(c);
    kt_gate_finish(&sums, report);
    return st;
}
