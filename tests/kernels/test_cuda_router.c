/* The router and the permutation by experts, as kernels for GPUs under the emulator: scores against
 * double precision, the choice against kernels/router/router_select.h, and rows in the order of
 * their experts against a plain stable sort. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/permute_calls.h"
#include "kernels/cuda/row_calls.h"
#include "kernels/router/router_ref.h"
#include "kernels/router/router_select.h"
#include "tests/support/emulate_on.h"
#include "tests/kernels/cuda_launch.h"

/* ---- scores ---- */

typedef struct score_case {
    int rows, experts, k, ld;
} score_case;

/* Of odd length, and of whole vectors in rows that are aligned and that are not. */
static const score_case scores[] = {
    {1, 5, 7, 7}, {3, 9, 64, 65}, {9, 6, 264, 268}, {5, 17, 523, 530}};

static void check_scores(const score_case *c, const kt_config *config, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("router");
    const int is_bf16 = config->value[0], warps = config->value[1], tokens = config->value[2];
    const kt_problem problem = {
        .weights = is_bf16 ? KT_W_BF16 : KT_W_F32, .m = c->rows, .n = c->experts, .k = c->k};
    double want[32], bound[32];
    cuda_memory m = {.n = 0};
    kt_router_scores call;
    kt_router_call ref;
    kt_rng rng;
    uint16_t *w16;
    float *w, *bias;

    kt_rng_seed(&rng, seed);
    bias = cuda_floats(&m, c->experts, 1, &rng);
    w = cuda_floats(&m, (int64_t)c->experts * c->k, 1, &rng);
    w16 = cuda_bytes(&m, (size_t)(c->experts * c->k) * 2, 0);
    for (int i = 0; i < c->experts * c->k; i++) w16[i] = (uint16_t)kt_emulator_bf16(w[i]);
    call = (kt_router_scores){.x = cuda_floats(&m, (int64_t)c->rows * c->ld, 1, &rng),
                              .w = is_bf16 ? (void *)w16 : (void *)w,
                              .logits = cuda_floats(&m, (int64_t)c->rows * c->experts, 0, &rng),
                              .ldx = c->ld,
                              .k = c->k,
                              .experts = c->experts,
                              .rows = c->rows,
                              .bias = seed % 2 ? bias : NULL};
    cuda_launch(k, "router_scores", config, &call, cuda_cut(c->experts, warps * config->value[3]),
                cuda_cut(c->rows, tokens), 0, seed);
    ref = (kt_router_call){.problem = &problem, .x = call.x, .ldx = c->ld, .w = call.w};
    for (int r = 0; r < c->rows; r++) {
        kt_router_ref_row(&ref, r, want, bound);
        for (int e = 0; e < c->experts; e++) {
            const double got = (double)call.logits[r * c->experts + e];
            if (call.bias) {
                want[e] += (double)bias[e];
                bound[e] += 0x1p-24 * (fabs(want[e]) + bound[e]);
            }
            cr_assert(fabs(got - want[e]) <= bound[e], "k=%d row %d expert %d: %g, want %g", c->k,
                      r, e, got, want[e]);
        }
    }
    cuda_release(&m);
}

Test(cuda_router, scores_in_double, .timeout = 60) {
    static const int configs[][4] = {{1, 2, 1, 1}, {0, 4, 4, 2}, {1, 2, 4, 4}, {0, 2, 1, 4}};

    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
        for (int j = 0; j < 4; j++)
            check_scores(&scores[i],
                         &(kt_config){{configs[j][0], configs[j][1], configs[j][2], configs[j][3]}},
                         (uint32_t)(i * 4) + (unsigned)j + 1);
}

/* A row alone, and among others by any tile: the same bits. */
Test(cuda_router, scores_do_not_depend_on_the_batch, .timeout = 60) {
    enum { ROWS = 9, N = 11, K = 328 };
    static const int configs[][4] = {{0, 2, 1, 1}, {0, 4, 4, 2}, {0, 2, 2, 4}};
    const kt_cuda_kernel *kernel = cuda_find("router");
    float got[3][ROWS * N];
    cuda_memory m = {.n = 0};
    kt_rng rng;
    float *x, *w;

    kt_rng_seed(&rng, 4);
    x = cuda_floats(&m, ROWS * K, 1, &rng), w = cuda_floats(&m, N * K, 1, &rng);
    for (int j = 0; j < 3; j++) {
        const kt_config config = {{configs[j][0], configs[j][1], configs[j][2], configs[j][3]}};
        const kt_router_scores call = {x, w, got[j], K, K, N, ROWS, NULL};
        cuda_launch(kernel, "router_scores", &config, &call,
                    cuda_cut(N, configs[j][1] * configs[j][3]), cuda_cut(ROWS, configs[j][2]), 0,
                    (uint32_t)j);
        cr_assert_eq(memcmp(got[j], got[0], sizeof got[0]), 0, "tile %d", j);
    }
    cuda_release(&m);
}

/* ---- the choice ---- */

static const kt_router_rule rules[] = {
    {.score = KT_ROUTER_SOFTMAX, .experts = 7, .topk = 7},
    {.score = KT_ROUTER_SOFTMAX, .experts = 128, .topk = 8, .norm_topk_prob = true},
    {.score = KT_ROUTER_SOFTMAX, .experts = 512, .topk = 40, .norm_topk_prob = true, .scale = 2.5f},
    {.score = KT_ROUTER_SIGMOID_BIAS, .experts = 160, .topk = 8, .norm_topk_prob = true},
    {.score = KT_ROUTER_SIGMOID_BIAS, .experts = 33, .topk = 3, .scale = 1.5f},
    {.score = KT_ROUTER_SIGMOID_GROUP,
     .experts = 256,
     .topk = 8,
     .norm_topk_prob = true,
     .groups = 8,
     .top_groups = 4,
     .scale = 2.5f},
    {.score = KT_ROUTER_SIGMOID_GROUP, .experts = 96, .topk = 5, .groups = 48, .top_groups = 7},
    {.score = KT_ROUTER_SQRT_SOFTPLUS, .experts = 40, .topk = 6, .norm_topk_prob = true},
    {.score = KT_ROUTER_SQRT_SOFTPLUS, .experts = 33, .topk = 3, .scale = 1.5f}};

enum { ROWS = 13, MOST = 512 };

/* Rows with ties, with NaN, and with sigmoids of 0 and 1. */
static void fill_logits(float *x, int experts, kt_rng *rng) {
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < experts; e++) {
            const float v = kt_rng_normal(rng) * (r % 4 == 3 ? 60.0f : 2.0f);
            x[r * experts + e] = r % 4 == 1 ? rintf(v) : v;
            if (r == 5 && e % 3 == 0) x[r * experts + e] = NAN;
            if (r == 6) x[r * experts + e] = e % 2 ? 0.0f : -0.0f;
            if (r == 7) x[r * experts + e] = -200.0f;
        }
}

static void expect_choice(const kt_router_rule *rule, const kt_router_choice *call, int row) {
    const int slots = (int)rule->topk + call->has_shared;
    const float last_places = kt_emulates_on_gpu() ? 8 * 0x1p-24f : 0; /* of exponentials */
    int32_t id[KT_ROUTER_MAX_TOPK + 1];
    float weight[KT_ROUTER_MAX_TOPK + 1];

    for (int j = 0; call->ids && j < rule->topk; j++)
        id[j] = (int32_t)call->ids[call->token[row] * rule->topk + j];
    if (call->ids)
        kt_router_weigh(rule, call->logits + row * rule->experts, id, weight);
    else
        kt_router_select(rule, call->logits + row * rule->experts, id, weight);
    if (call->has_shared) {
        id[rule->topk] = (int32_t)rule->experts;
        weight[rule->topk] = call->shared_gate ? call->shared_gate[row * call->ldg] : 1.0f;
    }
    for (int j = 0; j < slots; j++) {
        const int at = row * slots + j;
        const float got = call->weight[at];
        const int32_t here = call->map ? call->map[id[j]] : id[j];
        cr_assert_eq(call->id[at], id[j], "row %d slot %d: expert %d, expected %d", row, j,
                     call->id[at], id[j]);
        cr_assert_eq(call->here[at], here);
        cr_assert_eq(call->elsewhere[at], here >= 0 ? -1 : id[j]);
        cr_assert((isnan(got) && isnan(weight[j])) ||
                      fabsf(got - weight[j]) <= last_places * fabsf(weight[j]),
                  "row %d slot %d: weight %.9g, expected %.9g", row, j, (double)got,
                  (double)weight[j]);
    }
}

/* Tokens that say which experts: of 5, each its own. */
static void add_table(kt_router_choice *call, cuda_memory *m, kt_rng *rng) {
    float *ids = cuda_bytes(m, (size_t)(5 * call->topk) * sizeof *ids, 0);
    int32_t *token = cuda_bytes(m, ROWS * sizeof *token, 0);

    for (int i = 0; i < 5 * call->topk; i++)
        ids[i] = (float)((i / call->topk * 3 + i % call->topk) % call->experts);
    for (int r = 0; r < ROWS; r++) token[r] = (int32_t)kt_rng_below(rng, 5);
    call->ids = ids;
    call->token = token;
}

static void check_choice(const kt_router_rule *of, int warps, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("router");
    const kt_config config = {{0, warps, 1, 1}};
    const int experts = (int)of->experts, has_shared = seed % 2;
    kt_router_rule rule = *of;
    cuda_memory m = {.n = 0};
    kt_router_choice call = {0};
    kt_rng rng;
    float *logits;
    int32_t *map;
    size_t cells;

    kt_rng_seed(&rng, seed);
    logits = cuda_floats(&m, (int64_t)ROWS * experts, 1, &rng);
    fill_logits(logits, experts, &rng);
    call.logits = logits;
    map = cuda_bytes(&m, (size_t)(experts + 1) * sizeof *map, 0);
    for (int e = 0; e <= experts; e++) map[e] = kt_rng_below(&rng, 2) ? e / 2 : -1;
    if (seed % 3) call.map = map;
    if (rule.score != KT_ROUTER_SOFTMAX && seed % 2)
        rule.bias = cuda_floats(&m, experts, 0.3f, &rng);
    if (seed % 2) call.shared_gate = cuda_floats(&m, ROWS * 2, 1, &rng);
    call.bias = rule.bias;
    call.rows = ROWS, call.experts = experts, call.topk = (int)rule.topk;
    call.rule = (int)rule.score, call.groups = (int)rule.groups;
    call.top_groups = (int)rule.top_groups, call.is_normalised = rule.norm_topk_prob;
    call.has_shared = has_shared, call.ldg = 2, call.scale = rule.scale;
    cells = (size_t)(ROWS * (rule.topk + has_shared));
    call.id = cuda_bytes(&m, cells * 4, 0x77), call.here = cuda_bytes(&m, cells * 4, 0x77);
    call.elsewhere = cuda_bytes(&m, cells * 4, 0x77), call.weight = cuda_bytes(&m, cells * 4, 0x77);
    if (rule.score == KT_ROUTER_SQRT_SOFTPLUS && seed == 2) add_table(&call, &m, &rng);
    cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_OK);
    cuda_launch(k, "router_choose", &config, &call, cuda_cut(ROWS, warps), 1, experts, seed);
    for (int r = 0; r < ROWS; r++) expect_choice(&rule, &call, r);
    cuda_release(&m);
}

Test(cuda_router, chooses_as_the_cpu_does, .timeout = 60) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (uint32_t seed = 1; seed <= 3; seed++) check_choice(&rules[i], 1 << seed, seed);
}

/* ---- the order of experts ---- */

typedef struct permute_case {
    int tokens, slots, experts, tile_rows;
} permute_case;

static const permute_case permutes[] = {
    {1, 1, 1, 16}, {1, 8, 512, 16}, {70, 3, 5, 32}, {300, 8, 64, 64}, {700, 6, 33, 16}};

/* A plain stable sort, and its tiles. */
static void expect_sorted(const kt_moe_permute *c) {
    int row = 0, tiles = 0;

    for (int e = 0; e < c->experts; e++) {
        const int first = row;
        cr_assert_eq(c->first[e], first, "expert %d", e);
        for (int i = 0; i < c->tokens * c->slots; i++) {
            if (c->id[i] != e) continue;
            cr_assert_eq(c->row_of[i], row, "entry %d: row %d, expected %d", i, c->row_of[i], row);
            cr_assert_eq(c->row_token[row], i / c->slots);
            cr_assert_eq(c->route[row++], c->weight[i]);
        }
        for (int at = first; at < row; at += c->tile_rows, tiles++) {
            const kt_moe_tile *t = &c->tile[tiles];
            const int rows = row - at < c->tile_rows ? row - at : c->tile_rows;
            cr_assert(t->expert == e && t->first == at && t->rows == rows, "tile %d", tiles);
        }
    }
    cr_assert_eq(c->first[c->experts], row);
    cr_assert_eq(*c->n_tiles, tiles);
    for (int i = tiles; i < c->max_tiles; i++) cr_assert_eq(c->tile[i].rows, 0);
    for (int i = 0; i < c->tokens * c->slots; i++)
        if (c->id[i] < 0 || c->id[i] >= c->experts) cr_assert_eq(c->row_of[i], -1);
}

static void check_permute(const permute_case *c, int warps, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("moe_permute");
    const kt_config config = {{warps}};
    const int entries = c->tokens * c->slots, chunks = cuda_cut(entries, KT_PERMUTE_CHUNK);
    const size_t bytes = (size_t)entries * 4;
    const int most = c->experts < entries ? c->experts : entries;
    cuda_memory m = {.n = 0};
    kt_moe_permute call = {.tokens = c->tokens,
                           .slots = c->slots,
                           .experts = c->experts,
                           .tile_rows = c->tile_rows,
                           .max_tiles = entries / c->tile_rows + most};
    int32_t *id;
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    call.id = id = cuda_bytes(&m, bytes, 0);
    for (int i = 0; i < entries; i++) { /* some are nobody's, and one expert is in fashion */
        id[i] = kt_rng_below(&rng, 4) ? (int32_t)kt_rng_below(&rng, (uint64_t)c->experts)
                                      : (int32_t)kt_rng_below(&rng, 3) - 1;
        if (kt_rng_below(&rng, 9) == 0) id[i] = c->experts;
    }
    call.weight = cuda_floats(&m, entries, 1, &rng);
    call.counts = cuda_bytes(&m, (size_t)chunks * (size_t)c->experts * 4, 0x77);
    call.first = cuda_bytes(&m, (size_t)(c->experts + 1) * 4, 0x77);
    call.row_token = cuda_bytes(&m, bytes, 0x77), call.route = cuda_bytes(&m, bytes, 0x77);
    call.row_of = cuda_bytes(&m, bytes, 0x77);
    call.tile = cuda_bytes(&m, (size_t)call.max_tiles * sizeof *call.tile, 0x77);
    call.n_tiles = cuda_bytes(&m, 4, 0x77);
    cuda_launch(k, "moe_permute_count", &config, &call, chunks, 1, c->experts, seed);
    cuda_launch(k, "moe_permute_scan", &config, &call, 1, 1, c->experts, seed);
    cuda_launch(k, "moe_permute_scatter", &config, &call, chunks, 1, c->experts, seed);
    expect_sorted(&call);
    cuda_release(&m);
}

Test(cuda_router, rows_in_the_order_of_their_experts, .timeout = 60) {
    for (size_t i = 0; i < sizeof permutes / sizeof *permutes; i++)
        for (uint32_t seed = 1; seed <= 2; seed++) check_permute(&permutes[i], 4 * (int)seed, seed);
}

Test(cuda_router, results_return_to_their_tokens) {
    enum { TOKENS = 5, SLOTS = 3, K = 77, LD = 80 };
    const kt_cuda_kernel *kernel = cuda_find("moe_permute");
    static const int32_t row_of[TOKENS * SLOTS] = {3, -1, 0,  -1, -1, -1, 1, 2,
                                                   4, 5,  -1, -1, 6,  7,  8};
    cuda_memory m = {.n = 0};
    kt_rng rng;
    float *y, *route, *out, *before;

    kt_rng_seed(&rng, 3);
    y = cuda_floats(&m, 9 * K, 1, &rng), route = cuda_floats(&m, 9, 1, &rng);
    out = cuda_floats(&m, TOKENS * LD, 1, &rng), before = cuda_floats(&m, TOKENS * LD, 0, &rng);
    for (int mode = 0; mode < 4; mode++) { /* weighted or not, added or not */
        const kt_moe_combine call = {y,     row_of,   mode & 1 ? route : NULL, out, LD, K,
                                     SLOTS, mode >> 1};
        memcpy(before, out, TOKENS * LD * sizeof *out);
        cuda_launch(kernel, "moe_permute_combine", &(kt_config){{4}}, &call, 1, TOKENS, 0,
                    (uint32_t)mode);
        for (int i = 0; i < TOKENS * LD; i++) {
            double want = mode >> 1 ? (double)before[i] : 0, size = fabs(want);
            for (int s = 0; s < SLOTS && i % LD < K; s++) {
                const int32_t row = row_of[i / LD * SLOTS + s];
                const double v = row < 0 ? 0 : (double)y[row * K + i % LD];
                want += v * (mode & 1 && row >= 0 ? (double)route[row] : 1);
                size += fabs(v) * (mode & 1 && row >= 0 ? fabs((double)route[row]) : 1);
            }
            if (i % LD < K)
                cr_assert(fabs((double)out[i] - want) <= 8 * 0x1p-24 * size, "mode %d at %d", mode,
                          i);
            else
                cr_assert_eq(out[i], before[i]);
        }
    }
    cuda_release(&m);
}
