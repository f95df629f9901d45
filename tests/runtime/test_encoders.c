/* runtime/chat: the encoders of our own against renderings of other programs.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/chat_format.h"
#include "tests/runtime/parser_feed.h"

static const char *const contexts[] = {"user",  "multi",        "multi_nogen",  "nothink",
                                       "think", "tools_obj",    "tools_str",    "tools_first",
                                       "empty", "minja_simple", "minja_system", "minja_tool_use"};

static char *read_shared(const char *format, const char *name, size_t *size) {
    char path[600], file[200];
    char *text;

    snprintf(file, sizeof file, format, name);
    snprintf(path, sizeof path, "%s/data/templates/goldens/%s", getenv("KT_SHARED"), file);
    text = parser_read_file(path, size);
    cr_assert_not_null(text, "%s", path);
    text[*size] = 0;
    return text;
}

/* What the encoder makes of a context. The caller frees it. */
static char *encoded(const char *encoder, const char *context) {
    const kt_template_options options = {.has_now = true, .now = 1767225598};
    kt_chat_format *f = NULL;
    kt_rendered r = {0};
    kt_json_doc *doc;
    kt_err err = {KT_OK, ""};
    size_t size;
    char *text = read_shared("contexts/%s.json", context, &size);

    cr_assert_eq(kt_chat_format_create(encoder, strlen(encoder), "encoder", NULL, &f, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_chat_render_variables(f, kt_json_root(doc), &options, &r, &err), KT_OK,
                 "%s: %s", context, err.message);
    kt_json_destroy(doc);
    kt_chat_format_destroy(f);
    free(text);
    text = strdup(r.text);
    kt_rendered_deinit(&r);
    return text;
}

static void need_shared(void) {
    if (!getenv("KT_SHARED")) setenv("KT_SHARED", KT_SOURCE_DIR "/../shared", 0);
    if (!parser_has_shared()) cr_skip_test("the shared data is absent");
}

Test(encoders, deepseek_v4_asks_for_the_greatest_effort_in_words) {
    static const char json[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
                               "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                               "\"U\"}]}], \"response_format\": {\"type\": \"object\"}}";
    kt_chat_request request = {.enable_thinking = 1, .reasoning_effort = "max"};
    kt_chat_format *f = NULL;
    kt_rendered r = {0};
    kt_json_doc *doc;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_json_parse(json, sizeof json - 1, NULL, &doc, NULL), KT_OK);
    cr_assert_eq(kt_chat_format_create(kt_chat_deepseek_v4, strlen(kt_chat_deepseek_v4), "encoder",
                                       NULL, &f, &err),
                 KT_OK, "%s", err.message);
    request.messages = kt_json_get(kt_json_root(doc), "messages");
    request.response_format = kt_json_get(kt_json_root(doc), "response_format");
    cr_assert_eq(kt_chat_render(f, &request, &r, &err), KT_OK, "%s", err.message);
    cr_expect(strstr(r.text, "sentence｜>Reasoning Effort: Absolute maximum"), "%s", r.text);
    cr_expect(strstr(r.text, "\n\nS\n\n## Response Format:\n\nYou MUST strictly adhere to the "
                             "following schema to reply:\n{\"type\": \"object\"}<｜User｜>U"
                             "<｜Assistant｜><think>"),
              "%s", r.text);
    kt_rendered_deinit(&r);
    request.reasoning_effort = "high";
    cr_assert_eq(kt_chat_render(f, &request, &r, &err), KT_OK, "%s", err.message);
    cr_expect_null(strstr(r.text, "Reasoning Effort"));
    kt_rendered_deinit(&r);
    kt_chat_format_destroy(f);
    kt_json_destroy(doc);
}

/* Conversations that the shared contexts lack: reasoning before the last question, with results,
 * with tools and without; calls without arguments; several systems. */
static const char *const conversations[] = {
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", "
    "\"reasoning_content\": \"why\"}, {\"role\": \"user\", \"content\": \"r\"}]",
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"reasoning_content\": \"why\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", "
    "\"function\": {\"name\": \"now\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"content\": "
    "\"7\", \"tool_call_id\": \"1\"}, {\"role\": \"user\", \"content\": \"r\"}]",
    "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"system\", \"content\": \"T\"}, "
    "{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"user\", \"content\": \"r\"}]"};

static void agree_on_other_conversations(void) {
    char path[512];
    const kt_chat_source source = {.template_file = path};
    static const char tool[] = "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]";
    kt_chat_format *ours = NULL, *theirs = NULL;
    kt_json_doc *tools;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/data/templates/deepseek-ai-DeepSeek-V4.jinja",
             getenv("KT_SHARED"));
    cr_assert_eq(kt_json_parse(tool, sizeof tool - 1, NULL, &tools, NULL), KT_OK);
    cr_assert_eq(kt_chat_format_load(&source, &theirs, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_chat_format_create(kt_chat_deepseek_v4, strlen(kt_chat_deepseek_v4), "encoder",
                                       NULL, &ours, &err),
                 KT_OK, "%s", err.message);
    for (int i = 0; i < 12; i++) {
        const char *json = conversations[i / 4];
        kt_json_doc *doc;
        kt_rendered a = {0}, b = {0};
        kt_chat_request request = {.enable_thinking = i & 1 ? 1 : -1};
        cr_assert_eq(kt_json_parse(json, strlen(json), NULL, &doc, &err), KT_OK, "%s", err.message);
        request.messages = kt_json_root(doc);
        request.tools = i & 2 ? kt_json_root(tools) : NULL;
        cr_assert_eq(kt_chat_render(ours, &request, &a, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_chat_render(theirs, &request, &b, &err), KT_OK, "%s", err.message);
        cr_assert_gt(a.size, 21);
        cr_expect_str_eq(strchr(a.text, '>') + 1, b.text, "%d:\n%s\n%s", i, a.text, b.text);
        kt_rendered_deinit(&a);
        kt_rendered_deinit(&b);
        kt_json_destroy(doc);
    }
    kt_json_destroy(tools);
    kt_chat_format_destroy(ours);
    kt_chat_format_destroy(theirs);
}

Test(encoders, deepseek_v4_writes_what_its_templates_write) {
    static const char *const templates[] = {"deepseek-ai-DeepSeek-V4__%s.txt",
                                            "deepseek-ai-DeepSeek-V4-Flash-0731__%s.txt"};

    need_shared();
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        char *text = encoded(kt_chat_deepseek_v4, contexts[i]);
        for (int k = 0; k < 2; k++) {
            size_t size;
            char *want = read_shared(templates[k], contexts[i], &size);
            cr_expect_str_eq(text, want, "%s: %s\n%s\n%s", templates[k], contexts[i], text, want);
            free(want);
        }
        free(text);
    }
    agree_on_other_conversations();
}
