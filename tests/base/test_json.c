/* JSON: what RFC 8259 accepts and refuses, exactness, size, damage.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"

static kt_json_doc *parse_n(const char *text, size_t size) {
    kt_json_doc *doc = NULL;
    kt_err err = {0};
    kt_status st = kt_json_parse(text, size, NULL, &doc, &err);
    cr_assert_eq(st, KT_OK, "%.200s: %s", text, err.message);
    cr_assert_not_null(doc);
    return doc;
}

static kt_json_doc *parse(const char *text) {
    return parse_n(text, strlen(text));
}

/* The text must be refused with a message that holds `part`. */
static void refuse_n(const char *text, size_t size, const char *part) {
    kt_json_doc *doc = NULL;
    kt_err err = {0};
    kt_status st = kt_json_parse(text, size, NULL, &doc, &err);
    cr_assert_eq(st, KT_E_FORMAT, "accepted: %.100s", text);
    cr_assert_null(doc);
    cr_assert(strstr(err.message, part), "%.100s: message '%s' lacks '%s'", text, err.message,
              part);
}

static void refuse(const char *text, const char *part) {
    refuse_n(text, strlen(text), part);
}

/* Write a parsed text on one line; freed by the caller. */
static char *rewrite(const kt_json *value) {
    kt_json_writer w = {0};
    kt_json_put_value(&w, value);
    cr_assert_not_null(kt_json_writer_text(&w, NULL));
    return w.text;
}

Test(json, refuses_malformed_texts_with_line_and_column) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "1:1: the text ends, expected a value"},
        {" ", "1:2: the text ends"},
        {"[1,]", "1:4: found ']', expected a value"},
        {"[,1]", "1:2: found ','"},
        {"[1 2]", "1:4: found '2', expected ',' or ']'"},
        {"[1}", "1:3: found '}', expected ',' or ']'"},
        {"{\"a\":1]", "1:7: found ']', expected ',' or '}'"},
        {"{\"a\":1,}", "1:8: found '}', expected a key"},
        {"{\"a\" 1}", "1:6: found '1', expected ':'"},
        {"{a:1}", "1:2: found 'a', expected a key"},
        {"{1:1}", "1:2: found '1', expected a key"},
        {"{\"a\":}", "1:6: found '}', expected a value"},
        {"[", "1:2: the text ends"},
        {"{", "1:2: the text ends"},
        {"{\"a\"", "1:5: the text ends"},
        {"[1]x", "1:4: found 'x', expected the end"},
        {"[1][2]", "1:4: found '['"},
        {"nul", "1:1: found 'n'"},
        {"True", "1:1: found 'T'"},
        {"NaN", "1:1: found 'N'"},
        {"[Infinity]", "1:2: found 'I'"},
        {"[-Infinity]", "1:3: found 'I', expected a digit"},
        {"'a'", "1:1: found '''"},
        {"[01]", "1:2: number with a leading zero"},
        {"[-01]", "1:2: number with a leading zero"},
        {"[00]", "leading zero"},
        {"[+1]", "1:2: found '+'"},
        {"[.5]", "1:2: found '.'"},
        {"[1.]", "1:4: found ']', expected a digit after the point"},
        {"[1.e1]", "expected a digit after the point"},
        {"[1e]", "expected a digit of the exponent"},
        {"[1e+]", "expected a digit of the exponent"},
        {"[-]", "1:3: found ']', expected a digit"},
        {"[0x1]", "1:3: found 'x'"},
        {"[1_000]", "1:3: found '_'"},
        {"\"abc", "1:1: string without closing quote"},
        {"\"\\", "escaped character"},
        {"\"\\x41\"", "1:2: unknown escape"},
        {"\"\\u12g4\"", "1:2: \\u needs four"},
        {"\"\\u12", "1:2: \\u needs four"},
        {"\"\\ud800\"", "1:2: lone surrogate"},
        {"\"\\udc00\"", "1:2: lone surrogate"},
        {"\"\\ud800\\u0041\"", "lone surrogate"},
        {"\"\\ud800\\ud800\"", "lone surrogate"},
        {"\"\\ud800x\"", "lone surrogate"},
        {"\"\\ud800\\ue000\"", "lone surrogate"},
        {"\"a\tb\"", "1:3: control character"},
        {"\"a\nb\"", "1:3: control character"},
        {"\"a\x1f\"", "1:3: control character"},
        {"[\n \"\xc3\xa4\", x]", "2:7: found 'x'"}, /* the umlaut counts as one column */
        {"[1]\n\n  ]", "3:3: found ']'"},
        {"/* c */ 1", "1:1: found '/'"},
        {"\xef\xbb\xbf[]", "1:1: found byte 0xef"},
        {"[1\f]", "found byte 0x0c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse(cases[i].text, cases[i].part);
    refuse_n("[1\0]", 4, "1:3: found byte 0x00");
    refuse_n("\"a\0b\"", 5, "1:3: control character");
    refuse_n("1\0", 2, "1:2: found byte 0x00");
    refuse_n(NULL, 0, "the text ends");
}

Test(json, refuses_malformed_utf8) {
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc2",
        "\xc2\x20",
        "\xe0\x80\x80",
        "\xe0\x9f\xbf",
        "\xe1\x80",
        "\xe1\x80\x7f",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x80\x80\x80",
        "\xf0\x90\x80",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf8\x88\x80\x80",
        "\xfe",
        "\xff",
        "\xef\xbf",
    };
    static const char *const good[] = {"\x7f",         "\xc2\x80",         "\xdf\xbf",
                                       "\xe0\xa0\x80", "\xed\x9f\xbf",     "\xee\x80\x80",
                                       "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    char text[32];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "[\"%s\"]", bad[i]);
        refuse(text, "1:3: malformed UTF-8");
        snprintf(text, sizeof text, "{\"%s\":1}", bad[i]);
        refuse(text, "malformed UTF-8");
        snprintf(text, sizeof text, "\"%s", bad[i]); /* cut off at the end of the text */
        refuse_n(text, strlen(text), "");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "\"%s\"", good[i]);
        kt_json_doc *doc = parse(text);
        cr_assert_str_eq(kt_json_string(kt_json_root(doc), NULL), good[i]);
        kt_json_destroy(doc);
    }
}

Test(json, refuses_duplicate_keys_in_small_and_large_objects) {
    refuse("{\"a\":1,\"a\":2}", "1:13: object with two members 'a'");
    refuse("{\"a\":1,\"\\u0061\":2}", "two members 'a'");
    for (int n = 1; n < 40;
         n++) { /* member 0 again at the end, on both sides of the hashing limit */
        char text[1024] = "{";
        for (int i = 0; i < n; i++) sprintf(text + strlen(text), "\"k%d\":0,", i);
        strcat(text, "\"k0\":1}");
        refuse(text, "two members 'k0'");
    }
}

Test(json, scalar_roots_and_white_space_are_fine) {
    kt_json_doc *doc = parse(" \t\r\n-0.50E+2 \n");
    cr_assert_str_eq(kt_json_lexeme(kt_json_root(doc)), "-0.50E+2");
    cr_assert_float_eq(kt_json_double(kt_json_root(doc), 0), -50, 0);
    kt_json_destroy(doc);
    doc = parse("true");
    cr_assert(kt_json_bool(kt_json_root(doc), false));
    kt_json_destroy(doc);
    doc = parse("{ }");
    cr_assert_eq(kt_json_type_of(kt_json_root(doc)), KT_JSON_OBJECT);
    cr_assert_eq(kt_json_length(kt_json_root(doc)), 0);
    kt_json_destroy(doc);
}

Test(json, decodes_escapes) {
    kt_json_doc *doc = parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u00e9\\u20AC\\ud83d\\uDE00\"");
    size_t size;
    const char *s = kt_json_string(kt_json_root(doc), &size);
    static const char want[] = "\"\\/\b\f\n\r\t\0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    cr_assert_eq(size, sizeof want - 1);
    cr_assert_eq(memcmp(s, want, sizeof want), 0);
    kt_json_destroy(doc);
}

Test(json, limits_hold) {
    kt_json_limits limits = {.max_bytes = 10};
    kt_json_doc *doc;
    kt_err err;
    char deep[1000];

    cr_assert_eq(kt_json_parse("[1,2,3,4,5]", 11, &limits, &doc, &err), KT_E_FORMAT);
    cr_assert(strstr(err.message, "11 bytes, limit 10"), "%s", err.message);
    cr_assert_eq(kt_json_parse("[1,2,3,45]", 10, &limits, &doc, &err), KT_OK);
    kt_json_destroy(doc);
    memset(deep, '[', 300);
    memset(deep + 300, ']', 300);
    refuse_n(deep, 600, "1:257: nested deeper than 256 levels");
    kt_json_destroy(parse_n(deep + 44, 512)); /* 256 levels */
    limits = (kt_json_limits){.max_depth = 1};
    cr_assert_eq(kt_json_parse("[{}]", 4, &limits, &doc, &err), KT_E_FORMAT);
    cr_assert_eq(kt_json_parse("[1]", 3, &limits, &doc, &err), KT_OK);
    kt_json_destroy(doc);
}

Test(json, accessors_are_neutral_on_other_types_and_null) {
    kt_json_doc *doc = parse("{\"s\":\"x\",\"a\":[1],\"n\":7,\"b\":true,\"z\":null}");
    const kt_json *root = kt_json_root(doc);

    cr_assert_null(kt_json_get(root, "absent"));
    cr_assert_null(kt_json_get(kt_json_get(root, "absent"), "deeper"));
    cr_assert_null(kt_json_at(root, 0));
    cr_assert_null(kt_json_at(kt_json_get(root, "a"), 1));
    cr_assert_null(kt_json_member(root, 5, NULL, NULL));
    cr_assert_null(kt_json_string(kt_json_get(root, "n"), NULL));
    cr_assert_str_eq(kt_json_text(root, "n"), "");
    cr_assert_null(kt_json_lexeme(kt_json_get(root, "s")));
    cr_assert_eq(kt_json_length(kt_json_get(root, "s")), 0);
    cr_assert_eq(kt_json_int(kt_json_get(root, "s"), -3), -3);
    cr_assert_eq(kt_json_int(NULL, -3), -3);
    cr_assert(!kt_json_bool(kt_json_get(root, "n"), false));
    cr_assert_eq(kt_json_type_of(NULL), KT_JSON_NULL);
    cr_assert_null(kt_json_root(NULL));
    kt_json_destroy(NULL);
    kt_json_destroy(doc);
}

Test(json, integers_are_exact) {
    static const struct {
        const char *text;
        int is;
        int64_t value;
    } cases[] = {
        {"0", 1, 0},
        {"-0", 1, 0},
        {"9223372036854775807", 1, INT64_MAX},
        {"-9223372036854775808", 1, INT64_MIN},
        {"9223372036854775808", 0, 0},
        {"-9223372036854775809", 0, 0},
        {"18446744073709551616", 0, 0},
        {"1.0", 1, 1},
        {"1e3", 1, 1000},
        {"1.5e1", 1, 15},
        {"1.5", 0, 0},
        {"1e-1", 0, 0},
        {"100e-2", 1, 1},
        {"0e999999999999", 1, 0},
        {"1e18", 1, 1000000000000000000},
        {"1e19", 0, 0},
        {"2e19", 0, 0}, /* which is positive again modulo 2^64 */
        {"1e999999999999", 0, 0},
        {"0.000000000000000000000000001e27", 1, 1},
        {"1000000000000000000000000000e-27", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_json_doc *doc = parse(cases[i].text);
        cr_assert_eq(kt_json_is_integer(kt_json_root(doc)), cases[i].is, "%s", cases[i].text);
        cr_assert_eq(kt_json_int(kt_json_root(doc), 0), cases[i].value, "%s", cases[i].text);
        cr_assert_str_eq(kt_json_lexeme(kt_json_root(doc)), cases[i].text);
        kt_json_destroy(doc);
    }
}

/* Over 2^53 rounding the digits first and the power after them would round twice. */
Test(json, long_numbers_are_rounded_once) {
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"5258986265376043509e-22", 0.0005258986265376043509},
                 {"4154830492154097476e3", 4154830492154097476000.0},
                 {"3510339630665747483e-5", 35103396306657.47483},
                 {"9007199254740993", 9007199254740992.0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_json_doc *doc = parse(cases[i].text);
        double got = kt_json_double(kt_json_root(doc), 0);
        cr_expect(got == cases[i].value, "%s: %.17g, expected %.17g", cases[i].text, got,
                  cases[i].value);
        kt_json_destroy(doc);
    }
}

/* A key is found by all of its bytes, in small objects and in large ones. */
Test(json, keys_are_compared_whole) {
    kt_json_doc *doc = parse("{\"ab\":1,\"abc\":2,\"big\":1e999}");
    const kt_json *root = kt_json_root(doc);

    cr_expect_null(kt_json_get(root, "a"));
    cr_expect_null(kt_json_get(root, "abcd"));
    cr_expect_null(kt_json_get(root, ""));
    cr_expect_eq(kt_json_int(kt_json_get(root, "abc"), 0), 2);
    cr_expect_eq(kt_json_double(kt_json_get(root, "big"), -1), -1, "no double holds it");
    kt_json_destroy(doc);
}

Test(json, typed_lookup_explains) {
    kt_json_doc *doc = parse("{\"n\":12,\"f\":1.5,\"s\":\"x\",\"a\":[],\"big\":1e999}");
    const kt_json *root = kt_json_root(doc);
    const char *s = NULL;
    double d = 0;
    int64_t v = 0;
    kt_err err;

    cr_assert_eq(kt_json_need_int(root, "n", 1, 12, "c.json", &v, &err), KT_OK);
    cr_assert_eq(v, 12);
    cr_assert_eq(kt_json_need_int(root, "n", 1, 11, "c.json", &v, &err), KT_E_FORMAT);
    cr_assert_str_eq(err.message, "c.json: 'n' is 12, expected 1 to 11");
    cr_assert_eq(kt_json_need_int(root, "s", 0, 9, "c.json", &v, &err), KT_E_FORMAT);
    cr_assert_str_eq(err.message, "c.json: 's' is a string, expected an integer");
    cr_assert_eq(kt_json_need_int(root, "f", 0, 9, "c.json", &v, &err), KT_E_FORMAT);
    cr_assert_str_eq(err.message, "c.json: 'f' is 1.5, expected an integer");
    cr_assert_eq(kt_json_need_int(root, "q", 0, 9, "c.json", &v, &err), KT_E_FORMAT);
    cr_assert_str_eq(err.message, "c.json: 'q' is missing, expected an integer");
    cr_assert_eq(kt_json_need_int(kt_json_get(root, "a"), "q", 0, 9, "c.json", &v, &err),
                 KT_E_FORMAT);
    cr_assert_str_eq(err.message, "c.json: found an array, expected an object with 'q'");
    cr_assert_eq(v, 12, "a failed look-up must leave its output alone");
    cr_assert_eq(kt_json_need_double(root, "f", "c.json", &d, &err), KT_OK);
    cr_assert_float_eq(d, 1.5, 0);
    cr_assert_eq(kt_json_need_double(root, "big", "c.json", &d, &err), KT_E_FORMAT);
    cr_assert_eq(kt_json_need_string(root, "s", "c.json", &s, &err), KT_OK);
    cr_assert_str_eq(s, "x");
    cr_assert_eq(kt_json_need_string(root, "n", "c.json", &s, NULL), KT_E_FORMAT);
    kt_json_destroy(doc);
}

Test(json, keeps_lexemes_and_key_order) {
    static const char text[] =
        "{\"z\":[1,1.0,1e0,-0,0.10,12345678901234567890123],\"a\":{\"\":[]},"
        "\"m\\u0000n\":\"\\u0001\\\"\\\\/\xc3\xa4\",\"t\":[true,false,null,{}]}";
    kt_json_doc *doc = parse(text);
    char *again = rewrite(kt_json_root(doc));
    cr_assert_str_eq(again, text);
    free(again);
    kt_json_destroy(doc);
}

/* Big enough that a linear look-up would take minutes: 150000^2 / 2 comparisons. */
Test(json, large_objects_are_looked_up_fast, .timeout = 60) {
    enum { N = 150000 };
    kt_json_writer w = {0};
    kt_json_doc *doc;
    char key[32];

    kt_json_begin_object(&w);
    for (int i = 0; i < N; i++) {
        sprintf(key, "token %d", i * 7);
        kt_json_key(&w, key);
        kt_json_put_int(&w, i);
    }
    kt_json_end_object(&w);
    doc = parse(kt_json_writer_text(&w, NULL));
    for (int i = 0; i < N; i++) {
        sprintf(key, "token %d", i * 7);
        cr_assert_eq(kt_json_int(kt_json_get(kt_json_root(doc), key), -1), i);
        sprintf(key, "token %d", i * 7 + 1);
        cr_assert_null(kt_json_get(kt_json_root(doc), key));
    }
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
}

/* A random value of limited depth, written through the writer. */
static void put_random(kt_json_writer *w, kt_rng *rng, int depth) {
    uint64_t kind = kt_rng_below(rng, depth > 0 ? 7 : 5);
    uint64_t n = kt_rng_below(rng, 14);
    char text[40];

    switch (kind) {
    case 0: kt_json_put_null(w); break;
    case 1: kt_json_put_bool(w, kt_rng_below(rng, 2)); break;
    case 2: kt_json_put_int(w, (int64_t)kt_rng_u64(rng)); break;
    case 3: kt_json_put_double(w, kt_rng_normal(rng)); break;
    case 4:
        for (size_t i = 0; i < sizeof text; i++) text[i] = (char)kt_rng_below(rng, 128);
        kt_json_put_string_n(w, text, n);
        break;
    case 5:
        kt_json_begin_array(w);
        for (uint64_t i = 0; i < n; i++) put_random(w, rng, depth - 1);
        kt_json_end_array(w);
        break;
    case 6:
        kt_json_begin_object(w);
        for (uint64_t i = 0; i < n; i++) {
            sprintf(text, "k%" PRIu64 "\n\xc3\xa4", i);
            kt_json_key(w, text);
            put_random(w, rng, depth - 1);
        }
        kt_json_end_object(w);
        break;
    }
}

Test(json, any_written_value_reads_back_in_every_layout) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        kt_json_writer first = {0};
        kt_rng rng;
        kt_rng_seed(&rng, seed);
        put_random(&first, &rng, 4);
        for (int layout = 0; layout < 3; layout++) {
            kt_json_writer w = {.indent = layout, .line_at_depth = kt_rng_u64(&rng) & 6};
            kt_json_doc *doc = parse_n(first.text, first.size);
            kt_json_put_value(&w, kt_json_root(doc));
            cr_assert_not_null(kt_json_writer_text(&w, NULL));
            kt_json_destroy(doc);
            doc = parse_n(w.text, w.size);
            char *again = rewrite(kt_json_root(doc));
            cr_assert_str_eq(again, first.text, "seed %" PRIu64, seed);
            free(again);
            kt_json_destroy(doc);
            kt_json_writer_deinit(&w);
        }
        kt_json_writer_deinit(&first);
    }
}

/* Damaged texts: whatever happens, no crash, no over-read (the copy ends where malloc's block
 * ends, for the sanitizers), and what is accepted must survive a round trip. */
Test(json, damaged_texts_are_refused_or_read_consistently) {
    static const char seed_text[] =
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7,"
        "\"i\":8},\"merges\":[[\"a\",\"b\"],\"c d\"]},\"x\":[1.5e-3,-0,true,null,\"\\ud83d\\ude00"
        "\xc3\xa4\\n\"],\"y\":{}}";
    static const char spice[] = "{}[]\",:\\u0123456789abcdefeE+-. \n\t\x80\xc3\xff";
    size_t accepted = 0;
    kt_rng rng;

    kt_rng_seed(&rng, 7);
    for (int round = 0; round < 20000; round++) {
        size_t size = sizeof seed_text - 1;
        char *text = malloc(size);
        kt_json_doc *doc;
        memcpy(text, seed_text, size);
        for (uint64_t edits = 1 + kt_rng_below(&rng, 4); edits; edits--)
            text[kt_rng_below(&rng, size)] = spice[kt_rng_below(&rng, sizeof spice - 1)];
        if (kt_rng_below(&rng, 4) == 0) {
            size_t kept = 1 + kt_rng_below(&rng, size);
            text = realloc(text, kept);
            size = kept;
        }
        if (kt_json_parse(text, size, NULL, &doc, NULL) == KT_OK) {
            char *once = rewrite(kt_json_root(doc));
            kt_json_doc *second = parse(once);
            char *twice = rewrite(kt_json_root(second));
            cr_assert_str_eq(once, twice);
            accepted++;
            free(once);
            free(twice);
            kt_json_destroy(second);
            kt_json_destroy(doc);
        }
        free(text);
    }
    cr_assert(accepted > 100 && accepted < 19000, "%zu of 20000 accepted: the damage is one-sided",
              accepted);
}

/* Members count once, keys and values together. */
Test(json, the_number_of_values_is_limited) {
    static const struct {
        const char *text;
        size_t values;
    } cases[] = {{"0", 1}, {"[]", 1}, {"[0,0,0]", 4}, {"{\"a\":1,\"b\":[2,3]}", 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        kt_json_limits limits = {.max_values = cases[i].values};
        kt_json_doc *doc;
        kt_err err = {0};
        cr_assert_eq(kt_json_parse(text, strlen(text), &limits, &doc, &err), KT_OK, "%s: %s", text,
                     err.message);
        kt_json_destroy(doc);
        if (--limits.max_values == 0) continue; /* which means no limit */
        cr_assert_eq(kt_json_parse(text, strlen(text), &limits, &doc, &err), KT_E_FORMAT, "%s",
                     text);
        cr_expect_not_null(strstr(err.message, "more than"), "%s", err.message);
    }
}
