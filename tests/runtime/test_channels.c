/* runtime/chat: gpt-oss answers with messages on channels. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/messages.h"
#include "runtime/chat/tool_grammar.h"
#include "tests/runtime/parser_cases.h"
#include "tests/runtime/parser_feed.h"

static const char *const marks[] = {"<|start|>", "<|end|>",       "<|message|>", "<|channel|>",
                                    "<|call|>",  "<|constrain|>", "<|return|>"};
enum { N_MARKS = sizeof marks / sizeof *marks };

static int32_t mark_id(const void *arg, const char *text) {
    (void)arg;
    for (int i = 0; i < N_MARKS; i++)
        if (strcmp(marks[i], text) == 0) return 200000 + i;
    return -1;
}

/* Feed text in which ids stand for the marks that are between | and |. */
static void feed(parser_feed *f, const char *const *pieces) {
    for (; *pieces; pieces++) parser_push(f, mark_id(NULL, *pieces), *pieces, strlen(*pieces));
}

/* ---- ids ---- */

Test(channels, marks_count_as_their_tokens_only) {
    static const char *const pieces[] = {"<|channel|>",
                                         "analysis",
                                         "<|message|>",
                                         "see <|end|",
                                         ">",
                                         "<|start|>x",
                                         "<|end|>",
                                         "<|start|>",
                                         "assistant",
                                         "<|channel|>",
                                         "commentary ",
                                         "to=functions.now",
                                         "<|constrain|>",
                                         "json",
                                         "<|message|>",
                                         "{\"a\": \"<|call|>",
                                         "\"}",
                                         "<|call|>",
                                         NULL};
    parser_feed f = parser_open_with("harmony", "gpt-oss", false, PARSER_TOOLS, mark_id);

    for (int i = 0; i < N_MARKS; i++) cr_assert(kt_parser_wants(f.p, 200000 + i), "%s", marks[i]);
    cr_assert_not(kt_parser_wants(f.p, 199999));
    feed(&f, pieces);
    parser_end(&f);
    cr_assert_str_eq(f.said, "R(see <|end|><|start|>x)C(now)A({\"a\": \"<|call|>\"})E");
    parser_close(&f);
}

Test(channels, a_mark_inside_of_arguments_cuts_the_call) {
    static const char *const ended[] = {
        " to=functions.now", "<|channel|>", "commentary", "<|message|>", "{\"a\": [1",
        "<|end|>",           "<|start|>",   "assistant",  "<|channel|>", "final",
        "<|message|>",       "so",          NULL};
    static const char *const restarted[] = {
        " to=functions.now", "<|channel|>", "commentary",  "<|message|>", "\"{",
        "<|start|>",         "assistant",   "<|message|>", "so",          NULL};
    parser_feed f = parser_open_with("harmony", "gpt-oss", false, PARSER_TOOLS, mark_id);

    feed(&f, ended);
    parser_end(&f);
    cr_assert_str_eq(f.said, "C(now)A({\"a\": [1]})XT(so)");
    parser_close(&f);
    f = parser_open_with("harmony", "gpt-oss", false, PARSER_TOOLS, mark_id);
    feed(&f, restarted);
    parser_end(&f);
    cr_assert_str_eq(f.said, "T( to=functions.now<|channel|>commentary<|message|>\"{\n\nso)");
    parser_close(&f);
}

Test(channels, what_is_not_a_message_is_free_of_forms) {
    parser_feed f = parser_open_with("harmony", "gpt-oss", false, PARSER_TOOLS, mark_id);
    static const char *const head[] = {"<|channel|>", "analysis", "<|message|>", "a", NULL};
    static const char *const tail[] = {"<|start|>", "assistant",   "<|channel|>",
                                       "final",     "<|message|>", NULL};

    cr_assert(kt_parser_in_header(f.p));
    feed(&f, head);
    cr_assert(kt_parser_in_reasoning(f.p) && !kt_parser_in_header(f.p));
    cr_assert_str_eq(f.said, "R(a"); /* it streams */
    parser_push(&f, mark_id(NULL, "<|end|>"), "<|end|>", 7);
    cr_assert(kt_parser_in_header(f.p) && !kt_parser_in_reasoning(f.p));
    feed(&f, tail);
    cr_assert_not(kt_parser_in_header(f.p));
    parser_push(&f, 5, "{", 1);
    cr_assert_str_eq(f.said, "R(a)T({");
    parser_close(&f);
}

Test(channels, forced_calls_are_written_with_tokens) {
    kt_tool_grammar_options o = {.named = "now", .special_token = mark_id};
    kt_parser_evidence e = {.tool_parser = "gpt-oss", .reasoning_parser = "gpt-oss"};
    kt_tool_grammar g;
    kt_json_doc *doc;

    cr_assert_eq(kt_json_parse(PARSER_TOOLS, strlen(PARSER_TOOLS), NULL, &doc, NULL), KT_OK);
    cr_assert_eq(kt_parser_choose(&e, &o.choice, NULL), KT_OK);
    o.tools = kt_json_root(doc);
    cr_assert_eq(kt_tool_grammar_create(&o, &g, NULL), KT_OK);
    cr_assert(strstr(g.text, "root ::= ( <[200003]> \"analysis\" <[200002]> until-0-0 <[200000]> "
                             "\"assistant\" )? call\n"),
              "%s", g.text);
    cr_assert(strstr(g.text, "call-0 ::= ( \" to=\" \"functions.\" \"now\" <[200003]> "
                             "\"commentary\" | <[200003]> \"commentary\" \" to=\" \"functions.\" "
                             "\"now\" ) ( \" \"? <[200005]> \"json\" | \" \" \"json\" )? "
                             "<[200002]> args-0\n"),
              "%s", g.text);
    kt_tool_grammar_destroy(&g);
    kt_json_destroy(doc);
}

/* ---- prompts ---- */

/* The rendering of gpt-oss's own template, behind its system message. */
static void check_prompt(const char *messages, const char *effort, int thinking, const char *level,
                         const char *want) {
    char path[512], line[64], *all;
    const kt_chat_source source = {.template_file = path};
    kt_chat_request request = {
        .has_now = true, .reasoning_effort = effort, .enable_thinking = thinking};
    kt_chat_format *f = NULL;
    kt_rendered r = {0};
    kt_json_doc *doc;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/data/templates/openai-gpt-oss-120b.jinja", getenv("KT_SHARED"));
    cr_assert_eq(kt_chat_format_load(&source, &f, &err), KT_OK, "%s", err.message);
    cr_assert_gt(asprintf(&all, "{\"messages\": %s}", messages), 0);
    cr_assert_eq(kt_json_parse(all, strlen(all), NULL, &doc, &err), KT_OK, "%s", err.message);
    request.messages = kt_json_get(kt_json_root(doc), "messages");
    cr_assert_eq(kt_chat_render(f, &request, &r, &err), KT_OK, "%s", err.message);
    snprintf(line, sizeof line, "\nReasoning: %s\n", level);
    cr_expect(strstr(r.text, line), "no '%s' in %s", level, r.text);
    cr_expect_str_eq(strstr(r.text, "<|end|>") + 7, want);
    kt_rendered_deinit(&r);
    kt_json_destroy(doc);
    kt_chat_format_destroy(f);
    free(all);
}

static void need_shared(void) {
    if (!getenv("KT_SHARED")) setenv("KT_SHARED", KT_SOURCE_DIR "/../shared", 0);
    if (!parser_has_shared()) cr_skip_test("the shared data is absent");
}

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define CALLED(key)                                                                             \
    "{\"role\": \"assistant\", \"content\": \"Look\", \"" key "\": \"why\", \"tool_calls\": [{" \
    "\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"now\", \"arguments\": "  \
    "\"{\\\"z\\\": 1}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"7\"}"
#define CALLED_TEXT                                                                      \
    "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{\"z\": 1}" \
    "<|call|><|start|>functions.now to=assistant<|channel|>commentary<|message|>\"7\"<|end|>"

Test(channels, reasoning_stays_with_a_call_until_the_answer) {
    static const char *const keys[] = {CALLED("reasoning_content"), CALLED("reasoning"),
                                       CALLED("thinking")};
    char *messages;

    need_shared();
    for (int i = 0; i < 3; i++) {
        cr_assert_gt(asprintf(&messages, "[" USER("q") ", %s]", keys[i]), 0);
        check_prompt(messages, NULL, 0, "medium",
                     "<|start|>user<|message|>q<|end|><|start|>assistant<|channel|>analysis"
                     "<|message|>why<|end|>" CALLED_TEXT "<|start|>assistant");
        free(messages);
    }
    check_prompt(
        "[" USER("q") ", " CALLED("reasoning") ", {\"role\": \"assistant\", \"content\": "
                                               "\"a\", \"reasoning\": \"more\"}, " USER("r") "]",
        NULL, 0, "medium",
        "<|start|>user<|message|>q<|end|>" CALLED_TEXT
        "<|start|>assistant<|channel|>final<|message|>a<|end|>"
        "<|start|>user<|message|>r<|end|><|start|>assistant");
}

#define CALL_OF(id, z)                                                                   \
    "{\"id\": \"" id "\", \"type\": \"function\", \"function\": {\"name\": \"f" z "\", " \
    "\"arguments\": {\"z\": " z "}}}"
#define RESULT_OF(id, text) \
    "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}"
#define TURN(z, result)                                                                         \
    "<|start|>assistant to=functions.f" z "<|channel|>commentary json<|message|>{\"z\": " z "}" \
    "<|call|><|start|>functions.f" z " to=assistant<|channel|>commentary<|message|>\"" result   \
    "\"<|end|>"

/* The template itself would leave all calls but the first out, and name it for all results. */
Test(channels, several_calls_stand_before_their_own_results) {
    need_shared();
    check_prompt(
        "[" USER("q") ", {\"role\": \"assistant\", \"content\": null, \"reasoning\": "
                      "\"why\", \"tool_calls\": [" CALL_OF("a", "1") ", " CALL_OF(
                          "b",
                          "2") "]}, " RESULT_OF("b",
                                                "two") ", " RESULT_OF("a",
                                                                      "one") ", " USER("r") "]",
        NULL, 0, "medium",
        "<|start|>user<|message|>q<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "why<|end|>" TURN("1", "one")
            TURN("2", "two") "<|start|>user<|message|>r<|end|><|start|>assistant");
    check_prompt(
        "[" USER("q") ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [" CALL_OF(
            "", "1") ", " CALL_OF("", "2") "]}, " RESULT_OF("", "one") ", " RESULT_OF("",
                                                                                      "two") "]",
        NULL, 0, "medium",
        "<|start|>user<|message|>q<|end|>" TURN("1", "one") TURN("2", "two") "<|start|>assistant");
}

Test(channels, efforts_are_three) {
    static const char *const efforts[][2] = {{"none", "low"},  {"minimal", "low"},
                                             {"low", "low"},   {"medium", "medium"},
                                             {"high", "high"}, {"xhigh", "high"}};
    static const char want[] = "<|start|>user<|message|>q<|end|><|start|>assistant";

    need_shared();
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        check_prompt("[" USER("q") "]", efforts[i][0], 0, efforts[i][1], want);
    check_prompt("[" USER("q") "]", NULL, -1, "low", want);
    check_prompt("[" USER("q") "]", NULL, 1, "medium", want);
}
