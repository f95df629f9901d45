/* Vocabularies, grammars, states and masks with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/serve/grammar/grammar.h"
#include "runtime/serve/grammar/grammar_stacks.h"
#include "tests/support/grammar_check.h"
#include "tests/support/nomem.h"

TestSuite(grammar_nomem, .timeout = 120);

static const kt_vocabulary_token tokens[] = {
    {"a", 1, false}, {"ab", 2, false}, {"<x>", 3, true}, {"", 0, false}, {"\"", 1, false}};

static kt_status make_vocabulary(void *out, const void *with, kt_err *err) {
    const int32_t end = 2;
    return kt_vocabulary_create(with, 5, &end, 1, out, err);
}
static void unmake_vocabulary(void *out) {
    kt_vocabulary_destroy(*(kt_vocabulary **)out);
}

Test(grammar_nomem, a_vocabulary_is_made_or_not) {
    const kt_nomem_case c = {.function = "kt_vocabulary_create",
                             .make = make_vocabulary,
                             .unmake = unmake_vocabulary,
                             .with = tokens,
                             .out_bytes = sizeof(kt_vocabulary *),
                             .says = "vocabulary"};
    kt_nomem_check(&c);
}

static kt_vocabulary *vocabulary;

static kt_status make_gbnf(void *out, const void *with, kt_err *err) {
    return kt_grammar_from_gbnf(vocabulary, with, strlen(with), NULL, 0, out, err);
}
static kt_status make_schema(void *out, const void *with, kt_err *err) {
    return kt_grammar_from_schema(vocabulary, with, out, err);
}
static void unmake_grammar(void *out) {
    kt_grammar_destroy(*(kt_grammar **)out);
}

Test(grammar_nomem, a_grammar_is_made_or_not) {
    static const char gbnf[] =
        "root ::= \"a\" b{0,20} | [a-z\\u00e9] \"\\n\" <|call|>\nb ::= (root)? \"x\"";
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"},"
        "\"b\":{\"anyOf\":[{\"type\":\"integer\",\"minimum\":3},{\"enum\":[\"x\",[1]]}]},\"c\":{"
        "\"items\":{}}},"
        "\"additionalProperties\":{\"$ref\":\"#\"}}";
    kt_json_doc *doc;
    kt_nomem_case c = {.function = "kt_grammar_from_gbnf",
                       .make = make_gbnf,
                       .unmake = unmake_grammar,
                       .with = gbnf,
                       .out_bytes = sizeof(kt_grammar *),
                       .says = "memory",
                       .most = 300};

    vocabulary = kt_small_vocabulary();
    kt_nomem_check(&c);
    cr_assert_eq(kt_json_parse(schema, sizeof schema - 1, NULL, &doc, NULL), KT_OK);
    c.function = "kt_grammar_from_schema", c.make = make_schema, c.with = kt_json_root(doc);
    kt_nomem_check(&c);
    kt_json_destroy(doc);
    kt_vocabulary_destroy(vocabulary);
}

static kt_grammar *grammar;

static kt_status make_state(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_grammar_state_init(out, grammar, err);
}
static void unmake_state(void *out) {
    kt_grammar_state_deinit(out);
}

static kt_status make_stacks(void *out, const void *with, kt_err *err) {
    return kt_stacks_init(out, with, err);
}
static void unmake_stacks(void *out) {
    kt_stacks_deinit(out);
}

Test(grammar_nomem, states_begin_or_not) {
    static int32_t next[2] = {-1, -1}, begin[2] = {0, 0};
    static uint8_t flags[1] = {KT_AUTO_ACCEPTS};
    static const kt_auto one = {
        .n_classes = 2, .n_states = 1, .next = next, .flags = flags, .call_begin = begin};
    kt_nomem_case c = {.function = "kt_grammar_state_init",
                       .make = make_state,
                       .unmake = unmake_state,
                       .out_bytes = sizeof(kt_grammar_state),
                       .says = "grammar",
                       .may_need_none = true};

    cr_assert_eq(kt_grammar_json_object(NULL, &grammar, NULL), KT_OK);
    kt_nomem_after(0); /* the first state makes room, which stays */
    cr_expect_eq(make_state(&(kt_grammar_state){NULL, 0}, NULL, NULL), KT_E_NOMEM);
    cr_expect(kt_nomem_failed());
    kt_nomem_check(&c);
    kt_grammar_destroy(grammar);
    c.function = "kt_stacks_init", c.make = make_stacks, c.unmake = unmake_stacks;
    c.with = &one, c.out_bytes = sizeof(kt_stacks);
    kt_nomem_check(&c);
}

/* Accepting and masks with allocation n failing: an error or the right answer, and then all is as
 * it was. */
Test(grammar_nomem, masks_survive_failures) {
    static const char text[] = "{\"a\": [\"x\", 1";
    const size_t bytes = 64 * sizeof(uint64_t);
    uint64_t want[64], got[64];
    kt_grammar_state s;
    long failures = 0;

    vocabulary = kt_small_vocabulary();
    cr_assert(kt_vocabulary_words(vocabulary) <= 64);
    memset(want, 0, bytes);
    cr_assert_eq(kt_grammar_json_object(vocabulary, &grammar, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&s, grammar, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_accept(&s, text, sizeof text - 1, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_mask(&s, want, NULL), KT_OK);
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(grammar);
    for (long n = 0; n < 200; n++) {
        kt_err err = {KT_OK, ""};
        kt_status st;
        cr_assert_eq(kt_grammar_json_object(vocabulary, &grammar, NULL), KT_OK);
        cr_assert_eq(kt_grammar_state_init(&s, grammar, NULL), KT_OK);
        kt_nomem_after(n);
        st = kt_grammar_state_accept(&s, text, sizeof text - 1, &err);
        memset(got, 0, bytes);
        if (st == KT_OK) st = kt_grammar_state_mask(&s, got, &err);
        failures += kt_nomem_failed();
        cr_expect(st == KT_OK || st == KT_E_NOMEM, "%ld: %s", n, kt_status_name(st));
        if (st == KT_OK) cr_expect_eq(memcmp(want, got, bytes), 0, "failure %ld", n);
        if (st != KT_OK) {
            kt_grammar_state_deinit(&s);
            cr_assert_eq(kt_grammar_state_init(&s, grammar, NULL), KT_OK);
            cr_assert_eq(kt_grammar_state_accept(&s, text, sizeof text - 1, NULL), KT_OK);
            cr_assert_eq(kt_grammar_state_mask(&s, got, NULL), KT_OK);
            cr_expect_eq(memcmp(want, got, bytes), 0, "after failure %ld", n);
        }
        kt_grammar_state_deinit(&s);
        kt_grammar_destroy(grammar);
    }
    cr_expect(failures > 5, "%ld failures", failures);
    kt_vocabulary_destroy(vocabulary);
}
