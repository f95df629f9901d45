/* The fused MoE layer driver: the same bits as calling the variants expert by expert, in any task
 * order on any number of threads, and the double reference within the bound that goes all the way
 * through. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/moe_ffn/moe_layer.h"
#include "kernels/moe_ffn/moe_ref.h"
#include "dispatch/model/gguf_tensors.h"
#include "tests/support/guard.h"

extern const kt_variant kt_variant_any_any_moe64__scalar;
extern const kt_variant kt_variant_a8_rows__scalar;
extern const kt_variant kt_variant_abf16_rows__scalar;

#define MAX_EXPERTS 16
#define MAX_K 512 /* of the reference */
#define MAX_N 256
#define CANARY 0xA5

/* A layer with its plain weights. */
typedef struct fixture {
    kt_moe_layer layer;
    kt_choice_map map, down_map;
    kt_gate_matrix gate[MAX_EXPERTS], up[MAX_EXPERTS], down[MAX_EXPERTS];
    const void *experts[MAX_EXPERTS];
    float *bias; /* of gate, up and down, one behind the other; NULL = none */
} fixture;

/* Every usable variant of the layout takes part: which one depends on the rows of an expert.
 * Unstable ones only where bits are not compared. */
static void fill_map(kt_choice_map *map, const kt_problem *q, int with_unstable) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *b = kt_builtin_variants[i];
        kt_config config = {{0}};
        if (b->op != KT_OP_MOE_FFN || (b->isa & ~kt_isa_available()) || strcmp(b->layout, "p64"))
            continue;
        if (!with_unstable && !kt_variant_is_stable(b)) continue;
        for (int p = 0; p < b->n_params; p++) config.value[p] = b->params[p].initial;
        if (kt_gate_accepts(b, q, &config, NULL) != KT_OK) continue;
        if (map->count < KT_MAX_CHOICES) map->choice[map->count++] = (kt_choice){b, config};
    }
    cr_assert_gt(map->count, 0, "nothing takes %s n=%lld k=%lld", kt_weight_format_name(q->weights),
                 (long long)q->n, (long long)q->k);
    for (int m = 0; m <= KT_M_DENSE; m++) map->index[m] = (uint8_t)(m % map->count);
}

/* Maps and layer; the experts are still to be packed. */
static void fixture_layer(fixture *f, kt_weight_format weights, kt_weight_format down, int64_t n,
                          int64_t k, int64_t experts, int64_t topk) {
    kt_problem q = {.op = KT_OP_MOE_FFN,
                    .weights = weights,
                    .acts = kt_format_find(weights)->acts,
                    .n = n,
                    .k = k,
                    .experts = experts,
                    .topk = topk};
    kt_problem gate_up_half, down_half;

    memset(f, 0, sizeof *f);
    kt_moe_halves(&q, down, &gate_up_half, &down_half);
    fill_map(&f->map, &gate_up_half, 0);
    fill_map(&f->down_map, &down_half, 0);
    f->layer = (kt_moe_layer){.problem = q,
                              .experts = f->experts,
                              .choices = &f->map,
                              .encode = q.acts == KT_A_BF16 ? &kt_variant_abf16_rows__scalar
                                                            : &kt_variant_a8_rows__scalar,
                              .down_weights = down == weights ? KT_W_NONE : down,
                              .down_choices = &f->down_map};
}

static void fixture_pack(fixture *f) {
    for (int64_t e = 0; e < f->layer.problem.experts; e++) {
        void *packed = kt_guard_alloc(kt_moe_expert_bytes(&f->layer), 64, 0);
        kt_moe_pack(&f->layer, &f->gate[e].matrix, &f->up[e].matrix, &f->down[e].matrix, packed);
        f->experts[e] = packed;
    }
}

static void fixture_init_mixed(fixture *f, kt_weight_format weights, kt_weight_format down,
                               int64_t n, int64_t k, int64_t experts, int64_t topk) {
    kt_err err = {0};

    fixture_layer(f, weights, down, n, k, experts, topk);
    for (int64_t e = 0; e < experts; e++) {
        uint64_t seed = 100 + 3 * (uint64_t)e;
        cr_assert_eq(kt_gate_matrix_create(weights, n, k, seed, &f->gate[e], &err), KT_OK);
        cr_assert_eq(kt_gate_matrix_create(weights, n, k, seed + 1, &f->up[e], &err), KT_OK);
        cr_assert_eq(kt_gate_matrix_create(down, k, n, seed + 2, &f->down[e], &err), KT_OK);
    }
    fixture_pack(f);
}

static void fixture_init(fixture *f, kt_weight_format weights, int64_t n, int64_t k,
                         int64_t experts, int64_t topk) {
    fixture_init_mixed(f, weights, weights, n, k, experts, topk);
}

/* The activation of gpt-oss, its biases on guarded memory. */
static void fixture_endings(fixture *f) {
    const kt_problem *q = &f->layer.problem;
    const int64_t hidden = q->experts * q->n, count = 2 * hidden + q->experts * q->k;

    f->bias = kt_guard_alloc(sizeof(float) * (size_t)count, 4, 0);
    for (int64_t i = 0; i < count; i++) f->bias[i] = 0.02f * (float)(i * 11 % 101 - 50) + 0.001f;
    f->layer.glu = (kt_glu_rule){KT_GLU_OAI, 0.75f, 1.702f};
    f->layer.bias = (kt_moe_bias){f->bias, f->bias + hidden, f->bias + 2 * hidden, q->n};
}

static double bias_at(const float *bias, int64_t at) {
    return bias ? bias[at] : 0;
}

static void fixture_deinit(fixture *f) {
    kt_guard_free(f->bias);
    for (int e = 0; e < MAX_EXPERTS; e++) {
        void *packed;
        memcpy(&packed, &f->experts[e], sizeof packed);
        kt_guard_free(packed);
        kt_gate_matrix_destroy(&f->gate[e]);
        kt_gate_matrix_destroy(&f->up[e]);
        kt_gate_matrix_destroy(&f->down[e]);
    }
}

/* One batch: inputs and routing on guarded memory. */
typedef struct batch {
    int64_t tokens;
    float *x, *route_weight;
    int32_t *expert_id;
} batch;

/* how 0: random; 1: every token to the same experts; 2: some slots unused, some tokens without
 * any. */
static batch batch_make(const kt_problem *q, int64_t tokens, int how, uint64_t seed) {
    batch b = {.tokens = tokens};
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    b.x = kt_guard_alloc(sizeof(float) * (size_t)(tokens * q->k), 4, 0);
    b.route_weight = kt_guard_alloc(sizeof(float) * (size_t)(tokens * q->topk), 4, 0);
    b.expert_id = kt_guard_alloc(sizeof(int32_t) * (size_t)(tokens * q->topk), 4, 0);
    for (int64_t i = 0; i < tokens * q->k; i++) b.x[i] = kt_rng_normal(&rng);
    for (int64_t t = 0; t < tokens; t++) {
        int64_t first = how == 1 ? 1 : (int64_t)kt_rng_below(&rng, (uint64_t)q->experts);
        for (int64_t j = 0; j < q->topk; j++) {
            int unused = how == 2 && (t % 3 == 0 || kt_rng_below(&rng, 3) == 0);
            b.route_weight[t * q->topk + j] = kt_rng_uniform(&rng, 0, 1);
            b.expert_id[t * q->topk + j] = unused ? -1 : (int32_t)((first + 5 * j) % q->experts);
        }
    }
    return b;
}

static void batch_free(batch *b) {
    kt_guard_free(b->x);
    kt_guard_free(b->route_weight);
    kt_guard_free(b->expert_id);
}

/* One call of a choice, with scratch of exactly its size. */
static void run_half(kt_moe_call *call, const kt_choice *choice, int is_down) {
    const kt_variant *v = choice->variant;
    kt_problem sized = *call->problem;
    void *scratch = NULL;

    sized.m = call->m;
    call->config = &choice->config;
    if (v->workspace_bytes)
        scratch = kt_guard_alloc(v->workspace_bytes(&sized, call->config), 64, 0);
    call->scratch = scratch;
    (is_down ? v->moe_down : v->moe_gate_up)(call);
    kt_guard_free(scratch);
}

/* What the layer must give: expert after expert, whole calls, plain loops. */
static void expected(const fixture *f, const batch *b, float *out, int64_t ldo) {
    const kt_problem *q = &f->layer.problem, half = kt_moe_down_half(&f->layer);
    size_t a_stride = kt_act_row_bytes(q->acts, q->k), h_stride = kt_act_row_bytes(q->acts, q->n);
    char *a = kt_guard_alloc((size_t)b->tokens * a_stride, 64, 0);
    char *h = kt_guard_alloc((size_t)b->tokens * h_stride, 64, 0);
    int32_t *rows = malloc(sizeof *rows * (size_t)b->tokens + 1);
    float *weight = malloc(sizeof *weight * (size_t)b->tokens + 1);
    kt_encode_call encode = {
        .x = b->x, .ldx = q->k, .k = q->k, .out = a, .out_stride = a_stride, .row_end = b->tokens};

    f->layer.encode->encode(&encode);
    for (int64_t e = 0; e < q->experts; e++) {
        kt_moe_call call = {.problem = q,
                            .weights = f->experts[e],
                            .a = a,
                            .a_stride = a_stride,
                            .rows = rows,
                            .route_weight = weight,
                            .h = h,
                            .h_stride = h_stride,
                            .out = out,
                            .ldo = ldo,
                            .glu = f->layer.glu};
        if (f->bias) {
            call.gate_bias = f->layer.bias.gate + e * q->n;
            call.up_bias = f->layer.bias.up + e * q->n;
            call.down_bias = f->layer.bias.down + e * q->k;
        }
        for (int64_t i = 0; i < b->tokens * q->topk; i++)
            if (b->expert_id[i] == e) {
                rows[call.m] = (int32_t)(i / q->topk);
                weight[call.m++] = b->route_weight[i];
            }
        if (!call.m) continue;
        call.panel_end = q->n / 32;
        run_half(&call, kt_choice_for(&f->map, call.m), 0);
        call.problem = &half;
        call.weights = (const char *)f->experts[e] + kt_moe_down_offset(&f->layer);
        call.panel_end = kt_p64_panels(q->k);
        run_half(&call, kt_choice_for(half.weights == q->weights ? &f->map : &f->down_map, call.m),
                 1);
    }
    kt_guard_free(a);
    kt_guard_free(h);
    free(rows);
    free(weight);
}

/* Run phases as a pool of n_threads might: tasks one by one in random order on random threads. */
static void run_shuffled(const kt_phase *phases, int n_phases, int n_threads, uint64_t seed) {
    kt_rng rng;
    kt_rng_seed(&rng, seed);
    for (int p = 0; p < n_phases; p++) {
        int64_t count =
            phases[p].prepare ? phases[p].prepare(phases[p].arg, n_threads) : phases[p].n_tasks;
        int64_t *order = malloc(sizeof *order * (size_t)(count + 1));
        for (int64_t i = 0; i < count; i++) {
            int64_t j = (int64_t)kt_rng_below(&rng, (uint64_t)i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int64_t i = 0; i < count; i++)
            phases[p].run(phases[p].arg, order[i], order[i] + 1,
                          (int)kt_rng_below(&rng, (uint64_t)n_threads));
        free(order);
    }
}

typedef struct layer_run {
    kt_moe_job job;
    kt_phase phases[KT_MOE_PHASES];
    void *workspace;
    float *out;
    int64_t ldo;
} layer_run;

/* A job with a workspace of exactly the bytes asked for, ending at a guard page. */
static layer_run layer_run_make(const fixture *f, int64_t max_tokens, int n_threads) {
    layer_run r = {.ldo = f->layer.problem.k + 5};
    size_t bytes = kt_moe_workspace_bytes(&f->layer, max_tokens, n_threads);
    kt_err err = {0};

    r.workspace = kt_guard_alloc(bytes, 64, CANARY);
    r.out = kt_guard_alloc(sizeof(float) * (size_t)(max_tokens * r.ldo), 4, CANARY);
    r.job = (kt_moe_job){.layer = &f->layer, .workspace = r.workspace, .out = r.out, .ldo = r.ldo};
    cr_assert_eq(kt_moe_job_init(&r.job, max_tokens, n_threads, bytes, &err), KT_OK, "%s",
                 err.message);
    return r;
}

static void layer_run_free(layer_run *r) {
    kt_guard_free(r->workspace);
    kt_guard_free(r->out);
}

static void set_batch(layer_run *r, const fixture *f, const batch *b, int accumulate) {
    r->job.x = b->x;
    r->job.ldx = f->layer.problem.k;
    r->job.tokens = b->tokens;
    r->job.expert_id = b->expert_id;
    r->job.route_weight = b->route_weight;
    r->job.accumulate = accumulate;
    kt_moe_job_phases(&r->job, r->phases);
}

static void fill_out(float *out, int64_t count, int accumulate) {
    for (int64_t i = 0; i < count; i++) out[i] = accumulate ? 0.5f * (float)(i % 7) : NAN;
}

static void check_batch(const fixture *f, const batch *b, int n_threads, int accumulate) {
    const kt_problem *q = &f->layer.problem;
    layer_run r = layer_run_make(f, b->tokens + 2, n_threads);
    int64_t count = b->tokens * r.ldo;
    float *want = malloc(sizeof *want * (size_t)count + 1);

    fill_out(want, count, 1);
    for (int64_t t = 0; t < b->tokens && !accumulate; t++)
        memset(want + t * r.ldo, 0, sizeof *want * (size_t)q->k);
    expected(f, b, want, r.ldo);
    for (int again = 0; again < 2; again++) {
        fill_out(r.out, count, accumulate);
        set_batch(&r, f, b, accumulate);
        run_shuffled(r.phases, KT_MOE_PHASES, n_threads, (uint64_t)n_threads + 9);
        for (int64_t t = 0; t < b->tokens; t++) {
            for (int64_t j = 0; j < q->k; j++)
                cr_assert(
                    memcmp(&r.out[t * r.ldo + j], &want[t * r.ldo + j], 4) == 0,
                    "%s n=%lld k=%lld tokens=%lld threads=%d: out[%lld, %lld] = %.9g, want %.9g",
                    kt_weight_format_name(q->weights), (long long)q->n, (long long)q->k,
                    (long long)b->tokens, n_threads, (long long)t, (long long)j,
                    r.out[t * r.ldo + j], want[t * r.ldo + j]);
            for (int64_t j = q->k; j < r.ldo; j++)
                cr_assert(accumulate ? r.out[t * r.ldo + j] == want[t * r.ldo + j]
                                     : isnan(r.out[t * r.ldo + j]),
                          "wrote past column k of token %lld", (long long)t);
        }
    }
    free(want);
    layer_run_free(&r);
}

/* Tiny tasks in order of size; huge ones; as many tasks as there can be, in order of size. */
static const kt_moe_cuts odd_cuts = {.n = 4,
                                     .at = {{2, 1, {64, 1, 1}},
                                            {33, 1, {INT64_C(1) << 40, 1, 0}},
                                            {33, 8, {4096, 64, 1}},
                                            {200, 2, {1024, 5, 1}}}};

Test(moe_layer, cuts_are_found_by_tokens_then_imbalance) {
    cr_assert_eq(kt_moe_cut_for(NULL, 5, 1), &kt_moe_cut_default);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 0, 1), &kt_moe_cut_default);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 1, 9), &odd_cuts.at[0].cut);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 7, 1), &odd_cuts.at[0].cut);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 9, 1), &odd_cuts.at[1].cut);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 40, 2), &odd_cuts.at[1].cut);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 40, 3), &odd_cuts.at[2].cut);
    cr_assert_eq(kt_moe_cut_for(&odd_cuts, 9999, 64), &odd_cuts.at[3].cut);
}

Test(moe_layer, gives_the_bits_of_expert_by_expert_calls_in_any_order_on_any_threads) {
    static const int64_t shapes[][4] = {{32, 32, 2, 1}, {96, 160, 7, 3}, {64, 448, 16, 4}};
    static const int64_t tokens[] = {1, 2, 5, 33, 200};
    static const int threads[] = {1, 2, 3, 16, 64};

    for (int w = KT_W_BF16; w <= KT_W_INT4_G32; w++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            fixture f;
            fixture_init(&f, (kt_weight_format)w, shapes[s][0], shapes[s][1], shapes[s][2],
                         shapes[s][3]);
            if (s == 1) fixture_endings(&f);
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
                for (size_t n = 0; n < sizeof threads / sizeof *threads; n++) {
                    batch b = batch_make(&f.layer.problem, tokens[t], (int)(n + t) % 3, n + 10 * t);
                    f.layer.cuts = (n + t + s) % 2 ? &odd_cuts : NULL;
                    check_batch(&f, &b, threads[n], (int)(n + s) % 2);
                    batch_free(&b);
                }
            fixture_deinit(&f);
        }
}

/* A shared expert is the last one, in every token's list with weight 1, between routed ones that
 * differ. */
Test(moe_layer, a_shared_expert_is_one_that_every_token_chooses) {
    static const int64_t tokens[] = {1, 4, 70};
    fixture f;

    fixture_init(&f, KT_W_INT4_G32, 96, 160, 7, 3);
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++) {
        batch b = batch_make(&f.layer.problem, tokens[n], 0, 40 + n);
        for (int64_t t = 0; t < b.tokens; t++) {
            int32_t *id = b.expert_id + 3 * t;
            for (int j = 0; j < 2; j++)
                if (id[j] == 6) id[j] = id[2];
            id[2] = 6;
            b.route_weight[3 * t + 2] = 1;
        }
        for (int threads = 1; threads <= 4; threads++) check_batch(&f, &b, threads, threads % 2);
        batch_free(&b);
    }
    fixture_deinit(&f);
}

/* What the layer's variants may do: those that open weights round them once more. */
static kt_numerics numerics_of(const fixture *f) {
    const kt_choice_map *maps[2] = {&f->map, &f->down_map};

    for (int half = 0; half < 2; half++)
        for (int i = 0; i < maps[half]->count; i++)
            if (maps[half]->choice[i].variant->numerics == KT_NUM_OPENED) return KT_NUM_OPENED;
    return KT_NUM_F32;
}

/* out of one token in double, with the bound of everything between. */
static void reference(const fixture *f, const batch *b, int64_t token, kt_ref_value *out) {
    const kt_problem *q = &f->layer.problem, half = kt_moe_down_half(&f->layer);
    const kt_numerics numerics = numerics_of(f);
    char *row = kt_guard_alloc(kt_act_row_bytes(q->acts, q->k), 64, 0);
    double a[MAX_K], w_row[MAX_K], h_value[MAX_N];
    kt_ref_sum gate[MAX_N], up[MAX_N], down[MAX_K];
    kt_ref_value h[MAX_N];
    kt_encode_call encode = {.x = b->x + token * q->k,
                             .ldx = q->k,
                             .k = q->k,
                             .out = row,
                             .out_stride = 0,
                             .row_end = 1};

    cr_assert(q->k <= MAX_K && q->n <= MAX_N);
    f->layer.encode->encode(&encode);
    kt_act_decode_row(q->acts, row, q->k, a);
    for (int64_t j = 0; j < q->k; j++) out[j] = (kt_ref_value){0, 0};
    for (int64_t e = 0; e < q->experts; e++)
        for (int64_t s = token * q->topk; s < (token + 1) * q->topk; s++) {
            if (b->expert_id[s] != e) continue;
            kt_gemm_ref(&f->gate[e].matrix, a, 1, w_row, gate);
            kt_gemm_ref(&f->up[e].matrix, a, 1, w_row, up);
            for (int64_t j = 0; j < q->n; j++) {
                const kt_moe_ending ending = {f->layer.glu,
                                              bias_at(f->layer.bias.gate, e * q->n + j),
                                              bias_at(f->layer.bias.up, e * q->n + j)};
                h[j] = kt_moe_ref_h(q, numerics, &gate[j], &up[j], &ending);
            }
            for (int64_t g = 0; g < q->n / 32; g++) kt_moe_ref_encode(q->acts, h + 32 * g);
            for (int64_t j = 0; j < q->n; j++) h_value[j] = h[j].value;
            kt_gemm_ref(&f->down[e].matrix, h_value, 1, w_row, down);
            for (int64_t j = 0; j < q->k; j++) {
                kt_ref_value y;
                kt_format_find(half.weights)->decode_row(&f->down[e].matrix, j, w_row);
                y = kt_moe_ref_down(&half, numerics, &down[j], w_row, h);
                y = kt_moe_ref_bias(y, bias_at(f->layer.bias.down, e * q->k + j));
                y = kt_moe_ref_add(out[j].value, b->route_weight[s], y);
                y.bound += out[j].bound;
                out[j] = y;
            }
        }
    kt_guard_free(row);
}

static void check_reference(const fixture *f, const batch *b) {
    const kt_problem *q = &f->layer.problem;
    layer_run r = layer_run_make(f, b->tokens, 2);
    kt_ref_value want[MAX_K];
    double error = 0, energy = 0;

    set_batch(&r, f, b, 0);
    run_shuffled(r.phases, KT_MOE_PHASES, 2, 1);
    for (int64_t t = 0; t < b->tokens; t++) {
        reference(f, b, t, want);
        for (int64_t j = 0; j < q->k; j++) {
            double got = r.out[t * r.ldo + j], lost = fabs(got - want[j].value);
            cr_assert(lost <= want[j].bound, "%s out[%lld, %lld] = %g, want %g, bound %g",
                      kt_weight_format_name(q->weights), (long long)t, (long long)j, got,
                      want[j].value, want[j].bound);
            error += lost * lost;
            energy += want[j].value * want[j].value;
        }
    }
    /* 8-bit groups of h lose about 1 %, bfloat16 about 0.3 %: a wrong order of experts, weights
     * or rows would show here even where the worst-case bound is wide. */
    cr_assert_leq(sqrt(error), 0.02 * sqrt(energy), "%s: %g", kt_weight_format_name(q->weights),
                  sqrt(error / energy));
    layer_run_free(&r);
}

/* One row through gate and up by a choice, the bias of one channel being NaN. */
static void check_nan(fixture *f, const kt_choice *choice, const void *a, int channel, int of_up,
                      kt_glu kind) {
    const kt_problem *q = &f->layer.problem;
    const int32_t row = 0;
    const float one = 1;
    float gate[64] = {0}, up[64] = {0};
    double h[64];
    kt_moe_call call = {.problem = q,
                        .weights = f->experts[0],
                        .a = a,
                        .a_stride = kt_act_row_bytes(q->acts, q->k),
                        .rows = &row,
                        .route_weight = &one,
                        .m = 1,
                        .panel_end = q->n / 32,
                        .h = kt_guard_alloc(kt_act_row_bytes(q->acts, q->n), 64, 0),
                        .h_stride = kt_act_row_bytes(q->acts, q->n),
                        .glu = {kind, 0.5f, 1.702f},
                        .gate_bias = gate,
                        .up_bias = up};

    (of_up ? up : gate)[channel] = NAN;
    run_half(&call, choice, 0);
    kt_act_decode_row(q->acts, call.h, q->n, h);
    cr_expect(isnan(h[channel]), "%s: NaN of %s in channel %d became %g", choice->variant->name,
              of_up ? "up" : "gate", channel, h[channel]);
    kt_guard_free(call.h);
}

/* A number that is none would else be hidden by the limits. */
Test(moe_layer, nan_passes_the_clamps) {
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_INT4_G32};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        fixture *f = malloc(sizeof *f);
        kt_problem *q = &f->layer.problem;
        batch b;
        void *a;
        fixture_init(f, formats[i], 64, 64, 1, 1);
        b = batch_make(q, 1, 1, 7);
        a = kt_guard_alloc(kt_act_row_bytes(q->acts, q->k), 64, 0);
        f->layer.encode->encode(&(kt_encode_call){
            .x = b.x, .ldx = q->k, .k = q->k, .out = a, .out_stride = 0, .row_end = 1});
        for (int c = 0; c < f->map.count; c++)
            for (int kind = KT_GLU_CLAMP_SILU; kind < KT_GLU_COUNT; kind++)
                for (int of_up = 0; of_up < 2; of_up++)
                    check_nan(f, &f->map.choice[c], a, 37, of_up, (kt_glu)kind);
        kt_guard_free(a);
        batch_free(&b);
        fixture_deinit(f);
        free(f);
    }
}

Test(moe_layer, stays_within_the_bound_of_the_double_reference) {
    for (int w = KT_W_BF16; w <= KT_W_INT4_G32; w++) {
        fixture f;
        batch b;

        fixture_init(&f, (kt_weight_format)w, 96, 448, 9, 3);
        f.map.count = 0;
        fill_map(&f.map, &f.layer.problem, 1);
        b = batch_make(&f.layer.problem, 12, 0, 77);
        check_reference(&f, &b);
        batch_free(&b);
        fixture_deinit(&f);
    }
}

/* Gate and up in one format, down in another, as GGUF files mix them; variants of both halves
 * change with the rows. */
Test(moe_layer, takes_down_projections_in_another_format) {
    static const struct {
        kt_weight_format gate_up, down;
        int64_t n, k;
    } mixes[] = {{KT_W_Q4_K, KT_W_Q6_K, 256, 512},
                 {KT_W_Q4_K, KT_W_Q5_0, 64, 256},
                 {KT_W_IQ4_XS, KT_W_Q5_K, 256, 256},
                 {KT_W_MXFP4, KT_W_Q8_0, 96, 160},
                 {KT_W_INT8_G16M, KT_W_Q6_K, 256, 288},
                 {KT_W_Q3_K, KT_W_INT8_G16M, 96, 256},
                 {KT_W_INT4_G32, KT_W_INT8_CHANNEL, 96, 160},
                 {KT_W_BF16, KT_W_F16, 32, 96}};
    static const int64_t tokens[] = {1, 5, 40};
    static const int threads[] = {1, 3, 16};

    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        fixture f;
        fixture_init_mixed(&f, mixes[i].gate_up, mixes[i].down, mixes[i].n, mixes[i].k, 7, 2);
        if (i % 2) fixture_endings(&f);
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            batch b = batch_make(&f.layer.problem, tokens[t], (int)t, 7 + t);
            check_batch(&f, &b, threads[t], (int)(i % 2));
            check_reference(&f, &b);
            batch_free(&b);
        }
        fixture_deinit(&f);
    }
}

/* One layer's routed experts as they lie in a GGUF file; 0 when the file has none there. */
static int fixture_init_stored(fixture *f, const kt_gguf_tensor *list, size_t count, int layer,
                               const char *kind, const char *file) {
    static const char *const roles[] = {"gate", "up", "down"};
    const kt_gguf_tensor *t[3];
    kt_gate_matrix *to[3] = {f->gate, f->up, f->down};
    char name[64];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s_%s.weight", layer, roles[i], kind);
        t[i] = kt_gguf_tensor_find(list, count, name);
        if (!t[i]) return 0;
    }
    cr_assert_leq(t[0]->size[2], MAX_EXPERTS, "%s", name);
    if (t[0]->format != t[1]->format) { /* they share panels: such a layer has to be converted */
        cr_assert_str_eq(file, "glm4moe-mixed");
        return 0;
    }
    fixture_layer(f, t[0]->format, t[2]->format, t[0]->size[1], t[0]->size[0], t[0]->size[2],
                  t[0]->size[2] < 2 ? 1 : 2);
    for (int i = 0; i < 3; i++)
        for (int64_t e = 0; e < t[0]->size[2]; e++) to[i][e].matrix = kt_gguf_matrix(t[i], e);
    fixture_pack(f);
    return 1;
}

typedef struct {
    const char *name;
    int layers, mixed; /* layers that are run, and those of two formats among them */
} stored_file;

static void check_stored_file(const stored_file *stored) {
    static const char *const kinds[] = {"exps", "shexp"};
    char relative[128], path[512];
    kt_mapping file;
    kt_gguf_meta meta;
    kt_gguf_tensor *list;
    size_t count;
    int layers = 0, mixed = 0;
    kt_err err = {0};

    snprintf(relative, sizeof relative, "data/gguf/%s/model.gguf", stored->name);
    if (!kt_shared_path(relative, path, sizeof path))
        cr_skip_test("%s is not in the shared data", relative);
    cr_assert_eq(kt_mapping_open(path, &file, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_gguf_meta_init(&meta, file.data, file.bytes, &err), KT_OK);
    cr_assert_eq(kt_gguf_tensors_read(&meta, &list, &count, &err), KT_OK, "%s", err.message);
    for (int l = 0; l < 8; l++)
        for (int kind = 0; kind < 2; kind++) {
            fixture f;
            batch b;
            if (!fixture_init_stored(&f, list, count, l, kinds[kind], stored->name)) continue;
            b = batch_make(&f.layer.problem, 6, 0, (uint64_t)l);
            check_batch(&f, &b, 3, 0);
            check_reference(&f, &b);
            layers++;
            mixed += f.layer.down_weights != KT_W_NONE;
            batch_free(&b);
            fixture_deinit(&f);
        }
    free(list);
    kt_gguf_meta_deinit(&meta);
    kt_mapping_close(&file);
    cr_expect_eq(layers, stored->layers, "%s: %d layers", stored->name, layers);
    cr_expect_eq(mixed, stored->mixed, "%s: %d layers of two formats", stored->name, mixed);
}

/* Mixes as quantisation programs write them: routed experts, and shared experts in formats of
 * their own, layer by layer. The first two files travel with the tree. */
Test(moe_layer, runs_the_mixed_experts_of_gguf_files, .timeout = 120) {
    static const stored_file files[] = {{"qwen3moe-q2_k", 1, 1}, {"qwen3moe-q3_k_m", 2, 2}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) check_stored_file(&files[i]);
}

Test(moe_layer, runs_the_mixed_experts_of_other_families, .timeout = 120) {
    static const stored_file files[] = {{"qwen3moe-q4_k_m", 2, 1},
                                        {"qwen3moe-q5_k_m", 2, 1},
                                        {"deepseek2-q4_k_m", 2, 2},
                                        {"glm4moe-mixed", 2, 0},
                                        {"minimax-m2-q3_k_m", 2, 2}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) check_stored_file(&files[i]);
}

Test(moe_layer, refuses_halves_that_do_not_go_together) {
    fixture f;
    kt_err err = {0};
    kt_moe_job job = {.layer = &f.layer};
    kt_variant narrow;

    fixture_init_mixed(&f, KT_W_Q4_0, KT_W_Q8_0, 64, 64, 2, 1);
    narrow = *f.down_map.choice[0].variant; /* plain C would read every format */
    narrow.weights = 1u << KT_W_Q8_0;
    for (int i = 0; i < f.down_map.count; i++) f.down_map.choice[i].variant = &narrow;
    f.layer.down_choices = NULL;
    cr_assert_eq(kt_moe_job_init(&job, 4, 1, 0, &err), KT_E_INVALID);
    f.layer.down_choices = &f.down_map;
    f.layer.down_weights = KT_W_Q6_K; /* 64 inputs are no block of 256 */
    cr_assert_eq(kt_moe_job_init(&job, 4, 1, 0, &err), KT_E_INVALID);
    cr_assert(strstr(err.message, "64 inputs of wq6_k"), "%s", err.message);
    f.layer.down_weights = KT_W_F16; /* Q4_0 leaves 8-bit activations, F16 wants BF16 */
    cr_assert_eq(kt_moe_job_init(&job, 4, 1, 0, &err), KT_E_MISMATCH);
    cr_assert(strstr(err.message, "wf16 weights with a8"), "%s", err.message);
    fixture_deinit(&f);
}

Test(moe_layer, runs_on_the_thread_pool_with_changing_batches) {
    static const int64_t tokens[] = {3, 0, 40, 1, 17, 0, 64};
    for (int threads = 1; threads <= 4; threads++) {
        kt_pool_options options = {.n_threads = threads, .no_pin = 1};
        kt_pool *pool = NULL;
        fixture f;
        layer_run r;
        kt_err err = {0};

        cr_assert_eq(kt_pool_create(&options, &pool, &err), KT_OK, "%s", err.message);
        fixture_init(&f, KT_W_INT4_G32, 96, 160, 7, 3);
        r = layer_run_make(&f, 64, threads);
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            batch b = batch_make(&f.layer.problem, tokens[i], 0, i);
            int64_t count = tokens[i] * r.ldo, active, most;
            float *want = calloc((size_t)count + 1, sizeof *want);
            expected(&f, &b, want, r.ldo);
            set_batch(&r, &f, &b, 0);
            kt_pool_run(pool, r.phases, KT_MOE_PHASES);
            kt_moe_job_load(&r.job, &active, &most);
            cr_assert_eq(active > 0, tokens[i] > 0);
            cr_assert_leq(most, tokens[i]);
            for (int64_t t = 0; t < tokens[i]; t++)
                cr_assert_arr_eq(&r.out[t * r.ldo], &want[t * r.ldo], 160 * sizeof *want);
            free(want);
            batch_free(&b);
        }
        layer_run_free(&r);
        fixture_deinit(&f);
        kt_pool_destroy(pool);
    }
}

Test(moe_layer, init_refuses_what_cannot_run) {
    fixture f;
    kt_err err = {0};
    kt_moe_job job;
    size_t bytes;
    char *workspace;

    fixture_init(&f, KT_W_INT8_CHANNEL, 32, 64, 3, 2);
    bytes = kt_moe_workspace_bytes(&f.layer, 8, 2);
    workspace = kt_guard_alloc(bytes + 64, 64, 0);
    job = (kt_moe_job){.layer = &f.layer, .workspace = workspace};
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes - 1, &err), KT_E_INVALID);
    cr_assert_null(job.state);
    cr_assert_eq(kt_moe_job_init(&job, 9, 2, bytes, &err), KT_E_INVALID);
    cr_assert_eq(kt_moe_job_init(&job, 0, 2, bytes, &err), KT_E_INVALID);
    cr_assert_eq(kt_moe_job_init(&job, INT64_MAX / 2, 2, bytes, &err), KT_E_INVALID);
    job.workspace = workspace + 4;
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes, &err), KT_E_INVALID);
    job.workspace = workspace;
    f.layer.encode = &kt_variant_abf16_rows__scalar;
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes, &err), KT_E_MISMATCH);
    f.layer.encode = &kt_variant_a8_rows__scalar;
    f.map.index[3] = (uint8_t)f.map.count;
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes, &err), KT_E_INVALID);
    f.map.index[3] = 0;
    f.layer.problem.n = 33;
    cr_assert_eq(kt_moe_job_init(&job, 8, 2, bytes, &err), KT_E_INVALID);
    kt_guard_free(workspace);
    fixture_deinit(&f);
}
