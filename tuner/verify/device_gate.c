/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/verify/device_gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "dispatch/device/device_experts.h"
#include "dispatch/device/device_gemm.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/formats/format.h"
#include "tuner/measure/synthetic.h"

enum { EXPERTS = 4, SLOTS = 2, UNUSED = 3, MOST_ROWS = 37, OUTPUTS = 96, INPUTS = 160 };

/* One expert matrix after the other; of a product gate alone. */
typedef struct gate_job {
    kt_device *d;
    const kt_device_choice *choice;
    kt_device_job job;
    int64_t n, k;
    kt_synthetic gate, up, down;
    double *gate_w, *up_w, *down_w; /* what they say, row by row */
    void *on_device[8];
    int n_on_device;
    float *x, *out, route[MOST_ROWS * SLOTS];
    int32_t id[MOST_ROWS * SLOTS];
    double *h, *want;
} gate_job;

static int64_t legal(kt_weight_format format, int64_t size) {
    const int64_t block = kt_format_find(format)->block, of = block > 32 ? block : 32;
    return (size + of - 1) / of * of;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool is_gemm(const gate_job *g) {
    return g->job.op == KT_OP_GEMM;
}

static kt_status put(gate_job *g, const void *data, size_t bytes, void **out, kt_err *err) {
    KT_TRY(kt_device_alloc(g->d, bytes, out, err));
    g->on_device[g->n_on_device++] = *out;
    if (!data) return kt_device_sync(g->d, NULL, err);
    KT_TRY(kt_device_upload(g->d, KT_STREAM_MAIN, *out, data, bytes, err));
    return kt_device_sync(g->d, NULL, err);
}

static kt_status put_weights(gate_job *g, kt_weight_format format, int64_t n, int64_t k,
                             uint64_t seed, kt_synthetic *of, kt_device_matrices *out,
                             kt_err *err) {
    const int64_t count = is_gemm(g) ? 1 : EXPERTS;
    uint8_t *records;
    size_t bytes;
    void *at = NULL;
    kt_status st;

    KT_TRY(kt_device_weights_bytes(format, n * count, k, &bytes, err));
    KT_TRY(kt_synthetic_create(format, n * count, k, seed, of, err));
    records = aligned_alloc(64, (bytes + 63) / 64 * 64);
    st = records ? kt_device_weights_pack(&of->matrix, 0, n * count, records, err)
                 : kt_fail(err, KT_E_NOMEM, "no memory for the weights of a gate");
    if (st == KT_OK) st = put(g, records, bytes, &at, err);
    free(records);
    *out = (kt_device_matrices){
        .at = at, .bytes = bytes / (size_t)count, .format = format, .n = n, .k = k, .count = count};
    return st;
}

/* ---- the reference ---- */

/* All rows, once: every output of every row of a call meets them again. */
static kt_status decode(const kt_synthetic *of, double **out, kt_err *err) {
    const kt_matrix *m = &of->matrix;

    *out = malloc((size_t)(m->n * m->k) * sizeof **out);
    if (!*out) return kt_fail(err, KT_E_NOMEM, "no memory for the reference of a gate");
    for (int64_t r = 0; r < m->n; r++) kt_format_find(m->format)->decode_row(m, r, *out + r * m->k);
    return KT_OK;
}

static double product(const double *w, int64_t row, int64_t k, const double *x) {
    double sum = 0;

    for (int64_t i = 0; i < k; i++) sum += w[row * k + i] * x[i];
    return sum;
}

static void expect_expert(gate_job *g, int64_t expert, double route, const double *x,
                          double *want) {
    for (int64_t i = 0; i < g->n; i++) {
        const double gate = product(g->gate_w, expert * g->n + i, g->k, x);
        g->h[i] = gate / (1 + exp(-gate)) * product(g->up_w, expert * g->n + i, g->k, x);
    }
    for (int64_t i = 0; i < g->k; i++)
        want[i] += route * product(g->down_w, expert * g->k + i, g->n, g->h);
}

static void expect(gate_job *g, int64_t rows) {
    const int64_t outputs = is_gemm(g) ? g->n : g->k;
    double *x = g->h + g->n;

    memset(g->want, 0, (size_t)(rows * outputs) * sizeof *g->want);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < g->k; i++) x[i] = (double)g->x[r * g->k + i];
        for (int64_t i = 0; i < g->n && is_gemm(g); i++)
            g->want[r * outputs + i] = product(g->gate_w, i, g->k, x);
        for (int s = 0; s < SLOTS && !is_gemm(g); s++)
            if (g->id[r * SLOTS + s] >= 0)
                expect_expert(g, g->id[r * SLOTS + s], (double)g->route[r * SLOTS + s], x,
                              g->want + r * outputs);
    }
}

static double error_of(const gate_job *g, int64_t rows) {
    const int64_t count = rows * (is_gemm(g) ? g->n : g->k);
    double error = 0, all = 0;

    for (int64_t i = 0; i < count; i++) {
        const double off = (double)g->out[i] - g->want[i];
        error += off * off;
        all += g->want[i] * g->want[i];
    }
    return all > 0 ? sqrt(error / all) : sqrt(error);
}

/* ---- running ---- */

/* Experts 0 to 2, some slots of another device: no row has expert UNUSED. */
static void route_rows(gate_job *g, uint64_t seed) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < MOST_ROWS * SLOTS; i++) {
        g->route[i] = kt_rng_uniform(&rng, 0.1f, 1);
        g->id[i] = i % SLOTS && g->id[i - 1] >= 0 ? (g->id[i - 1] + 1) % UNUSED
                                                  : (int32_t)kt_rng_below(&rng, UNUSED);
        if (i % 7 == 3) g->id[i] = -1;
    }
}

typedef struct launcher {
    kt_device_gemm gemm;
    kt_device_experts experts;
    void *x, *y, *scratch, *id, *route;
} launcher;

static kt_status prepare(gate_job *g, launcher *l, uint64_t seed, kt_err *err) {
    const kt_device_ladder ladder = {.n = 1, .choice = {*g->choice}, .most = {INT64_MAX}};
    const size_t row = (size_t)larger(g->n, g->k) * sizeof(float);
    kt_device_experts *e = &l->experts;
    kt_device_matrices w;
    size_t scratch;

    KT_TRY(put(g, g->x, (size_t)(MOST_ROWS * g->k) * sizeof(float), &l->x, err));
    KT_TRY(put(g, NULL, MOST_ROWS * row, &l->y, err));
    KT_TRY(put_weights(g, g->job.weights, g->n, g->k, seed, &g->gate, &w, err));
    KT_TRY(decode(&g->gate, &g->gate_w, err));
    if (is_gemm(g)) {
        KT_TRY(kt_device_gemm_make(g->d, &w, &ladder, MOST_ROWS, &l->gemm, err));
        scratch = kt_device_gemm_scratch(&l->gemm, MOST_ROWS);
    } else {
        *e = (kt_device_experts){.gate = w, .slots = SLOTS};
        KT_TRY(put_weights(g, g->job.weights, g->n, g->k, seed + 1, &g->up, &e->up, err));
        KT_TRY(put_weights(g, g->job.down, g->k, g->n, seed + 2, &g->down, &e->down, err));
        KT_TRY(decode(&g->up, &g->up_w, err));
        KT_TRY(decode(&g->down, &g->down_w, err));
        KT_TRY(put(g, g->id, sizeof g->id, &l->id, err));
        KT_TRY(put(g, g->route, sizeof g->route, &l->route, err));
        KT_TRY(kt_device_experts_make(g->d, &ladder, MOST_ROWS, e, err));
        scratch = kt_device_experts_scratch(e);
    }
    return put(g, NULL, scratch > 0 ? scratch : 1, &l->scratch, err);
}

static kt_status run_rows(gate_job *g, const launcher *l, int64_t rows, kt_err *err) {
    const size_t bytes = (size_t)(rows * (is_gemm(g) ? g->n : g->k)) * sizeof(float);
    const kt_device_gemm_call dense = {
        .x = l->x, .y = l->y, .ldx = g->k, .ldy = g->n, .rows = rows, .scratch = l->scratch};
    const kt_device_experts_call layer = {.in = {l->x, g->k, g->k},
                                          .out = {l->y, g->k, g->k},
                                          .id = l->id,
                                          .route = l->route,
                                          .rows = rows,
                                          .scratch = l->scratch};

    memset(g->out, 0xff, bytes);
    KT_TRY(kt_device_upload(g->d, KT_STREAM_MAIN, l->y, g->out, bytes, err));
    KT_TRY(is_gemm(g) ? kt_device_gemm_put(g->d, &l->gemm, &dense, err)
                      : kt_device_experts_put(g->d, &l->experts, &layer, err));
    KT_TRY(kt_device_download(g->d, KT_STREAM_MAIN, g->out, l->y, bytes, err));
    return kt_device_sync(g->d, NULL, err);
}

static double limit_of(const kt_cuda_kernel *k) {
    return k->rows == KT_CUDA_ROWS_BF16 ? 0.01 : k->rows == KT_CUDA_ROWS_INT8 ? 0.03 : 0.08;
}

static kt_status check(gate_job *g, int64_t rows, uint64_t seed, double *worst, kt_err *err) {
    static const int64_t few[] = {1, 3, 8}, many[] = {9, 17, MOST_ROWS};
    launcher l = {.x = NULL};

    KT_TRY(prepare(g, &l, seed, err));
    for (int i = 0; i < 3; i++) {
        const int64_t m = rows <= KT_DEVICE_FEW ? few[i] : many[i];
        double error;
        KT_TRY(run_rows(g, &l, m, err));
        expect(g, m);
        error = error_of(g, m);
        if (!(error <= limit_of(g->choice->kernel)))
            return kt_fail(err, KT_E_MISMATCH,
                           "%s: %lld rows of n=%lld k=%lld are off by %.3g, expected at most %.2g",
                           g->choice->kernel->name, (long long)m, (long long)g->n, (long long)g->k,
                           error, limit_of(g->choice->kernel));
        if (error > *worst) *worst = error;
    }
    return KT_OK;
}

kt_status kt_device_gate(kt_device *d, const kt_device_job *job, const kt_device_choice *choice,
                         int64_t rows, uint64_t seed, double *error, kt_err *err) {
    gate_job g = {.d = d, .choice = choice, .job = *job};
    kt_status st;
    int64_t wide;

    *error = 0;
    g.n = larger(legal(job->weights, OUTPUTS), legal(job->down, OUTPUTS));
    g.k = legal(job->weights, INPUTS);
    wide = larger(g.n, g.k);
    g.x = malloc((size_t)(MOST_ROWS * g.k) * sizeof *g.x);
    g.out = malloc((size_t)(MOST_ROWS * wide) * sizeof *g.out);
    g.want = malloc((size_t)(MOST_ROWS * wide) * sizeof *g.want);
    g.h = malloc((size_t)(g.n + g.k) * sizeof *g.h);
    if (g.x && g.out && g.want && g.h) {
        kt_synthetic_rows(g.x, (size_t)(MOST_ROWS * g.k), seed + 7);
        route_rows(&g, seed + 8);
        st = check(&g, rows, seed, error, err);
    } else {
        st = kt_fail(err, KT_E_NOMEM, "no memory for the gate of %s", choice->kernel->name);
    }
    for (int i = 0; i < g.n_on_device; i++) kt_device_free(d, g.on_device[i]);
    kt_synthetic_destroy(&g.gate), kt_synthetic_destroy(&g.up), kt_synthetic_destroy(&g.down);
    free(g.gate_w), free(g.up_w), free(g.down_w);
    free(g.x), free(g.out), free(g.want), free(g.h);
    return st;
}
