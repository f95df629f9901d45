/* A layer over several memory nodes: any cut of the channels gives the layer's result, and the same bits for any
 * threads. The nodes are made up; what is theirs is only which threads and which slices go together.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/moe_ffn/moe_nodes.h"
#include "tests/support/guard.h"

extern const kt_variant kt_variant_any_any_moe64__scalar;
extern const kt_variant kt_variant_a8_rows__scalar;
extern const kt_variant kt_variant_abf16_rows__scalar;

enum { EXPERTS = 5, TOPK = 2, MAX_TOKENS = 12, LDO_GAP = 3 };

typedef struct fixture {
    kt_moe_layer whole, part[KT_MOE_MAX_NODES];
    kt_choice_map map;
    const void *experts[EXPERTS], *slices[KT_MOE_MAX_NODES][EXPERTS];
    kt_moe_nodes nodes;
    int64_t begin[KT_MOE_MAX_NODES + 1];
    float *x, *route_weight, *out, *bias;
    int32_t *expert_id;
} fixture;

/* The whole layer, packed, and a batch. */
static void fixture_init(fixture *f, kt_weight_format weights, kt_weight_format down, int64_t n,
                         int64_t k) {
    kt_err err = {0};
    kt_rng rng;

    memset(f, 0, sizeof *f);
    f->map.count = 1;
    f->map.choice[0].variant = &kt_variant_any_any_moe64__scalar;
    f->whole = (kt_moe_layer){.problem = {.op = KT_OP_MOE_FFN,
                                          .weights = weights,
                                          .acts = kt_format_find(weights)->acts,
                                          .n = n,
                                          .k = k,
                                          .experts = EXPERTS,
                                          .topk = TOPK},
                              .experts = f->experts,
                              .choices = &f->map,
                              .down_weights = down,
                              .down_choices = &f->map};
    f->whole.encode = f->whole.problem.acts == KT_A_BF16 ? &kt_variant_abf16_rows__scalar
                                                         : &kt_variant_a8_rows__scalar;
    if (down == KT_W_NONE) down = weights;
    for (int e = 0; e < EXPERTS; e++) {
        kt_gate_matrix gate, up, below;
        void *packed = kt_guard_alloc(kt_moe_expert_bytes(&f->whole), 64, 0);
        uint64_t seed = 10 + 3 * (uint64_t)e;
        cr_assert_eq(kt_gate_matrix_create(weights, n, k, seed, &gate, &err), KT_OK);
        cr_assert_eq(kt_gate_matrix_create(weights, n, k, seed + 1, &up, &err), KT_OK);
        cr_assert_eq(kt_gate_matrix_create(down, k, n, seed + 2, &below, &err), KT_OK);
        kt_moe_pack(&f->whole, &gate.matrix, &up.matrix, &below.matrix, packed);
        f->experts[e] = packed;
        kt_gate_matrix_destroy(&gate);
        kt_gate_matrix_destroy(&up);
        kt_gate_matrix_destroy(&below);
    }
    f->bias = malloc(sizeof *f->bias * (size_t)(EXPERTS * (2 * n + k)));
    for (int64_t i = 0; i < EXPERTS * (2 * n + k); i++)
        f->bias[i] = 0.1f * (float)(i * 13 % 31 - 15);
    f->whole.glu = (kt_glu_rule){KT_GLU_OAI, 2, 1.702f};
    f->whole.bias = (kt_moe_bias){f->bias, f->bias + EXPERTS * n, f->bias + 2 * EXPERTS * n, n};
    f->x = malloc(sizeof *f->x * (size_t)(MAX_TOKENS * k));
    f->out = malloc(sizeof *f->out * (size_t)(MAX_TOKENS * (k + LDO_GAP)));
    f->route_weight = malloc(sizeof *f->route_weight * MAX_TOKENS * TOPK);
    f->expert_id = malloc(sizeof *f->expert_id * MAX_TOKENS * TOPK);
    kt_rng_seed(&rng, 3);
    for (int64_t i = 0; i < MAX_TOKENS * k; i++) f->x[i] = kt_rng_normal(&rng);
    for (int64_t t = 0; t < MAX_TOKENS; t++)
        for (int j = 0; j < TOPK; j++) {
            f->expert_id[TOPK * t + j] = (int32_t)((t * t + 2 * j) % EXPERTS);
            f->route_weight[TOPK * t + j] = 0.4f + 0.05f * (float)t;
        }
}

static void free_all(const void **blocks, int n) {
    for (int i = 0; i < n; i++) {
        void *p;
        memcpy(&p, &blocks[i], sizeof p);
        kt_guard_free(p);
        blocks[i] = NULL;
    }
}

static void fixture_deinit(fixture *f) {
    free_all(f->experts, EXPERTS);
    free(f->bias), free(f->x), free(f->out), free(f->route_weight), free(f->expert_id);
}

/* Slices in memory of exactly their size, and the job of so many threads per node. */
static void spread(fixture *f, const double *share, const int *threads, int n_nodes) {
    kt_err err = {0};
    int all = 0;

    cr_assert_eq(kt_moe_cut_channels(&f->whole, share, n_nodes, f->begin, &err), KT_OK, "%s",
                 err.message);
    f->nodes = (kt_moe_nodes){.n_nodes = n_nodes,
                              .x = f->x,
                              .ldx = f->whole.problem.k,
                              .expert_id = f->expert_id,
                              .route_weight = f->route_weight,
                              .out = f->out,
                              .ldo = f->whole.problem.k + LDO_GAP};
    for (int i = 0; i < n_nodes; i++) all += threads[i];
    for (int i = 0; i < n_nodes; i++) {
        f->part[i] = kt_moe_slice_layer(&f->whole, f->begin[i], f->begin[i + 1], f->slices[i]);
        for (int e = 0; e < EXPERTS; e++) {
            void *slice = kt_guard_alloc(kt_moe_expert_bytes(&f->part[i]), 64, 0xee);
            kt_moe_slice_pack(&f->whole, f->experts[e], f->begin[i], f->begin[i + 1], slice);
            f->slices[i][e] = slice;
        }
        f->nodes.layer[i] = &f->part[i];
        f->nodes.threads[i] = threads[i];
        f->nodes.workspace[i] =
            kt_guard_alloc(kt_moe_nodes_bytes(&f->part[i], MAX_TOKENS, all), 64, 0xee);
    }
    cr_assert_eq(kt_moe_nodes_init(&f->nodes, MAX_TOKENS, &err), KT_OK, "%s", err.message);
}

static void gather(fixture *f) {
    for (int i = 0; i < f->nodes.n_nodes; i++) {
        free_all(f->slices[i], EXPERTS);
        kt_guard_free(f->nodes.workspace[i]);
    }
}

/* Tasks in random order on random threads, as a pool that steals might. */
static void run_shuffled(kt_phase *phases, int n_phases, int n_threads, uint64_t seed) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int p = 0; p < n_phases; p++) {
        int64_t n = phases[p].prepare(phases[p].arg, n_threads);
        int64_t *order = malloc(sizeof *order * (size_t)(n + 1));
        for (int64_t i = 0; i < n; i++) {
            int64_t j = (int64_t)kt_rng_below(&rng, (uint64_t)i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int64_t i = 0; i < n; i++)
            phases[p].run(phases[p].arg, order[i], order[i] + 1,
                          (int)kt_rng_below(&rng, (uint64_t)n_threads));
        free(order);
    }
}

static void run_nodes(fixture *f, int64_t tokens, int accumulate, uint64_t seed) {
    kt_phase phases[KT_MOE_NODES_PHASES];

    for (int64_t i = 0; i < MAX_TOKENS * f->nodes.ldo; i++) f->out[i] = accumulate ? 1.0f : NAN;
    f->nodes.tokens = tokens;
    f->nodes.accumulate = accumulate;
    kt_moe_nodes_phases(&f->nodes, phases);
    run_shuffled(phases, KT_MOE_NODES_PHASES, f->nodes.n_threads, seed);
}

/* The plain layer on one thread. */
static float *run_whole(fixture *f, int64_t tokens, int accumulate) {
    const int64_t k = f->whole.problem.k, ldo = k + LDO_GAP;
    size_t bytes = kt_moe_workspace_bytes(&f->whole, MAX_TOKENS, 1);
    kt_moe_job job = {.layer = &f->whole,
                      .x = f->x,
                      .ldx = k,
                      .tokens = tokens,
                      .expert_id = f->expert_id,
                      .route_weight = f->route_weight,
                      .ldo = ldo,
                      .accumulate = accumulate,
                      .workspace = kt_guard_alloc(bytes, 64, 0)};
    kt_phase phases[KT_MOE_PHASES];
    kt_err err = {0};

    job.out = malloc(sizeof *job.out * (size_t)(MAX_TOKENS * ldo));
    for (int64_t i = 0; i < MAX_TOKENS * ldo; i++) job.out[i] = accumulate ? 1.0f : NAN;
    cr_assert_eq(kt_moe_job_init(&job, MAX_TOKENS, 1, bytes, &err), KT_OK, "%s", err.message);
    kt_moe_job_phases(&job, phases);
    run_shuffled(phases, KT_MOE_PHASES, 1, 1);
    kt_guard_free(job.workspace);
    return job.out;
}

/* The slices' h are the very bits of the whole layer's; only the sum over channels is taken apart, so the two may
 * differ by roundings of its terms: far below 2^-16 of the largest output, where a lost or doubled block
 * would be of the output's size. */
static void check(fixture *f, int64_t tokens, int accumulate) {
    const int64_t k = f->whole.problem.k, ldo = k + LDO_GAP;
    float *want = run_whole(f, tokens, accumulate), largest = 0;

    for (int64_t t = 0; t < tokens; t++)
        for (int64_t j = 0; j < k; j++) largest = fmaxf(largest, fabsf(want[t * ldo + j]));
    for (int64_t t = 0; t < MAX_TOKENS; t++)
        for (int64_t j = 0; j < ldo; j++) {
            float got = f->out[t * ldo + j], expected = want[t * ldo + j];
            if (t < tokens && j < k)
                cr_assert(fabsf(got - expected) <= 0x1p-16f * largest,
                          "out[%lld, %lld] %g, want %g", (long long)t, (long long)j, got, expected);
            else
                cr_assert(memcmp(&got, &expected, sizeof got) == 0, "wrote past the rows");
        }
    free(want);
}

Test(moe_nodes, cuts_channels_in_proportion_to_the_shares) {
    static const struct {
        kt_weight_format weights;
        int64_t n;
        int nodes;
        double share[4];
        int64_t begin[5];
    } cases[] = {
        {KT_W_INT4_G32, 768, 2, {1, 1}, {0, 384, 768}},
        {KT_W_INT4_G32, 768, 2, {1, 3}, {0, 192, 768}},
        {KT_W_INT4_G32, 768, 2, {2, 1}, {0, 512, 768}},
        {KT_W_INT4_G32, 768, 4, {1, 1, 1, 1}, {0, 192, 384, 576, 768}},
        {KT_W_INT4_G32, 320, 2, {1, 1}, {0, 192, 320}},
        {KT_W_INT4_G32, 160, 2, {1, 1}, {0, 128, 160}}, /* the last block is half a one */
        {KT_W_INT4_G32, 256, 2, {1, 1000}, {0, 64, 256}},
        {KT_W_Q4_K, 768, 2, {1, 1}, {0, 512, 768}}, /* blocks of 256 */
        {KT_W_FP8_B128, 768, 3, {5, 4, 3}, {0, 384, 640, 768}},
        {KT_W_BF16, 64, 1, {7}, {0, 64}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_moe_layer whole = {.problem = {.weights = cases[i].weights, .n = cases[i].n}};
        int64_t begin[5];
        kt_err err = {0};
        cr_assert_eq(kt_moe_cut_channels(&whole, cases[i].share, cases[i].nodes, begin, &err),
                     KT_OK, "%s", err.message);
        for (int j = 0; j <= cases[i].nodes; j++)
            cr_assert_eq(begin[j], cases[i].begin[j], "case %zu: node %d begins at %lld, not %lld",
                         i, j, (long long)begin[j], (long long)cases[i].begin[j]);
    }
}

Test(moe_nodes, refuses_cuts_that_cannot_be) {
    kt_moe_layer whole = {.problem = {.weights = KT_W_Q6_K, .n = 768}};
    const double share[] = {1, 1, 1, 1}, none[] = {1, 0};
    int64_t begin[5];
    kt_err err = {0};

    cr_assert_eq(kt_moe_cut_channels(&whole, share, 4, begin, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "blocks of 256 over 4 nodes"), "%s", err.message);
    cr_assert_eq(kt_moe_cut_channels(&whole, share, 0, begin, &err), KT_E_UNSUPPORTED);
    cr_assert_eq(kt_moe_cut_channels(&whole, none, 2, begin, &err), KT_E_INVALID);
    cr_assert(strstr(err.message, "node 1 has a share of 0"), "%s", err.message);
}

Test(moe_nodes, any_cut_gives_the_result_of_the_whole_layer, .timeout = 120) {
    static const struct {
        kt_weight_format weights, down;
        int64_t n, k;
    } layers[] = {{KT_W_BF16, KT_W_NONE, 320, 96},         {KT_W_INT8_CHANNEL, KT_W_NONE, 320, 96},
                  {KT_W_INT4_G32, KT_W_NONE, 160, 160},    {KT_W_FP8_B128, KT_W_NONE, 384, 96},
                  {KT_W_MXFP8, KT_W_NONE, 224, 96},        {KT_W_NVFP4, KT_W_NONE, 256, 128},
                  {KT_W_FP8_CHANNEL, KT_W_NONE, 192, 64},  {KT_W_INT4Z_G64, KT_W_NONE, 192, 128},
                  {KT_W_INT8_G128, KT_W_NONE, 256, 128},   {KT_W_Q4_K, KT_W_Q6_K, 512, 256},
                  {KT_W_Q5_0, KT_W_INT8_CHANNEL, 128, 96}, {KT_W_F16, KT_W_NONE, 128, 64},
                  {KT_W_BF16, KT_W_NONE, 128, 704}}; /* outputs to be added by all threads */
    static const struct {
        int nodes, threads[3];
        double share[3];
    } cuts[] = {{1, {2}, {1}}, {2, {1, 1}, {1, 1}}, {2, {3, 1}, {3, 1}}, {2, {2, 5}, {2, 5}}};

    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            fixture f;
            fixture_init(&f, layers[l].weights, layers[l].down, layers[l].n, layers[l].k);
            spread(&f, cuts[c].share, cuts[c].threads, cuts[c].nodes);
            for (int64_t tokens = 0; tokens <= MAX_TOKENS; tokens += tokens == 1 ? 11 : 1) {
                run_nodes(&f, tokens, (int)(c % 2), 7 * c + l);
                check(&f, tokens, (int)(c % 2));
            }
            gather(&f);
            fixture_deinit(&f);
        }
}

Test(moe_nodes, threads_do_not_change_a_bit) {
    static const int threads[][2] = {{1, 1}, {1, 7}, {4, 2}, {16, 3}, {32, 32}};
    const double share[] = {2, 1}; /* of the nodes, whatever their threads */
    fixture f;
    size_t bytes;
    float *first;

    fixture_init(&f, KT_W_INT4_G32, KT_W_NONE, 320, 224);
    bytes = sizeof *f.out * (size_t)(MAX_TOKENS * (f.whole.problem.k + LDO_GAP));
    first = malloc(bytes);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        spread(&f, share, threads[t], 2);
        run_nodes(&f, MAX_TOKENS, 1, t);
        if (t == 0) memcpy(first, f.out, bytes);
        cr_assert(memcmp(first, f.out, bytes) == 0, "%d + %d threads", threads[t][0],
                  threads[t][1]);
        gather(&f);
    }
    free(first);
    fixture_deinit(&f);
}

/* What each thread of the pool is given is its node's, and no node's tasks are left out. */
Test(moe_nodes, tasks_stay_on_their_nodes_threads) {
    const int threads[] = {3, 1};
    const double share[] = {3, 1};
    kt_phase phases[KT_MOE_NODES_PHASES];
    fixture f;

    fixture_init(&f, KT_W_INT8_CHANNEL, KT_W_NONE, 512, 512);
    spread(&f, share, threads, 2);
    f.nodes.tokens = MAX_TOKENS;
    kt_moe_nodes_phases(&f.nodes, phases);
    for (int p = 0; p < KT_MOE_PHASES; p++) {
        int64_t slots = phases[p].prepare(phases[p].arg, 4);
        const struct kt_nodes_phase *at = &f.nodes.phase[p];
        if (slots == 0) continue;
        cr_assert_eq(slots, 4 * at->per_thread);
        cr_assert(at->tasks[0] <= 3 * at->per_thread && at->tasks[1] <= at->per_thread);
        cr_assert(at->tasks[0] > 0 && at->tasks[1] > 0);
        phases[p].run(phases[p].arg, 0, slots, 0);
    }
    gather(&f);
    fixture_deinit(&f);
}

Test(moe_nodes, runs_on_the_thread_pool) {
    const int threads[] = {2, 1};
    const double share[] = {2, 1};
    kt_pool_options options = {.n_threads = 3, .no_pin = 1};
    kt_phase phases[KT_MOE_NODES_PHASES];
    kt_pool *pool = NULL;
    kt_err err = {0};
    fixture f;

    cr_assert_eq(kt_pool_create(&options, &pool, &err), KT_OK, "%s", err.message);
    fixture_init(&f, KT_W_INT4_G32, KT_W_NONE, 192, 96);
    spread(&f, share, threads, 2);
    for (int64_t tokens = MAX_TOKENS; tokens >= 0; tokens--) {
        for (int64_t i = 0; i < MAX_TOKENS * f.nodes.ldo; i++) f.out[i] = NAN;
        f.nodes.tokens = tokens;
        kt_moe_nodes_phases(&f.nodes, phases);
        kt_pool_run(pool, phases, KT_MOE_NODES_PHASES);
        check(&f, tokens, 0);
    }
    gather(&f);
    fixture_deinit(&f);
    kt_pool_destroy(pool);
}
