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

/* ---- with the grammar engine ---- */

static kt_grammar *compile(const kt_vocabulary *v) {
    kt_grammar *g;
    kt_err err = {0};
    kt_status st = kt_grammar_from_gbnf(v, grammar.text, grammar.size, grammar.symbols,
                                        grammar.n_symbols, &g, &err);

    cr_assert_eq(st, KT_OK, "%s\n%s", err.message, grammar.text);
    return g;
}

typedef struct said {
    const char *parser, *reasoning;
    bool inside, good;
    const char *text;
} said;

/* What the models say when they call as they should, and things that the schema or notation
 * forbids. */
static const said texts[] = {
    {"hermes", "none", false, true,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    {"hermes", "none", false, false,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 2}}\n</tool_call>"},
    {"hermes", "none", false, false,
     "<tool_call>\n{\"name\": \"fly\", \"arguments\": {}}\n</tool_call>"},
    {"hermes", "none", false, false, "I'd rather not."},
    {"hermes", "qwen3", false, true,
     "<think>\nHm </thin </think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n"
     "</tool_call>"},
    {"hermes", "qwen3", true, true,
     "Hm\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    {"qwen3_coder", "none", false, true,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nA <b>\n\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nF\n</parameter>\n</function>\n"
     "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"},
    {"qwen3_coder", "none", false, false,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n</parameter>\n<parameter=days>\n"
     "many\n</parameter>\n</function>\n</tool_call>"},
    {"seed_oss", "none", false, true,
     "<seed:tool_call>\n<function=write_file>\n<parameter=path>a</parameter>\n</function>\n"
     "</seed:tool_call>"},
    {"deepseekv3", "none", false, true,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```jso"
     "n\n{}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json"
     "\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseekv31", "none", false, true,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁cal"
     "l▁end｜>"
     "<｜tool▁calls▁end｜>"},
    {"deepseekv32", "deepseek-v3", true, true,
     "A</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke "
     "name=\"get_weather\">\n<｜DSML｜parameter "
     "name=\"city\" string=\"true\">x</y>\xc3\xa9</｜DSML｜parameter>\n<｜DSML｜parameter "
     "name=\"days\" "
     "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
    {"deepseekv4", "none", false, true,
     "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n"
     "</｜DSML｜tool_calls>"},
    {"glm45", "none", false, true,
     "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
     "</tool_call>\n<tool_call>now\n</tool_call>"},
    {"glm47", "glm45", true, true,
     "Hm</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
     "<arg_key>tags</arg_key><arg_value>[\"a\"]</arg_value></tool_call>"},
    {"kimi_k2", "none", false, true,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:12"
     "<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>"},
    {"minimax_m2", "minimax-m2", true, true,
     "Hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
     "name=\"city\">A"
     "</parameter>\n<parameter name=\"detail\">true</parameter>\n</invoke>\n<invoke "
     "name=\"now\">\n</invoke>\n</minimax:tool_call>"},
    {"minimax_m3", "none", false, true,
     NS3 "<tool_call>\n" NS3 "<invoke name=\"get_weather\">" NS3 "<city>A ]<b>" NS3 "</city>" NS3
         "<tags>[\"a\"]" NS3 "</tags>" NS3 "</invoke>\n" NS3 "</tool_call>"},
    {"minimax_m3", "none", false, false,
     NS3 "<tool_call>\n" NS3 "<invoke name=\"get_weather\">" NS3 "</invoke>\n" NS3 "</tool_call>"},
    {"harmony", "harmony", false, true,
     "<|channel|>analysis<|message|>Hm <|end<|end|><|start|>assistant to=functions.get_weather"
     "<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}"},
    {"harmony", "harmony", false, true,
     "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"},
    {"harmony", "harmony", false, false, "<|channel|>final<|message|>I'd rather not."},
    {"harmony", "harmony", false, false,
     " to=functions.get_weather<|channel|>commentary<|message|>{}"},
};

/* The whole way: what the grammar lets through, the parser reads as whole calls. */
static void check_parsed(const said *t) {
    parser_feed f = parser_open(t->parser, t->reasoning, t->inside, PARSER_TOOLS);
    int whole = 0;

    parser_push(&f, -1, t->text, strlen(t->text));
    parser_end(&f);
    cr_assert(kt_parser_calls(f.p, &whole) > 0 && whole == f.n_calls, "%s", f.said);
    cr_assert_null(strstr(f.said, "T("), "%s", f.said);
    parser_close(&f);
}

Test(tool_grammar, lets_right_calls_through_and_no_others, .timeout = 60) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const said *t = &texts[i];
        kt_grammar_state s;
        kt_grammar *g;
        kt_status st;
        make_as(t->parser, t->reasoning,
                (kt_tool_grammar_options){.parallel = true, .starts_in_reasoning = t->inside});
        g = compile(NULL);
        cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
        st = kt_grammar_state_accept(&s, t->text, strlen(t->text), NULL);
        cr_assert_eq(st == KT_OK && kt_grammar_state_is_complete(&s), t->good, "%s: %s\n%s",
                     t->parser, t->text, grammar.text);
        if (t->good) check_parsed(t);
        kt_grammar_state_deinit(&s);
        kt_grammar_destroy(g);
        unmake();
    }
}

/* Where a function has no schema its arguments are any object, in which a model cannot go on with
 * white space for ever. */
Test(tool_grammar, white_space_comes_to_an_end) {
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"any\"}}]";
    static const struct {
        const char *arguments;
        bool is_right;
    } cases[] = {{"{}", true},
                 {"{ \"a\": [1, {\n  \"b\": null }]\n}", true},
                 {"{\n\t\"a\" : 1,\n\t\"c\": \"  \\n\\n\"}", true},
                 {"{\n\n}", false},
                 {"{  }", false},
                 {"{\n                     }", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_parser_evidence e = {.tool_parser = "hermes", .reasoning_parser = "none"};
        kt_tool_grammar_options o = {.parallel = true};
        kt_grammar_state s;
        kt_grammar *g;
        kt_status st;
        char text[200];
        cr_assert_eq(kt_json_parse(tools, strlen(tools), NULL, &doc, NULL), KT_OK);
        cr_assert_eq(kt_parser_choose(&e, &o.choice, NULL), KT_OK);
        o.tools = kt_json_root(doc);
        cr_assert_eq(kt_tool_grammar_create(&o, &grammar, NULL), KT_OK);
        g = compile(NULL);
        cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
        snprintf(text, sizeof text,
                 "<tool_call>\n{\"name\": \"any\", \"arguments\": %s}\n</tool_call>",
                 cases[i].arguments);
        st = kt_grammar_state_accept(&s, text, strlen(text), NULL);
        cr_expect_eq(st == KT_OK && kt_grammar_state_is_complete(&s), cases[i].is_right, "%s",
                     text);
        kt_grammar_state_deinit(&s);
        kt_grammar_destroy(g);
        unmake();
    }
}

static const char *const tokens[] = {
    "<",  "</",  "｜DSML｜", "function_calls>", "invoke name=",       "invoke>", "\n",
    "\"", "now", ">",        "parameter>",      "<|tool_call_begin|>"};
enum { N_TOKENS = sizeof tokens / sizeof *tokens, DSML = 2, KIMI = N_TOKENS - 1 };

static int32_t token_id(const void *arg, const char *text) {
    (void)arg;
    return strcmp(text, tokens[DSML]) == 0 ? DSML : strcmp(text, tokens[KIMI]) == 0 ? KIMI : -1;
}

/* The special token inside DSML's marks has to come as that token. */
Test(tool_grammar, parts_of_marks_are_tokens) {
    static const int32_t call[] = {0, DSML, 3, 6,    0, DSML, 4, 7,    8, 7,
                                   9, 6,    1, DSML, 5, 6,    1, DSML, 3};
    kt_vocabulary_token list[N_TOKENS];
    kt_vocabulary *v;
    kt_grammar_state s;
    kt_grammar *g;

    for (int i = 0; i < N_TOKENS; i++)
        list[i] = (kt_vocabulary_token){tokens[i], strlen(tokens[i]), i == DSML || i == KIMI};
    cr_assert_eq(kt_vocabulary_create(list, N_TOKENS, NULL, 0, &v, NULL), KT_OK);
    make_as("deepseekv32", "none",
            (kt_tool_grammar_options){.named = "now", .special_token = token_id});
    g = compile(v);
    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
        uint64_t bits[1];
        cr_assert_eq(kt_grammar_state_mask(&s, bits, NULL), KT_OK);
        cr_assert(bits[0] >> call[i] & 1, "token %zu, mask %llx", i, (unsigned long long)bits[0]);
        cr_assert_not(bits[0] >> KIMI & 1);
        cr_assert_eq(kt_grammar_state_accept_token(&s, call[i], NULL), KT_OK, "token %zu", i);
    }
    cr_assert(kt_grammar_state_is_complete(&s));
    kt_grammar_state_deinit(&s);
    kt_grammar_destroy(g);
    kt_vocabulary_destroy(v);
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
