/* Dense products and experts of 1 to 8 rows, weights of every format, under the emulator against
 * double precision.
 *
 * Bounds: activations are rounded to bfloat16 in the reference too; weights that are scaled before
 * they are multiplied lose 2^-8 of themselves, and every sum over k at most 2 (k + 8) u S with
 * S = sum |a w| (u = 2^-24). SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/gemm_calls.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/cuda/moe_calls.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"

static const double u32 = 0x1p-24;

static void *guarded(kt_guard *g, size_t bytes, unsigned char fill) {
    kt_err err;
    cr_assert_eq(kt_guard_create(bytes, 16, fill, g, &err), KT_OK, "%s", err.message);
    return g->data;
}

static const kt_cuda_kernel *find(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

static void launch(const kt_cuda_kernel *k, int entry, const void *call, int x, int y, int64_t size,
                   const kt_config *config, uint32_t seed) {
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = k->threads(config),
                         .shared_bytes = k->shared_bytes(config, size),
                         .constant = config->value};
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

/* A matrix as the format says and as the device has it. */
typedef struct weights {
    kt_gate_matrix plain;
    kt_guard records;
    double *row, *terms;
} weights;

static void make_weights(weights *w, kt_weight_format format, int64_t n, int64_t k, uint64_t seed) {
    size_t bytes;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create(format, n, k, seed, &w->plain, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_device_weights_bytes(format, n, k, &bytes, &err), KT_OK, "%s", err.message);
    guarded(&w->records, bytes, 0xff);
    cr_assert_eq(kt_device_weights_pack(&w->plain.matrix, 0, n, w->records.data, &err), KT_OK);
    w->row = malloc(2 * (size_t)k * sizeof *w->row);
    w->terms = w->row + k;
}

static void drop_weights(weights *w) {
    kt_gate_matrix_destroy(&w->plain);
    kt_guard_destroy(&w->records);
    free(w->row);
}

typedef struct dot {
    double value, bound;
} dot;

/* Row `row` times x, already rounded. */
static dot multiply(const weights *w, int64_t row, const double *x) {
    const kt_matrix *m = &w->plain.matrix;
    const kt_format *f = kt_format_find(m->format);
    const bool is_exact = kt_weight_spec_of((int)m->format).is_late || m->format == KT_W_BF16;
    double magnitude = 0, lost = 0;
    dot d = {0, 0};

    f->decode_row(m, row, w->row);
    memcpy(w->terms, w->row, (size_t)m->k * sizeof *w->row);
    if (f->terms_row) f->terms_row(m, row, w->terms);
    for (int64_t i = 0; i < m->k; i++) {
        d.value += w->row[i] * x[i];
        magnitude += fabs(w->row[i] * x[i]);
        if (!is_exact)
            lost += (fabs(w->row[i]) * 0x1p-8 + fabs(w->terms[i]) * 0x1p-23) * fabs(x[i]);
    }
    d.bound = lost + 2 * (double)(m->k + 8) * u32 * magnitude + 1e-37;
    return d;
}

static double rounded(float x) {
    return (double)kt_float_bits(kt_emulator_bf16(x) << 16);
}

static void fill(float *x, int64_t n, kt_rng *rng) {
    for (int64_t i = 0; i < n; i++) x[i] = kt_rng_normal(rng);
}

static int cut(int64_t n, int64_t by) {
    return (int)((n + by - 1) / by);
}

/* Sizes that the format can have, ragged where it allows. */
static int64_t legal(kt_weight_format format, int64_t k) {
    const int64_t block = kt_format_find(format)->block;
    return block > 32 ? (k + block - 1) / block * block : (k + 31) / 32 * 32;
}

/* ---- dense ---- */

typedef struct dense_case {
    int rows, n, k, heads;
    bool accumulate, gathers;
} dense_case;

static void expect_dense(const dense_case *c, const weights *w, const kt_gemm_decode *call,
                         const float *before, const char *what) {
    double *x = malloc((size_t)c->k * sizeof *x);

    for (int h = 0; h < c->heads; h++)
        for (int r = 0; r < c->rows; r++) {
            const int from = call->x_row ? call->x_row[r] : r;
            for (int i = 0; i < c->k; i++)
                x[i] = rounded(call->x[h * call->x_head + from * call->ldx + i]);
            for (int j = 0; j < c->n; j++) {
                const int64_t at = h * call->y_head + r * call->ldy + j;
                const double was = c->accumulate ? (double)before[at] : 0;
                const dot d = multiply(w, h * c->n + j, x);
                const double got = (double)call->y[at], want = was + d.value;
                cr_assert(fabs(got - want) <= d.bound + 4 * u32 * (fabs(want) + fabs(was)),
                          "%s: head %d, row %d, output %d: %g, expected %g +- %g", what, h, r, j,
                          got, want, d.bound);
            }
        }
    free(x);
}

static void check_dense(const dense_case *c, kt_weight_format format, int warps, int tiles,
                        uint32_t seed) {
    static const int32_t gather[8] = {3, 1, 0, 2, 7, 5, 6, 4};
    const kt_cuda_kernel *k = find("gemm_decode");
    const kt_config config = {{warps, tiles, (int32_t)format}};
    const int ldx = c->k * c->heads + 4, ldy = c->n * c->heads + 3, n_x = c->gathers ? 8 : c->rows;
    kt_guard x, y;
    kt_rng rng;
    weights w;
    float *before = malloc((size_t)(c->rows * ldy) * sizeof *before);
    char what[128];
    kt_gemm_decode call;

    kt_rng_seed(&rng, seed);
    make_weights(&w, format, (int64_t)c->n * c->heads, c->k, seed);
    fill(guarded(&x, (size_t)(n_x * ldx) * sizeof(float), 0), n_x * ldx, &rng);
    fill(guarded(&y, (size_t)(c->rows * ldy) * sizeof(float), 0), c->rows * ldy, &rng);
    memcpy(before, y.data, (size_t)(c->rows * ldy) * sizeof *before);
    call = (kt_gemm_decode){.x = x.data,
                            .x_row = c->gathers ? gather : NULL,
                            .w = w.records.data,
                            .y = y.data,
                            .ldx = ldx,
                            .ldy = ldy,
                            .w_head = c->n * (int64_t)kt_device_row_bytes(format, c->k),
                            .x_head = c->k,
                            .y_head = c->n,
                            .rows = c->rows,
                            .n = c->n,
                            .k = c->k,
                            .accumulate = c->accumulate};
    snprintf(what, sizeof what, "%s rows=%d n=%d k=%d warps=%d tiles=%d seed=%u",
             kt_weight_format_name(format), c->rows, c->n, c->k, warps, tiles, seed);
    launch(k, 0, &call, cut(c->n, 16 * tiles), c->heads, c->k, &config, seed);
    expect_dense(c, &w, &call, before, what);
    for (int r = 0; r < c->rows; r++) /* nothing behind a row's outputs */
        for (int i = c->n * c->heads; i < ldy; i++)
            cr_assert_eq(((float *)y.data)[r * ldy + i], before[r * ldy + i], "%s", what);
    kt_guard_destroy(&x), kt_guard_destroy(&y);
    drop_weights(&w);
    free(before);
}

Test(cuda_few, dense_products_of_every_format, .timeout = 120) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_weight_format f = kt_builtin_formats[i]->id;
        const int k = (int)legal(f, 288);
        const dense_case ragged = {3, 21, k, 1, false, false}, full = {8, 40, k, 2, true, true};
        if (kt_device_weight_format(f) != f) continue;
        check_dense(&ragged, f, 2, 1, (uint32_t)(2 * i + 1));
        check_dense(&full, f, 4, 2, (uint32_t)(2 * i + 2));
    }
}

Test(cuda_few, dense_products_of_any_size, .timeout = 120) {
    static const dense_case cases[] = {
        {1, 8, 32, 1, false, false}, {5, 17, 416, 1, true, false}, {7, 70, 160, 3, false, true}};
    static const int configs[][2] = {{1, 4}, {8, 1}, {16, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 3; j++) {
            check_dense(&cases[i], KT_W_BF16, configs[j][0], configs[j][1], (uint32_t)(i + 1));
            check_dense(&cases[i], KT_W_INT4_G32, configs[j][0], configs[j][1], (uint32_t)(i + 2));
        }
}

/* ---- experts ---- */

typedef struct expert_case {
    int tokens, slots, experts, n, k;
    bool absent, accumulate;
} expert_case;

typedef struct experts {
    expert_case c;
    weights gate, up, down;
    kt_guard x, expert, route, h, out;
} experts;

static void make_experts(experts *m, const expert_case *c, kt_weight_format format, uint32_t seed) {
    const int all = c->tokens * c->slots;
    int32_t *expert = guarded(&m->expert, (size_t)all * sizeof *expert, 0);
    float *route = guarded(&m->route, (size_t)all * sizeof *route, 0);
    kt_rng rng;

    m->c = *c;
    kt_rng_seed(&rng, seed);
    make_weights(&m->gate, format, (int64_t)c->experts * c->n, c->k, seed);
    make_weights(&m->up, format, (int64_t)c->experts * c->n, c->k, seed + 1);
    make_weights(&m->down, format, (int64_t)c->experts * c->k, c->n, seed + 2);
    fill(guarded(&m->x, (size_t)(c->tokens * c->k) * sizeof(float), 0), c->tokens * c->k, &rng);
    fill(guarded(&m->out, (size_t)(c->tokens * c->k) * sizeof(float), 0), c->tokens * c->k, &rng);
    guarded(&m->h, (size_t)(all * c->n) * 2, 0xff);
    for (int i = 0; i < all; i++) {
        if (i % c->slots == 0) expert[i] = (int32_t)kt_rng_below(&rng, (uint32_t)c->experts);
        if (i % c->slots > 0) expert[i] = (expert[i - 1] + 1) % c->experts;
        route[i] = kt_rng_uniform(&rng, 0.05f, 1);
    }
    for (int i = 0; c->absent && i < all; i++)
        if (kt_rng_below(&rng, 3) == 0) expert[i] = -1;
}

static void drop_experts(experts *m) {
    kt_guard *all[] = {&m->x, &m->expert, &m->route, &m->h, &m->out};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_guard_destroy(all[i]);
    drop_weights(&m->gate), drop_weights(&m->up), drop_weights(&m->down);
}

/* The kernel's own h, with its bound checked, goes on into down. */
static void expect_h(const experts *m, const char *what) {
    const expert_case *c = &m->c;
    double *x = malloc((size_t)c->k * sizeof *x);

    for (int slot = 0; slot < c->tokens * c->slots; slot++) {
        const int64_t expert = ((const int32_t *)m->expert.data)[slot];
        for (int i = 0; i < c->k; i++)
            x[i] = rounded(((const float *)m->x.data)[slot / c->slots * c->k + i]);
        for (int j = 0; expert >= 0 && j < c->n; j++) {
            const dot g = multiply(&m->gate, expert * c->n + j, x);
            const dot u = multiply(&m->up, expert * c->n + j, x);
            const double silu = g.value / (1 + exp(-g.value)), want = silu * u.value;
            const double bound = 1.1 * g.bound * (fabs(u.value) + u.bound) + fabs(silu) * u.bound +
                                 fabs(want) * (0x1p-8 + 0x1p-19) + 1e-37;
            const uint16_t bits = ((const uint16_t *)m->h.data)[slot * c->n + j];
            const double got = (double)kt_float_bits((uint32_t)bits << 16);
            cr_assert(fabs(got - want) <= bound,
                      "%s: h of slot %d, column %d: %g, expected %g +- %g", what, slot, j, got,
                      want, bound);
        }
    }
    free(x);
}

static void expect_out(const experts *m, const float *before, const char *what) {
    const expert_case *c = &m->c;
    double *h = malloc((size_t)(c->slots * c->n) * sizeof *h);

    for (int t = 0; t < c->tokens; t++) {
        for (int i = 0; i < c->slots * c->n; i++) {
            const uint16_t bits = ((const uint16_t *)m->h.data)[t * c->slots * c->n + i];
            h[i] = (double)kt_float_bits((uint32_t)bits << 16);
        }
        for (int j = 0; j < c->k; j++) {
            double want = c->accumulate ? (double)before[t * c->k + j] : 0;
            double bound = 2 * u32 * fabs(want) + 1e-37;
            const double got = (double)((const float *)m->out.data)[t * c->k + j];
            for (int s = 0; s < c->slots; s++) {
                const int64_t expert = ((const int32_t *)m->expert.data)[t * c->slots + s];
                const double route = (double)((const float *)m->route.data)[t * c->slots + s];
                dot d;
                if (expert < 0) continue;
                d = multiply(&m->down, expert * c->k + j, h + s * c->n);
                want += route * d.value;
                bound += route * (d.bound + 64 * u32 * fabs(d.value));
            }
            cr_assert(fabs(got - want) <= bound + 8 * u32 * fabs(want),
                      "%s: token %d, column %d: %g, expected %g +- %g", what, t, j, got, want,
                      bound);
        }
    }
    free(h);
}

static void check_experts(const expert_case *c, kt_weight_format format, int warps, int tiles,
                          uint32_t seed) {
    const kt_cuda_kernel *k = find("moe_decode");
    const kt_config config = {{warps, tiles, (int32_t)format}};
    const int all = c->tokens * c->slots;
    float *before = malloc((size_t)(c->tokens * c->k) * sizeof *before);
    kt_moe_decode call;
    char what[128];
    experts m;

    make_experts(&m, c, format, seed);
    memcpy(before, m.out.data, (size_t)(c->tokens * c->k) * sizeof *before);
    call = (kt_moe_decode){.x = m.x.data,
                           .expert = m.expert.data,
                           .route = m.route.data,
                           .gate = m.gate.records.data,
                           .up = m.up.records.data,
                           .down = m.down.records.data,
                           .h = m.h.data,
                           .out = m.out.data,
                           .ldx = c->k,
                           .ldo = c->k,
                           .gate_bytes = c->n * (int64_t)kt_device_row_bytes(format, c->k),
                           .down_bytes = c->k * (int64_t)kt_device_row_bytes(format, c->n),
                           .tokens = c->tokens,
                           .slots = c->slots,
                           .n = c->n,
                           .k = c->k,
                           .accumulate = c->accumulate};
    snprintf(what, sizeof what, "%s tokens=%d n=%d k=%d warps=%d tiles=%d seed=%u",
             kt_weight_format_name(format), c->tokens, c->n, c->k, warps, tiles, seed);
    launch(k, 0, &call, cut(c->n, 16 * tiles), all, all, &config, seed);
    expect_h(&m, what);
    launch(k, 1, &call, cut(c->k, 16 * tiles), 1, all, &config, seed + 1);
    expect_out(&m, before, what);
    drop_experts(&m);
    free(before);
}

Test(cuda_few, experts_of_every_format, .timeout = 120) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_weight_format f = kt_builtin_formats[i]->id;
        const expert_case c = {2, 2, 3, (int)legal(f, 32), (int)legal(f, 96), false, i % 2};
        if (kt_device_weight_format(f) == f) check_experts(&c, f, 2, 1, (uint32_t)(3 * i + 1));
    }
}

Test(cuda_few, experts_of_any_size_and_share, .timeout = 120) {
    static const expert_case cases[] = {{1, 2, 3, 32, 64, false, false},
                                        {3, 4, 5, 96, 160, true, true},
                                        {8, 3, 4, 160, 32, true, false},
                                        {5, 1, 2, 32, 288, false, true}};
    static const int configs[][2] = {{1, 1}, {4, 2}, {8, 1}, {2, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 4; j++)
            check_experts(&cases[i], j % 2 ? KT_W_BF16 : KT_W_INT4_G32, configs[j][0],
                          configs[j][1], (uint32_t)(i * 4 + (unsigned)j + 1));
}
