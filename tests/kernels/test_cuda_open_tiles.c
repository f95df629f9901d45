/* Dense products and experts of many rows, weights of every format, under the emulator against
 * double precision.
 *
 * Bounds: activations are rounded to bfloat16 in the reference too; weights of all formats but
 * bfloat16 lose 2^-8 of themselves, and every sum over k at most 2 (k + 8) u S with S = sum |a w|
 * (u = 2^-24). SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/cuda_weights.h"
#include "tests/support/dev_ending.h"

enum { MAX_ROWS = 64 };

static bool is_exact(const weights *w) {
    return w->plain.matrix.format == KT_W_BF16;
}

static void fill_bf16(kt_guard *g, int64_t n, kt_rng *rng) {
    uint16_t *x = guarded(g, (size_t)n * 2, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (uint16_t)kt_emulator_bf16(kt_rng_normal(rng));
}

static double bf16(const void *rows, int64_t at) {
    return (double)kt_float_bits((uint32_t)((const uint16_t *)rows)[at] << 16);
}

/* Tiles of warpgroups have no warps to choose: these are 0. */
static bool is_wide(const int32_t *tiles) {
    return tiles[2] == 0;
}

static kt_config tiles_config(const int32_t *tiles, kt_weight_format format) {
    if (is_wide(tiles)) return (kt_config){{tiles[0], tiles[1], tiles[4], (int32_t)format}};
    return (kt_config){{tiles[0], tiles[1], tiles[2], tiles[3], tiles[4], (int32_t)format}};
}

static void describe(char *what, size_t size, kt_weight_format f, const int32_t *tiles, int rows,
                     int n, int k, uint32_t seed) {
    snprintf(what, size, "%s rows=%d n=%d k=%d bm=%d bn=%d warps %d x %d, %d stages, seed=%u",
             kt_weight_format_name(f), rows, n, k, (int)tiles[0], (int)tiles[1], (int)tiles[2],
             (int)tiles[3], (int)tiles[4], seed);
}

/* ---- dense ---- */

typedef struct dense_case {
    int rows, n, k, heads;
    bool accumulate;
} dense_case;

static void expect_dense(const dense_case *c, const weights *w, const kt_gemm_tiles *call,
                         const float *before, const char *what) {
    double *x = malloc((size_t)c->k * sizeof *x);

    for (int i = 0; i < c->heads * c->rows; i++) {
        const int h = i / c->rows, r = i % c->rows;
        for (int j = 0; j < c->k; j++) x[j] = bf16(call->x, (int64_t)i * c->k + j);
        for (int j = 0; j < c->n; j++) {
            const int64_t at = h * call->y_head + r * call->ldy + j;
            const double was = c->accumulate ? (double)before[at] : 0;
            const dot d = multiply(w, h * c->n + j, x, is_exact(w));
            const double got = (double)call->y[at], want = was + d.value;
            cr_assert(fabs(got - want) <= d.bound + 4 * u32 * (fabs(want) + fabs(was)),
                      "%s: head %d, row %d, output %d: %g, expected %g +- %g", what, h, r, j, got,
                      want, d.bound);
        }
    }
    free(x);
}

static void check_dense(const dense_case *c, kt_weight_format format, const int32_t *tiles,
                        uint32_t seed) {
    const kt_cuda_kernel *k = find(is_wide(tiles) ? "gemm_wgmma" : "gemm_tiles");
    const kt_config config = tiles_config(tiles, format);
    const int ldy = c->n * c->heads + 3, row_tiles = cut(c->rows, tiles[0]);
    float *before = malloc((size_t)(c->rows * ldy) * sizeof *before);
    kt_gemm_tiles call;
    char what[160];
    kt_guard x, y;
    kt_rng rng;
    weights w;

    kt_rng_seed(&rng, seed);
    make_weights(&w, format, (int64_t)c->n * c->heads, c->k, seed);
    fill_bf16(&x, (int64_t)c->heads * c->rows * c->k, &rng);
    fill(guarded(&y, (size_t)(c->rows * ldy) * sizeof(float), 0), c->rows * ldy, &rng);
    memcpy(before, y.data, (size_t)(c->rows * ldy) * sizeof *before);
    call = (kt_gemm_tiles){.x = x.data,
                           .w = w.records.data,
                           .y = y.data,
                           .ldy = ldy,
                           .w_head = c->n * (int64_t)kt_device_row_bytes(format, c->k),
                           .y_head = c->n,
                           .rows = c->rows,
                           .n = c->n,
                           .k = c->k,
                           .row_tiles = row_tiles,
                           .accumulate = c->accumulate};
    describe(what, sizeof what, format, tiles, c->rows, c->n, c->k, seed);
    cr_assert_null(k->refuse(&config, &kt_cuda_targets[is_wide(tiles) ? 5 : 0]), "%s", what);
    launch(k, 0, &call, cut(c->n, tiles[1]), c->heads * row_tiles, c->k, &config, seed);
    expect_dense(c, &w, &call, before, what);
    for (int r = 0; r < c->rows; r++) /* nothing behind a row's outputs */
        for (int i = c->n * c->heads; i < ldy; i++)
            cr_assert_eq(((float *)y.data)[r * ldy + i], before[r * ldy + i], "%s", what);
    kt_guard_destroy(&x), kt_guard_destroy(&y);
    drop_weights(&w);
    free(before);
}

Test(cuda_open_tiles, dense_products_of_every_format, .timeout = 120) {
    static const int32_t tiles[] = {16, 64, 1, 2, 2}, wide[] = {64, 64, 0, 0, 3};

    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_weight_format f = kt_builtin_formats[i]->id;
        const dense_case c = {9, 40, (int)legal(f, 160), 1, i % 2};
        if (kt_device_weight_format(f) != f) continue;
        check_dense(&c, f, tiles, (uint32_t)(i + 1));
        check_dense(&c, f, wide, (uint32_t)(i + 2));
    }
}

Test(cuda_open_tiles, dense_products_of_any_size, .timeout = 120) {
    static const dense_case cases[] = {
        {1, 8, 32, 1, false}, {37, 70, 224, 1, true}, {20, 130, 96, 2, false}};
    static const int32_t tiles[][5] = {{32, 64, 2, 1, 3}, {16, 128, 1, 4, 4}, {32, 64, 1, 2, 2}};
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT4_G32, KT_W_FP8_B128};

    for (int i = 0; i < 27; i++) /* of fewer steps than stages, and of more */
        check_dense(&cases[i % 3], formats[i / 3 % 3], tiles[i / 9], (uint32_t)(i + 1));
}

/* Of one, two and four warpgroups; rows of fewer steps than stages, and of more. */
Test(cuda_open_tiles, dense_products_by_warpgroups, .timeout = 120) {
    static const dense_case cases[] = {
        {1, 8, 32, 1, false}, {70, 70, 224, 1, true}, {150, 130, 416, 1, false}};
    static const int32_t tiles[][5] = {{64, 256, 0, 0, 3}, {128, 128, 0, 0, 4}, {256, 64, 0, 0, 5}};
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT4_G32, KT_W_Q4_K};

    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            dense_case c = cases[i];
            c.k = (int)legal(formats[j], c.k);
            check_dense(&c, formats[j], tiles[(i + j) % 3], (uint32_t)(3 * i + j + 1));
        }
}

/* ---- experts ---- */

typedef struct expert_case {
    int rows[4]; /* of each expert */
    int tokens, n, k;
} expert_case;

typedef struct plan {
    int32_t row_token[MAX_ROWS];
    float route[MAX_ROWS];
    int expert[MAX_ROWS]; /* of each row */
    kt_moe_tile tile[MAX_ROWS];
    int n_tiles, n_rows;
} plan;

/* The rows of each expert in tiles of at most bm, then one of no rows, as grids have them that are
 * larger than the list. */
static void make_plan(const expert_case *c, int bm, kt_rng *rng, plan *p) {
    *p = (plan){.n_tiles = 0};
    for (int e = 0; e < 4; e++)
        for (int i = 0; i < c->rows[e]; i++, p->n_rows++) {
            if (i % bm == 0) p->tile[p->n_tiles++] = (kt_moe_tile){e, p->n_rows, 0};
            p->tile[p->n_tiles - 1].rows++;
            p->row_token[p->n_rows] = (int32_t)kt_rng_below(rng, (uint32_t)c->tokens);
            p->route[p->n_rows] = kt_rng_uniform(rng, 0.05f, 1);
            p->expert[p->n_rows] = e;
        }
    p->n_tiles++;
}

static void expect_h(const expert_case *c, const plan *p, const kt_moe_tiles *call, weights *gate,
                     weights *up, const kt_test_ending *ending, const char *what) {
    double *x = malloc((size_t)c->k * sizeof *x);

    for (int r = 0; r < p->n_rows; r++) {
        for (int i = 0; i < c->k; i++) x[i] = bf16(call->x, (int64_t)p->row_token[r] * c->k + i);
        for (int j = 0; j < c->n; j++) {
            const dot g = multiply(gate, p->expert[r] * c->n + j, x, is_exact(gate));
            const dot u = multiply(up, p->expert[r] * c->n + j, x, is_exact(up));
            double bound;
            const double want = kt_test_ending_h(ending, p->expert[r], j, g.value, g.bound, u.value,
                                                 u.bound, &bound);
            const double got = bf16(call->h, (int64_t)r * c->n + j);
            cr_assert(fabs(got - want) <= bound,
                      "%s: h of row %d, column %d: %g, expected %g +- %g", what, r, j, got, want,
                      bound);
        }
    }
    free(x);
}

/* The kernel's own h, with its bound checked, goes on into down. */
static void expect_y(const expert_case *c, const plan *p, const kt_moe_tiles *call,
                     const weights *down, const kt_test_ending *ending, const char *what) {
    double *h = malloc((size_t)c->n * sizeof *h);

    for (int r = 0; r < p->n_rows; r++) {
        for (int i = 0; i < c->n; i++) h[i] = bf16(call->h, (int64_t)r * c->n + i);
        for (int j = 0; j < c->k; j++) {
            const double bias = kt_test_ending_down(ending, p->expert[r], j);
            dot d = multiply(down, p->expert[r] * c->k + j, h, is_exact(down));
            d.value += bias;
            d.bound += u32 * fabs(bias);
            const double route = (double)p->route[r], want = route * d.value;
            const double got = (double)call->y[(int64_t)r * c->k + j];
            cr_assert(fabs(got - want) <= route * d.bound + 4 * u32 * fabs(want) + 1e-37,
                      "%s: y of row %d, column %d: %g, expected %g +- %g", what, r, j, got, want,
                      route * d.bound);
        }
    }
    free(h);
}

static void check_experts(const expert_case *c, kt_weight_format format, const int32_t *tiles,
                          uint32_t seed) {
    const kt_cuda_kernel *k = find(is_wide(tiles) ? "moe_wgmma" : "moe_tiles");
    const kt_config config = tiles_config(tiles, format);
    weights gate, up, down;
    kt_test_ending ending;
    kt_guard x, h, y;
    kt_moe_tiles call;
    char what[160];
    kt_rng rng;
    plan p;

    kt_rng_seed(&rng, seed);
    make_plan(c, tiles[0] - 3, &rng, &p);
    kt_test_ending_make(&ending, seed, 4, c->n, c->k);
    make_weights(&gate, format, 4 * (int64_t)c->n, c->k, seed);
    make_weights(&up, format, 4 * (int64_t)c->n, c->k, seed + 1);
    make_weights(&down, format, 4 * (int64_t)c->k, c->n, seed + 2);
    fill_bf16(&x, (int64_t)c->tokens * c->k, &rng);
    guarded(&h, (size_t)(p.n_rows * c->n) * 2, 0xff);
    guarded(&y, (size_t)(p.n_rows * c->k) * sizeof(float), 0xff);
    call = (kt_moe_tiles){.x = x.data,
                          .row_token = p.row_token,
                          .route = p.route,
                          .tile = p.tile,
                          .gate = gate.records.data,
                          .up = up.records.data,
                          .down = down.records.data,
                          .h = h.data,
                          .y = y.data,
                          .gate_bytes = c->n * (int64_t)kt_device_row_bytes(format, c->k),
                          .down_bytes = c->k * (int64_t)kt_device_row_bytes(format, c->n),
                          .n = c->n,
                          .k = c->k,
                          .ending = ending.ending};
    describe(what, sizeof what, format, tiles, p.n_rows, c->n, c->k, seed);
    launch(k, 0, &call, cut(c->n, tiles[1] / 2), p.n_tiles, c->k, &config, seed);
    expect_h(c, &p, &call, &gate, &up, &ending, what);
    launch(k, 1, &call, cut(c->k, tiles[1]), p.n_tiles, c->n, &config, seed + 1);
    expect_y(c, &p, &call, &down, &ending, what);
    kt_guard_destroy(&x), kt_guard_destroy(&h), kt_guard_destroy(&y);
    drop_weights(&gate), drop_weights(&up), drop_weights(&down);
    kt_test_ending_drop(&ending);
}

Test(cuda_open_tiles, experts_of_one_format_of_each_kind, .timeout = 120) {
    static const kt_weight_format formats[] = {KT_W_BF16,     KT_W_INT4Z_G32, KT_W_INT8_CHANNEL,
                                               KT_W_FP8_B128, KT_W_MXFP4,     KT_W_Q5_1};
    static const int32_t tiles[][5] = {{16, 64, 1, 2, 2}, {32, 64, 2, 1, 3}, {16, 128, 1, 4, 4}},
                         wide[][5] = {{64, 128, 0, 0, 4}, {128, 64, 0, 0, 3}};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const expert_case c = {{5, 0, 14, 3}, 7, i % 2 ? 32 : 96, i % 2 ? 160 : 64};
        check_experts(&c, formats[i], tiles[i % 3], (uint32_t)(i * 3 + 1));
        check_experts(&c, formats[i], wide[i % 2], (uint32_t)(i * 3 + 2));
    }
}

Test(cuda_open_tiles, impossible_tiles_are_refused) {
    const kt_cuda_kernel *k = find("moe_tiles");
    const kt_cuda_target *oldest = &kt_cuda_targets[0], *hopper = &kt_cuda_targets[5];

    cr_expect_null(k->refuse(&(kt_config){{64, 128, 2, 2, 3, KT_W_INT4_G32}}, oldest));
    cr_expect_not_null(k->refuse(&(kt_config){{64, 128, 2, 2, 3, KT_W_F16}}, oldest));
    cr_expect_not_null(k->refuse(&(kt_config){{64, 256, 2, 2, 3, KT_W_Q8_0}}, oldest));
    cr_expect_not_null(k->refuse(&(kt_config){{128, 256, 2, 2, 2, KT_W_BF16}}, oldest));
    cr_expect_not_null(k->refuse(&(kt_config){{16, 64, 2, 2, 2, KT_W_BF16}}, oldest));
    k = find("moe_wgmma");
    cr_expect_null(k->refuse(&(kt_config){{128, 256, 4, KT_W_Q4_K}}, hopper));
    cr_expect_not_null(k->refuse(&(kt_config){{64, 256, 4, KT_W_Q8_0}}, hopper));
    cr_expect_not_null(k->refuse(&(kt_config){{256, 256, 3, KT_W_INT4_G32}}, hopper));
    cr_expect_not_null(k->refuse(&(kt_config){{128, 256, 5, KT_W_INT4_G32}}, hopper));
}

/* ---- rows as bfloat16 ---- */

Test(cuda_open_tiles, rows_are_rounded_and_gathered) {
    enum { ROWS = 3, HEADS = 2, K = 40, LD = 85 };
    static const int32_t gather[ROWS] = {2, 0, 2};
    const kt_cuda_kernel *k = find("bf16_rows");
    const kt_config config = {{32}};
    float x[ROWS * LD];
    kt_guard to;
    kt_rng rng;
    kt_bf16_rows call = {x, gather, NULL, LD, K, ROWS, K};

    kt_rng_seed(&rng, 5);
    fill(x, ROWS * LD, &rng);
    call.to = guarded(&to, ROWS * HEADS * K * 2, 0xff);
    launch(k, 0, &call, 1, HEADS * ROWS, 0, &config, 1);
    for (int i = 0; i < HEADS * ROWS * K; i++) {
        const int row = i / K % ROWS, head = i / K / ROWS;
        cr_assert_eq(bf16(to.data, i), rounded(x[gather[row] * LD + head * K + i % K]));
    }
    kt_guard_destroy(&to);
}
