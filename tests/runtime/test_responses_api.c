/* /v1/responses over an engine that says a fixed text: exact forms, translation, errors.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/fake_chat.h"

#define ASK "\"input\":\"Hi\""
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]" \
    "}"
#define TOOL "{\"type\":\"function\",\"name\":\"get_weather\",\"parameters\":" SCHEMA "}"
#define TOOLS "\"tools\":[" TOOL "]"
#define CALL \
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"

static kt_reply post(const char *path, const char *body) {
    return kt_send_request(fake.port, "POST", path, "", body);
}

/* The value behind `key` at `at`: a number or the inside of a string. */
static size_t length_of(const char *at) {
    return strcspn(at, "\",}");
}

/* The text with what changes from run to run emptied: times, timings, and the request's part of
 * ids. Owned. */
static char *without_ids(const char *text) {
    static const char *const numbers[] = {"\"created_at\":", "\"completed_at\":"};
    static const char *const ids[] = {"\"resp_", "\"msg_", "\"rs_", "\"fc_", "\"ctc_", "\"call_"};
    char *out = malloc(strlen(text) + 1), *to = out;

    for (const char *at = text; *at;) {
        size_t skip = 0;
        for (int i = 0; i < 2; i++)
            if (strncmp(at, numbers[i], strlen(numbers[i])) == 0) skip = strlen(numbers[i]);
        for (int i = 0; i < 6; i++)
            if (at > text && at[-1] == ':' && strncmp(at, ids[i], strlen(ids[i])) == 0)
                skip = strlen(ids[i]);
        if (skip) {
            const char *rest = at + skip;
            const size_t n = length_of(rest);
            to = stpncpy(to, at, skip);
            at = rest + n;
            if (at[-2] == '_') to = stpncpy(to, at - 1, 1); /* which item it is */
        } else if (strncmp(at, ",\"timings\":{", 12) == 0) {
            at += strcspn(at, "}") + 1;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
    return out;
}

static void expect_answer(const char *body, const char *wanted) {
    kt_reply r = post("/v1/responses", body);
    char *got = without_ids(r.body);

    cr_expect_eq(r.status, 200, "%s: %d", body, r.status);
    cr_expect_str_eq(got, wanted, "%s\n--- got\n%s\n--- wanted\n%s", body, got, wanted);
    free(got);
    kt_reply_free(&r);
}

/* ---- forms ---- */

#define REPEATED(max)                                                                        \
    ",\"background\":false,\"error\":null,\"previous_response_id\":null,\"service_tier\":"   \
    "\"default\",\"store\":false,\"truncation\":\"disabled\",\"instructions\":null,"         \
    "\"max_output_tokens\":" max ",\"max_tool_calls\":null,\"metadata\":{},"                 \
    "\"parallel_tool_calls\":true,\"prompt_cache_key\":null,\"safety_identifier\":null,"     \
    "\"tool_choice\":\"auto\",\"top_logprobs\":0,\"user\":null,\"tools\":[],\"reasoning\":{" \
    "\"effort\":null,\"summary\":null},\"text\":{\"format\":{\"type\":\"text\"}},"           \
    "\"temperature\":0.0,\"top_p\":1.0,\"presence_penalty\":0.0,\"frequency_penalty\":0.0}"
#define RESPONSE(status, why, output, usage, max)                                             \
    "{\"id\":\"resp_\",\"object\":\"response\",\"created_at\":,\"completed_at\":,\"status\":" \
    "\"" status "\",\"incomplete_details\":" why ",\"model\":\"fake\",\"output\":[" output    \
    "],\"usage\":" usage                                                                      \
    REPEATED(max)
#define USAGE(in, out, all)                                                   \
    "{\"input_tokens\":" #in                                                  \
    ",\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":" #out \
    ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":" #all "}"
#define PART(text) \
    "{\"type\":\"output_text\",\"text\":\"" text "\",\"annotations\":[],\"logprobs\":[]}"
#define MESSAGE(i, status, content)                                                   \
    "{\"id\":\"msg_" #i "\",\"type\":\"message\",\"status\":\"" status "\",\"role\":" \
    "\"assistant\",\"content\":[" content "]}"

Test(responses_api, answers_in_the_form_of_the_api) {
    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_answer("{\"model\":\"fake\"," ASK "}",
                  RESPONSE("completed", "null", MESSAGE(0, "completed", PART("To be")),
                           USAGE(7, 3, 10), "null"));
    expect_answer("{\"max_output_tokens\":1," ASK "}",
                  RESPONSE("incomplete", "{\"reason\":\"max_output_tokens\"}",
                           MESSAGE(0, "incomplete", PART("To")), USAGE(7, 1, 8), "1"));
    fake_chat_stop();
}

/* What was asked for is told with what it became. */
Test(responses_api, a_response_repeats_its_request) {
    static const char *const said[] = {"\"instructions\":\"Be brief.\"",
                                       "\"max_output_tokens\":9",
                                       "\"metadata\":{\"a\":\"b\"}",
                                       "\"parallel_tool_calls\":false",
                                       "\"prompt_cache_key\":\"k\"",
                                       "\"tool_choice\":\"none\"",
                                       "\"user\":\"u\"",
                                       "\"temperature\":0.5",
                                       "\"top_p\":0.25",
                                       "\"presence_penalty\":1.0",
                                       "\"frequency_penalty\":-1.0"};
    char body[1024] = "{" ASK ",\"store\":true,\"reasoning\":{\"effort\":\"low\",\"summary\":"
                      "\"auto\"},\"tools\":[{\"type\":\"web_search\"}," TOOL "]";
    kt_reply r;

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) strcat(strcat(body, ","), said[i]);
    r = post("/v1/responses", strcat(body, "}"));
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        cr_expect_not_null(strstr(r.body, said[i]), "%s lacks %s", r.body, said[i]);
    cr_expect_not_null(strstr(r.body, "\"reasoning\":{\"effort\":\"low\",\"summary\":null}"));
    cr_expect_not_null(strstr(r.body, "\"tools\":[" TOOL "]"), "no search: %s", r.body);
    cr_expect_not_null(strstr(r.body, "\"store\":false"), "%s", r.body);
    cr_expect_not_null(strstr(r.body, ",\"timings\":{"), "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(responses_api, reasoning_text_and_calls_are_items) {
    static const char wanted[] =
        "\"output\":[{\"id\":\"rs_0\",\"type\":\"reasoning\",\"status\":\"completed\",\"summary\":["
        "],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"I think so.\"}]}," MESSAGE(
            1, "completed", PART("See.")) ",{\"id\":\"fc_2\",\"type\":\"function_call\","
                                          "\"status\":\"completed\",\"call_id\":\"call_\","
                                          "\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\":"
                                          " \\\"Paris\\\"}\"},{\"id\":\"fc_3\",";
    const char *at;
    kt_reply r;
    char *got;

    fake_chat_init("I think so.\n</think>\n\nSee." CALL "\n" CALL, "hermes", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 0);
    r = post("/v1/responses", "{" ASK "," TOOLS "}");
    got = without_ids(r.body);
    cr_expect_not_null(strstr(got, wanted), "%s\n--- lacks\n%s", got, wanted);
    at = strstr(got, "\"reasoning_tokens\":");
    cr_expect(at && strtol(at + 19, NULL, 10) > 0, "%s", got);
    free(got);
    kt_reply_free(&r);
    r = post("/v1/responses", "{\"parallel_tool_calls\":false," ASK "," TOOLS "}");
    at = strstr(r.body, "\"function_call\"");
    cr_expect(at && !strstr(at + 1, "\"function_call\""), "one call: %s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

#define PATCH                                                                                  \
    "{\"type\":\"custom\",\"name\":\"patch\",\"description\":\"Edits.\",\"format\":{\"type\":" \
    "\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: /a+/\"}}"
#define MEMORY                                                                            \
    "{\"type\":\"namespace\",\"name\":\"mcp__memory\",\"description\":\"m\",\"tools\":[{" \
    "\"type\":\"function\",\"name\":\"keep\",\"parameters\":" SCHEMA "}]}"
#define AGENT                                                                                \
    "\"tools\":[{\"type\":\"web_search\"}," PATCH ",{\"type\":\"image_generation\"}," MEMORY \
    ",{\"type\":\"of_tomorrow\"}]"

/* What agents call comes back as they offered it: a text for a custom tool, a namespace. */
Test(responses_api, custom_tools_and_namespaces_are_functions_of_the_chat) {
    static const char *const calls[] = {
        "{\"id\":\"ctc_1\",\"type\":\"custom_tool_call\",\"status\":\"completed\",\"call_id\":"
        "\"call_\",\"name\":\"patch\",\"input\":\"say \\\"a\\\"\\n\"}",
        "{\"id\":\"fc_0\",\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":"
        "\"call_\",\"name\":\"keep\",\"namespace\":\"mcp__memory\",\"arguments\":\"{"
        "\\\"city\\\": \\\"Rome\\\"}\"}",
        MESSAGE(2, "completed", PART("Done."))};
    static const char *const events[] = {
        "\"item\":{\"id\":\"ctc_1\",\"type\":\"custom_tool_call\",\"status\":\"in_progress\","
        "\"call_id\":\"call_\",\"name\":\"patch\",\"input\":\"\"}",
        "\"response.custom_tool_call_input.delta\",\"sequence_number\":18,\"item_id\":\"ctc_1\","
        "\"output_index\":1,\"delta\":\"say \\\"a\\\"\\n\"}",
        "\"response.custom_tool_call_input.done\",\"sequence_number\":19,\"item_id\":\"ctc_1\","
        "\"output_index\":1,\"name\":\"patch\",\"input\":\"say \\\"a\\\"\\n\"}",
        "\"response.output_item.done\",\"sequence_number\":20,\"output_index\":1,\"item\":{\"id\":"
        "\"ctc_1\",",
        "\"item_id\":\"msg_2\",\"output_index\":2,\"content_index\":0,\"delta\":\"D\""};
    const char *at;
    kt_reply r;
    char *got;

    fake_chat_init("<tool_call>\n{\"name\": \"mcp__memory__keep\", \"arguments\": {\"city\": "
                   "\"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"patch\", \"arguments\": "
                   "{\"input\": \"say \\\"a\\\"\\n\"}}\n</tool_call>\nDone.",
                   "hermes", "none");
    fake_start(NULL, 0);
    r = post("/v1/responses", "{" ASK "," AGENT "}");
    got = without_ids(r.body);
    for (int i = 0; i < 3; i++)
        cr_expect_not_null(strstr(got, calls[i]), "%s\n--- lacks\n%s", got, calls[i]);
    cr_expect_not_null(strstr(got, "\"tools\":[" PATCH "," MEMORY "]"), "%s", got);
    free(got);
    kt_reply_free(&r);
    cr_expect_not_null(
        strstr(fake_chat.last,
               "tools: [{\"type\":\"function\",\"function\":{\"name\":\"patch\",\"description\":"
               "\"Edits.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{"
               "\"type\":\"string\",\"description\":\"A text of this form, a grammar in the syntax "
               "lark:\\nstart: /a+/\"}},\"required\":[\"input\"],"
               "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":"
               "\"mcp__memory__keep\",\"parameters\":" SCHEMA "}}]\n"),
        "%s", fake_chat.last);
    r = post("/v1/responses", "{\"stream\":true," ASK "," AGENT "}");
    at = got = without_ids(r.body);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        at = strstr(at, events[i]);
        cr_assert_not_null(at, "%s\n--- lacks\n%s", got, events[i]);
    }
    free(got);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(responses_api, a_custom_tool_can_be_forced) {
    kt_reply r;

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    r = post("/v1/responses", "{\"temperature\":0,\"parallel_tool_calls\":false,"
                              "\"max_output_tokens\":80,\"tool_choice\":{\"type\":\"custom\","
                              "\"name\":\"patch\"},\"tools\":[" PATCH "]," ASK "}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    cr_expect_not_null(strstr(r.body, "\"type\":\"custom_tool_call\""), "%s", r.body);
    cr_expect_null(strstr(r.body, "\"type\":\"message\""), "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* Those of the text alone, each with its piece. */
Test(responses_api, log_probabilities_belong_to_the_text) {
    static const char *const asks[] = {"\"top_logprobs\":2",
                                       "\"include\":[\"message.output_text.logprobs\"]",
                                       "\"include\":[\"reasoning.encrypted_content\"]"};

    for (int i = 0; i < 3; i++) {
        const kt_json *part, *tokens;
        kt_json_doc *doc;
        char body[200], text[64] = "";
        kt_reply r;
        fake_chat_init("Hm.\n</think>\n\nTo be", "none", "qwen3");
        fake_chat.starts_in_reasoning = true;
        fake_start(NULL, 0);
        snprintf(body, sizeof body, "{%s," ASK "}", asks[i]);
        r = post("/v1/responses", body);
        part = kt_json_at(
            kt_json_get(kt_json_at(kt_json_get(fake_parse(&r, &doc), "output"), 1), "content"), 0);
        tokens = kt_json_get(part, "logprobs");
        for (size_t k = 0; k < kt_json_length(tokens); k++) {
            const kt_json *token = kt_json_at(tokens, k);
            strcat(text, kt_json_text(token, "token"));
            cr_expect_leq(kt_json_double(kt_json_get(token, "logprob"), 1), 0, "%s", r.body);
            cr_expect_eq(kt_json_length(kt_json_get(token, "top_logprobs")), i == 0 ? 2 : 0);
        }
        cr_expect_str_eq(text, i < 2 ? "To be" : "", "%s", r.body);
        kt_json_destroy(doc);
        kt_reply_free(&r);
        snprintf(body, sizeof body, "{\"stream\":true,%s," ASK "}", asks[i]);
        r = post("/v1/responses", body);
        cr_expect_eq(!strstr(r.body, "\"delta\":\" be\",\"logprobs\":[{\"token\":\" be\""), i == 2,
                     "%s", r.body);
        kt_reply_free(&r);
        fake_chat_stop();
    }
}

/* ---- streams ---- */

#define EVENT(name, n, members)                                  \
    "event: response." name "\ndata: {\"type\":\"response." name \
    "\",\"sequence_number\":" #n members "}\n\n"
#define BEGUN                                                                                    \
    ",\"response\":{\"id\":\"resp_\",\"object\":\"response\",\"created_at\":,\"completed_at\":," \
    "\"status\":\"in_progress\",\"incomplete_details\":null,\"model\":\"fake\",\"output\":[],"   \
    "\"usage\":null" REPEATED("null")
#define AT_CONTENT ",\"item_id\":\"msg_0\",\"output_index\":0,\"content_index\":0"
#define DELTA(n, text) \
    EVENT("output_text.delta", n, AT_CONTENT ",\"delta\":\"" text "\",\"logprobs\":[]")

Test(responses_api, a_stream_has_the_exact_form) {
    kt_reply r;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_answer(
        "{\"stream\":true," ASK "}",
        EVENT("created", 0, BEGUN) EVENT("in_progress", 1, BEGUN) EVENT(
            "output_item.added", 2, ",\"output_index\":0,\"item\":" MESSAGE(0, "in_progress", ""))
            EVENT("content_part.added", 3, AT_CONTENT ",\"part\":" PART("")) DELTA(4, "To")
                DELTA(5, " be")
                    EVENT("output_text.done", 6, AT_CONTENT ",\"text\":\"To be\",\"logprobs\":[]")
                        EVENT("content_part.done", 7, AT_CONTENT ",\"part\":" PART("To be")) EVENT(
                            "output_item.done", 8,
                            ",\"output_index\":0,\"item\":" MESSAGE(0, "completed", PART("To be")))
                            EVENT("completed", 9,
                                  ",\"response\":" RESPONSE("completed", "null",
                                                            MESSAGE(0, "completed", PART("To be")),
                                                            USAGE(7, 3, 10), "null")));
    r = post("/v1/responses", "{\"stream\":true," ASK "}");
    cr_expect_not_null(strcasestr(r.headers, "content-type: text/event-stream"), "%s", r.headers);
    kt_reply_free(&r);
    r = post("/v1/responses", "{\"stream\":true,\"max_output_tokens\":1," ASK "}");
    cr_expect_not_null(strstr(r.body, "event: response.incomplete\n"), "%s", r.body);
    cr_expect_null(strstr(r.body, "response.completed"), "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* What all events of this kind say of item i, joined. */
static void join(const char *stream, const char *kind, int i, const char *member, char *out) {
    char head[100];

    *out = '\0';
    snprintf(head, sizeof head, "data: {\"type\":\"response.%s\"", kind);
    for (const char *at = stream; (at = strstr(at, head)); at++) {
        kt_json_doc *doc;
        const char *line = at + 6;
        cr_assert_eq(kt_json_parse(line, strcspn(line, "\n"), NULL, &doc, NULL), KT_OK);
        if (kt_json_int(kt_json_get(kt_json_root(doc), "output_index"), -1) == i)
            strcat(out, kt_json_text(kt_json_root(doc), member));
        kt_json_destroy(doc);
    }
}

Test(responses_api, items_stream_one_after_the_other) {
    static const char *const order[] = {"event: response.created\n",
                                        "\"item\":{\"id\":\"rs_0\",\"type\":\"reasoning\"",
                                        "event: response.reasoning_text.delta\n",
                                        "event: response.reasoning_text.done\n",
                                        "event: response.content_part.done\n",
                                        "event: response.output_item.done\n",
                                        "\"item\":{\"id\":\"msg_1\",\"type\":\"message\"",
                                        "event: response.output_item.done\n",
                                        "\"item\":{\"id\":\"fc_2\",\"type\":\"function_call\","
                                        "\"status\":\"in_progress\",\"call_id\":\"call_\",\"name\":"
                                        "\"get_weather\",\"arguments\":\"\"}",
                                        "event: response.function_call_arguments.done\n",
                                        "event: response.output_item.done\n",
                                        "event: response.completed\n"};
    const char *at;
    char text[256], *got;
    kt_reply r;

    fake_chat_init("I think so.\n</think>\n\nSee." CALL, "hermes", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 0);
    r = post("/v1/responses", "{\"stream\":true," ASK "," TOOLS "}");
    at = got = without_ids(r.body);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        cr_assert_not_null(at, "%s\n--- lacks\n%s", got, order[i]);
        at++;
    }
    cr_expect_null(strstr(got, "[DONE]"), "%s", got);
    join(r.body, "reasoning_text.delta", 0, "delta", text);
    cr_expect_str_eq(text, "I think so.");
    join(r.body, "output_text.delta", 1, "delta", text);
    cr_expect_str_eq(text, "See.");
    join(r.body, "function_call_arguments.delta", 2, "delta", text);
    cr_expect_str_eq(text, "{\"city\": \"Paris\"}");
    join(r.body, "function_call_arguments.done", 2, "arguments", text);
    cr_expect_str_eq(text, "{\"city\": \"Paris\"}");
    free(got);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* What the end of the server cuts is told by an event, behind which nothing comes. */
Test(responses_api, a_stream_that_is_cut_ends_with_an_error) {
    kt_reply r = fake_chat_cut("/v1/responses", "{\"stream\":true," ASK "}");

    cr_expect_not_null(strstr(r.body, "event: response.created\n"), "%s", r.body);
    cr_expect_not_null(strstr(r.body, "event: error\ndata: {\"type\":\"error\",\"code\":"
                                      "\"shutting_down\",\"message\":\"the server is shutting "
                                      "down\",\"param\":null,\"error\":{\"message\":"),
                       "%s", r.body);
    cr_expect_null(strstr(r.body, "[DONE]"), "%s", r.body);
    kt_reply_free(&r);
}

/* ---- what becomes of a conversation ---- */

#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":" content "}"
#define CALLS(id)                                                   \
    "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"" id \
    "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define RESULT(id, output) \
    "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":" output "}"
#define THINKS(members) "{\"type\":\"reasoning\",\"id\":\"rs_1\"," members "}"
#define TOLD(id) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"

Test(responses_api, conversations_are_translated) {
    static const struct {
        const char *members, *prompt;
    } cases[] = {
        {ASK, "user: Hi\nassistant:"},
        {"\"instructions\":\"Be brief.\"," ASK, "system: Be brief.\nuser: Hi\nassistant:"},
        {"\"instructions\":\"\"," ASK, "user: Hi\nassistant:"},
        /* one message of the system stands in front; a later one stays where it is */
        {"\"instructions\":\"a\",\"input\":[" SAYS("developer", "\"b\"") "," SAYS(
             "system",
             "[{\"type\":\"input_text\",\"text\":\"c\"}]") "," SAYS("user",
                                                                    "\"d\"") "," SAYS("deve"
                                                                                      "lope"
                                                                                      "r",
                                                                                      "\"e"
                                                                                      "\"") "]",
         "system: a\n\nb\n\nc\nuser: d\ndeveloper: e\nassistant:"},
        {"\"input\":[" SAYS("system", "\"b\"") "]", "system: b\nassistant:"},
        {"\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":"
         "\"input_text\","
         "\"text\":\"What is\"},{\"type\":\"input_text\",\"text\":\"this?\"}]}]",
         "user: What is\nthis?\nassistant:"},
        /* the items of an answer are one turn */
        {"\"input\":[" SAYS("user", "\"a\"") "," THINKS(
             "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}"
             "]") ","
                  "{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\","
                  "\"status\":"
                  "\"completed\",\"content\":[" PART("b") "]}," CALLS("c1") "," CALLS(
                      "c2") "," RESULT("c1", "\"d\"") "," RESULT("c2", "[{\"type\":\"input_text\","
                                                                       "\"text\":\"e\"}]") "]",
         "user: a\nreasoning: hm\ncalls: [" TOLD("c1") "," TOLD(
             "c2") "]\nassistant: b\ntool: d\ntool: e\nassistant:"},
        {"\"input\":[" SAYS("user", "\"a\"") "," CALLS("c1") "," RESULT("c1", "\"d\"") "," CALLS(
             "c2") "," RESULT("c2", "\"e\"") "]",
         "user: a\ncalls: [" TOLD("c1") "]\ntool: d\ncalls: [" TOLD("c2") "]\ntool: e\nassistant:"},
        /* a summary where there is no more, and nothing where there is less */
        {"\"input\":[" SAYS("user", "\"a\"") "," THINKS(
             "\"summary\":[{\"type\":\"summary_text\","
             "\"text\":\"s\"}]") "," SAYS("assistant", "\"b\"") "," SAYS("user", "\"c\"") "]",
         "user: a\nreasoning: s\nassistant: b\nuser: c\nassistant:"},
        {"\"input\":[" SAYS("user", "\"a\"") "," THINKS("\"encrypted_content\":\"x\"") "," SAYS(
             "assistant", "\"b\"") "," SAYS("user", "\"c\"") "]",
         "user: a\nassistant: b\nuser: c\nassistant:"},
        /* calls of custom tools and of namespaces; a picture; what another server's tools did */
        {"\"input\":[" SAYS(
             "user",
             "\"a\"") ",{\"type\":\"custom_tool_call\",\"call_id\":\"c1\","
                      "\"name\":\"f\",\"input\":\"x\\ny\"},{\"type\":\"custom_tool_call_output\","
                      "\"call_id\":"
                      "\"c1\",\"output\":\"d\"},{\"type\":\"web_search_call\",\"id\":\"ws_1\"},{"
                      "\"type\":"
                      "\"function_call\",\"call_id\":\"c2\",\"namespace\":\"m__\",\"name\":\"g\","
                      "\"arguments\":\"{}\"}," RESULT(
                          "c2", "[{\"type\":\"input_text\",\"text\":\"e\"},{\"type\":"
                                "\"input_image\",\"image_url\":\"data:\"}]") "]",
         "user: a\ncalls: [{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"input\\\":\\\"x\\\\ny\\\"}\"}}]\ntool: d\ncalls: [{\"id\":\"c2\","
         "\"type\":\"function\",\"function\":{\"name\":\"m__g\",\"arguments\":\"{}\"}}]\ntool: "
         "e\n[a picture, which this model cannot read]\nassistant:"},
        {TOOLS ",\"tool_choice\":\"none\"," ASK, "user: Hi\nassistant:"},
        {"\"tools\":[{\"type\":\"web_search\",\"external_web_access\":false}]," ASK,
         "user: Hi\nassistant:"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\","
         "\"strict\":true,"
         "\"parameters\":{\"type\":\"object\"}},{\"type\":\"function\",\"name\":\"g\","
         "\"parameters\":null}]," ASK,
         "user: Hi\ntools: "
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":"
         "\"d\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":"
         "{"
         "\"name\":\"g\"}}]\nassistant:"},
    };
    char body[2048], count[80];

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r;
        int32_t *ids = NULL;
        size_t n = 0;
        snprintf(body, sizeof body, "{\"max_output_tokens\":1,%s}", cases[i].members);
        r = post("/v1/responses", body);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body);
        cr_expect_str_eq(fake_chat.last, cases[i].prompt, "%s\n--- got\n%s\n--- wanted\n%s", body,
                         fake_chat.last, cases[i].prompt);
        kt_reply_free(&r);
        r = post("/v1/responses/input_tokens", body);
        cr_assert_eq(kt_tokenizer_encode(fake.engine.tokenizer, cases[i].prompt,
                                         strlen(cases[i].prompt), false, &ids, &n, NULL),
                     KT_OK);
        snprintf(count, sizeof count, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                 n);
        cr_expect_str_eq(r.body, count);
        free(ids);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

#define RED                                                                                        \
    "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"c\",\"schema\":{\"const\":\"red\"}" \
    "}}"

/* The model would say prose; it calls what was named, or answers in the form that was asked for. */
Test(responses_api, calls_and_forms_can_be_forced) {
    static const struct {
        const char *members, *says;
    } cases[] = {{"\"tool_choice\":\"required\"", "\"name\":\"f\",\"arguments\":\"{"},
                 {"\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}",
                  "\"name\":\"f\",\"arguments\":\"{"},
                 {"\"tool_choice\":\"none\"," RED, "\"text\":\"\\\"red\\\"\""},
                 {"\"tool_choice\":\"none\",\"text\":{\"format\":{\"type\":\"json_object\"}}",
                  "\"text\":\"{"},
                 {"\"tool_choice\":\"none\",\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":"
                  "\"medium\"}",
                  "\"text\":\"To be\""}};
    char body[700];

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r;
        snprintf(body, sizeof body,
                 "{\"temperature\":0,\"parallel_tool_calls\":false,\"max_output_tokens\":40,"
                 "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":"
                 "\"object\",\"properties\":{},\"additionalProperties\":false}}],%s," ASK "}",
                 cases[i].members);
        r = post("/v1/responses", body);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body);
        cr_expect_not_null(strstr(r.body, cases[i].says), "%s lacks %s", r.body, cases[i].says);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

/* ---- errors ---- */

#define ITEM(item) "{\"input\":[" item "]}"

Test(responses_api, wrong_requests_are_refused_by_name) {
    static const struct {
        const char *body;
        int status;
        const char *param, *says;
    } cases[] = {
        {"{", 400, "", "JSON"},
        {"{}", 400, "input", "'input' is missing, expected a string or an array of items"},
        {"{\"input\":[]}", 400, "input", "empty"},
        {"{\"input\":7}", 400, "input", "'input' is a number"},
        {ITEM("7"), 400, "input[0]", "'input[0]' is a number, expected an item"},
        {ITEM("{}"), 400, "input[0].type", "'input[0].type' is missing"},
        {ITEM("{\"type\":\"item_reference\",\"id\":\"a\"}"), 400, "input[0]",
         "'input[0]' is of type 'item_reference', expected message, reasoning"},
        {ITEM("{\"type\":\"message\",\"content\":\"a\"}"), 400, "input[0].role", "is missing"},
        {ITEM("{\"role\":\"nobody\",\"content\":\"a\"}"), 400, "input[0]",
         "'input[0].role' is 'nobody', expected user, assistant, system or developer"},
        {ITEM("{\"role\":\"user\"}"), 400, "input[0].content", "is missing"},
        {ITEM("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}"), 400,
         "input[0].content[0]", "is of type 'input_image', expected input_text"},
        {ITEM("{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\"}]}"), 400,
         "input[0].content[0].text", "is missing"},
        {ITEM("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}"), 400,
         "input[0].call_id", "is missing"},
        {ITEM("{\"type\":\"function_call\",\"call_id\":\"f\",\"arguments\":\"{}\"}"), 400,
         "input[0].name", "is missing"},
        {ITEM("{\"type\":\"function_call\",\"call_id\":\"f\",\"name\":\"f\",\"arguments\":{}}"),
         400, "input[0].arguments", "is an object, expected a string"},
        {ITEM("{\"type\":\"function_call_output\",\"output\":\"{}\"}"), 400, "input[0].call_id",
         "is missing"},
        {ITEM("{\"type\":\"function_call_output\",\"call_id\":\"f\"}"), 400, "input[0].output",
         "is missing"},
        {ITEM("{\"type\":\"function_call_output\",\"call_id\":\"f\",\"output\":[{\"type\":"
              "\"input_file\"}]}"),
         400, "input[0].output[0]", "is of type 'input_file', expected input_text or input_image"},
        {ITEM("{\"type\":\"custom_tool_call\",\"call_id\":\"f\",\"name\":\"f\"}"), 400,
         "input[0].input", "is missing"},
        {ITEM("{\"type\":\"reasoning\",\"content\":[{\"type\":\"poem\"}]}"), 400,
         "input[0].content[0]", "is of type 'poem', expected reasoning_text"},
        {"{\"instructions\":7," ASK "}", 400, "instructions", "is a number"},
        {"{\"max_output_tokens\":0," ASK "}", 400, "max_output_tokens", "is 0"},
        {"{\"tools\":7," ASK "}", 400, "tools", "expected an array"},
        {"{\"tools\":[{\"type\":\"mcp\"}]," ASK "}", 400, "tools[0]", "is of type 'mcp'"},
        {"{\"tools\":[{\"type\":\"function\"}]," ASK "}", 400, "tools[0].name", "is missing"},
        {"{\"tools\":[{\"type\":\"custom\"}]," ASK "}", 400, "tools[0].name", "is missing"},
        {"{\"tools\":[{\"type\":\"namespace\"}]," ASK "}", 400, "tools[0].name", "is missing"},
        {"{\"tools\":[{\"type\":\"namespace\",\"name\":\"n\"}]," ASK "}", 400, "tools[0].tools",
         "is missing"},
        {"{\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\"}]"
         "}]," ASK "}",
         400, "tools[0].tools[0].name", "is missing"},
        {"{\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":7}]," ASK "}", 400,
         "tools[0].parameters", "is a number"},
        {"{\"tool_choice\":\"must\"," TOOLS "," ASK "}", 400, "tool_choice", "'must'"},
        {"{\"tool_choice\":\"required\"," ASK "}", 400, "tool_choice", "no 'tools'"},
        {"{\"tool_choice\":{\"type\":\"function\"}," ASK "}", 400, "tool_choice.name",
         "is missing"},
        {"{\"tool_choice\":{\"type\":\"file_search\"}," ASK "}", 400, "tool_choice",
         "is of type 'file_search', expected function or custom"},
        {"{\"reasoning\":7," ASK "}", 400, "reasoning", "is a number"},
        {"{\"reasoning\":{\"effort\":7}," ASK "}", 400, "effort", "is a number"},
        {"{\"text\":7," ASK "}", 400, "text", "is a number"},
        {"{\"text\":{\"verbosity\":\"low\"}," ASK "}", 400, "text.verbosity", "'low'"},
        {"{\"text\":{\"format\":{\"type\":\"xml\"}}," ASK "}", 400, "text.format",
         "is of type 'xml', expected text, json_object or json_schema"},
        {"{\"text\":{\"format\":{\"type\":\"json_schema\"}}," ASK "}", 400, "text.format.schema",
         "is missing"},
        {"{\"include\":7," ASK "}", 400, "include", "is a number"},
        {"{\"include\":[7]," ASK "}", 400, "include", "is a number"},
        {"{\"top_logprobs\":21," ASK "}", 400, "top_logprobs", "is 21"},
        {"{\"temperature\":3," ASK "}", 400, "temperature", "is 3"},
        {"{\"previous_response_id\":\"resp_1\"," ASK "}", 400, "previous_response_id",
         "expected 'input'"},
        {"{\"messages\":[]," ASK "}", 400, "messages", "expected 'input'"},
        {"{\"max_tokens\":1," ASK "}", 400, "max_tokens", "expected 'max_output_tokens'"},
        {"{\"background\":true," ASK "}", 400, "background", "is not supported"},
        {"{\"truncation\":\"auto\"," ASK "}", 400, "truncation", "is not supported"},
        {"{\"n\":2," ASK "}", 400, "n", "is not supported"},
        {"{\"model\":\"other\"," ASK "}", 404, "model", "'other'"},
    };

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r = post("/v1/responses", cases[i].body);
        kt_json_doc *doc;
        const kt_json *error = kt_json_get(fake_parse(&r, &doc), "error");
        cr_expect_eq(r.status, cases[i].status, "%s: %s", cases[i].body, r.body);
        cr_expect_str_eq(fake_text_at(error, "type"),
                         r.status == 404 ? "not_found_error" : "invalid_request_error", "%s",
                         r.body);
        cr_expect_str_eq(fake_text_at(error, "param"), cases[i].param, "%s: %s", cases[i].body,
                         r.body);
        cr_expect_not_null(strstr(fake_text_at(error, "message"), cases[i].says), "%s: %s lacks %s",
                           cases[i].body, r.body, cases[i].says);
        kt_json_destroy(doc);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

/* Values that say that a client wants nothing of what is not built are no error. */
Test(responses_api, what_agents_send_to_everyone_is_taken) {
    kt_reply r;

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    r = post("/v1/responses",
             "{" ASK "," TOOLS ",\"background\":false,\"conversation\":null,\"include\":["
             "\"reasoning.encrypted_content\"],\"max_tool_calls\":3,\"metadata\":{},"
             "\"parallel_tool_calls\":true,\"previous_response_id\":null,\"prompt_cache_key\":"
             "\"k\",\"reasoning\":{\"effort\":\"medium\",\"summary\":\"auto\"},\"service_tier\":"
             "\"auto\",\"store\":false,\"stream\":false,\"stream_options\":{"
             "\"include_obfuscation\":false},\"text\":{\"verbosity\":\"medium\"},\"tool_choice\":"
             "\"auto\",\"truncation\":\"disabled\",\"client_metadata\":{\"a\":\"b\"}}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* A conversation that leaves no room is one of `input`. */
Test(responses_api, a_conversation_that_is_too_long_is_refused) {
    static char body[40000] = "{\"input\":\"";
    kt_reply r;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    memset(body + strlen(body), 'a', 30000);
    r = post("/v1/responses", strcat(body, "\"}"));
    cr_expect_eq(r.status, 400, "%s", r.body);
    cr_expect_not_null(strstr(r.body, "\"param\":\"input\",\"code\":\"context_length_exceeded\""),
                       "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}
