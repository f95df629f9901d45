/* runtime/chat: grammars of forced calls. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "runtime/chat/calls.h"
#include "runtime/chat/tool_grammar.h"
#include "tests/runtime/parser_cases.h"
#include "tests/runtime/parser_feed.h"

static kt_json_doc *doc;
static kt_tool_grammar grammar;

static void make_as(const char *calls, const char *reasoning, kt_tool_grammar_options o) {
    kt_parser_evidence e = {.tool_parser = calls, .reasoning_parser = reasoning};
    kt_err err = {0};

    cr_assert_eq(kt_json_parse(PARSER_TOOLS, strlen(PARSER_TOOLS), NULL, &doc, &err), KT_OK);
    cr_assert_eq(kt_parser_choose(&e, &o.choice, &err), KT_OK);
    o.tools = kt_json_root(doc);
    cr_assert_eq(kt_tool_grammar_create(&o, &grammar, &err), KT_OK, "%s", err.message);
}

static void unmake(void) {
    kt_tool_grammar_destroy(&grammar);
    kt_json_destroy(doc);
    doc = NULL;
}

static void holds(const char *text) {
    cr_assert_not_null(strstr(grammar.text, text), "lacks %s:\n%s", text, grammar.text);
}

/* Every rule that is called is there, once, or is a symbol. */
static void check_rules(const char *name) {
    for (const char *at = grammar.text; *at; at++) {
        char rule[64], begins[80];
        size_t n = 0;
        if (*at == '"' || *at == '[') { /* what is quoted calls nothing */
            const char end = *at == '"' ? '"' : ']';
            for (at++; *at != end; at++) at += *at == '\\';
            continue;
        }
        while ((at[n] >= 'a' && at[n] <= 'z') ||
               (n && (at[n] == '-' || (at[n] >= '0' && at[n] <= '9'))))
            n++;
        if (n == 0) continue;
        snprintf(rule, sizeof rule, "%.*s", (int)n, at);
        snprintf(begins, sizeof begins, "\n%s ::=", rule);
        bool found = strstr(grammar.text, begins) || strcmp(rule, "root") == 0;
        for (size_t i = 0; i < grammar.n_symbols; i++)
            found |= strcmp(grammar.symbols[i].name, rule) == 0 && grammar.symbols[i].schema;
        cr_assert(found, "%s: rule %s is nowhere:\n%s", name, rule, grammar.text);
        at += n - 1;
    }
}

Test(tool_grammar, every_notation_has_one) {
    for (size_t i = 0; i < kt_builtin_calls_count; i++)
        for (int v = 0; v < 4; v++) {
            make_as(kt_builtin_calls[i]->name, v & 1 ? "qwen3" : "none",
                    (kt_tool_grammar_options){.parallel = true, .starts_in_reasoning = v & 2});
            cr_assert_eq(strncmp(grammar.text, "root ::= ", 9), 0);
            cr_assert_eq(strlen(grammar.text), grammar.size);
            check_rules(kt_builtin_calls[i]->name);
            unmake();
        }
}

Test(tool_grammar, hermes_wraps_schemas_in_an_object) {
    make_as("hermes", "none", (kt_tool_grammar_options){.parallel = false});
    holds("call-0 ::= \"<tool_call>\" \"\\n\" \"{\\\"name\\\": \\\"\" \"get_weather\" \"\\\", "
          "\\\"arguments\\\": \" args-0 \"}\" \"\\n\" \"</tool_call>\"\n");
    holds("root ::= \"\\n\"? \"\\n\"? call\n");
    cr_assert_eq(grammar.n_symbols, 3);
    cr_assert_str_eq(grammar.symbols[2].name, "args-2");
    unmake();
}

Test(tool_grammar, a_named_function_is_the_only_one) {
    make_as("kimi_k2", "none", (kt_tool_grammar_options){.named = "now", .parallel = true});
    holds("\"functions.\" \"now\" \":\" [0-9]+");
    cr_assert_null(strstr(grammar.text, "get_weather"));
    unmake();
}

Test(tool_grammar, special_marks_are_tokens) {
    make_as("kimi_k2", "none", (kt_tool_grammar_options){.special_token = parser_special_id});
    holds("root ::= \"\\n\"? \"\\n\"? <[1000]> call <[1001]>\n");
    holds("call-2 ::= <[1002]> \"functions.\" \"now\" \":\" [0-9]+ <[1003]> args-2 <[1004]>\n");
    unmake();
}

Test(tool_grammar, marked_parameters_follow_the_schema) {
    make_as("qwen3_coder", "qwen3", (kt_tool_grammar_options){.starts_in_reasoning = true});
    holds("root ::= until-0-0 \"\\n\"? \"\\n\"? call\n");
    holds("\"<parameter=\" \"city\" \">\" \"\\n\" until-1-0 \"\\n\" ( \"<parameter=\" \"days\"");
    holds("\"unit\" \">\" \"\\n\" ( \"C\" | \"F\" ) \"\\n\" \"</parameter>\" \"\\n\" )?");
    holds("until-1-1 ::= \"/\" until-1-2 | \"<\" until-1-1 | [^/<] until-1-0\n");
    unmake();
    make_as("deepseekv32", "none", (kt_tool_grammar_options){.parallel = true});
    holds("\"\\\"\" \"city\" \"\\\"\" \" string=\\\"true\\\"\" \">\" until-1-0");
    holds("\"\\\"\" \"days\" \"\\\"\" \" string=\\\"false\\\"\" \">\" arg-0-1");
    unmake();
}

Test(tool_grammar, says_what_is_missing) {
    kt_tool_grammar_options o = {.named = "fly"};
    kt_parser_evidence e = {.tool_parser = "hermes"};
    kt_err err = {0};

    cr_assert_eq(kt_tool_grammar_create(&o, &grammar, &err), KT_E_UNSUPPORTED);
    cr_assert_eq(kt_parser_choose(&e, &o.choice, &err), KT_OK);
    cr_assert_eq(kt_tool_grammar_create(&o, &grammar, &err), KT_E_INVALID);
    cr_assert_eq(kt_json_parse(PARSER_TOOLS, strlen(PARSER_TOOLS), NULL, &doc, &err), KT_OK);
    o.tools = kt_json_root(doc);
    cr_assert_eq(kt_tool_grammar_create(&o, &grammar, &err), KT_E_INVALID);
    cr_assert(strstr(err.message, "'fly'"), "%s", err.message);
    cr_assert(!grammar.text && !grammar.symbols);
    kt_json_destroy(doc);
}
