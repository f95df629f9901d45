/* Grammars in GBNF: which texts they accept, what is refused with which words, and masks that say
 * of every token what trying it says. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/serve/grammar/grammar_impl.h"
#include "tests/support/grammar_check.h"

typedef struct language {
    const char *grammar;
    const char *in[8], *out[12]; /* texts of it, and texts that are none */
} language;

static const language languages[] = {
    {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yesno", "maybe", "n o"}},
    {"root ::= \"\"", {""}, {"a"}},
    {"root ::= [a-c]+ [^a-c\\n]*", {"a", "abcabc", "cxyz", "b1é🙂"}, {"", "x", "a\n", "axa"}},
    {"root ::= (\"a\" | \"b\")* \"c\"?", {"", "abba", "c", "bac"}, {"cc", "ca", "d"}},
    {"root ::= \"a\"{3}", {"aaa"}, {"", "aa", "aaaa"}},
    {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"", "a", "b"}},
    {"root ::= \"a\"{2,4}", {"aa", "aaa", "aaaa"}, {"a", "aaaaa"}},
    {"root ::= \"a\"{,2} \"b\"", {"b", "ab", "aab"}, {"aaab", "a"}},
    {"root ::= \"a\"{0} \"b\"", {"b"}, {"ab"}},
    {"root ::= [ab]{9,12}", {"ababababa", "abababababab"}, {"abababab", "ababababababa"}},
    {"root ::= (\"ab\" | \"c\"){10}", {"abcabcabcabcabc", "cccccccccc"}, {"ccccccccc", "abab"}},
    {"root ::= item (\",\" item)*\nitem ::= [0-9]+ # digits\n",
     {"1", "1,22,333"},
     {"", ",1", "1,"}},
    {"# first\nroot ::=\n  \"a\" |\n  \"b\"\n  | \"c\"\n\n", {"a", "b", "c"}, {"", "ab"}},
    {"root ::= (\n \"a\"\n \"b\" # in a group\n)+", {"ab", "abab"}, {"a", "aba"}},
    {"root ::= \"\\x41\\u00e9\\U0001f642\\t\\\\\\\"\"", {"Aé🙂\t\\\""}, {"A", "Ae🙂\t\\\""}},
    {"root ::= [\\]\\x30-\\x39\\u00e0-\\u00ff-]+", {"]", "0-9", "àÿ"}, {"[", "ß\n", "a"}},
    {"root ::= . .", {"ab", "é🙂", "\n\n"}, {"a", "abc"}},
    {"root ::= [^\\x00-\\x7f]",
     {"é", "€", "🙂", "\xed\x9f\xbf", "\xee\x80\x80"},
     {"a", "\x80", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "\xff"}},
    {"root ::= [\\u0800-\\uffff]",
     {"\xe0\xa0\x80", "\xef\xbf\xbf"},
     {"\xdf\xbf", "\xf0\x90\x80\x80"}},
    {"root ::= [\\U00010000-\\U0010ffff]",
     {"\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"},
     {"\xef\xbf\xbf", "\xf4\x90\x80\x80"}},
    {"root ::= [ç-ρ]", {"ç", "ÿ", "Ā", "ρ"}, {"æ", "ς"}},
    /* Recursion in the middle, on the right, through others, and through what may be empty. */
    {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", ")", "(()", "())"}},
    {"root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"a", "ba", ""}},
    {"root ::= x \"!\"\nx ::= \"a\" y | \"\"\ny ::= \"b\" x | \"c\"",
     {"!", "ac!", "abac!", "ab!"},
     {"a!", "acb!", "ac"}},
    {"root ::= (e e)* \"x\"\ne ::= \"\" | \"a\"", {"x", "ax", "aax", "aaaaax"}, {"", "xa", "b"}},
    {"root ::= n* m\nn ::= k*\nk ::= \"k\"\nm ::= \"m\"", {"m", "kkm"}, {"k", "mm"}},
    {"root ::= ((\"a\"*)*)*", {"", "aaa"}, {"b", "ab"}},
    /* The same text in several ways. */
    {"root ::= a | b\na ::= \"x\" a \"1\" | \"\"\nb ::= \"x\" b \"2\" | \"\"",
     {"", "xx11", "xx22"},
     {"xx12", "x", "1"}},
    {"root ::= s\ns ::= \"x\" s \"a\" | \"x\" s \"b\" | \"\"", {"", "xxxabb", "xa"}, {"xxa", "a"}},
    {"root ::= p p p\np ::= \"a\"{1,3}", {"aaa", "aaaaaa", "aaaaaaaaa"}, {"aa", "aaaaaaaaaa"}},
    /* What can never end is cut away, not waited for. */
    {"root ::= \"a\" never | \"b\"\nnever ::= \"x\" never", {"b"}, {"a", "ax", ""}},
    {"root ::= \"a\" | \"a\" never\nnever ::= never2 \"x\"\nnever2 ::= \"y\" never", {"a"}, {"ay"}},
};

Test(grammar, texts_are_accepted_and_refused) {
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        const language *l = &languages[i];
        kt_err err = {KT_OK, ""};
        kt_grammar *g;
        kt_status st =
            kt_grammar_from_gbnf(NULL, l->grammar, strlen(l->grammar), NULL, 0, &g, &err);
        cr_assert_eq(st, KT_OK, "%s: %s", l->grammar, err.message);
        for (int k = 0; k < 8 && l->in[k]; k++)
            cr_expect(kt_grammar_takes(g, l->in[k], strlen(l->in[k])), "%s: refuses '%s'",
                      l->grammar, l->in[k]);
        for (int k = 0; k < 12 && l->out[k]; k++)
            cr_expect(!kt_grammar_takes(g, l->out[k], strlen(l->out[k])), "%s: accepts '%s'",
                      l->grammar, l->out[k]);
        kt_grammar_destroy(g);
    }
}

typedef struct mistake {
    const char *grammar, *words;
    kt_status status;
} mistake;

static const mistake mistakes[] = {
    {"", "no rule 'root'", KT_E_INVALID},
    {"a ::= \"b\"", "no rule 'root'", KT_E_INVALID},
    {"root ::= x", "1:10: rule 'x' is not defined", KT_E_INVALID},
    {"root ::= \"a\"\n  b ::= c\nc ::= d | e", "3:7: rule 'd' is not defined", KT_E_INVALID},
    {"root ::= \"a\"\nroot ::= \"b\"", "2:1: rule 'root' is defined a second time", KT_E_INVALID},
    {"root := \"a\"", "1:6: found ':', expected '::='", KT_E_INVALID},
    {"root", "1:5: the text ends, expected '::='", KT_E_INVALID},
    {"root ::= \"a", "1:10: the literal does not end", KT_E_INVALID},
    {"root ::= é", "1:10: found byte 0xc3", KT_E_INVALID},
    {"root ::= \"é\" \"\\q\"", "1:15: unknown escape", KT_E_INVALID},
    {"root ::= \"\\x4\"", "expected a hexadecimal digit", KT_E_INVALID},
    {"root ::= \"\\ud800\"", "no Unicode character", KT_E_INVALID},
    {"root ::= \"\\U00110000\"", "no Unicode character", KT_E_INVALID},
    {"root ::= \"\xc3\"", "expected UTF-8", KT_E_INVALID},
    {"root ::= [a-z", "1:10: the character class does not end", KT_E_INVALID},
    {"root ::= [z-a]", "1:11: the range ends before it begins", KT_E_INVALID},
    {"root ::= []", "the character class is empty", KT_E_INVALID},
    {"root ::= (\"a\"", "the text ends, expected ')'", KT_E_INVALID},
    {"root ::= \"a\")", "found ')', expected more of the rule", KT_E_INVALID},
    {"root ::= \"a\"{", "expected a number", KT_E_INVALID},
    {"root ::= \"a\"{2", "expected '}'", KT_E_INVALID},
    {"root ::= \"a\"{3,2}", "the most is less than the least", KT_E_INVALID},
    {"root ::= \"a\"{100001}", "repeated over 100000 times", KT_E_INVALID},
    {"root ::= *", "found '*'", KT_E_INVALID},
    {"root ::= <x>", "1:10: tokens need a vocabulary", KT_E_INVALID},
    {"root ::= !<x>", "not supported", KT_E_INVALID},
    {"root ::= root \"a\" | \"b\"", "left recursion: rule 'root'", KT_E_INVALID},
    {"root ::= \"a\" b\nb ::= c \"x\" | \"y\"\nc ::= b", "left recursion: rule", KT_E_INVALID},
    {"root ::= e root \"a\" | \"b\"\ne ::= \"e\"?", "left recursion: rule 'root'", KT_E_INVALID},
    {"root ::= \"b\" | x\nx ::= y*\ny ::= z\nz ::= \"\" y", "left recursion: rule", KT_E_INVALID},
    {"root ::= \"a\" root", "rule 'root' never ends", KT_E_INVALID},
    {"root ::= x\nx ::= \"a\" y\ny ::= \"b\" x", "never ends", KT_E_INVALID},
    {"root ::= [ab]* \"a\" [ab]{40}", "too large", KT_E_UNSUPPORTED},
    {"root ::= (((((((\"a\"{8}){8}){8}){8}){8}){8}){8}){8}", "too large", KT_E_UNSUPPORTED},
};

Test(grammar, mistakes_are_named_with_line_and_column) {
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        kt_err err = {KT_OK, ""};
        kt_grammar *g = NULL;
        kt_status st =
            kt_grammar_from_gbnf(NULL, m->grammar, strlen(m->grammar), NULL, 0, &g, &err);
        cr_expect_eq(st, m->status, "%s: %s (%s)", m->grammar, kt_status_name(st), err.message);
        cr_expect(strstr(err.message, m->words), "%s: '%s' lacks '%s'", m->grammar, err.message,
                  m->words);
        cr_expect_null(g);
        kt_grammar_destroy(g);
    }
}

/* Every state on random ways through each grammar: the mask holds exactly the tokens that are
 * accepted. */
Test(grammar, masks_are_what_trying_every_token_gives, .timeout = 120) {
    kt_vocabulary *v = kt_small_vocabulary();

    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        kt_err err = {KT_OK, ""};
        kt_grammar *g;
        kt_rng rng;
        kt_rng_seed(&rng, i);
        cr_assert_eq(kt_grammar_from_gbnf(v, languages[i].grammar, strlen(languages[i].grammar),
                                          NULL, 0, &g, &err),
                     KT_OK, "%s", err.message);
        for (int walk = 0; walk < 6; walk++) kt_grammar_walk(g, v, &rng, 30, NULL, NULL);
        kt_grammar_destroy(g);
    }
    kt_vocabulary_destroy(v);
}

Test(grammar, tokens_are_themselves_and_not_their_text) {
    kt_vocabulary *v = kt_small_vocabulary();
    const int32_t call = kt_small_special(v, 0), other = kt_small_special(v, 1);
    char text[160];
    uint64_t bits[64];
    kt_grammar_state s;
    kt_grammar *g;
    kt_err err = {KT_OK, ""};

    snprintf(text, sizeof text, "root ::= <|call|> \"a\" <[%d]>", other);
    cr_assert_eq(kt_grammar_from_gbnf(v, text, strlen(text), NULL, 0, &g, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_grammar_state_init(&s, g, &err), KT_OK);
    cr_assert(kt_vocabulary_words(v) <= 64);
    cr_assert_eq(kt_grammar_state_mask(&s, bits, &err), KT_OK);
    for (size_t i = 0; i < kt_vocabulary_words(v); i++)
        cr_expect_eq(bits[i], i == (size_t)call / 64 ? (uint64_t)1 << call % 64 : 0);
    cr_expect_eq(kt_grammar_state_accept(&s, "<|call|>", 8, NULL), KT_E_MISMATCH);
    cr_expect_eq(kt_grammar_state_accept(&s, "\xff", 1, NULL), KT_E_MISMATCH);
    cr_expect_eq(kt_grammar_state_accept_token(&s, other, NULL), KT_E_MISMATCH);
    cr_expect_eq(kt_grammar_state_accept_token(&s, call, NULL), KT_OK);
    cr_expect_eq(kt_grammar_state_accept(&s, "a", 1, NULL), KT_OK);
    cr_expect(!kt_grammar_state_is_complete(&s));
    cr_expect_eq(kt_grammar_state_accept_token(&s, other, NULL), KT_OK);
    cr_expect(kt_grammar_state_is_complete(&s));
    cr_expect_eq(kt_grammar_state_accept_token(&s, -1, NULL), KT_E_INVALID);
    cr_expect_eq(kt_grammar_state_accept_token(&s, kt_vocabulary_size(v), NULL), KT_E_INVALID);
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    for (const char *const *bad =
             (const char *const[]){"root ::= <|none|>", "root ::= <[0]>", "root ::= <[9999999]>",
                                   "root ::= <[x]>", "root ::= <|call|", NULL};
         *bad; bad++)
        cr_expect_eq(kt_grammar_from_gbnf(v, *bad, strlen(*bad), NULL, 0, &g, &err), KT_E_INVALID,
                     "%s", *bad);
    kt_vocabulary_destroy(v);
}

Test(grammar, the_end_is_allowed_where_the_text_is_complete) {
    static const char text[] = "root ::= \"a\"{1,2}";
    kt_vocabulary *v = kt_small_vocabulary();
    const int32_t end = kt_small_end(v);
    uint64_t bits[64];
    kt_grammar_state s;
    kt_grammar *g;

    cr_assert_eq(kt_grammar_from_gbnf(v, text, strlen(text), NULL, 0, &g, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (int n = 0; n <= 2; n++) {
        cr_assert_eq(kt_grammar_state_mask(&s, bits, NULL), KT_OK);
        cr_expect_eq(bits[end / 64] >> end % 64 & 1, n > 0);
        cr_expect_eq(kt_grammar_state_accept_token(&s, end, NULL), n ? KT_OK : KT_E_MISMATCH);
        cr_expect_eq(kt_grammar_state_accept(&s, "a", 1, NULL), n < 2 ? KT_OK : KT_E_MISMATCH);
    }
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    kt_vocabulary_destroy(v);
}

Test(grammar, a_copy_goes_its_own_way_and_a_refused_text_changes_nothing) {
    static const char text[] = "root ::= \"a\" (\"b\" | \"c\") \"d\"";
    kt_grammar_state one, two;
    kt_grammar *g;

    cr_assert_eq(kt_grammar_from_gbnf(NULL, text, strlen(text), NULL, 0, &g, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&one, g, NULL), KT_OK);
    cr_expect_eq(kt_grammar_state_accept(&one, "ax", 2, NULL), KT_E_MISMATCH);
    cr_expect_eq(kt_grammar_state_accept(&one, "a", 1, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_copy(&one, &two, NULL), KT_OK);
    cr_expect_eq(kt_grammar_state_accept(&two, "cd", 2, NULL), KT_OK);
    cr_expect(kt_grammar_state_is_complete(&two));
    cr_expect(!kt_grammar_state_is_complete(&one));
    cr_expect_eq(kt_grammar_state_accept(&one, "bd", 2, NULL), KT_OK);
    cr_expect(kt_grammar_state_is_complete(&one));
    cr_expect_eq(kt_grammar_state_mask(&one, NULL, NULL), KT_E_INVALID);
    kt_grammar_state_deinit(&two);
    kt_grammar_state_deinit(&one);
    kt_grammar_state_deinit(&one);
    kt_grammar_destroy(g);
}

/* One of several threads, each with a state of its own; wrong counts what differs from `want`. */
typedef struct reader {
    kt_grammar *grammar;
    const uint64_t *want; /* [steps, words] */
    size_t words;
    int wrong;
} reader;

static const char read_text[] = "(()((a)a)b)((((a))))";

static void *read_along(void *arg) {
    reader *r = arg;
    uint64_t bits[64];

    for (int round = 0; round < 50; round++) {
        kt_grammar_state s;
        r->wrong += kt_grammar_state_init(&s, r->grammar, NULL) != KT_OK;
        for (size_t i = 0; i + 1 < sizeof read_text; i++) {
            r->wrong += kt_grammar_state_mask(&s, bits, NULL) != KT_OK ||
                        memcmp(bits, r->want + i * r->words, r->words * sizeof *bits) != 0;
            r->wrong += kt_grammar_state_accept(&s, read_text + i, 1, NULL) != KT_OK;
        }
        kt_grammar_state_deinit(&s);
    }
    return NULL;
}

Test(grammar, threads_share_a_grammar) {
    static const char text[] = "root ::= e*\ne ::= \"(\" e* \")\" | [a-z]";
    static uint64_t want[sizeof read_text * 64];
    kt_vocabulary *v = kt_small_vocabulary();
    size_t words = kt_vocabulary_words(v);
    pthread_t thread[4];
    reader r[4];
    kt_grammar_state s;
    kt_grammar *g;

    cr_assert_eq(kt_grammar_from_gbnf(v, text, strlen(text), NULL, 0, &g, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t i = 0; i + 1 < sizeof read_text; i++) {
        cr_assert_eq(kt_grammar_state_mask(&s, want + i * words, NULL), KT_OK);
        cr_assert_eq(kt_grammar_state_accept(&s, read_text + i, 1, NULL), KT_OK);
    }
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    cr_assert_eq(kt_grammar_from_gbnf(v, text, strlen(text), NULL, 0, &g, NULL), KT_OK);
    for (int i = 0; i < 4; i++) {
        r[i] = (reader){g, want, words, 0};
        cr_assert_eq(pthread_create(&thread[i], NULL, read_along, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) cr_expect_eq(r[i].wrong, 0, "thread %d: %d", i, r[i].wrong);
    kt_grammar_destroy(g);
    kt_vocabulary_destroy(v);
}

/* Texts that nest in ever new ways: what no state needs is forgotten, and states stay where they
 * are. */
Test(grammar, long_texts_do_not_fill_memory, .timeout = 120) {
    static const char text[] = "root ::= v\nv ::= \"[\" list? \"]\" | \"{\" list? \"}\" | [a-z]+\n"
                               "list ::= v (\",\" v)*";
    enum { STATES = 40, DEEPEST = 400, STEPS = 400000, MOST_BYTES = 64 << 20 };
    static char closing[STATES][DEEPEST + 1];
    kt_grammar_state s[STATES];
    int depth[STATES] = {0};
    size_t most = 0;
    kt_grammar *g;
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    cr_assert_eq(kt_grammar_from_gbnf(NULL, text, strlen(text), NULL, 0, &g, NULL), KT_OK);
    for (int i = 0; i < STATES; i++) cr_assert_eq(kt_grammar_state_init(&s[i], g, NULL), KT_OK);
    for (int step = 0; step < STEPS; step++) {
        int i = (int)kt_rng_below(&rng, STATES), *d = &depth[i];
        bool opens = *d < 2 || (*d < DEEPEST && kt_rng_below(&rng, 5) < 3);
        bool curly = kt_rng_below(&rng, 2);
        char next[8] = "ab,", wrong;
        if (opens) { /* a list begins: in a list, behind an element */
            snprintf(next + (*d ? 3 : 0), 2, "%c", curly ? '{' : '[');
            closing[i][++*d] = curly ? '}' : ']';
        } else { /* its last element and its end; the list around it goes on */
            wrong = closing[i][*d] == ']' ? '}' : ']';
            snprintf(next, sizeof next, "e%c,", wrong);
            cr_assert_eq(kt_grammar_state_accept(&s[i], next, 3, NULL), KT_E_MISMATCH);
            snprintf(next, sizeof next, "e%c,", closing[i][(*d)--]);
        }
        cr_assert_eq(kt_grammar_state_accept(&s[i], next, strlen(next), NULL), KT_OK, "%d: %s", *d,
                     next);
        if (kt_stacks_bytes(&g->stacks) > most) most = kt_stacks_bytes(&g->stacks);
    }
    cr_expect(most > 16 << 20 && most < MOST_BYTES, "%zu bytes at most", most);
    cr_expect(kt_stacks_bytes(&g->stacks) < most, "nothing was ever forgotten");
    for (int i = 0; i < STATES; i++) kt_grammar_state_deinit(&s[i]);
    kt_grammar_destroy(g);
}

Test(grammar, depth_and_ambiguity_have_limits) {
    static const char deep[] = "root ::= \"(\" root \")\" | \"\"";
    kt_err err = {KT_OK, ""};
    kt_grammar_state s;
    kt_grammar *g;
    char open[2000], *text;
    size_t n = 0;
    kt_status st;

    memset(open, '(', sizeof open);
    cr_assert_eq(kt_grammar_from_gbnf(NULL, deep, strlen(deep), NULL, 0, &g, NULL), KT_OK);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    cr_expect_eq(kt_grammar_state_accept(&s, open, 900, NULL), KT_OK);
    cr_expect_eq(kt_grammar_state_accept(&s, open, 1000, NULL), KT_E_MISMATCH);
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    /* 2^n stacks after n bytes: each x is read by one of two rules, which lie on the stack. */
    text = malloc(4000);
    n += (size_t)sprintf(text + n, "root ::= s\ns ::= a | b | \"\"\n");
    n += (size_t)sprintf(text + n, "a ::= \"x\" s \"1\"\nb ::= \"x\" s \"2\"\n");
    cr_assert_eq(kt_grammar_from_gbnf(NULL, text, n, NULL, 0, &g, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    memset(open, 'x', 40);
    st = kt_grammar_state_accept(&s, open, 40, &err);
    cr_expect_eq(st, KT_E_UNSUPPORTED, "%s", kt_status_name(st));
    cr_expect(strstr(err.message, "too ambiguous"), "%s", err.message);
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    free(text);
}
