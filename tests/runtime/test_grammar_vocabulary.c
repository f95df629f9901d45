/* Masks over a real vocabulary, of 151,669 tokens where the shared data is there, else of the
 * bundled model: what they hold, and how long they take.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/serve/grammar/grammar.h"
#include "tests/support/guard.h"

#define LARGE "data/tokenizers/qwen3-reconstructed"
#define BUNDLED KT_SOURCE_DIR "/datasets/models/tiny-moe"

static kt_tokenizer *tokenizer;
static kt_vocabulary *vocabulary;
static uint64_t *mask;

static void load(void) {
    char path[4096];
    kt_err err = {KT_OK, ""};
    const char *from = kt_shared_path(LARGE, path, sizeof path) ? path : BUNDLED;
    int32_t end;

    cr_assert_eq(kt_tokenizer_load(from, &tokenizer, &err), KT_OK, "%s", err.message);
    end = kt_tokenizer_size(tokenizer) - 1;
    cr_assert_eq(kt_vocabulary_from_tokenizer(tokenizer, &end, 1, &vocabulary, &err), KT_OK, "%s",
                 err.message);
    mask = malloc(kt_vocabulary_words(vocabulary) * sizeof *mask);
}

static void unload(void) {
    free(mask);
    kt_vocabulary_destroy(vocabulary);
    kt_tokenizer_destroy(tokenizer);
}
TestSuite(grammar_vocabulary, .init = load, .fini = unload, .timeout = 300);

static double thread_seconds(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double seconds(void) {
    return (double)kt_clock_ns() * 1e-9;
}

/* The mask of a state, and of all tokens what trying each says. Returns how many are allowed. */
static int32_t check_state(kt_grammar_state *s, const char *where) {
    int32_t allowed = 0, wrong = 0;

    cr_assert_eq(kt_grammar_state_mask(s, mask, NULL), KT_OK);
    for (int32_t id = 0; id < kt_vocabulary_size(vocabulary); id++) {
        kt_grammar_state tried;
        bool ok, says = mask[id / 64] >> id % 64 & 1;
        cr_assert_eq(kt_grammar_state_copy(s, &tried, NULL), KT_OK);
        ok = kt_grammar_state_accept_token(&tried, id, NULL) == KT_OK;
        kt_grammar_state_deinit(&tried);
        wrong += ok != says;
        allowed += ok;
    }
    cr_expect_eq(wrong, 0, "%s: the mask is wrong for %d tokens", where, wrong);
    return allowed;
}

static kt_grammar *from_schema(const char *schema) {
    kt_json_doc *doc;
    kt_grammar *g = NULL;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_json_parse(schema, strlen(schema), NULL, &doc, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_grammar_from_schema(vocabulary, kt_json_root(doc), &g, &err), KT_OK, "%s",
                 err.message);
    kt_json_destroy(doc);
    return g;
}

static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
                             "\"age\":{\"type\":\"integer\","
                             "\"minimum\":0},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
                             "\"string\",\"maxLength\":200}},"
                             "\"kind\":{\"enum\":[\"red\",\"green\"]},\"more\":{}},\"required\":["
                             "\"name\",\"age\",\"tags\"]}";
static const char text[] =
    "{\"name\": \"Anne-Marie é 中文 ok\", \"age\": 42, \"tags\": [\"one\", \"two\"], "
    "\"kind\": \"red\", \"more\": {\"x\": [1.5e3, \"s\", null]}}";

/* At every `step`-th byte of a text; returns the most tokens that a place allows. */
static int32_t check_text(kt_grammar *g, const char *read, size_t step) {
    kt_grammar_state s;
    int32_t most = 0;

    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t i = 0; read[i]; i++) {
        int32_t allowed = i % step ? 0 : check_state(&s, read + i);
        if (allowed > most) most = allowed;
        cr_assert_eq(kt_grammar_state_accept(&s, read + i, 1, NULL), KT_OK, "at %s", read + i);
    }
    cr_expect_eq(check_state(&s, "the end"), 1); /* nothing but the end */
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    return most;
}

Test(grammar_vocabulary, masks_are_what_trying_every_token_gives) {
    const int32_t most = check_text(from_schema(person), text, 5);

    cr_expect(most > kt_vocabulary_size(vocabulary) / 2, "a string allows %d tokens", most);
}

/* Strings that end soon, keys that begin like others, text that a rule may leave at any place. */
Test(grammar_vocabulary, masks_near_the_end_of_a_string) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":4,"
        "\"maxLength\":9}},\"required\":[\"s\"],\"additionalProperties\":{\"type\":\"string\"}}";
    static const char gbnf[] = "root ::= line{2} \"!\"\nline ::= [^\\n!]{2,30} \"\\n\"";
    kt_grammar *g = NULL;

    check_text(from_schema(schema), "{\"s\": \"abé中文x\", \"sx\": \"\"}", 4);
    cr_assert_eq(kt_grammar_from_gbnf(vocabulary, gbnf, sizeof gbnf - 1, NULL, 0, &g, NULL), KT_OK);
    check_text(g, "free é\nok\n!", 3);
}

/* All characters but a few do the same: at the end of a sentence, of a field, of an element. */
Test(grammar_vocabulary, masks_of_texts_with_exceptions) {
    static const struct {
        const char *gbnf, *text;
    } cases[] = {{"root ::= [^.]* \".\"", "é a."},
                 {"root ::= ([^,;]{0,9} [,;]){2}", "ab中,,"},
                 {"root ::= \"<a>\" ([^<] | \"<\" [^/])* \"</\"", "<a>x <b</"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_grammar *g = NULL;
        cr_assert_eq(kt_grammar_from_gbnf(vocabulary, cases[i].gbnf, strlen(cases[i].gbnf), NULL, 0,
                                          &g, NULL),
                     KT_OK);
        check_text(g, cases[i].text, 2);
    }
}

/* Times go to the log (--verbose); the bounds here are ten times what is aimed at. */
Test(grammar_vocabulary, masks_are_fast) {
    double slowest = 0, again = 0, sum = 0;
    kt_grammar *g;
    kt_grammar_state s;
    int n = 0;

    g = from_schema(person);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t i = 0; i + 1 < sizeof text; i++, n++) {
        double began = seconds(), first, second;
        cr_assert_eq(kt_grammar_state_mask(&s, mask, NULL), KT_OK);
        first = seconds();
        cr_assert_eq(kt_grammar_state_mask(&s, mask, NULL), KT_OK);
        second = seconds() - first;
        first -= began;
        sum += first;
        if (first > slowest) slowest = first;
        if (second > again) again = second;
        cr_log_info("%6.0f us, again %4.1f us: %.20s", first * 1e6, second * 1e6, text + i);
        cr_assert_eq(kt_grammar_state_accept(&s, text + i, 1, NULL), KT_OK);
    }
    cr_log_info("first %.0f us at most, %.0f us on average; again %.1f us at most", slowest * 1e6,
                sum / n * 1e6, again * 1e6);
    cr_expect(slowest < 0.1 && again < 1e-4, "first %.0f us, again %.1f us", slowest * 1e6,
              again * 1e6);
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
}

/* The longest of the masks along a text, in processor time of this thread. */
static double slowest_mask(const char *gbnf, const char *read) {
    double slowest = 0;
    kt_grammar_state s;
    kt_grammar *g = NULL;

    cr_assert_eq(kt_grammar_from_gbnf(vocabulary, gbnf, strlen(gbnf), NULL, 0, &g, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t i = 0; read[i]; i++) {
        double spent = thread_seconds();
        cr_assert_eq(kt_grammar_state_mask(&s, mask, NULL), KT_OK);
        spent = thread_seconds() - spent;
        cr_log_info("%6.0f us: %s", spent * 1e6, read + i);
        if (spent > slowest) slowest = spent;
        cr_assert_eq(kt_grammar_state_accept(&s, read + i, 1, NULL), KT_OK);
    }
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    return slowest;
}

/* Rules that may end, or be read in two ways, behind every character: the frame on top is left
 * everywhere, so what is known of it alone is nearly nothing. */
static const char *const ambiguous[] = {
    "root ::= item | free\nitem ::= \"- \" free (\"\\n\" item)?\nfree ::= [^\\n]*",
    "root ::= word*\nword ::= [^.] [^.]*",
    "root ::= (list | free) \"!\"\nlist ::= part+\npart ::= [^!]+\nfree ::= [^!]*",
    "root ::= x \"!\"\nx ::= [^!] x | [^!]",
    "root ::= word*\nword ::= [-a-z ] [-a-z ]*",
    "root ::= (list | free) \"!\"\nlist ::= part+\npart ::= [-a-z ]+\nfree ::= [-a-z ]*",
};

/* Each against a grammar that reads the same texts in one way; the best of five turns. */
Test(grammar_vocabulary, masks_of_ambiguous_grammars_are_fast) {
    enum { N = sizeof ambiguous / sizeof *ambiguous };
    static const char *const usual[] = {"root ::= [^.]*", "root ::= [-a-z ]*"};
    double one[2] = {1, 1}, two[N];

    for (int i = 0; i < N; i++) two[i] = 1;
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < 2; i++) one[i] = fmin(one[i], slowest_mask(usual[i], "- two ways"));
        for (int i = 0; i < N; i++) two[i] = fmin(two[i], slowest_mask(ambiguous[i], "- two ways"));
    }
    for (int i = 0; i < N; i++) {
        const double limit = 3 * one[i >= N - 2];
        cr_log_info("grammar %d: %.0f us at most, limit %.0f", i, two[i] * 1e6, limit * 1e6);
        cr_expect(two[i] < limit, "grammar %d: %.0f us, %.0f where one way is", i, two[i] * 1e6,
                  limit / 3 * 1e6);
    }
}

Test(grammar_vocabulary, masks_of_ambiguous_grammars_are_right) {
    for (size_t i = 0; i < sizeof ambiguous / sizeof *ambiguous; i++) {
        kt_grammar_state s;
        kt_grammar *g = NULL;
        cr_assert_eq(
            kt_grammar_from_gbnf(vocabulary, ambiguous[i], strlen(ambiguous[i]), NULL, 0, &g, NULL),
            KT_OK);
        cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
        cr_assert_eq(kt_grammar_state_accept(&s, "- two", 5, NULL), KT_OK);
        cr_expect_gt(check_state(&s, ambiguous[i]), kt_vocabulary_size(vocabulary) / 4);
        kt_grammar_state_deinit(&s);
        kt_grammar_destroy(g);
    }
}
