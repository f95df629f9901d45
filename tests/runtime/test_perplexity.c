/* The bundled model against what its expected.json records. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "runtime/exec/perplexity.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

static kt_engine *load(kt_quant weights) {
    kt_engine_options o = {
        .model_dir = MODEL, .weights = weights, .table_path = "", .n_threads = 2};
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

static kt_json_doc *expected(void) {
    char *text;
    size_t size;
    kt_json_doc *doc;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_file_read(MODEL "/expected.json", 1 << 24, &text, &size, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    free(text);
    return doc;
}

/* test_golden and test_shapes take the same paths in a fraction of the time. */
static void skip_under_sanitizers(void) {
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("a minute under sanitizers");
#endif
}

/* Ratio of the measured to the recorded perplexity. */
static double ratio(kt_quant weights) {
    kt_json_doc *doc = expected();
    const kt_json *want = kt_json_get(kt_json_root(doc), "perplexity");
    kt_engine *e = load(weights);
    char *text;
    size_t size, n;
    int32_t *ids;
    double r;
    kt_perplexity p;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_file_read(MODEL "/sample.txt", 1 << 24, &text, &size, &err), KT_OK);
    cr_assert_eq(kt_tokenizer_encode(kt_engine_tokenizer(e), text, size, true, &ids, &n, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq((int64_t)n, kt_json_int(kt_json_get(want, "tokens_in_file"), -1));
    cr_assert_eq(kt_perplexity_measure(e, ids, (int64_t)n,
                                       kt_json_int(kt_json_get(want, "window"), -1), NULL, NULL, &p,
                                       &err),
                 KT_OK, "%s", err.message);
    cr_expect_eq(p.windows, kt_json_int(kt_json_get(want, "windows"), -1));
    cr_expect_eq(p.counted, kt_json_int(kt_json_get(want, "tokens_counted"), -1));
    r = p.perplexity / kt_json_double(kt_json_get(want, "perplexity"), NAN);
    kt_engine_destroy(e);
    kt_json_destroy(doc);
    free(text);
    free(ids);
    return r;
}

Test(perplexity, bf16_is_within_a_thousandth, .timeout = 300) {
    skip_under_sanitizers();
    double r = ratio(KT_QUANT_BF16);
    cr_expect(fabs(r - 1) <= 0.001, "ratio %.6f", r);
}

Test(perplexity, int8_is_within_two_thousandths, .timeout = 300) {
    skip_under_sanitizers();
    double r = ratio(KT_QUANT_INT8);
    cr_expect(fabs(r - 1) <= 0.002, "ratio %.6f", r);
}

Test(perplexity, int4_is_at_most_four_thousandths_above, .timeout = 300) {
    skip_under_sanitizers();
    double r = ratio(KT_QUANT_INT4);
    cr_expect(r <= 1.004 && r >= 0.99, "ratio %.6f", r);
}

Test(perplexity, too_short_a_text_is_refused) {
    const int32_t ids[3] = {1, 2, 3};
    kt_engine *e = load(KT_QUANT_NATIVE);
    kt_perplexity p;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_perplexity_measure(e, ids, 3, 4, NULL, NULL, &p, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "3 tokens"), "%s", err.message);
    kt_engine_destroy(e);
}

static void check_case(kt_engine *e, const kt_json *c) {
    const kt_json *prompt = kt_json_get(c, "prompt_ids"), *want = kt_json_get(c, "greedy_ids");
    size_t n = kt_json_length(prompt), n_want = kt_json_length(want), size;
    const char *text = kt_json_string(kt_json_get(c, "prompt"), &size);
    kt_engine_info info;
    kt_sequence *s;
    int32_t *ids;
    size_t n_ids;
    float *logits;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_tokenizer_encode(kt_engine_tokenizer(e), text, size, true, &ids, &n_ids, &err),
                 KT_OK);
    cr_assert_eq(n_ids, n, "'%s': %zu tokens, expected %zu", text, n_ids, n);
    for (size_t i = 0; i < n; i++) cr_assert_eq(ids[i], kt_json_int(kt_json_at(prompt, i), -1));
    kt_engine_describe(e, &info);
    logits = malloc((size_t)info.vocab * sizeof *logits);
    cr_assert_eq(kt_sequence_create(e, (int64_t)(n + n_want), &s, &err), KT_OK);
    cr_assert_eq(kt_engine_forward(e, s, ids, (int64_t)n, 1, logits, NULL, NULL, NULL, &err),
                 KT_OK);
    for (size_t i = 0; i < n_want; i++) {
        int32_t best = 0, token = (int32_t)kt_json_int(kt_json_at(want, i), -1);
        for (int32_t v = 1; v < info.vocab; v++)
            if (logits[v] > logits[best]) best = v;
        cr_assert_eq(best, token, "'%s': token %zu is %d, expected %d", text, i, best, token);
        cr_assert_eq(kt_engine_forward(e, s, &token, 1, 1, logits, NULL, NULL, NULL, &err), KT_OK);
    }
    kt_sequence_destroy(s);
    free(logits);
    free(ids);
}

Test(perplexity, greedy_continuations_are_equal, .timeout = 120) {
    kt_json_doc *doc = expected();
    const kt_json *cases = kt_json_get(kt_json_get(kt_json_root(doc), "greedy"), "cases");
    kt_engine *e = load(KT_QUANT_BF16);

    cr_assert_geq(kt_json_length(cases), 10u);
    for (size_t i = 0; i < kt_json_length(cases); i++) check_case(e, kt_json_at(cases, i));
    kt_engine_destroy(e);
    kt_json_destroy(doc);
}
