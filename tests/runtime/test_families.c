/* Every family and every container against logits of the reference implementation: the shared
 * data's golden checkpoints (safetensors) and GGUF files. The bounds are those of their READMEs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/checkpoint.h"
#include "dispatch/model/family.h"
#include "runtime/exec/engine.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"
#include "tests/support/wanted_case.h"

/* What the arithmetic loses: of stored weights with BF16 activations, or with INT8 ones in
 * groups. */
typedef enum arithmetic { ACTS_BF16, ACTS_INT8 } arithmetic;

typedef struct family_case {
    char name[64]; /* "golden/x" (a folder), or "gguf/x/model.gguf" */
    arithmetic acts;
    /* Positions at which two choices (experts, groups of them, entries) are nearer to each other than
     * the arithmetic can tell, so that the reference's is one of two; 0 = no further one. */
    int tie[4];
} family_case;

static family_case cases[] = {
    {"golden/qwen3_moe-a", ACTS_BF16, {0}},
    {"golden/qwen3_moe-b", ACTS_BF16, {0}},
    {"golden/qwen3_moe-c", ACTS_BF16, {0}},
    {"golden/qwen3_moe-fp8", ACTS_BF16, {0}},
    {"golden/minimax_m2", ACTS_BF16, {0}},
    {"golden/minimax_m2-fp8", ACTS_BF16, {0}},
    {"golden/minimax_m3", ACTS_BF16, {28}}, /* experts 0.0027 apart in its third layer */
    {"golden/minimax_m3-mxfp8", ACTS_BF16, {0}},
    {"golden/glm4_moe", ACTS_BF16, {0}},
    {"golden/glm4_moe-fp8", ACTS_BF16, {0}},
    {"golden/deepseek_v3", ACTS_BF16, {18}}, /* groups of 1.4129 and 1.4190 in its last layer */
    {"golden/deepseek_v3-fp8", ACTS_BF16, {0}},
    {"golden/deepseek_v32", ACTS_BF16, {0}},
    {"golden/kimi_k2-int4", ACTS_INT8, {0}},
    {"golden/qwen3_next", ACTS_BF16, {0}},
    {"golden/gpt_oss", ACTS_BF16, {0}},
    {"golden/gpt_oss-mxfp4", ACTS_INT8, {0}},
    {"golden/qwen3_5_moe", ACTS_BF16, {0}},
    {"golden/glm_moe_dsa", ACTS_BF16, {0}},
    {"golden/glm4_moe_lite", ACTS_BF16, {0}},
    {"golden/kimi_k25-int4", ACTS_INT8, {0}},
    {"golden/deepseek_v4", ACTS_INT8, {0}},
    {"gguf/qwen3moe-bf16-split/model-00001-of-00002.gguf", ACTS_BF16, {0}},
    {"gguf/qwen3moe-f16-tied/model.gguf", ACTS_BF16, {0}},
    {"gguf/qwen3moe-f32/model.gguf", ACTS_BF16, {0}},
    {"gguf/qwen3moe-q4_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q4_1/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q5_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q5_1/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q8_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q2_k/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q3_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q4_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q5_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-q6_k/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-iq4_nl/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-iq4_xs/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3moe-mxfp4/model.gguf", ACTS_INT8, {0}},
    {"gguf/minimax-m2-f16/model.gguf", ACTS_BF16, {0}},
    {"gguf/minimax-m2-q3_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/minimax-m3-f16/model.gguf", ACTS_BF16, {0}},
    {"gguf/glm4moe-mtp-bf16/model.gguf", ACTS_BF16, {0}},
    {"gguf/glm4moe-q5_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/glm4moe-mixed/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3next-bf16/model.gguf", ACTS_BF16, {0}},
    {"gguf/qwen3next-fused-q8_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3next-mtp-q4_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/qwen3next-old-q8_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/deepseek2-f16/model.gguf", ACTS_BF16, {0}},
    {"gguf/deepseek2-kimi-q4_0/model.gguf", ACTS_INT8, {15}}, /* all kernels choose otherwise */
    {"gguf/deepseek2-mxfp4/model.gguf", ACTS_INT8, {0}},
    {"gguf/deepseek2-old-q5_0/model.gguf", ACTS_INT8, {0}},
    {"gguf/deepseek2-q4_k_m/model.gguf", ACTS_INT8, {0}},
    {"gguf/deepseek32-bf16/model.gguf", ACTS_BF16, {0}},
    {"gguf/gpt-oss-mxfp4/model.gguf", ACTS_INT8, {0}},
    {"gguf/glm-dsa-bf16/model.gguf", ACTS_BF16, {0}},
    {"gguf/qwen35moe-bf16/model.gguf", ACTS_BF16, {0}},
    /* Entries and experts are chosen anew after every layer's rounding: all kernels decide the
     * first of these otherwise, those of AVX2 the next two, too, and those of AVX-512 and AMX the
     * last. */
    {"gguf/deepseek4-mxfp4/model.gguf", ACTS_INT8, {70, 85, 124, 65}},
};

ParameterizedTestParameters(families, logits) {
    family_case *chosen = cr_malloc(sizeof cases);
    size_t n = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (kt_is_wanted(cases[i].name)) chosen[n++] = cases[i];
    return cr_make_param_array(family_case, chosen, n);
}

typedef struct reference {
    char model[PATH_MAX];
    kt_checkpoint *file;
    kt_json_doc *bounds;
    const int32_t *tokens, *greedy;
    const float *logits;
    int64_t n, n_greedy, vocab;
    double bound;
} reference;

static double number(const kt_json *bounds, const char *key, double fallback) {
    return kt_json_double(kt_json_get(bounds, key), fallback);
}

/* llama.cpp's own error counts where both round activations to 8 bits. */
static double bound_of(const kt_json *bounds, arithmetic acts) {
    double least = number(bounds, "error_bf16_reference", NAN);

    if (acts == ACTS_INT8)
        least = fmax(number(bounds, "error_int8_activations_g32", NAN),
                     number(bounds, "error_llama_cpp", 0));
    return 1.5 * least;
}

static const kt_tensor *need(const reference *r, const char *name) {
    const kt_tensor *t = kt_checkpoint_find(r->file, name);

    cr_assert(t, "%s: expected.safetensors has no %s", r->model, name);
    return t;
}

static reference open_reference(const family_case *c) {
    char relative[160], folder[PATH_MAX - 80], path[PATH_MAX], *text;
    reference r = {.n = 0};
    kt_err err = {KT_OK, ""};
    size_t size;

    snprintf(relative, sizeof relative, "data/%s", c->name);
    if (strstr(c->name, ".gguf")) *strrchr(relative, '/') = '\0';
    strcat(relative, "/expected.safetensors");
    if (!kt_shared_path(relative, path, sizeof path))
        cr_skip_test("%s: the shared data is absent", c->name);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    snprintf(r.model, sizeof r.model, "%s%s", folder,
             strstr(c->name, ".gguf") ? strrchr(c->name, '/') : "");
    cr_assert_eq(kt_checkpoint_open_file(path, &r.file, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/bounds.json", folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &r.bounds, &err), KT_OK, "%s", err.message);
    r.bound = bound_of(kt_json_root(r.bounds), c->acts);
    free(text);
    r.tokens = (const int32_t *)(const void *)need(&r, "tokens")->data;
    r.greedy = (const int32_t *)(const void *)need(&r, "greedy")->data;
    r.logits = (const float *)(const void *)need(&r, "logits")->data;
    r.n = need(&r, "tokens")->shape[0];
    r.n_greedy = need(&r, "greedy")->shape[0];
    r.vocab = need(&r, "logits")->shape[1];
    return r;
}

static kt_engine *load(const reference *r, bool deterministic, int threads) {
    kt_engine_options o = {.model_dir = r->model,
                           .table_path = "",
                           .tokenizer_optional = true,
                           .deterministic = deterministic,
                           .max_context = 320,
                           .n_threads = threads};
    kt_err err = {KT_OK, ""};
    kt_engine *e;

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

/* Logits of all tokens in chunks; malloc'd. */
static float *forward(kt_engine *e, const reference *r, int64_t chunk) {
    float *logits = calloc((size_t)(r->n * r->vocab), sizeof *logits);
    kt_err err = {KT_OK, ""};
    kt_sequence *s;

    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, r->n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, r->tokens, r->n, r->n, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    return logits;
}

/* Squares of the difference and of the reference at one position. */
static void add_position(const reference *r, const float *got, int64_t at, double *difference,
                         double *norm) {
    for (int64_t i = at * r->vocab; i < (at + 1) * r->vocab; i++) {
        const double d = (double)got[i] - r->logits[i];
        *difference += d * d;
        *norm += (double)r->logits[i] * r->logits[i];
    }
}

static bool is_tie(const family_case *c, int64_t at) {
    for (int i = 0; i < 4 && at > 0; i++)
        if (at == c->tie[i]) return true;
    return false;
}

/* ||got - want|| / ||want|| over all positions but ties and one more (-1 = none). */
static double error_of(const reference *r, const family_case *c, const float *got, int64_t other) {
    double difference = 0, norm = 0;

    for (int64_t at = 0; at < r->n; at++)
        if (!is_tie(c, at) && at != other) add_position(r, got, at, &difference, &norm);
    return sqrt(difference / norm);
}

/* The position that is furthest off. */
static int64_t worst_of(const reference *r, const family_case *c, const float *got) {
    double most = 0;
    int64_t worst = -1;

    for (int64_t at = 0; at < r->n; at++) {
        double difference = 0, norm = 0;
        add_position(r, got, at, &difference, &norm);
        if (is_tie(c, at) || difference / norm <= most) continue;
        most = difference / norm;
        worst = at;
    }
    return worst;
}

/* Within the bound. Kernels of other instruction sets round otherwise, by less than the bound,
 * and where the last expert chosen and the next one are nearer to each other than that, they
 * choose the other: then one position is wholly different, and all others together have to be
 * within what the reference itself loses. */
static void check_error(const reference *r, const family_case *c, const float *logits) {
    const double error = error_of(r, c, logits, -1);
    const int64_t worst = worst_of(r, c, logits);
    const double others = error_of(r, c, logits, worst);

    if (error > r->bound && others <= r->bound / 1.5)
        printf("%s: position %lld chose another expert, all others are off by %g\n", c->name,
               (long long)worst, others);
    cr_expect(error <= r->bound || others <= r->bound / 1.5,
              "%s: logits are off by %g, without position %lld by %g, bound %g", c->name, error,
              (long long)worst, others, r->bound);
}

/* Greedy tokens one by one, behind a prompt. */
static void check_greedy(const reference *r) {
    kt_engine *e = load(r, false, 2);
    float *logits = malloc((size_t)r->vocab * sizeof *logits);
    const int32_t *next = r->tokens;
    int64_t n = r->n;
    kt_err err = {KT_OK, ""};
    kt_sequence *s;

    cr_assert_eq(kt_sequence_create(e, r->n + r->n_greedy, &s, &err), KT_OK, "%s", err.message);
    for (int64_t i = 0; i < r->n_greedy; i++) {
        int32_t best = 0;
        cr_assert_eq(kt_engine_forward(e, s, next, n, 1, logits, NULL, NULL, NULL, &err), KT_OK,
                     "%s", err.message);
        for (int32_t v = 1; v < r->vocab; v++)
            if (logits[v] > logits[best]) best = v;
        cr_expect_eq(best, r->greedy[i], "%s: greedy token %lld is %d, expected %d", r->model,
                     (long long)i, best, r->greedy[i]);
        next = &r->greedy[i];
        n = 1;
    }
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    free(logits);
}

/* Texts and their tokens, as GGUF cases have them. */
static void check_tokenizer(const reference *r, const kt_engine *e) {
    const kt_json *pairs = kt_json_get(kt_json_root(r->bounds), "tokenizer_check");

    for (size_t i = 0; i < kt_json_length(pairs); i++) {
        const kt_json *pair = kt_json_at(pairs, i), *want = kt_json_at(pair, 1);
        size_t size = 0, count = 0;
        const char *text = kt_json_string(kt_json_at(pair, 0), &size);
        int32_t *ids = NULL;
        kt_err err = {KT_OK, ""};
        cr_assert(kt_engine_tokenizer(e), "%s: no tokenizer", r->model);
        cr_assert_eq(
            kt_tokenizer_encode(kt_engine_tokenizer(e), text, size, true, &ids, &count, &err),
            KT_OK, "%s", err.message);
        cr_expect_eq(count, kt_json_length(want), "%s: '%s' has %zu tokens, expected %zu", r->model,
                     text, count, kt_json_length(want));
        for (size_t t = 0; t < count && t < kt_json_length(want); t++)
            cr_expect_eq(ids[t], kt_json_int(kt_json_at(want, t), -1), "%s: token %zu of '%s'",
                         r->model, t, text);
        free(ids);
    }
}

/* The published forward, and the same bits in any chunks and on any number of threads where that
 * was asked for. */
/* Without the shared data, too. */
Test(families, each_has_a_reference) {
    for (size_t f = 0; f < kt_builtin_family_count; f++) {
        char golden[80];
        size_t n = 0;
        snprintf(golden, sizeof golden, "golden/%s", kt_builtin_families[f]->name);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            n += strncmp(cases[i].name, golden, strlen(golden)) == 0;
        cr_expect_gt(n, 0, "no case of %s", golden);
    }
}

/* GLM-4.7-Flash and Kimi-K2.5 as GGUF: files of deepseek2's architecture, made of the checkpoints
 * with every number kept, so that their references are those of the checkpoints. */
static void check_twin(const family_case *of) {
    family_case plain = *of, *c = &plain;
    reference r = open_reference(c);
    const bool is_glm = strstr(c->name, "glm") != NULL;
    char folder[256], source[PATH_MAX];
    kt_engine *e;
    float *logits;

    plain.acts = ACTS_BF16;
    snprintf(source, sizeof source, "%s", r.model);
    kt_temp_make(folder, sizeof folder);
    snprintf(r.model, sizeof r.model, "%s/model.gguf", folder);
    kt_gguf_twin(source, !is_glm, r.model);
    e = load(&r, false, 2);
    logits = forward(e, &r, r.n);
    check_error(&r, c, logits);
    free(logits);
    kt_engine_destroy(e);
    check_greedy(&r);
    kt_temp_remove(folder);
    kt_checkpoint_close(r.file);
    kt_json_destroy(r.bounds);
}

ParameterizedTest(family_case *c, families, logits, .timeout = 240) {
    static const int64_t chunks[] = {1, 7};
    reference r = open_reference(c);
    kt_engine *e = load(&r, false, 2), *one;
    float *logits = forward(e, &r, r.n), *kept;

    check_error(&r, c, logits);
    free(logits);
    check_tokenizer(&r, e);
    kt_engine_destroy(e);
    check_greedy(&r);

    e = load(&r, true, 2);
    one = load(&r, true, 1);
    kept = forward(e, &r, r.n);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        logits = forward(i ? e : one, &r, chunks[i]);
        cr_expect_eq(memcmp(logits, kept, (size_t)(r.n * r.vocab) * sizeof *logits), 0,
                     "%s: other bits in chunks of %lld", c->name, (long long)chunks[i]);
        free(logits);
    }
    free(kept);
    kt_engine_destroy(one);
    kt_engine_destroy(e);
    kt_checkpoint_close(r.file);
    kt_json_destroy(r.bounds);
    if (strcmp(c->name, "golden/glm4_moe_lite") == 0 ||
        strcmp(c->name, "golden/kimi_k25-int4") == 0)
        check_twin(c);
}
