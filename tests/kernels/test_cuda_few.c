/* Dense products and experts of 1 to 8 rows, weights of every format, under the emulator against
 * double precision.
 *
 * Bounds: activations are rounded to bfloat16 in the reference too; weights that are scaled before
 * they are multiplied lose 2^-8 of themselves, and every sum over k at most 2 (k + 8) u S with
 * S = sum |a w| (u = 2^-24). SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/cuda_weights.h"
#include "tests/support/dev_ending.h"

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
                const dot d = multiply(w, h * c->n + j, x, is_late(w));
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
    const kt_config config = {{warps, tiles, (int32_t)seed % 2, (int32_t)format}};
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
    static const int configs[][2] = {{1, 4}, {8, 1}, {8, 2}};

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
    kt_test_ending ending;
} experts;

static void make_experts(experts *m, const expert_case *c, kt_weight_format format, uint32_t seed) {
    const int all = c->tokens * c->slots;
    int32_t *expert = guarded(&m->expert, (size_t)all * sizeof *expert, 0);
    float *route = guarded(&m->route, (size_t)all * sizeof *route, 0);
    kt_rng rng;

    m->c = *c;
    kt_rng_seed(&rng, seed);
    kt_test_ending_make(&m->ending, seed, c->experts, c->n, c->k);
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
    kt_test_ending_drop(&m->ending);
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
            const dot g = multiply(&m->gate, expert * c->n + j, x, is_late(&m->gate));
            const dot u = multiply(&m->up, expert * c->n + j, x, is_late(&m->up));
            double bound;
            const double want =
                kt_test_ending_h(&m->ending, expert, j, g.value, g.bound, u.value, u.bound, &bound);
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
                d = multiply(&m->down, expert * c->k + j, h + s * c->n, is_late(&m->down));
                d.value += kt_test_ending_down(&m->ending, expert, j);
                d.bound += 64 * u32 * fabs(kt_test_ending_down(&m->ending, expert, j));
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

static kt_moe_decode call_of(const experts *m, kt_weight_format format) {
    const expert_case *c = &m->c;

    return (kt_moe_decode){.x = m->x.data,
                           .expert = m->expert.data,
                           .route = m->route.data,
                           .gate = m->gate.records.data,
                           .up = m->up.records.data,
                           .down = m->down.records.data,
                           .h = m->h.data,
                           .out = m->out.data,
                           .ldx = c->k,
                           .ldo = c->k,
                           .gate_bytes = c->n * (int64_t)kt_device_row_bytes(format, c->k),
                           .down_bytes = c->k * (int64_t)kt_device_row_bytes(format, c->n),
                           .tokens = c->tokens,
                           .slots = c->slots,
                           .n = c->n,
                           .k = c->k,
                           .accumulate = c->accumulate,
                           .ending = m->ending.ending};
}

static void check_experts(const expert_case *c, kt_weight_format format, int warps, int tiles,
                          uint32_t seed) {
    const kt_cuda_kernel *k = find("moe_decode");
    const kt_config config = {{warps, tiles, (int32_t)seed % 2, (int32_t)format, 16 / warps}};
    const int all = c->tokens * c->slots;
    float *before = malloc((size_t)(c->tokens * c->k) * sizeof *before);
    kt_moe_decode call;
    char what[128];
    experts m;

    make_experts(&m, c, format, seed);
    memcpy(before, m.out.data, (size_t)(c->tokens * c->k) * sizeof *before);
    call = call_of(&m, format);
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
    static const int configs[][2] = {{1, 1}, {4, 2}, {16, 1}, {2, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 8; j++) /* weights loaded ahead and not */
            check_experts(&cases[i], j % 2 ? KT_W_BF16 : KT_W_INT4_G32, configs[j % 4][0],
                          configs[j % 4][1], (uint32_t)(i * 9 + (unsigned)(j + j / 4) + 1));
}

/* An expert that is not a number spoils the tokens that chose it, and no other. */
Test(cuda_few, experts_of_others_do_not_count) {
    const expert_case c = {2, 1, 2, 32, 32, false, false};
    const kt_cuda_kernel *k = find("moe_decode");
    const kt_config config = {{2, 1, 1, KT_W_BF16, 4}};
    kt_moe_decode call;
    experts m;

    make_experts(&m, &c, KT_W_BF16, 3);
    ((int32_t *)m.expert.data)[0] = 0;
    ((int32_t *)m.expert.data)[1] = 1;
    memset((uint8_t *)m.down.records.data + 32 * 64, 0xff, 32 * 64);
    call = call_of(&m, KT_W_BF16);
    launch(k, 0, &call, 2, 2, 2, &config, 1);
    launch(k, 1, &call, 2, 1, 2, &config, 1);
    for (int i = 0; i < 32; i++) {
        cr_expect(isfinite(((float *)m.out.data)[i]), "column %d of the other token", i);
        cr_expect(isnan(((float *)m.out.data)[32 + i]), "column %d", i);
    }
    drop_experts(&m);
}
