/* Expert kernels for GPUs, under the emulator, against double precision.
 *
 * Bounds: products of bfloat16 are exact in float, so a sum over k loses at most 2 k u S with
 * S = sum |a w| (u = 2^-24). INT4 adds 128 + 8 to every weight before it is taken off again: there
 * S is formed with |w| + 264. SwiGLU's exponential is good to 2^-20, h is rounded to bfloat16.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/cuda/moe_calls.h"
#include "kernels/cuda/cuda_kernel.h"

typedef struct cuda_case {
    int tokens, slots, experts, n, k;
    bool absent; /* some slots are another device's */
} cuda_case;

static const cuda_case cases[] = {{1, 2, 3, 32, 64, false},
                                  {3, 4, 5, 96, 160, true},
                                  {2, 1, 2, 64, 320, false},
                                  {5, 3, 4, 160, 96, true},
                                  {21, 2, 2, 32, 64, false}};

static const double u32 = 0x1p-24, u16 = 0x1p-8;

/* Inputs in memory that ends at a page that cannot be read. */
typedef struct model {
    cuda_case c;
    kt_guard x, gate, up, down, gate_scale, up_scale, down_scale, expert, route, h, out;
    double *h_want, *h_bound, *want, *bound; /* [tokens * slots * n], [tokens * k] */
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

static void fill_nibbles(kt_guard *g, kt_guard *scale, int64_t weights, kt_rng *rng) {
    uint8_t *w = guarded(g, (size_t)weights / 2, 0);
    for (int64_t i = 0; i < weights / 2; i++) w[i] = (uint8_t)kt_rng_u64(rng);
    fill_bf16(scale, weights / 32, 0.02f, rng);
}

static double int4_at(const model *m, const kt_guard *w, const kt_guard *scale, int64_t at) {
    const uint8_t byte = ((const uint8_t *)w->data)[at / 2];
    (void)m;
    return ((at % 2 ? byte >> 4 : byte & 15) - 8) * bf16(((const uint16_t *)scale->data)[at / 32]);
}

static void make(model *m, const cuda_case *c, bool is_int4, uint64_t seed) {
    const int64_t weights = (int64_t)c->experts * c->n * c->k;
    int32_t *expert;
    float *route;
    kt_rng rng;

    *m = (model){.c = *c};
    kt_rng_seed(&rng, seed);
    fill_bf16(&m->x, (int64_t)c->tokens * c->k, 1, &rng);
    if (is_int4) {
        fill_nibbles(&m->gate, &m->gate_scale, weights, &rng);
        fill_nibbles(&m->up, &m->up_scale, weights, &rng);
        fill_nibbles(&m->down, &m->down_scale, weights, &rng);
    } else {
        fill_bf16(&m->gate, weights, 0.1f, &rng);
        fill_bf16(&m->up, weights, 0.1f, &rng);
        fill_bf16(&m->down, weights, 0.1f, &rng);
    }
    expert = guarded(&m->expert, (size_t)(c->tokens * c->slots) * sizeof *expert, 0);
    route = guarded(&m->route, (size_t)(c->tokens * c->slots) * sizeof *route, 0);
    for (int i = 0; i < c->tokens * c->slots; i++) {
        expert[i] = (int32_t)((unsigned)(i % c->slots) + kt_rng_below(&rng, 2)) % c->experts;
        if (c->absent && kt_rng_below(&rng, 3) == 0) expert[i] = -1;
        route[i] = kt_rng_uniform(&rng, 0.05f, 1);
    }
    guarded(&m->h, (size_t)(c->tokens * c->slots * c->n) * 2, 0xff);
    guarded(&m->out, (size_t)(c->tokens * c->k) * sizeof(float), 0xff);
    m->h_want = calloc((size_t)(c->tokens * c->slots * c->n), sizeof(double));
    m->h_bound = calloc((size_t)(c->tokens * c->slots * c->n), sizeof(double));
    m->want = calloc((size_t)(c->tokens * c->k), sizeof(double));
    m->bound = calloc((size_t)(c->tokens * c->k), sizeof(double));
}

static void drop(model *m) {
    kt_guard *all[] = {&m->x,          &m->gate,     &m->up,         &m->down,
                       &m->gate_scale, &m->up_scale, &m->down_scale, &m->expert,
                       &m->route,      &m->h,        &m->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_guard_destroy(all[i]);
    free(m->h_want), free(m->h_bound), free(m->want), free(m->bound);
}

typedef struct dot {
    double value, bound;
} dot;

static dot multiply(const model *m, const kt_guard *w, const kt_guard *scale, int64_t row,
                    int64_t k, const double *x) {
    double magnitude = 0;
    dot d = {0, 0};

    for (int64_t i = 0; i < k; i++) {
        const int64_t at = row * k + i;
        const double v = scale ? int4_at(m, w, scale, at) : bf16(((const uint16_t *)w->data)[at]);
        const double more = scale ? 264 * fabs(bf16(((const uint16_t *)scale->data)[at / 32])) : 0;
        d.value += v * x[i];
        magnitude += (fabs(v) + more) * fabs(x[i]);
    }
    d.bound = 2 * (double)(k + 8) * u32 * magnitude;
    return d;
}

/* h of one token and slot, and the token's output from all of them. The kernel's own h, with its
 * bound checked, goes on into down, so that only down's sums count there. */
static void reference_h(model *m, bool is_int4, int slot) {
    const cuda_case *c = &m->c;
    const int64_t expert = ((const int32_t *)m->expert.data)[slot];
    double *x = calloc((size_t)c->k, sizeof *x);

    for (int i = 0; i < c->k; i++)
        x[i] = bf16(((const uint16_t *)m->x.data)[(int64_t)(slot / c->slots) * c->k + i]);
    for (int j = 0; expert >= 0 && j < c->n; j++) {
        const int64_t row = expert * c->n + j;
        const dot g = multiply(m, &m->gate, is_int4 ? &m->gate_scale : NULL, row, c->k, x);
        const dot u = multiply(m, &m->up, is_int4 ? &m->up_scale : NULL, row, c->k, x);
        const double silu = g.value / (1 + exp(-g.value)), h = silu * u.value;
        m->h_want[slot * c->n + j] = h;
        m->h_bound[slot * c->n + j] = 1.1 * g.bound * fabs(u.value) + fabs(silu) * u.bound +
                                      g.bound * u.bound + fabs(h) * (u16 + 0x1p-19) + 1e-38;
    }
    free(x);
}

/* `row` is where a token's slot lies in h. */
static void reference_out(model *m, bool is_int4, int token, const int32_t *row) {
    const cuda_case *c = &m->c;
    double *h = calloc((size_t)c->n, sizeof *h);

    for (int s = 0; s < c->slots; s++) {
        const int slot = token * c->slots + s;
        const int64_t expert = ((const int32_t *)m->expert.data)[slot];
        const double route = (double)((const float *)m->route.data)[slot];
        if (expert < 0) continue;
        for (int i = 0; i < c->n; i++)
            h[i] =
                bf16(((const uint16_t *)m->h.data)[(int64_t)(row ? row[slot] : slot) * c->n + i]);
        for (int j = 0; j < c->k; j++) {
            const dot d =
                multiply(m, &m->down, is_int4 ? &m->down_scale : NULL, expert * c->k + j, c->n, h);
            m->want[token * c->k + j] += route * d.value;
            m->bound[token * c->k + j] += route * (d.bound + 16 * u32 * fabs(d.value)) + 1e-38;
        }
    }
    free(h);
}

static void expect_h(const model *m, const char *what, const int32_t *row) {
    const cuda_case *c = &m->c;

    for (int slot = 0; slot < c->tokens * c->slots; slot++)
        for (int i = 0; ((const int32_t *)m->expert.data)[slot] >= 0 && i < c->n; i++) {
            const double got =
                bf16(((const uint16_t *)m->h.data)[(int64_t)(row ? row[slot] : slot) * c->n + i]);
            const int at = slot * c->n + i;
            cr_assert(fabs(got - m->h_want[at]) <= m->h_bound[at],
                      "%s: h of slot %d, column %d: %g, expected %g +- %g", what, slot, i, got,
                      m->h_want[at], m->h_bound[at]);
        }
}

static void expect_out(const model *m, const char *what) {
    for (int i = 0; i < m->c.tokens * m->c.k; i++) {
        const double got = (double)((const float *)m->out.data)[i];
        cr_assert(fabs(got - m->want[i]) <= m->bound[i],
                  "%s: token %d, column %d: %g, expected %g +- %g", what, i / m->c.k, i % m->c.k,
                  got, m->want[i], m->bound[i]);
    }
}

static void launch(const kt_cuda_kernel *k, int entry, const void *call, int x, int y, int64_t row,
                   const kt_config *config, uint32_t seed) {
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = k->threads(config),
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

/* ---- a few tokens, INT4 ---- */

static void check_decode(const cuda_case *c, const kt_config *config, uint32_t seed) {
    const kt_cuda_kernel *k = find("moe_w4_decode");
    const int rows = config->value[0] * config->value[1];
    kt_moe_w4_decode call;
    char what[128];
    model m;

    make(&m, c, true, seed);
    call = (kt_moe_w4_decode){m.x.data,
                              m.expert.data,
                              m.route.data,
                              m.gate.data,
                              m.up.data,
                              m.down.data,
                              m.gate_scale.data,
                              m.up_scale.data,
                              m.down_scale.data,
                              m.h.data,
                              m.out.data,
                              c->n,
                              c->k,
                              c->slots};
    snprintf(what, sizeof what, "n=%d k=%d warps=%d rows=%d seed=%u", c->n, c->k,
             (int)config->value[0], (int)config->value[1], seed);
    launch(k, 0, &call, cut(c->n, rows), c->tokens * c->slots, c->k, config, seed);
    for (int slot = 0; slot < c->tokens * c->slots; slot++) reference_h(&m, true, slot);
    expect_h(&m, what, NULL);
    launch(k, 1, &call, cut(c->k, rows), c->tokens, (int64_t)c->slots * c->n, config, seed);
    for (int t = 0; t < c->tokens; t++) reference_out(&m, true, t, NULL);
    expect_out(&m, what);
    drop(&m);
}

Test(cuda_moe, int4_of_a_few_tokens, .timeout = 120) {
    static const int configs[][2] = {{2, 1}, {4, 2}, {16, 4}, {2, 8}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 4; j++)
            check_decode(&cases[i], &(kt_config){{configs[j][0], configs[j][1]}},
                         (uint32_t)(i * 4 + (unsigned)j + 1));
}

/* ---- many tokens, bfloat16 ---- */

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
    const kt_cuda_kernel *k = find(kernel), *tiles = find("moe_bf16_tiles");
    const kt_config initial = kt_cuda_initial(tiles);
    const int bn = config->value[1];
    kt_moe_bf16_tiles call;
    char what[128];
    float *y;
    plan p;
    model m;

    make(&m, c, false, seed);
    sort_rows(&m, most, &p);
    y = malloc((size_t)p.n_rows * (size_t)c->k * sizeof *y);
    call = (kt_moe_bf16_tiles){m.x.data,   p.row_token, p.route,  p.tile,  m.gate.data,
                               m.up.data,  m.down.data, m.h.data, y,       p.row_of,
                               m.out.data, c->n,        c->k,     c->slots};
    snprintf(what, sizeof what, "%s: n=%d k=%d bm=%d bn=%d, %d, %d, %d, seed=%u", kernel, c->n,
             c->k, (int)config->value[0], bn, (int)config->value[2], (int)config->value[3],
             (int)config->value[4], seed);
    launch(k, 0, &call, cut(c->n, bn / 2), p.n_tiles, c->k, config, seed);
    for (int slot = 0; slot < c->tokens * c->slots; slot++) reference_h(&m, false, slot);
    expect_h(&m, what, p.row_of);
    launch(k, 1, &call, cut(c->k, bn), p.n_tiles, c->n, config, seed);
    launch(tiles, 2, &call, cut(c->k, tiles->threads(&initial)), c->tokens, 0, &initial, seed);
    for (int t = 0; t < c->tokens; t++) reference_out(&m, false, t, p.row_of);
    expect_out(&m, what);
    free(y);
    drop(&m);
}

Test(cuda_moe, bfloat16_of_many_tokens, .timeout = 120) {
    static const int configs[][5] = {
        {16, 64, 1, 1, 2}, {32, 64, 2, 2, 3}, {64, 128, 2, 2, 3}, {16, 128, 1, 4, 4}};
    const kt_cuda_kernel *k = find("moe_bf16_tiles");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 4; j++) {
            kt_config config = {{0}};
            memcpy(config.value, configs[j], sizeof configs[j]);
            cr_assert_null(k->refuse(&config, &kt_cuda_targets[0]));
            check_tiles("moe_bf16_tiles", &cases[i], &config, config.value[0] / 2,
                        (uint32_t)(i * 4 + (unsigned)j + 1));
        }
}

Test(cuda_moe, bfloat16_by_warpgroups, .timeout = 120) {
    static const int configs[][3] = {{64, 64, 3}, {128, 128, 3}, {64, 128, 4}};
    const kt_cuda_kernel *k = find("moe_bf16_wgmma");

    static const cuda_case full = {75, 2, 2, 32, 96, false}; /* both warpgroups have rows */

    for (size_t i = 0; i < 5; i++) {
        kt_config config = {{0}};
        memcpy(config.value, configs[i % 3], sizeof configs[0]);
        cr_assert_null(k->refuse(&config, &kt_cuda_targets[5]));
        check_tiles("moe_bf16_wgmma", i == 4 ? &full : &cases[i], &config, config.value[0] - 3,
                    (uint32_t)(i / 2 + i + 1));
    }
}

Test(cuda_moe, impossible_tiles_are_refused) {
    const kt_cuda_kernel *k = find("moe_bf16_tiles");
    const kt_cuda_target *ada = NULL;

    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, "89") == 0) ada = &kt_cuda_targets[i];
    cr_assert_not_null(ada);
    cr_expect_not_null(k->refuse(&(kt_config){{16, 64, 2, 2, 2}}, ada));
    cr_expect_not_null(k->refuse(&(kt_config){{64, 64, 2, 4, 2}}, ada));
    cr_expect_not_null(k->refuse(&(kt_config){{128, 256, 2, 2, 2}}, ada));
    cr_expect_not_null(k->refuse(&(kt_config){{128, 256, 4, 4, 4}}, ada)); /* 196 KiB of 99 */
    cr_expect_null(k->refuse(&(kt_config){{128, 128, 2, 4, 2}}, ada));
}
