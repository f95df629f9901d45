/* The engine against logits of the reference implementation (tests/data/golden; the bounds are
 * those of its README) and against our own double reference on re-quantised weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "kernels/formats/format.h"
#include "runtime/exec/engine.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/qwen3_ref.h"

static const char *const cases[] = {"qwen3_moe-a", "qwen3_moe-b", "qwen3_moe-c"};
#define N_CASES (sizeof cases / sizeof *cases)

typedef struct golden {
    char folder[PATH_MAX];
    kt_checkpoint *file;
    const int32_t *tokens, *greedy;
    const float *logits, *hidden;
    int64_t n, n_greedy, vocab;
    double bf16_bound, int8_bound;
} golden;

static const kt_tensor *need(const golden *g, const char *name) {
    const kt_tensor *t = kt_checkpoint_find(g->file, name);
    cr_assert(t, "%s: no tensor %s", g->folder, name);
    return t;
}

static golden open_case(const char *name) {
    golden g;
    char path[PATH_MAX + 32], *text;
    kt_json_doc *doc;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(g.folder, sizeof g.folder, "%s/golden/%s", KT_TEST_DATA, name);
    snprintf(path, sizeof path, "%s/expected.safetensors", g.folder);
    cr_assert_eq(kt_checkpoint_open_file(path, &g.file, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/bounds.json", g.folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    g.bf16_bound =
        1.5 * kt_json_double(kt_json_get(kt_json_root(doc), "error_bf16_reference"), NAN);
    g.int8_bound =
        1.5 * kt_json_double(kt_json_get(kt_json_root(doc), "error_int8_activations_g32"), NAN);
    kt_json_destroy(doc);
    free(text);
    g.tokens = (const int32_t *)(const void *)need(&g, "tokens")->data;
    g.greedy = (const int32_t *)(const void *)need(&g, "greedy")->data;
    g.logits = (const float *)(const void *)need(&g, "logits")->data;
    g.hidden = (const float *)(const void *)need(&g, "hidden")->data;
    g.n = need(&g, "tokens")->shape[0];
    g.n_greedy = need(&g, "greedy")->shape[0];
    g.vocab = need(&g, "logits")->shape[1];
    return g;
}

static kt_engine *load_options(kt_engine_options o) {
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    o.table_path = "";
    o.tokenizer_optional = true;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

static kt_engine *load_with(const char *folder, kt_quant weights, kt_weight_format kv,
                            int n_threads, bool exact_acts) {
    return load_options((kt_engine_options){.model_dir = folder,
                                            .weights = weights,
                                            .kv = kv,
                                            .exact_acts = exact_acts,
                                            .n_threads = n_threads});
}

static kt_engine *load_deterministic(const char *folder, kt_quant weights, kt_weight_format kv,
                                     int n_threads) {
    return load_options((kt_engine_options){.model_dir = folder,
                                            .weights = weights,
                                            .kv = kv,
                                            .deterministic = true,
                                            .n_threads = n_threads});
}

static kt_engine *load(const char *folder, kt_quant weights, int n_threads) {
    return load_with(folder, weights, KT_W_NONE, n_threads, false);
}

/* Logits of all tokens in chunks of `chunk`; malloc'd. hidden may be NULL. */
static float *forward(kt_engine *e, const int32_t *tokens, int64_t n, int64_t chunk,
                      float *hidden) {
    kt_engine_info info;
    kt_sequence *s;
    float *logits;
    kt_err err = {KT_OK, ""};

    kt_engine_describe(e, &info);
    logits = calloc((size_t)(n * info.vocab), sizeof *logits);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, n, n, logits, hidden, NULL, NULL, &err), KT_OK,
                 "%s", err.message);
    kt_sequence_destroy(s);
    return logits;
}

static double error_of(const float *got, const float *want, int64_t count) {
    double *w = malloc((size_t)count * sizeof *w), error;

    for (int64_t i = 0; i < count; i++) w[i] = want[i];
    error = kt_relative_error(got, w, count);
    free(w);
    return error;
}

Test(golden, bf16_agrees_with_the_published_implementation, .timeout = 180) {
    for (size_t i = 0; i < N_CASES; i++) {
        golden g = open_case(cases[i]);
        const kt_tensor *t = need(&g, "hidden");
        int64_t layers = t->shape[0] - 1, row = g.n * t->shape[2];
        kt_engine *e = load(g.folder, KT_QUANT_NATIVE, 2);
        float *hidden = malloc((size_t)((layers + 1) * row) * sizeof *hidden);
        float *logits = forward(e, g.tokens, g.n, g.n, hidden);
        double error = error_of(logits, g.logits, g.n * g.vocab);

        cr_expect_leq(error, g.bf16_bound, "%s: logits are off by %g, bound %g", cases[i], error,
                      g.bf16_bound);
        cr_expect_eq(memcmp(hidden, g.hidden, (size_t)row * sizeof *hidden), 0,
                     "%s: embeddings differ", cases[i]);
        for (int64_t l = 1; l <= layers; l++) {
            error = error_of(hidden + l * row, g.hidden + l * row, row);
            cr_expect_leq(error, g.bf16_bound, "%s: hidden %lld is off by %g, bound %g", cases[i],
                          (long long)l, error, g.bf16_bound);
        }
        free(hidden);
        free(logits);
        kt_engine_destroy(e);
        kt_checkpoint_close(g.file);
    }
}

static void check_greedy(const golden *g, kt_quant weights) {
    kt_engine *e = load(g->folder, weights, 2);
    float *logits = malloc((size_t)g->vocab * sizeof *logits);
    kt_sequence *s;
    kt_err err = {KT_OK, ""};
    const int32_t *next = g->tokens;
    int64_t n = g->n;

    cr_assert_eq(kt_sequence_create(e, g->n + g->n_greedy, &s, &err), KT_OK, "%s", err.message);
    for (int64_t i = 0; i < g->n_greedy; i++) {
        int32_t best = 0;
        cr_assert_eq(kt_engine_forward(e, s, next, n, 1, logits, NULL, NULL, NULL, &err), KT_OK,
                     "%s", err.message);
        for (int32_t v = 1; v < g->vocab; v++)
            if (logits[v] > logits[best]) best = v;
        cr_assert_eq(best, g->greedy[i], "%s: greedy token %lld is %d, expected %d", g->folder,
                     (long long)i, best, g->greedy[i]);
        next = &g->greedy[i];
        n = 1;
    }
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    free(logits);
}

Test(golden, greedy_tokens_are_equal, .timeout = 180) {
    for (size_t i = 0; i < N_CASES; i++) {
        golden g = open_case(cases[i]);
        check_greedy(&g, KT_QUANT_BF16);
        kt_checkpoint_close(g.file);
    }
}

/* Without that promise the kernels change with the rows of a chunk: each chunking alone is as
 * near to the published logits as the whole must be. */
Test(golden, any_chunks_agree_with_the_published_implementation, .timeout = 120) {
    static const int64_t chunks[] = {1, 3, 17};

    for (size_t i = 0; i < N_CASES; i++)
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            golden g = open_case(cases[i]);
            kt_engine *e = load(g.folder, KT_QUANT_NATIVE, 2);
            float *logits = forward(e, g.tokens, g.n, chunks[c], NULL);
            double error = error_of(logits, g.logits, g.n * g.vocab);

            cr_expect_leq(error, g.bf16_bound, "%s, chunks of %lld: off by %g, bound %g", cases[i],
                          (long long)chunks[c], error, g.bf16_bound);
            free(logits);
            kt_engine_destroy(e);
            kt_checkpoint_close(g.file);
        }
}

/* Longer prompts and tuned tables: test_deterministic.c. */
Test(golden, chunks_and_threads_do_not_change_a_bit, .timeout = 120) {
    static const kt_quant quants[] = {KT_QUANT_BF16, KT_QUANT_INT8, KT_QUANT_INT4};
    static const int64_t chunks[] = {7, 1, 3, 17};

    for (size_t i = 0; i < N_CASES; i++)
        for (size_t q = 0; q < sizeof quants / sizeof *quants; q++) {
            golden g = open_case(cases[i]);
            kt_engine *two = load_deterministic(g.folder, quants[q], KT_W_NONE, 2);
            kt_engine *one = load_deterministic(g.folder, quants[q], KT_W_NONE, 1);
            float *whole = forward(two, g.tokens, g.n, g.n, NULL);
            size_t bytes = (size_t)(g.n * g.vocab) * sizeof *whole;
            for (size_t c = 0; c <= sizeof chunks / sizeof *chunks; c++) {
                int is_single = c == sizeof chunks / sizeof *chunks;
                float *part = is_single ? forward(one, g.tokens, g.n, g.n, NULL)
                                        : forward(two, g.tokens, g.n, chunks[c], NULL);
                cr_expect_eq(memcmp(part, whole, bytes), 0, "%s, weights %d: %s %lld differ",
                             cases[i], (int)quants[q], is_single ? "threads" : "chunks of",
                             is_single ? 1LL : (long long)chunks[c]);
                free(part);
            }
            free(whole);
            kt_engine_destroy(one);
            kt_engine_destroy(two);
            kt_checkpoint_close(g.file);
        }
}

/* A cached row is off by half a step of its largest magnitude, 1 / 254 with INT8, or by 2^-5 of
 * each value with FP8. The published 8-bit run (activations in groups of 32, steps of 1 / 254 as
 * well, in every product) bounds the first; sixteen times as coarse a step in two products of
 * nine the second. */
Test(golden, eight_bit_caches_stay_near_the_published_logits, .timeout = 120) {
    static const kt_weight_format caches[] = {KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};

    for (size_t i = 0; i < N_CASES; i++)
        for (size_t k = 0; k < 2; k++) {
            golden g = open_case(cases[i]);
            kt_engine *e = load_deterministic(g.folder, KT_QUANT_BF16, caches[k], 2);
            kt_engine *one = load_deterministic(g.folder, KT_QUANT_BF16, caches[k], 1);
            float *whole = forward(e, g.tokens, g.n, g.n, NULL);
            float *part = forward(one, g.tokens, g.n, 3, NULL);
            double error = error_of(whole, g.logits, g.n * g.vocab);
            double bound = k ? 4 * g.int8_bound : g.int8_bound;

            cr_expect_leq(error, bound, "%s, %s cache: off by %g, bound %g", cases[i],
                          kt_weight_format_name(caches[k]), error, bound);
            cr_expect_gt(error, 0.0);
            cr_expect_eq(memcmp(part, whole, (size_t)(g.n * g.vocab) * sizeof *whole), 0,
                         "%s, %s cache: chunks differ", cases[i], kt_weight_format_name(caches[k]));
            free(whole);
            free(part);
            kt_engine_destroy(e);
            kt_engine_destroy(one);
            kt_checkpoint_close(g.file);
        }
}

/* Our double reference on the stored weights must be the published implementation's float32 run, or
 * it could not be the yardstick of the next test. */
Test(golden, double_reference_is_the_published_forward, .timeout = 120) {
    for (size_t i = 0; i < N_CASES; i++) {
        golden g = open_case(cases[i]);
        kt_err err = {KT_OK, ""};
        kt_ref_model *m = kt_ref_load(g.folder, KT_QUANT_NATIVE, &err);
        double *logits = malloc((size_t)(g.n * g.vocab) * sizeof *logits), error;

        cr_assert(m, "%s", err.message);
        kt_ref_forward(m, g.tokens, g.n, KT_REF_EXACT, logits, NULL, NULL);
        error = kt_relative_error(g.logits, logits, g.n * g.vocab);
        cr_expect_leq(error, 1e-4, "%s: %g", cases[i], error);
        free(logits);
        kt_ref_free(m);
        kt_checkpoint_close(g.file);
    }
}

/* The README's tokens are far from every edge with the stored weights; re-quantised ones move the
 * edges, so positions that the reference itself calls undecided are left out. */
static void check_quantised(const char *name, kt_quant quant, bool exact_acts) {
    golden g = open_case(name);
    kt_err err = {KT_OK, ""};
    kt_engine *e = load_with(g.folder, quant, KT_W_NONE, 2, exact_acts);
    kt_ref_model *m = kt_ref_load(g.folder, quant, &err);
    float *got = forward(e, g.tokens, g.n, g.n, NULL);
    int64_t decided;
    double error, rounded, bound = g.int8_bound;

    cr_assert(m, "%s", err.message);
    error = kt_ref_compare(m, g.tokens, g.n, exact_acts ? KT_REF_INT8 : KT_REF_INT8_POWERS, got,
                           &decided, &rounded);
    if (!exact_acts) bound = 1.5 * rounded;
    cr_expect_gt(4 * decided, g.n, "%s: only %lld positions are decided", name, (long long)decided);
    cr_expect_leq(error, bound, "%s, weights %d, exact %d: off by %g, bound %g", name, (int)quant,
                  exact_acts, error, bound);
    free(got);
    kt_ref_free(m);
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

/* With the finest activations the error that the published model has with such; as engines take
 * them, 1.5 times what the reference loses when it rounds the same way. */
Test(golden, quantised_weights_agree_with_the_same_weights_in_double, .timeout = 240) {
    for (size_t i = 0; i < N_CASES; i++)
        for (int exact = 0; exact < 2; exact++) {
            check_quantised(cases[i], KT_QUANT_INT8, exact);
            check_quantised(cases[i], KT_QUANT_INT4, exact);
        }
}

/* --weights may name any format that has an encoder; a model whose sizes are no multiple of its
 * groups is refused, naming the size. */
Test(golden, every_encoded_format_agrees_with_the_same_weights_in_double, .timeout = 240) {
    int n_loaded = 0, n_refused = 0;

    for (size_t f = 0; f < kt_builtin_format_count; f++)
        for (size_t i = 0; i < N_CASES && kt_builtin_formats[f]->id != KT_W_F32; i++) {
            const kt_format *format = kt_builtin_formats[f];
            golden g = open_case(cases[i]);
            kt_engine_options o = {.model_dir = g.folder,
                                   .weights = (kt_quant)(KT_QUANT_FORMAT + format->id),
                                   .table_path = "",
                                   .n_threads = 2,
                                   .tokenizer_optional = true};
            kt_err err = {KT_OK, ""};
            kt_engine *e;
            kt_status st = kt_engine_create(&o, &e, &err);
            if (st != KT_OK) {
                n_refused++;
                cr_expect(strstr(err.message, format->encode_rows ? "multiple of" : "GGUF blocks"),
                          "%s, %s: %s", cases[i], format->name, err.message);
            } else {
                kt_ref_model *m = kt_ref_load(g.folder, o.weights, &err);
                float *got = forward(e, g.tokens, g.n, g.n, NULL);
                int64_t decided;
                double rounded, error;
                cr_assert(m, "%s", err.message);
                error = kt_ref_compare(m, g.tokens, g.n,
                                       format->acts == KT_A_BF16 ? KT_REF_BF16 : KT_REF_INT8_POWERS,
                                       got, &decided, &rounded);
                cr_expect_gt(4 * decided, g.n, "%s, %s: %lld positions are decided", cases[i],
                             format->name, (long long)decided);
                cr_expect_leq(error, 1.5 * rounded, "%s, %s: off by %g, bound %g", cases[i],
                              format->name, error, 1.5 * rounded);
                n_loaded++;
                free(got);
                kt_ref_free(m);
                kt_engine_destroy(e);
            }
            kt_checkpoint_close(g.file);
        }
    cr_log_info("%d loaded, %d refused", n_loaded, n_refused);
    cr_expect_geq(n_loaded, 15);
}
