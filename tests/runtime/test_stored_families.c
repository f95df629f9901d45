/* Families of random sizes in every encoding and container (tests/support/plain_store.h) against
 * their formulas in double, which share no code with the engine: whole, in chunks of 7 and of 1.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/exec/engine_impl.h"
#include "tests/support/plain_model.h"
#include "tests/support/plain_store.h"
#include "tests/support/temp.h"
#include "tests/support/wanted_case.h"

enum { TOKENS = 16, DISTURBED = 12, MOST = TOKENS * 256 };

/* Sanitizers look at the engine's accesses; they would make minutes of the formulas' seconds. */
#ifdef __SANITIZE_ADDRESS__
static const bool is_sanitized = true;
#else
static const bool is_sanitized = false;
#endif

#ifndef FIRST_SEED /* a longer search is built with other numbers */
#define FIRST_SEED 1
#define SEEDS 1
#endif

static const struct {
    const char *name;
    kt_plain_family family;
    bool has_gguf;
} families[] = {
    {"minimax_m2", KT_PLAIN_MINIMAX_M2, true},     {"glm4_moe", KT_PLAIN_GLM4_MOE, true},
    {"deepseek_v3", KT_PLAIN_DEEPSEEK_V3, true},   {"kimi_k2", KT_PLAIN_KIMI_K2, true},
    {"deepseek_v32", KT_PLAIN_DEEPSEEK_V32, true}, {"qwen3_next", KT_PLAIN_QWEN3_NEXT, true},
    {"glm4_moe_lite", KT_PLAIN_GLM4_LITE, true},   {"glm_moe_dsa", KT_PLAIN_GLM_DSA, true},
    {"kimi_k25", KT_PLAIN_KIMI_K25, true},         {"qwen3_5_moe", KT_PLAIN_QWEN3_5, true},
    {"deepseek_v4", KT_PLAIN_DEEPSEEK_V4, false},  {"qwen3_moe", KT_PLAIN_QWEN3_MOE, true}};
enum { FAMILIES = sizeof families / sizeof *families };

/* ---- sizes ---- */

static int64_t from(kt_rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)kt_rng_below(rng, (uint64_t)(high - low + 1));
}

/* Any multiple of 32; one of three holds whole blocks of 256. */
static int64_t width(kt_rng *rng) {
    return kt_rng_below(rng, 3) ? 32 * from(rng, 1, 7) : 256;
}

static void draw_grouped(kt_rng *rng, kt_plain_shape *s) {
    s->kv_heads = from(rng, 1, 3);
    s->heads = s->kv_heads * from(rng, 1, 4);
    s->head_dim = 32 * from(rng, 1, 4);
    s->rotary = 16 * from(rng, 1, s->head_dim / 16);
    if (s->family == KT_PLAIN_QWEN3_MOE) s->rotary = s->head_dim;
    s->has_qk_norm = kt_rng_below(rng, 2);
}

static void draw_latent(kt_rng *rng, kt_plain_shape *s) {
    const bool has_index = s->family == KT_PLAIN_DEEPSEEK_V32 || s->family == KT_PLAIN_GLM_DSA;
    const bool may_yarn = s->family != KT_PLAIN_GLM4_LITE && s->family != KT_PLAIN_GLM_DSA;

    s->heads = from(rng, 1, 7);
    s->q_lora = has_index || kt_rng_below(rng, 4) ? width(rng) : 0;
    s->kv_lora = width(rng);
    s->nope = 32 * from(rng, 1, 3);
    s->rope = 16 * from(rng, 1, 4);
    s->v = 32 * from(rng, 1, 3);
    s->yarn = may_yarn && kt_rng_below(rng, 2) ? (double)from(rng, 2, 40) : 0;
    if (!has_index) return;
    s->index_heads = from(rng, 1, 5);
    s->index_dim = s->rope > 32 ? 64 : 32 * from(rng, 1, 4);
    s->index_topk = from(rng, 2, 6);
    if (s->family == KT_PLAIN_GLM_DSA && s->layers == 3) s->indexers = "FSF";
}

static void draw_delta(kt_rng *rng, kt_plain_shape *s, bool is_gguf) {
    s->key_heads = from(rng, 1, 3);
    s->value_heads = s->key_heads * from(rng, 1, 3);
    s->key_dim = 32 * from(rng, 1, 2);
    s->value_dim = is_gguf ? s->key_dim : 32 * from(rng, 1, 3);
    s->full_every = from(rng, 1, s->layers);
}

static void draw_v4(kt_rng *rng, kt_plain_shape *s) {
    static const int64_t ratios[] = {0, 4, 128};

    s->o_groups = from(rng, 1, 3);
    s->heads = s->o_groups * from(rng, 1, 3);
    s->head_dim = 32 * from(rng, 1, 3);
    s->rope = 16 * from(rng, 1, 2);
    s->q_lora = width(rng);
    s->o_lora = 32 * from(rng, 1, 3);
    s->index_heads = from(rng, 1, 4);
    s->index_dim = 32 * from(rng, 1, 2);
    s->index_topk = from(rng, 1, 3);
    s->window = from(rng, 2, 9);
    for (int64_t l = 0; l < s->layers; l++) s->ratio[l] = ratios[kt_rng_below(rng, 3)];
    s->hash_layers = from(rng, 0, s->layers);
    s->limit = 0.5 + 4 * kt_rng_double(rng);
}

static kt_plain_shape draw_shape(kt_plain_family family, uint64_t seed, bool is_gguf) {
    const bool is_qwen = family == KT_PLAIN_QWEN3_NEXT || family == KT_PLAIN_QWEN3_5;
    kt_plain_shape s = {.family = family};
    kt_rng rng;

    kt_rng_seed(&rng, 1000 * seed + (uint64_t)family);
    s.layers = from(&rng, 1, 3);
    s.hidden = width(&rng);
    s.vocab = from(&rng, 33, 99);
    if (kt_rng_below(&rng, 2)) s.vocab = s.vocab / 8 * 8;
    if (is_gguf) s.vocab = 256; /* a token for every byte, and no other */
    s.groups = s.top_groups = 1;
    s.experts = from(&rng, 2, 9);
    if (family == KT_PLAIN_DEEPSEEK_V3 || family == KT_PLAIN_DEEPSEEK_V32) {
        s.groups = from(&rng, 1, 3);
        s.top_groups = from(&rng, 1, s.groups);
        s.experts = s.groups * from(&rng, 2, 4);
    }
    s.topk = from(
        &rng, 1, s.experts * s.top_groups / s.groups < 4 ? s.experts * s.top_groups / s.groups : 4);
    s.expert_size = width(&rng);
    s.dense_size = width(&rng);
    s.scaling = 1 + kt_rng_double(&rng);
    s.theta = 1e4;
    if (is_qwen)
        s.shared_size = width(&rng);
    else if (family != KT_PLAIN_MINIMAX_M2 && family != KT_PLAIN_QWEN3_MOE)
        s.shared_size = s.expert_size * from(&rng, family == KT_PLAIN_GLM4_MOE ? 0 : 1, 2);
    if (!is_qwen && family != KT_PLAIN_MINIMAX_M2 && family != KT_PLAIN_QWEN3_MOE)
        s.dense_layers = from(&rng, 0, s.layers - 1);
    if (family == KT_PLAIN_MINIMAX_M2 || family == KT_PLAIN_QWEN3_MOE || is_qwen) s.scaling = 0;
    s.is_tied = kt_rng_below(&rng, 4) == 0;
    if (family == KT_PLAIN_DEEPSEEK_V4) {
        s.is_tied = false;
        s.dense_layers = 0;
        draw_v4(&rng, &s);
    } else if (is_qwen || family == KT_PLAIN_MINIMAX_M2 || family == KT_PLAIN_GLM4_MOE ||
               family == KT_PLAIN_QWEN3_MOE) {
        draw_grouped(&rng, &s);
    } else {
        draw_latent(&rng, &s);
    }
    if (is_qwen) draw_delta(&rng, &s, is_gguf);
    return s;
}

/* ---- comparison ---- */

/* Where a file is; what it is, for messages. */
typedef struct stored {
    char path[PATH_MAX], what[160];
    kt_plain_model *model;
    int32_t tokens[TOKENS];
} stored;

static bool run_engine(const stored *x, bool deterministic, int threads, int64_t chunk,
                       float *logits) {
    kt_engine_options o = {.model_dir = x->path,
                           .weights = KT_QUANT_NATIVE,
                           .table_path = "",
                           .n_threads = threads,
                           .deterministic = deterministic,
                           .tokenizer_optional = true};
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    if (kt_engine_create(&o, &e, &err) != KT_OK) {
        cr_expect_fail("%s: %s", x->what, err.message);
        return false;
    }
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, x->tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s: %s", x->what, err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return true;
}

/* Positions before the first at which coarser arithmetic chooses otherwise. */
static int64_t decided(const stored *x, double *exact, double *rounded) {
    uint64_t choices[TOKENS] = {0}, other[TOKENS];
    double *spare;
    int64_t n = TOKENS;

    if (is_sanitized) return 0;
    spare = malloc(MOST * sizeof *spare);
    kt_plain_forward(x->model, x->tokens, TOKENS, KT_PLAIN_EXACT, 0, exact, choices);
    for (uint64_t i = 0; i <= DISTURBED; i++) {
        memset(other, 0, sizeof other);
        kt_plain_forward(x->model, x->tokens, TOKENS, i ? KT_PLAIN_INT8_COARSE : KT_PLAIN_INT8, i,
                         i ? spare : rounded, other);
        for (int64_t t = 0; t < n; t++)
            if (choices[t] != other[t]) n = t;
    }
    free(spare);
    return n;
}

static double distance(const float *a, const double *b, const double *c, int64_t count) {
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        const double d = (a ? (double)a[i] : c[i]) - b[i];
        difference += d * d;
        norm += b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* Returns how many positions were compared. */
static int64_t check(const stored *x) {
    const int64_t vocab = kt_plain_shape_of(x->model)->vocab, all = TOKENS * vocab;
    double *exact = calloc(MOST, sizeof *exact), *rounded = calloc(MOST, sizeof *rounded);
    float *whole = malloc(MOST * sizeof *whole), *part = malloc(MOST * sizeof *part);
    const int64_t n = decided(x, exact, rounded), count = n * vocab;
    const double bound = 1.5 * distance(NULL, exact, rounded, count ? count : all);

    if (run_engine(x, false, 2, TOKENS, part)) {
        cr_expect(!count || distance(part, exact, NULL, count) <= bound,
                  "%s: off by %g over %d positions, bound %g", x->what,
                  distance(part, exact, NULL, count), (int)n, bound);
        run_engine(x, true, 2, TOKENS, whole);
        cr_expect(!count || distance(whole, exact, NULL, count) <= bound,
                  "%s, deterministic: off by %g over %d positions, bound %g", x->what,
                  distance(whole, exact, NULL, count), (int)n, bound);
        run_engine(x, true, 2, 7, part);
        cr_expect_eq(memcmp(part, whole, (size_t)all * sizeof *part), 0,
                     "%s: other bits in chunks of 7", x->what);
        run_engine(x, true, 1, 1, part);
        cr_expect_eq(memcmp(part, whole, (size_t)all * sizeof *part), 0,
                     "%s: other bits in chunks of 1", x->what);
    }
    free(exact), free(rounded), free(whole), free(part);
    return n;
}

/* encoding KT_PLAIN_ENCODINGS: GGUF. */
static const char *encoding_name(int encoding) {
    return encoding == KT_PLAIN_ENCODINGS ? "GGUF" : kt_plain_encoding_names[encoding];
}

static int64_t check_one(int family, kt_plain_encoding encoding, uint64_t seed) {
    const bool is_gguf = encoding == KT_PLAIN_ENCODINGS;
    const kt_plain_shape shape = draw_shape(families[family].family, seed, is_gguf);
    stored *x = calloc(1, sizeof *x);
    char folder[PATH_MAX - 16];
    kt_rng rng;
    int64_t n;

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < TOKENS; i++)
        x->tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)shape.vocab);
    snprintf(x->what, sizeof x->what, "%s, %s, seed %d", families[family].name,
             encoding_name((int)encoding), (int)seed);
    kt_temp_make(folder, sizeof folder);
    x->model = kt_plain_create(&shape, seed, folder);
    snprintf(x->path, sizeof x->path, "%s%s", folder, is_gguf ? "/model.gguf" : "");
    if (is_gguf)
        kt_plain_store_gguf(x->model, seed, x->path);
    else
        kt_plain_store(x->model, encoding, seed, folder);
    n = check(x);
    kt_plain_destroy(x->model);
    kt_temp_remove(folder);
    free(x);
    return n;
}

ParameterizedTestParameters(stored_families, agree_with_their_formulas) {
    int *encoding = cr_malloc(sizeof *encoding * (KT_PLAIN_ENCODINGS + 1));
    size_t n = 0;

    for (int i = 0; i <= KT_PLAIN_ENCODINGS; i++)
        if (kt_is_wanted(encoding_name(i))) encoding[n++] = i;
    return cr_make_param_array(int, encoding, n);
}

ParameterizedTest(int *encoding, stored_families, agree_with_their_formulas, .timeout = 900) {
    int64_t compared = 0, asked = 0;

    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + SEEDS; seed++)
        for (int f = 0; f < FAMILIES; f++) {
            if (*encoding == KT_PLAIN_ENCODINGS && !families[f].has_gguf) continue;
            if (is_sanitized && (f + *encoding) % 4) continue; /* three families of each */
            compared += check_one(f, (kt_plain_encoding)*encoding, seed);
            asked += TOKENS;
        }
    if (is_sanitized) return;
    cr_expect_gt(3 * compared, asked, "only %d of %d positions are clear in their choices",
                 (int)compared, (int)asked);
}
