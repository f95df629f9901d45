/* Experts of many tokens, weights of bfloat16, for GPUs: by products of warps and of warpgroups,
 * under the emulator, against double precision.
 *
 * Bounds: products of bfloat16 are exact in float, so a sum over k loses at most 2 k u S with
 * S = sum |a w| (u = 2^-24). SwiGLU's exponential is good to 2^-20, h is rounded to bfloat16.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/cuda/moe_calls.h"
#include "tests/support/dev_ending.h"

typedef struct cuda_case {
    int tokens, slots, experts, n, k;
    bool absent; /* some slots are another device's */
} cuda_case;

static const cuda_case cases[] = {{1, 2, 3, 32, 64, false},
                                  {3, 4, 5, 96, 160, true},
                                  {2, 1, 2, 64, 320, false},
                                  {5, 3, 4, 160, 96, true},
                                  {21, 2, 2, 32, 64, false}};

static const double u32 = 0x1p-24;

/* Inputs in memory that ends at a page that cannot be read. */
typedef struct model {
    cuda_case c;
    kt_guard x, gate, up, down, expert, route, h;
    double *h_want, *h_bound; /* [tokens * slots * n] */
    kt_test_ending ending;
} model;

static void *guarded(kt_guard *g, size_t bytes, unsigned char fill) {
    kt_err err;
    cr_assert_eq(kt_guard_create(bytes, 16, fill, g, &err), KT_OK, "%s", err.message);
    return g->data;
}

static double bf16(uint16_t bits) {
    return (double)kt_float_bits((uint32_t)bits << 16);
}

static void fill_bf16(kt_guard *g, int64_t n, float scale, kt_rng *rng) {
    uint16_t *x = guarded(g, (size_t)n * 2, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (uint16_t)kt_emulator_bf16(scale * kt_rng_normal(rng));
}

static void make(model *m, const cuda_case *c, uint64_t seed) {
    const int64_t weights = (int64_t)c->experts * c->n * c->k;
    int32_t *expert;
    float *route;
    kt_rng rng;

    *m = (model){.c = *c};
    kt_rng_seed(&rng, seed);
    kt_test_ending_make(&m->ending, seed, c->experts, c->n, c->k);
    fill_bf16(&m->x, (int64_t)c->tokens * c->k, 1, &rng);
    fill_bf16(&m->gate, weights, 0.1f, &rng);
    fill_bf16(&m->up, weights, 0.1f, &rng);
    fill_bf16(&m->down, weights, 0.1f, &rng);
    expert = guarded(&m->expert, (size_t)(c->tokens * c->slots) * sizeof *expert, 0);
    route = guarded(&m->route, (size_t)(c->tokens * c->slots) * sizeof *route, 0);
    for (int i = 0; i < c->tokens * c->slots; i++) {
        expert[i] = (int32_t)((unsigned)(i % c->slots) + kt_rng_below(&rng, 2)) % c->experts;
        if (c->absent && kt_rng_below(&rng, 3) == 0) expert[i] = -1;
        route[i] = kt_rng_uniform(&rng, 0.05f, 1);
    }
    guarded(&m->h, (size_t)(c->tokens * c->slots * c->n) * 2, 0xff);
    m->h_want = calloc((size_t)(c->tokens * c->slots * c->n), sizeof(double));
    m->h_bound = calloc((size_t)(c->tokens * c->slots * c->n), sizeof(double));
}

static void drop(model *m) {
    kt_guard *all[] = {&m->x, &m->gate, &m->up, &m->down, &m->expert, &m->route, &m->h};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_guard_destroy(all[i]);
    free(m->h_want), free(m->h_bound);
    kt_test_ending_drop(&m->ending);
}

typedef struct dot {
    double value, bound;
} dot;

static dot multiply(const kt_guard *w, int64_t row, int64_t k, const double *x) {
    const uint16_t *weights = (const uint16_t *)w->data + row * k;
    double magnitude = 0;
    dot d = {0, 0};

    for (int64_t i = 0; i < k; i++) {
        d.value += bf16(weights[i]) * x[i];
        magnitude += fabs(bf16(weights[i]) * x[i]);
    }
    d.bound = 2 * (double)(k + 8) * u32 * magnitude;
    return d;
}

static void reference_h(model *m, int slot) {
    const cuda_case *c = &m->c;
    const int64_t expert = ((const int32_t *)m->expert.data)[slot];
    double *x = calloc((size_t)c->k, sizeof *x);

    for (int i = 0; i < c->k; i++)
        x[i] = bf16(((const uint16_t *)m->x.data)[(int64_t)(slot / c->slots) * c->k + i]);
    for (int j = 0; expert >= 0 && j < c->n; j++) {
        const dot g = multiply(&m->gate, expert * c->n + j, c->k, x);
        const dot u = multiply(&m->up, expert * c->n + j, c->k, x);
        m->h_want[slot * c->n + j] =
            kt_test_ending_h(&m->ending, expert, j, g.value, g.bound, u.value, u.bound,
                             &m->h_bound[slot * c->n + j]);
    }
    free(x);
}

/* `row` is where a token's slot lies in h. */
static void expect_h(const model *m, const char *what, const int32_t *row) {
    const cuda_case *c = &m->c;

    for (int slot = 0; slot < c->tokens * c->slots; slot++)
        for (int i = 0; ((const int32_t *)m->expert.data)[slot] >= 0 && i < c->n; i++) {
            const double got = bf16(((const uint16_t *)m->h.data)[(int64_t)row[slot] * c->n + i]);
            const int at = slot * c->n + i;
            cr_assert(fabs(got - m->h_want[at]) <= m->h_bound[at],
                      "%s: h of slot %d, column %d: %g, expected %g +- %g", what, slot, i, got,
                      m->h_want[at], m->h_bound[at]);
        }
}

/* The kernel's own h, with its bound checked, goes on into down, so that only down's sums count. */
static void expect_y(const model *m, const char *what, const int32_t *row, const float *y) {
    const cuda_case *c = &m->c;
    double *h = calloc((size_t)c->n, sizeof *h);

    for (int slot = 0; slot < c->tokens * c->slots; slot++) {
        const int64_t expert = ((const int32_t *)m->expert.data)[slot];
        const double route = (double)((const float *)m->route.data)[slot];
        if (expert < 0) continue;
        for (int i = 0; i < c->n; i++)
            h[i] = bf16(((const uint16_t *)m->h.data)[(int64_t)row[slot] * c->n + i]);
        for (int j = 0; j < c->k; j++) {
            const dot d = multiply(&m->down, expert * c->k + j, c->n, h);
            const double sum = d.value + kt_test_ending_down(&m->ending, expert, j);
            const double want = route * sum, got = (double)y[(int64_t)row[slot] * c->k + j];
            const double bound = route * (d.bound + 4 * u32 * (fabs(d.value) + fabs(sum))) + 1e-38;
            cr_assert(fabs(got - want) <= bound, "%s: slot %d, column %d: %g, expected %g +- %g",
                      what, slot, j, got, want, bound);
        }
    }
    free(h);
}

static void launch(const kt_cuda_kernel *k, int entry, const void *call, int x, int y, int64_t row,
                   const kt_config *config, uint32_t seed) {
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = kt_cuda_threads(k, config, entry),
                         .shared_bytes = k->shared_bytes(config, row),
                         .constant = config->value};
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

static int cut(int64_t n, int64_t by) {
    return (int)((n + by - 1) / by);
}

static const kt_cuda_kernel *find(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

/* Sorted rows by expert, and tiles of at most bm of them. */
typedef struct plan {
    int32_t row_token[160], row_of[160];
    float route[160];
    kt_moe_tile tile[160];
    int n_tiles, n_rows;
} plan;

static void sort_rows(const model *m, int bm, plan *p) {
    const cuda_case *c = &m->c;
    const int32_t *expert = m->expert.data;

    *p = (plan){.n_tiles = 0};
    for (int i = 0; i < c->tokens * c->slots; i++) p->row_of[i] = -1;
    for (int e = 0; e < c->experts; e++) {
        const int first = p->n_rows;
        for (int i = 0; i < c->tokens * c->slots; i++) {
            if (expert[i] != e) continue;
            p->row_token[p->n_rows] = i / c->slots;
            p->route[p->n_rows] = ((const float *)m->route.data)[i];
            p->row_of[i] = p->n_rows++;
        }
        for (int at = first; at < p->n_rows; at += bm)
            p->tile[p->n_tiles++] = (kt_moe_tile){e, at, p->n_rows - at < bm ? p->n_rows - at : bm};
    }
}

/* `most` rows of a tile: fewer than bm, so that rows which do not exist are there too. */
static void check_tiles(const char *kernel, const cuda_case *c, const kt_config *config, int most,
                        uint32_t seed) {
    const kt_cuda_kernel *k = find(kernel);
    const int bn = config->value[1];
    kt_moe_tiles call;
    char what[128];
    kt_guard y;
    plan p;
    model m;

    make(&m, c, seed);
    sort_rows(&m, most, &p);
    guarded(&y, (size_t)p.n_rows * (size_t)c->k * sizeof(float), 0xff);
    call = (kt_moe_tiles){.x = m.x.data,
                          .row_token = p.row_token,
                          .route = p.route,
                          .tile = p.tile,
                          .gate = m.gate.data,
                          .up = m.up.data,
                          .down = m.down.data,
                          .h = m.h.data,
                          .y = y.data,
                          .gate_bytes = (int64_t)c->n * c->k * 2,
                          .down_bytes = (int64_t)c->n * c->k * 2,
                          .n = c->n,
                          .k = c->k,
                          .ending = m.ending.ending};
    snprintf(what, sizeof what, "%s: n=%d k=%d bm=%d bn=%d, %d, %d, %d, seed=%u", kernel, c->n,
             c->k, (int)config->value[0], bn, (int)config->value[2], (int)config->value[3],
             (int)config->value[4], seed);
    launch(k, 0, &call, cut(c->n, bn / 2), p.n_tiles, c->k, config, seed);
    for (int slot = 0; slot < c->tokens * c->slots; slot++) reference_h(&m, slot);
    expect_h(&m, what, p.row_of);
    launch(k, 1, &call, cut(c->k, bn), p.n_tiles, c->n, config, seed);
    expect_y(&m, what, p.row_of, y.data);
    kt_guard_destroy(&y);
    drop(&m);
}

Test(cuda_moe, bfloat16_of_many_tokens, .timeout = 120) {
    static const int configs[][6] = {{16, 64, 1, 1, 2, KT_W_BF16},
                                     {32, 64, 2, 2, 3, KT_W_BF16},
                                     {64, 128, 2, 2, 3, KT_W_BF16},
                                     {16, 128, 1, 4, 4, KT_W_BF16}};
    const kt_cuda_kernel *k = find("moe_tiles");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 4; j++) {
            kt_config config = {{0}};
            memcpy(config.value, configs[j], sizeof configs[j]);
            cr_assert_null(k->refuse(&config, &kt_cuda_targets[0]));
            check_tiles("moe_tiles", &cases[i], &config, config.value[0] / 2,
                        (uint32_t)(i * 4 + (unsigned)j + 1));
        }
}

Test(cuda_moe, bfloat16_by_warpgroups, .timeout = 120) {
    static const int configs[][3] = {{64, 64, 3},  {128, 128, 3}, {64, 128, 4},
                                     {64, 256, 3}, {128, 256, 4}, {256, 128, 4}};
    /* All warpgroups have rows: of two, and of four. */
    static const cuda_case full = {75, 2, 2, 32, 96, false}, all = {150, 1, 1, 48, 96, false};
    static const cuda_case *const of[] = {&cases[0], &cases[1], &cases[2], &cases[3], &full, &all};
    const kt_cuda_kernel *k = find("moe_wgmma");

    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        kt_config config = {{0}};
        memcpy(config.value, configs[i], sizeof configs[0]);
        config.value[3] = KT_W_BF16;
        cr_assert_null(k->refuse(&config, &kt_cuda_targets[5]));
        for (uint32_t seed = 1; seed <= 2; seed++) /* late and early */
            check_tiles("moe_wgmma", of[i], &config, config.value[0] - 3, 2 * (uint32_t)i + seed);
    }
    cr_expect_not_null(k->refuse(&(kt_config){{256, 256, 3, KT_W_BF16}}, &kt_cuda_targets[5]));
}

Test(cuda_moe, impossible_tiles_are_refused) {
    const kt_cuda_kernel *k = find("moe_tiles");
    const kt_cuda_target *ada = NULL;

    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, "89") == 0) ada = &kt_cuda_targets[i];
    cr_assert_not_null(ada);
    cr_expect_not_null(k->refuse(&(kt_config){{16, 64, 2, 2, 2, KT_W_BF16}}, ada));
    cr_expect_not_null(k->refuse(&(kt_config){{64, 64, 2, 4, 2, KT_W_BF16}}, ada));
    cr_expect_not_null(k->refuse(&(kt_config){{128, 256, 2, 2, 2, KT_W_BF16}}, ada));
    cr_expect_not_null(
        k->refuse(&(kt_config){{128, 256, 4, 4, 4, KT_W_BF16}}, ada)); /* 196 KiB of 99 */
    cr_expect_null(k->refuse(&(kt_config){{128, 128, 2, 4, 2, KT_W_BF16}}, ada));
}
