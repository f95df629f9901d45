/* The JSON writer: layouts, digits, misuse. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* open_memstream */
#include <criterion/criterion.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"

static void write_sample(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_key(w, "a");
    kt_json_begin_array(w);
    kt_json_put_int(w, 1);
    kt_json_begin_object(w);
    kt_json_key(w, "b");
    kt_json_put_null(w);
    kt_json_key(w, "c");
    kt_json_put_bool(w, true);
    kt_json_end_object(w);
    kt_json_begin_array(w);
    kt_json_end_array(w);
    kt_json_end_array(w);
    kt_json_key(w, "d");
    kt_json_put_raw(w, "{}", 2);
    kt_json_end_object(w);
}

Test(json_write, layouts) {
    static const struct {
        int indent;
        uint64_t line_at_depth;
        const char *want;
    } cases[] = {
        {0, 0, "{\"a\":[1,{\"b\":null,\"c\":true},[]],\"d\":{}}"},
        {1, 0,
         "{\n \"a\": [\n  1,\n  {\n   \"b\": null,\n   \"c\": true\n  },\n  []\n ],\n \"d\": "
         "{}\n}"},
        {2, 2, "{\n  \"a\": [1, {\"b\": null, \"c\": true}, []],\n  \"d\": {}\n}"},
        {2, 4,
         "{\n  \"a\": [\n    1,\n    {\"b\": null, \"c\": true},\n    []\n  ],\n  \"d\": {}\n}"},
        {2, 1, "{\"a\": [1, {\"b\": null, \"c\": true}, []], \"d\": {}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_json_writer w = {.indent = cases[i].indent, .line_at_depth = cases[i].line_at_depth};
        size_t size;
        write_sample(&w);
        cr_assert_str_eq(kt_json_writer_text(&w, &size), cases[i].want);
        cr_assert_eq(size, strlen(cases[i].want));
        kt_json_writer_deinit(&w);
    }
}

Test(json_write, members_and_the_text_as_a_line) {
    kt_json_writer w = {0};
    char *line = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&line, &size);

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "s", "x\n");
    kt_json_add_string(&w, "none", NULL);
    kt_json_add_int(&w, "i", -3);
    kt_json_add_double(&w, "d", 0.5);
    kt_json_add_fixed(&w, "f", 2.0 / 3, 2);
    kt_json_add_bool(&w, "b", false);
    kt_json_add_null(&w, "n");
    kt_json_end_object(&w);
    kt_json_writer_print(&w, to);
    kt_json_begin_object(&w); /* is empty again; without its end there is no text */
    kt_json_writer_print(&w, to);
    fclose(to);
    cr_assert_str_eq(line,
                     "{\"s\":\"x\\n\",\"none\":null,\"i\":-3,\"d\":0.5,\"f\":0.67,\"b\":false,"
                     "\"n\":null}\n");
    free(line);
}

static void expect_double(double v, const char *want) {
    kt_json_writer w = {0};
    kt_json_put_double(&w, v);
    cr_assert_str_eq(kt_json_writer_text(&w, NULL), want);
    kt_json_writer_deinit(&w);
}

/* Expected texts are those of Python's repr. */
Test(json_write, doubles_are_shortest) {
    expect_double(0, "0.0");
    expect_double(-0.0, "-0.0");
    expect_double(1, "1.0");
    expect_double(-2.5, "-2.5");
    expect_double(0.1, "0.1");
    expect_double(0.1 + 0.2, "0.30000000000000004");
    expect_double(1.0 / 3, "0.3333333333333333");
    expect_double(100, "100.0");
    expect_double(0.0001, "0.0001");
    expect_double(0.00012345, "0.00012345");
    expect_double(0.00001, "1e-05");
    expect_double(1e15, "1000000000000000.0");
    expect_double(9999999999999998, "9999999999999998.0");
    expect_double(1e16, "1e+16");
    expect_double(123456789012345680.0, "1.2345678901234568e+17");
    expect_double(1e22, "1e+22");
    expect_double(1e23, "1e+23");
    expect_double(5e-324, "5e-324");
    expect_double(0x1p-1022, "2.2250738585072014e-308");
    expect_double(1.7976931348623157e308, "1.7976931348623157e+308");
    expect_double(0x1p-44, "5.684341886080802e-14"); /* 16 digits, but not the nearest 16 */
    expect_double(9007199254740993.0, "9007199254740992.0");
    expect_double(INFINITY, "null");
    expect_double(NAN, "null");
}

Test(json_write, any_double_reads_back_equal) {
    kt_rng rng;
    kt_rng_seed(&rng, 3);
    for (int i = 0; i < 60000; i++) {
        uint64_t bits = kt_rng_u64(&rng);
        kt_json_writer w = {0};
        kt_json_doc *doc;
        double v, back;
        if (i % 4 == 1) bits &= UINT64_C(0x800fffffffffffff) >> kt_rng_below(&rng, 50); /* tiny */
        if (i % 4 == 2) bits &= UINT64_C(0xfff0000000000000); /* powers of two */
        memcpy(&v, &bits, sizeof v);
        if (i % 4 == 3) v = (double)(int64_t)(bits >> 20) / 1024;
        if (!isfinite(v)) continue;
        kt_json_put_double(&w, v);
        cr_assert_eq(kt_json_parse(w.text, w.size, NULL, &doc, NULL), KT_OK, "%s", w.text);
        back = kt_json_double(kt_json_root(doc), NAN);
        cr_assert(memcmp(&back, &v, sizeof v) == 0, "%a -> %s -> %a", v, w.text, back);
        cr_assert(strtod(w.text, NULL) == v, "%a -> %s", v, w.text);
        kt_json_destroy(doc);
        kt_json_writer_deinit(&w);
    }
}

/* The exact short path and the library's long path of reading must agree bit for bit. */
Test(json_write, reading_doubles_rounds_as_strtod) {
    kt_rng rng;
    kt_rng_seed(&rng, 4);
    for (int i = 0; i < 60000; i++) {
        char text[80];
        kt_json_doc *doc;
        int size =
            sprintf(text, "%s%" PRIu64 ".%0*" PRIu64 "e%d", i & 1 ? "-" : "",
                    kt_rng_u64(&rng) >> kt_rng_below(&rng, 64), 1 + (int)kt_rng_below(&rng, 9),
                    kt_rng_below(&rng, 1000), (int)kt_rng_below(&rng, 60) - 30);
        cr_assert_eq(kt_json_parse(text, (size_t)size, NULL, &doc, NULL), KT_OK, "%s", text);
        cr_assert(kt_json_double(kt_json_root(doc), NAN) == strtod(text, NULL), "%s", text);
        kt_json_destroy(doc);
    }
}

Test(json_write, fixed_decimals) {
    kt_json_writer w = {0};
    kt_json_begin_array(&w);
    kt_json_put_fixed(&w, 3.14159, 2);
    kt_json_put_fixed(&w, -0.5, 0);
    kt_json_put_fixed(&w, 1e20, 1);
    kt_json_put_fixed(&w, NAN, 1);
    kt_json_put_fixed(&w, 1.7976931348623157e308, 20);
    kt_json_end_array(&w);
    cr_assert_eq(strncmp(w.text, "[3.14,-0,100000000000000000000.0,null,17976931", 46), 0, "%s",
                 w.text);
    kt_json_writer_deinit(&w);
}

Test(json_write, malformed_strings_become_valid_json) {
    static const struct {
        const char *text, *want;
        size_t size;
    } cases[] = {
        {"a\x80z", "\"a\xef\xbf\xbdz\"", 3},
        {"\xf0\x9f\x98", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"", 3}, /* a cut-off character */
        {"\x01\x1f\x7f\"\\\n", "\"\\u0001\\u001f\x7f\\\"\\\\\\n\"", 6},
        {"\0x", "\"\\u0000x\"", 2},
        {"", "\"\"", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_json_writer w = {0};
        kt_json_doc *doc;
        kt_json_put_string_n(&w, cases[i].text, cases[i].size);
        cr_assert_str_eq(kt_json_writer_text(&w, NULL), cases[i].want);
        cr_assert_eq(kt_json_parse(w.text, w.size, NULL, &doc, NULL), KT_OK);
        kt_json_destroy(doc);
        kt_json_writer_deinit(&w);
    }
}

static void value_without_key(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_put_int(w, 1);
}
static void key_in_array(kt_json_writer *w) {
    kt_json_begin_array(w);
    kt_json_key(w, "k");
}
static void two_keys(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_key(w, "k");
    kt_json_key(w, "l");
}
static void key_without_value(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_key(w, "k");
    kt_json_end_object(w);
}
static void crossed_ends(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_end_array(w);
}
static void too_many_ends(kt_json_writer *w) {
    kt_json_begin_array(w);
    kt_json_end_array(w);
    kt_json_end_array(w);
}
static void two_roots(kt_json_writer *w) {
    kt_json_put_int(w, 1);
    kt_json_put_int(w, 2);
}
static void left_open(kt_json_writer *w) {
    kt_json_begin_array(w);
}
static void too_deep(kt_json_writer *w) {
    for (int i = 0; i < KT_JSON_WRITER_DEPTH + 1; i++) kt_json_begin_array(w);
    for (int i = 0; i < KT_JSON_WRITER_DEPTH + 1; i++) kt_json_end_array(w);
}
static void nothing(kt_json_writer *w) {
    (void)w;
}

Test(json_write, misuse_yields_no_text) {
    static void (*const misuses[])(kt_json_writer *) = {
        value_without_key, key_in_array, two_keys,  key_without_value, crossed_ends,
        too_many_ends,     two_roots,    left_open, too_deep,          nothing};
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        kt_json_writer w = {0};
        size_t size = 1;
        misuses[i](&w);
        cr_assert_null(kt_json_writer_text(&w, &size), "misuse %zu: %s", i, w.text);
        cr_assert_eq(size, 0);
        kt_json_writer_deinit(&w);
    }
}

Test(json_write, deepest_allowed_nesting_works) {
    kt_json_writer w = {.indent = 1, .line_at_depth = (uint64_t)1 << 63};
    for (int i = 0; i < KT_JSON_WRITER_DEPTH; i++) kt_json_begin_array(&w);
    for (int i = 0; i < KT_JSON_WRITER_DEPTH; i++) kt_json_end_array(&w);
    cr_assert_not_null(kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
}
