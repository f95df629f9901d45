/* Output parsers with every allocation failing once. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "runtime/chat/parser.h"
#include "runtime/chat/tool_grammar.h"
#include "tests/support/nomem.h"

static kt_status create(void *out, const void *with, kt_err *err) {
    return kt_parser_create(with, out, err);
}

static void destroy(void *out) {
    kt_parser_destroy(*(kt_parser **)out);
}

Test(parser_nomem, an_output_parser) {
    const kt_parser_options options = {0};
    kt_nomem_case c = {.function = "kt_parser_create",
                       .make = create,
                       .unmake = destroy,
                       .with = &options,
                       .out_bytes = sizeof(kt_parser *),
                       .says = "parser"};

    kt_nomem_check(&c);
}

static void drop(void *arg, const kt_event *event) {
    (void)arg;
    (void)event;
}

/* Whatever pushing needs may be missing: it is said, and nothing leaks. */
Test(parser_nomem, a_push_that_finds_no_memory) {
    static const char tools[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
        "{\"a\": {\"type\": \"array\"}}}}}]";
    static const char output[] = "<tool_call>\n<function=f>\n<parameter=a>\n[1, 'b']\n"
                                 "</parameter>\nx\n</function>\n</tool_call>";
    kt_parser_evidence e = {.tool_parser = "qwen3_coder"};
    kt_parser_options o = {0};
    kt_json_doc *doc;
    int failures = 0;

    cr_assert_eq(kt_json_parse(tools, strlen(tools), NULL, &doc, NULL), KT_OK);
    cr_assert_eq(kt_parser_choose(&e, &o.choice, NULL), KT_OK);
    o.tools = kt_json_root(doc);
    for (long n = 0;; n++) {
        long held = kt_nomem_held();
        kt_err err = {0};
        kt_parser *p;
        kt_status st;
        cr_assert_eq(kt_parser_create(&o, &p, NULL), KT_OK);
        kt_nomem_after(n);
        st = kt_parser_push(p, -1, output, sizeof output - 1, drop, NULL, &err);
        if (!kt_nomem_failed()) {
            cr_assert_eq(st, KT_OK, "%s", err.message);
            kt_parser_destroy(p);
            break;
        }
        cr_assert_eq(st, KT_E_NOMEM, "allocation %ld", n);
        cr_assert_not_null(strstr(err.message, "parse"), "%s", err.message);
        failures++;
        kt_parser_destroy(p);
        cr_assert_eq(kt_nomem_held(), held);
    }
    cr_assert_gt(failures, 2);
    kt_json_destroy(doc);
}

static kt_status make_grammar(void *out, const void *with, kt_err *err) {
    return kt_tool_grammar_create(with, out, err);
}

static void unmake_grammar(void *out) {
    kt_tool_grammar_destroy(out);
}

Test(parser_nomem, a_grammar_of_tools) {
    static const char tools[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
        "{\"a\": {\"type\": \"array\"}, \"b\": {\"type\": \"integer\"}}}}}]";
    kt_parser_evidence e = {.tool_parser = "glm45", .reasoning_parser = "glm45"};
    kt_tool_grammar_options o = {0};
    kt_nomem_case c = {.function = "kt_tool_grammar_create",
                       .make = make_grammar,
                       .unmake = unmake_grammar,
                       .with = &o,
                       .out_bytes = sizeof(kt_tool_grammar),
                       .says = "grammar"};
    kt_json_doc *doc;

    cr_assert_eq(kt_json_parse(tools, strlen(tools), NULL, &doc, NULL), KT_OK);
    cr_assert_eq(kt_parser_choose(&e, &o.choice, NULL), KT_OK);
    o.tools = kt_json_root(doc);
    kt_nomem_check(&c);
    kt_json_destroy(doc);
}
