/* Families in odd sizes against their formulas in double (tests/support/plain_model.h),
 * which share no code with the engine. Bound: 1.5 times what those formulas lose when they round
 * where the engine does. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/exec/engine_draft.h"
#include "runtime/exec/engine_impl.h"
#include "runtime/exec/place.h"
#include "runtime/model/convert.h"
#include "tests/support/plain_model.h"
#include "tests/support/temp.h"

#define MOST_TOKENS 140
#define N_TOKENS 12 /* but of shapes that say another number */
#define SEEDS 60    /* tried until no decision is close */
#define MODELS 2    /* compared per shape */
#define DISTURBED 3 /* runs that must choose the same */

static const kt_plain_shape shapes[] = {
    {KT_PLAIN_MINIMAX_M2, .layers = 2, .hidden = 160, .vocab = 67, .heads = 3, .kv_heads = 1,
     .head_dim = 32, .rotary = 16, .experts = 5, .topk = 2, .expert_size = 96, .theta = 5e6},
    {KT_PLAIN_MINIMAX_M2, .layers = 3, .hidden = 96, .vocab = 40, .heads = 5, .kv_heads = 5,
     .head_dim = 64, .rotary = 64, .experts = 7, .topk = 3, .expert_size = 32, .theta = 1e4},
    {KT_PLAIN_GLM4_MOE, .layers = 3, .hidden = 96, .vocab = 33, .heads = 7, .kv_heads = 1,
     .head_dim = 96, .rotary = 48, .experts = 5, .topk = 2, .expert_size = 64, .shared_size = 128,
     .dense_size = 224, .dense_layers = 1, .groups = 1, .top_groups = 1, .scaling = 2.5,
     .theta = 1e6, .has_qk_norm = true},
    {KT_PLAIN_GLM4_MOE, .layers = 2, .hidden = 224, .vocab = 50, .heads = 6, .kv_heads = 3,
     .head_dim = 32, .rotary = 32, .experts = 6, .topk = 1, .expert_size = 160, .groups = 1,
     .top_groups = 1, .scaling = 1, .theta = 1e4, .is_tied = true},
    {KT_PLAIN_DEEPSEEK_V3,
     .layers = 3,
     .hidden = 160,
     .vocab = 61,
     .heads = 3,
     .q_lora = 96,
     .kv_lora = 160,
     .nope = 64,
     .rope = 32,
     .v = 96,
     .experts = 9,
     .topk = 3,
     .expert_size = 96,
     .shared_size = 96,
     .dense_size = 96,
     .dense_layers = 1,
     .groups = 3,
     .top_groups = 2,
     .scaling = 2.5,
     .theta = 1e4,
     .yarn = 8},
    {KT_PLAIN_DEEPSEEK_V3, .layers = 2, .hidden = 96, .vocab = 35, .heads = 5, .kv_lora = 64,
     .nope = 32, .rope = 16, .v = 32, .experts = 4, .topk = 2, .expert_size = 64,
     .shared_size = 128, .groups = 2, .top_groups = 1, .scaling = 1, .theta = 1e4},
    {KT_PLAIN_KIMI_K2,  .layers = 2,   .hidden = 128,     .vocab = 70,       .heads = 7,
     .q_lora = 32,      .kv_lora = 96, .nope = 96,        .rope = 64,        .v = 32,
     .experts = 11,     .topk = 4,     .expert_size = 32, .shared_size = 32, .dense_size = 160,
     .dense_layers = 1, .groups = 1,   .top_groups = 1,   .scaling = 2.827,  .theta = 5e4,
     .yarn = 32},
    {KT_PLAIN_DEEPSEEK_V32, .layers = 2,       .hidden = 96,     .vocab = 45,       .heads = 3,
     .q_lora = 64,          .kv_lora = 96,     .nope = 32,       .rope = 32,        .v = 64,
     .index_heads = 3,      .index_dim = 64,   .index_topk = 5,  .experts = 6,      .topk = 2,
     .expert_size = 96,     .shared_size = 96, .dense_size = 64, .dense_layers = 1, .groups = 3,
     .top_groups = 2,       .scaling = 2.5,    .theta = 1e4,     .yarn = 40},
    {KT_PLAIN_QWEN3_NEXT, .layers = 4, .hidden = 160, .vocab = 53, .heads = 3, .kv_heads = 1,
     .head_dim = 64, .rotary = 16, .key_heads = 3, .value_heads = 6, .key_dim = 32, .value_dim = 64,
     .full_every = 2, .experts = 5, .topk = 2, .expert_size = 96, .shared_size = 32, .theta = 1e7},
    {KT_PLAIN_QWEN3_NEXT, .layers = 3, .hidden = 96, .vocab = 34, .heads = 4, .kv_heads = 4,
     .head_dim = 32, .rotary = 32, .key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 32,
     .full_every = 3, .experts = 7, .topk = 5, .expert_size = 32, .shared_size = 32, .theta = 1e4},
    {KT_PLAIN_GLM4_LITE, .layers = 2,   .hidden = 96,      .vocab = 41,       .heads = 5,
     .q_lora = 32,       .kv_lora = 64, .nope = 32,        .rope = 16,        .v = 64,
     .experts = 6,       .topk = 2,     .expert_size = 32, .shared_size = 32, .dense_size = 96,
     .dense_layers = 1,  .groups = 1,   .top_groups = 1,   .scaling = 1.8,    .theta = 1e6},
    /* the third layer meets what the second picked */
    {KT_PLAIN_GLM_DSA, .layers = 3,       .hidden = 96,      .vocab = 37,       .heads = 3,
     .q_lora = 64,     .kv_lora = 64,     .nope = 32,        .rope = 16,        .v = 96,
     .index_heads = 3, .index_dim = 64,   .index_topk = 5,   .indexers = "FFS", .experts = 5,
     .topk = 2,        .expert_size = 64, .shared_size = 64, .dense_size = 64,  .dense_layers = 2,
     .groups = 1,      .top_groups = 1,   .scaling = 2.5,    .theta = 8e6},
    {KT_PLAIN_KIMI_K25, .layers = 2,   .hidden = 96,      .vocab = 44,       .heads = 3,
     .q_lora = 64,      .kv_lora = 96, .nope = 32,        .rope = 32,        .v = 64,
     .experts = 9,      .topk = 4,     .expert_size = 32, .shared_size = 32, .dense_size = 64,
     .dense_layers = 1, .groups = 1,   .top_groups = 1,   .scaling = 2.827,  .theta = 5e4,
     .yarn = 64},
    {KT_PLAIN_QWEN3_5, .layers = 4, .hidden = 96, .vocab = 47, .heads = 3, .kv_heads = 1,
     .head_dim = 64, .rotary = 16, .key_heads = 2, .value_heads = 8, .key_dim = 32, .value_dim = 32,
     .full_every = 4, .experts = 6, .topk = 2, .expert_size = 64, .shared_size = 32, .theta = 1e7},
    {KT_PLAIN_QWEN3_5, .layers = 2, .hidden = 128, .vocab = 39, .heads = 2, .kv_heads = 2,
     .head_dim = 32, .rotary = 8, .key_heads = 3, .value_heads = 3, .key_dim = 64, .value_dim = 32,
     .full_every = 2, .experts = 5, .topk = 3, .expert_size = 32, .shared_size = 64, .theta = 1e4},
    {KT_PLAIN_QWEN3_5, .layers = 2, .hidden = 96, .vocab = 36, .heads = 4, .kv_heads = 2,
     .head_dim = 32, .rotary = 32, .key_heads = 3, .value_heads = 6, .key_dim = 32, .value_dim = 64,
     .full_every = 2, .experts = 4, .topk = 2, .expert_size = 32, .shared_size = 32, .theta = 1e6},
    /* entries of four tokens, of which an index picks two */
    {KT_PLAIN_DEEPSEEK_V4, .layers = 3,     .hidden = 96,    .vocab = 43,       .heads = 6,
     .head_dim = 64,       .rope = 16,      .q_lora = 64,    .o_groups = 3,     .o_lora = 32,
     .index_heads = 3,     .index_dim = 32, .index_topk = 2, .window = 5,       .ratio = {0, 4, 4},
     .hash_layers = 1,     .experts = 7,    .topk = 3,       .expert_size = 32, .scaling = 1.5,
     .theta = 1e4,         .limit = 0.9},
    /* entries of 128 tokens, all of which are met */
    {KT_PLAIN_DEEPSEEK_V4, .context = MOST_TOKENS,
     .layers = 2,          .hidden = 64,
     .vocab = 38,          .heads = 5,
     .head_dim = 32,       .rope = 32,
     .q_lora = 32,         .o_groups = 1,
     .o_lora = 64,         .window = 11,
     .ratio = {128, 0},    .hash_layers = 2,
     .experts = 4,         .topk = 2,
     .expert_size = 64,    .scaling = 2.5,
     .theta = 1e4,         .limit = 10}};

/* context: of DeepSeek-V4, so many tokens are run. */
static int64_t tokens_of(const kt_plain_shape *s) {
    return s->family == KT_PLAIN_DEEPSEEK_V4 && s->context ? s->context : N_TOKENS;
}

/* expand_rows: of the engine's options. */
static void run_engine(const char *folder, const int32_t *tokens, int64_t n, int64_t chunk,
                       int64_t expand_rows, float *logits) {
    kt_engine_options o = {.model_dir = folder,
                           .weights = KT_QUANT_NATIVE,
                           .exact_acts = true,
                           .expand_rows = expand_rows,
                           .table_path = "",
                           .n_threads = 2,
                           .tokenizer_optional = true};
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, n, n, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
}

typedef void forward_pass(const kt_plain_model *m, const int32_t *tokens, int64_t n,
                          kt_plain_noise noise, uint64_t seed, double *logits, uint64_t *choices);

/* Do the rounded run and several coarser ones choose what the exact one does? */
static bool is_decided(forward_pass *pass, const kt_plain_model *m, const int32_t *tokens,
                       int64_t n, double *exact, double *rounded, double *spare) {
    uint64_t choices[MOST_TOKENS] = {0}, other[MOST_TOKENS] = {0};
    bool is_same;

    pass(m, tokens, n, KT_PLAIN_EXACT, 0, exact, choices);
    pass(m, tokens, n, KT_PLAIN_BF16, 0, rounded, other);
    is_same = memcmp(choices, other, sizeof choices) == 0;
    for (uint64_t i = 1; is_same && i <= DISTURBED; i++) {
        pass(m, tokens, n, KT_PLAIN_COARSE, i, spare, other);
        is_same = memcmp(choices, other, sizeof choices) == 0;
    }
    return is_same;
}

static double distance(const double *a, const double *b, int64_t count) {
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* Returns whether the seed gave a model without close decisions. */
static bool check(size_t id, uint64_t seed) {
    const kt_plain_shape *s = &shapes[id];
    const int64_t n = tokens_of(s), count = n * s->vocab, chunks[] = {n, 5, 1, n, 5};
    const size_t n_runs = s->kv_lora && !s->index_topk ? 5 : 3; /* with wide keys and values too */
    const size_t bytes = (size_t)count * sizeof(double);
    double *exact = malloc(bytes), *rounded = malloc(bytes), *got = malloc(bytes);
    float *logits = malloc((size_t)count * sizeof *logits);
    char folder[PATH_MAX];
    int32_t tokens[MOST_TOKENS];
    kt_rng rng;
    kt_plain_model *m;
    bool decided;

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)s->vocab);
    kt_temp_make(folder, sizeof folder);
    m = kt_plain_create(s, seed, folder);
    decided = is_decided(kt_plain_forward, m, tokens, n, exact, rounded, got);
    for (size_t c = 0; decided && c < n_runs; c++) {
        run_engine(folder, tokens, n, chunks[c], c < 3 ? -1 : 5, logits);
        for (int64_t i = 0; i < count; i++) got[i] = logits[i];
        cr_expect_leq(distance(got, exact, count), 1.5 * distance(rounded, exact, count),
                      "shape %zu, seed %d, run %zu, chunks of %d: off by %g, rounding alone by %g",
                      id, (int)seed, c, (int)chunks[c], distance(got, exact, count),
                      distance(rounded, exact, count));
    }
    kt_plain_destroy(m);
    kt_temp_remove(folder);
    free(exact), free(rounded), free(got), free(logits);
    return decided;
}

ParameterizedTestParameters(plain_families, agree_with_their_formulas) {
    size_t n = sizeof shapes / sizeof *shapes, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, plain_families, agree_with_their_formulas, .timeout = 120) {
    int compared = 0;

    for (uint64_t seed = 1; seed <= SEEDS && compared < MODELS; seed++)
        compared += check(*index, seed);
    cr_expect_eq(compared, MODELS, "shape %zu: too few models are clear in their choices", *index);
}

/* ---- draft heads ---- */

static const kt_plain_shape drafting[] = {
    {KT_PLAIN_DEEPSEEK_V32, .layers = 2,       .hidden = 96,     .vocab = 45,       .heads = 3,
     .q_lora = 64,          .kv_lora = 96,     .nope = 32,       .rope = 32,        .v = 64,
     .index_heads = 3,      .index_dim = 64,   .index_topk = 8,  .experts = 4,      .topk = 2,
     .expert_size = 96,     .shared_size = 96, .dense_size = 64, .dense_layers = 1, .groups = 2,
     .top_groups = 1,       .scaling = 2.5,    .theta = 1e4,     .has_draft = true},
    /* the second layer meets what the first picked, the head has an indexer of its own */
    {KT_PLAIN_GLM_DSA, .layers = 2,       .hidden = 96,      .vocab = 37,       .heads = 3,
     .q_lora = 64,     .kv_lora = 64,     .nope = 32,        .rope = 16,        .v = 96,
     .index_heads = 3, .index_dim = 64,   .index_topk = 8,   .indexers = "FSF", .experts = 3,
     .topk = 1,        .expert_size = 64, .shared_size = 64, .dense_size = 64,  .dense_layers = 1,
     .groups = 1,      .top_groups = 1,   .scaling = 2.5,    .theta = 8e6,      .has_draft = true},
    {KT_PLAIN_GLM4_MOE, .layers = 2,       .hidden = 96,        .vocab = 33,
     .heads = 4,        .kv_heads = 2,     .head_dim = 32,      .rotary = 16,
     .experts = 5,      .topk = 2,         .expert_size = 64,   .shared_size = 64,
     .dense_size = 96,  .dense_layers = 1, .groups = 1,         .top_groups = 1,
     .scaling = 2.5,    .theta = 1e6,      .has_qk_norm = true, .has_draft = true},
    {KT_PLAIN_DEEPSEEK_V3, .layers = 2, .hidden = 96, .vocab = 35, .heads = 5, .kv_lora = 64,
     .nope = 32, .rope = 16, .v = 32, .experts = 4, .topk = 2, .expert_size = 64,
     .shared_size = 128, .groups = 2, .top_groups = 1, .scaling = 1, .theta = 1e4,
     .has_draft = true},
    {KT_PLAIN_QWEN3_NEXT, .layers = 2, .hidden = 96, .vocab = 34, .heads = 4, .kv_heads = 4,
     .head_dim = 32, .rotary = 32, .key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 32,
     .full_every = 2, .experts = 7, .topk = 3, .expert_size = 32, .shared_size = 32, .theta = 1e4,
     .has_draft = true},
    {KT_PLAIN_QWEN3_5, .layers = 2, .hidden = 96, .vocab = 36, .heads = 4, .kv_heads = 2,
     .head_dim = 32, .rotary = 32, .key_heads = 3, .value_heads = 6, .key_dim = 32, .value_dim = 64,
     .full_every = 2, .experts = 4, .topk = 2, .expert_size = 32, .shared_size = 32, .theta = 1e6,
     .has_draft = true}};

enum { SIDE = 2 }; /* sequences of one text, side by side */

/* A step of `rows` tokens of each sequence and what the draft head says behind them, logits [SIDE,
 * vocab]; the model's own go to `own`. Behind the rows of the first stand wrong guesses, which are
 * not kept. */
static void draft_after(kt_engine *e, kt_sequence *const s[SIDE], const int32_t *tokens,
                        int64_t rows, int64_t vocab, float *own, float *logits) {
    const int64_t at = kt_sequence_length(s[0]), guesses = rows > 1 ? 2 : 0, next = rows + guesses;
    int32_t token[2 * N_TOKENS + 2], drafted[SIDE][3];
    const int32_t out_row[] = {(int32_t)(rows - 1), (int32_t)(next + rows - 1)};
    const kt_span spans[] = {{s[0], 0, next, false}, {s[1], next, rows, false}};
    const kt_batch batch = {next + rows, token, SIDE, spans, SIDE, out_row};
    kt_draft_span drafts[] = {{s[0], 0, rows, at, tokens + at + 1, drafted[0], 1},
                              {s[1], next, rows, at, tokens + at + 1, drafted[1], 1}};
    kt_err err = {KT_OK, ""};

    for (int64_t i = 0; i < next + rows; i++)
        token[i] = i < rows ? tokens[at + i] : i < next ? 0 : tokens[at + i - next];
    cr_assert_eq(kt_sequence_guess(s[0], guesses, SIDE), guesses);
    cr_assert_eq(kt_engine_step(e, &batch, own, NULL, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_draft(e, drafts, SIDE, logits, &err), KT_OK, "%s", err.message);
    for (int k = 0; k < SIDE; k++) {
        int32_t best = 0;
        for (int64_t v = 1; v < vocab; v++)
            if (logits[k * vocab + v] > logits[k * vocab + best]) best = (int32_t)v;
        cr_expect_eq(drafted[k][0], best);
        cr_expect_eq(drafts[k].n, 1);
    }
    if (guesses) kt_sequence_truncate(s[0], at + rows);
}

/* Sums over what was compared. */
typedef struct sums {
    double off, bound, own_off, own_size;
} sums;

static void add(sums *a, const float *got, const double *exact, const double *rounded,
                const float *own, const double *own_exact, int64_t vocab) {
    for (int64_t v = 0; v < vocab; v++) {
        a->off += pow(got[v] - exact[v], 2);
        a->bound += pow(rounded[v] - exact[v], 2);
        a->own_off += pow(own[v] - own_exact[v], 2);
        a->own_size += pow(own_exact[v], 2);
    }
}

/* Logits of the head at the ends of chunks of the first `most` tokens, against the reference at the
 * same places. */
static void check_chunks(kt_engine *e, const int32_t *tokens, int64_t chunk, int64_t most,
                         int64_t vocab, const double *exact, const double *rounded,
                         const double *own_exact) {
    float *logits = malloc((size_t)(SIDE * vocab) * sizeof *logits);
    float *own = malloc((size_t)(SIDE * vocab) * sizeof *own);
    kt_sequence *s[SIDE];
    sums a = {0};

    for (int k = 0; k < SIDE; k++)
        cr_assert_eq(kt_sequence_create(e, N_TOKENS + 8, &s[k], NULL), KT_OK);
    for (int64_t at = 0; at + chunk < most; at += chunk) {
        const int64_t row = (at + chunk - 1) * vocab;
        draft_after(e, s, tokens, chunk, vocab, own, logits);
        for (int k = 0; k < SIDE; k++)
            add(&a, logits + k * vocab, exact + row, rounded + row, own + k * vocab,
                own_exact + row, vocab);
        if (kt_sequence_length(s[0]) != at + chunk) break; /* states have gone back */
    }
    cr_expect_leq(sqrt(a.off), 1.5 * sqrt(a.bound), "chunks of %d: off by %g, rounding by %g",
                  (int)chunk, sqrt(a.off), sqrt(a.bound));
    cr_expect(a.bound > 0 && a.own_off <= 0.0025 * a.own_size, "the model is off by %g of %g",
              sqrt(a.own_off), sqrt(a.own_size));
    for (int k = 0; k < SIDE; k++) kt_sequence_destroy(s[k]);
    free(logits), free(own);
}

/* The second token of a draft, behind a step of all tokens but the last. false = the reference's
 * choices are close. */
static bool check_second(kt_engine *e, const kt_plain_model *m, const int32_t *tokens,
                         int64_t vocab) {
    const size_t bytes = (size_t)vocab * sizeof(double);
    double *exact = malloc(bytes), *rounded = malloc(bytes), *got = malloc(bytes);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    uint64_t choices[N_TOKENS], other[N_TOKENS];
    const int64_t rows = N_TOKENS - 1;
    int32_t out[2], out_row = N_TOKENS - 2;
    kt_sequence *s;
    bool is_same;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_sequence_create(e, N_TOKENS + 1, &s, &err), KT_OK, "%s", err.message);
    {
        const kt_span span = {s, 0, rows, false};
        const kt_batch batch = {rows, tokens, 1, &span, 1, &out_row};
        kt_draft_span draft = {s, 0, rows, 0, tokens + 1, out, 2};
        cr_assert_eq(kt_engine_step(e, &batch, logits, NULL, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_engine_draft(e, &draft, 1, logits, &err), KT_OK, "%s", err.message);
        cr_assert_eq(draft.n, 2);
    }
    for (int64_t v = 0; v < vocab; v++) got[v] = logits[v];
    kt_plain_draft_next(m, tokens, N_TOKENS, out[0], KT_PLAIN_EXACT, 0, exact, choices);
    kt_plain_draft_next(m, tokens, N_TOKENS, out[0], KT_PLAIN_COARSE, 1, rounded, other);
    is_same = memcmp(choices, other, sizeof choices) == 0;
    kt_plain_draft_next(m, tokens, N_TOKENS, out[0], KT_PLAIN_BF16, 0, rounded, other);
    is_same = is_same && memcmp(choices, other, sizeof choices) == 0;
    if (is_same)
        cr_expect_leq(distance(got, exact, vocab), 2 * distance(rounded, exact, vocab),
                      "the second token: off by %g, rounding by %g", distance(got, exact, vocab),
                      distance(rounded, exact, vocab));
    kt_sequence_destroy(s);
    free(exact), free(rounded), free(got), free(logits);
    return is_same;
}

/* The same on a device, or several, that have all that they can run and one expert of each layer, in
 * steps that are put whole (of one row) and part by part. */
static void check_there(const char *device, kt_engine_options o, const kt_plain_model *m,
                        const int32_t *tokens, int64_t vocab, const double *exact,
                        const double *rounded, const double *own) {
    kt_engine *e = NULL;
    const kt_placement *place;
    const kt_graph *g;
    kt_err err = {KT_OK, ""};

    o.device = device;
    o.gpu_experts = "1";
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    place = e->step.place, g = &e->model.graph;
    cr_expect(place->side[g->main_nodes] == KT_SIDE_DEVICE &&
              place->side[g->n_nodes - 1] == KT_SIDE_DEVICE);
    for (int i = g->main_nodes; i < g->n_nodes; i++)
        if (g->nodes[i].is_routed) cr_expect_eq(place->side[i], KT_SIDE_BOTH);
    check_chunks(e, tokens, 1, 3, vocab, exact, rounded, own);
    check_chunks(e, tokens, 5, N_TOKENS, vocab, exact, rounded, own);
    cr_expect(check_second(e, m, tokens, vocab));
    kt_engine_destroy(e);
}

static bool check_draft(const kt_plain_shape *shape, uint64_t seed) {
    const int64_t vocab = shape->vocab, count = N_TOKENS * vocab;
    const size_t bytes = (size_t)count * sizeof(double);
    double *exact = malloc(bytes), *rounded = malloc(bytes), *own = malloc(bytes),
           *spare = malloc(bytes);
    kt_engine_options o = {.exact_acts = true,
                           .table_path = "",
                           .n_threads = 2,
                           .with_draft_head = true,
                           .tokenizer_optional = true};
    char folder[PATH_MAX];
    int32_t tokens[N_TOKENS];
    kt_plain_model *m;
    kt_engine *e = NULL;
    kt_rng rng;
    bool decided;
    kt_err err = {KT_OK, ""};

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)vocab);
    kt_temp_make(folder, sizeof folder);
    m = kt_plain_create(shape, seed, folder);
    decided = is_decided(kt_plain_forward, m, tokens, N_TOKENS, own, rounded, spare) &&
              is_decided(kt_plain_draft, m, tokens, N_TOKENS, exact, rounded, spare);
    o.model_dir = folder;
    if (decided) cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    if (decided) check_chunks(e, tokens, 1, N_TOKENS, vocab, exact, rounded, own);
    if (decided) check_chunks(e, tokens, 5, N_TOKENS, vocab, exact, rounded, own);
    decided = decided && check_second(e, m, tokens, vocab);
    if (decided && shape->family == KT_PLAIN_GLM4_MOE) {
        check_there("emulated", o, m, tokens, vocab, exact, rounded, own);
        check_there("emulated*2:lazy", o, m, tokens, vocab, exact, rounded, own);
    }
    kt_engine_destroy(e);
    kt_plain_destroy(m);
    kt_temp_remove(folder);
    free(exact), free(rounded), free(own), free(spare);
    return decided;
}

/* What a folder says behind steps of 5 rows: logits of the head and the model's own. */
static void draft_from(const char *folder, const int32_t *tokens, int64_t vocab, float *logits) {
    const kt_engine_options o = {.model_dir = folder,
                                 .table_path = "",
                                 .n_threads = 2,
                                 .deterministic = true,
                                 .with_draft_head = true,
                                 .tokenizer_optional = true};
    kt_sequence *s[SIDE];
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    for (int k = 0; k < SIDE; k++)
        cr_assert_eq(kt_sequence_create(e, N_TOKENS + 8, &s[k], NULL), KT_OK);
    draft_after(e, s, tokens, 5, vocab, logits, logits + SIDE * vocab);
    for (int k = 0; k < SIDE; k++) kt_sequence_destroy(s[k]);
    kt_engine_destroy(e);
}

/* Converted, the head gives the same bits as before; with formats of a budget, too, a folder loads
 * with its head and without; where it was left out it is refused. */
Test(plain_families, converted_folders_keep_their_draft_head, .timeout = 60) {
    const kt_engine_options o = {.table_path = "", .n_threads = 2, .tokenizer_optional = true};
    int32_t tokens[N_TOKENS];

    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (7 * i + 3) % 33;
    for (int i = 2; i <= 4; i += 2) { /* one that is named as any layer, one beside the body */
        const int64_t vocab = drafting[i].vocab, count = 2 * SIDE * vocab;
        float want[2 * SIDE * 40], got[2 * SIDE * 40];
        char model[256], out[256];
        kt_convert_request r = {.model = model, .out = out, .n_threads = 2};
        kt_engine_options plain = o;
        kt_convert_result done = {0};
        kt_engine *e;
        kt_err err = {KT_OK, ""};
        kt_temp_make(model, sizeof model);
        kt_plain_destroy(kt_plain_create(&drafting[i], 1, model));
        draft_from(model, tokens, vocab, want);
        for (int way = 0; way < 3; way++) {
            kt_temp_make(out, sizeof out);
            r.budget = way == 1 ? done.bytes * 3 / 4 : 0;
            r.without_draft_head = way == 2;
            cr_assert_eq(kt_convert(&r, &done, &err), KT_OK, "%s", err.message);
            cr_expect_eq(done.shards, drafting[i].layers + (way == 2 ? 1 : 2));
            plain.model_dir = out;
            plain.with_draft_head = false;
            cr_assert_eq(kt_engine_create(&plain, &e, &err), KT_OK, "%s", err.message);
            kt_engine_destroy(e);
            plain.with_draft_head = true;
            if (way < 2) draft_from(out, tokens, vocab, got);
            if (way == 0)
                cr_expect_eq(memcmp(want, got, (size_t)count * sizeof *want), 0, "shape %d", i);
            if (way == 2) cr_expect_eq(kt_engine_create(&plain, &e, &err), KT_E_UNSUPPORTED);
            kt_temp_remove(out);
        }
        kt_temp_remove(model);
    }
}

ParameterizedTestParameters(plain_families, draft_heads_agree_with_their_formulas) {
    size_t n = sizeof drafting / sizeof *drafting, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, plain_families, draft_heads_agree_with_their_formulas,
                  .timeout = 120) {
    bool has_compared = false;

    for (uint64_t seed = 1; seed <= SEEDS && !has_compared; seed++)
        has_compared = check_draft(&drafting[*index], seed);
    cr_expect(has_compared, "shape %zu: no model is clear in its choices", *index);
}
