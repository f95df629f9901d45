/* /v1/messages over an engine that says a fixed text: exact forms, translation, errors.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/fake_chat.h"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define ASK "\"max_tokens\":200," USER
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]" \
    "}"
#define TOOLS "\"tools\":[{\"name\":\"get_weather\",\"input_schema\":" SCHEMA "}]"
#define CALL \
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"

static kt_reply post(const char *path, const char *body) {
    return kt_send_request(fake.port, "POST", path, "Anthropic-Version: 2023-06-01\r\n", body);
}

/* The text with what changes from run to run emptied: the ids. Owned. */
static char *without_ids(const char *text) {
    char *out = malloc(strlen(text) + 1), *to = out;

    for (const char *at = text; *at;) {
        if (strncmp(at, "\"id\":\"", 6) == 0) {
            to = stpcpy(to, "\"id\":\"");
            at += 6;
            at += strcspn(at, "\"");
            continue;
        }
        *to++ = *at++;
    }
    *to = '\0';
    return out;
}

static void expect_answer(const char *body, const char *wanted) {
    kt_reply r = post("/v1/messages", body);
    char *got = without_ids(r.body);

    cr_expect_eq(r.status, 200, "%s: %d", body, r.status);
    cr_expect_str_eq(got, wanted, "%s\n--- got\n%s\n--- wanted\n%s", body, got, wanted);
    free(got);
    kt_reply_free(&r);
}

#define USAGE(in, out)                 \
    "\"usage\":{\"input_tokens\":" #in \
    ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":" #out "}"
#define WHOLE(content, reason, in, out)                                                        \
    "{\"id\":\"\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"fake\",\"content\":" \
    "[" content "],\"stop_reason\":" reason "," USAGE(in, out) "}"

/* ---- whole answers ---- */

Test(messages_api, answers_in_the_form_of_the_api) {
    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_answer("{\"model\":\"fake\"," ASK "}",
                  WHOLE("{\"type\":\"text\",\"text\":\"To be\"}",
                        "\"end_turn\",\"stop_sequence\":null", 7, 3));
    expect_answer("{\"max_tokens\":1," USER "}",
                  WHOLE("{\"type\":\"text\",\"text\":\"To\"}",
                        "\"max_tokens\",\"stop_sequence\":null", 7, 1));
    expect_answer("{\"stop_sequences\":[\"x\",\" be\"]," ASK "}",
                  WHOLE("{\"type\":\"text\",\"text\":\"To\"}",
                        "\"stop_sequence\",\"stop_sequence\":\" be\"", 7, 2));
    fake_chat_stop();
}

Test(messages_api, its_id_is_that_of_the_request) {
    kt_reply r;
    kt_json_doc *doc;
    char line[80];

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    r = post("/v1/messages", "{" ASK "}");
    snprintf(line, sizeof line, "\r\nRequest-Id: %s\r\n",
             fake_text_at(fake_parse(&r, &doc), "id") + 4);
    cr_expect_not_null(strstr(r.headers, line), "%s lacks %s", r.headers, line);
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(messages_api, thinking_text_and_tool_use_are_blocks) {
    kt_reply r;
    char *got;

    fake_chat_init("I think so.\n</think>\n\nSee." CALL "\n" CALL, "hermes", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 0);
    r = post("/v1/messages", "{" ASK "," TOOLS "}");
    got = without_ids(r.body);
    cr_expect_not_null(
        strstr(got, "\"content\":[{\"type\":\"thinking\",\"thinking\":\"I think so.\","
                    "\"signature\":\"\"},{\"type\":\"text\",\"text\":\"See.\"},"
                    "{\"type\":\"tool_use\",\"id\":\"\",\"name\":\"get_weather\",\"input\":{"
                    "\"city\":\"Paris\"}},{\"type\":\"tool_use\",\"id\":\"\",\"name\":"
                    "\"get_weather\",\"input\":{\"city\":\"Paris\"}}],\"stop_reason\":"
                    "\"tool_use\",\"stop_sequence\":null,"),
        "%s", got);
    free(got);
    kt_reply_free(&r);
    r = post("/v1/messages",
             "{" ASK "," TOOLS ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":"
             "true}}");
    got = strstr(r.body, "tool_use\",\"id");
    cr_expect(got && !strstr(got + 1, "tool_use\",\"id"), "one call: %s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* ---- streams ---- */

#define EVENT(name, members) "event: " name "\ndata: {\"type\":\"" name "\"" members "}\n\n"
#define START                                                                                \
    EVENT("message_start",                                                                   \
          ",\"message\":{\"id\":\"\",\"type\":\"message\",\"role\":\"assistant\",\"model\":" \
          "\"fake\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null," USAGE(7, 0) "}")
#define OPEN(i, block) EVENT("content_block_start", ",\"index\":" #i ",\"content_block\":" block)
#define DELTA(i, delta) EVENT("content_block_delta", ",\"index\":" #i ",\"delta\":" delta)
#define CLOSE(i) EVENT("content_block_stop", ",\"index\":" #i)
#define END(reason, out)                                                             \
    EVENT("message_delta", ",\"delta\":{\"stop_reason\":" reason "}," USAGE(7, out)) \
    EVENT("message_stop", "")
#define TEXT_BLOCK "{\"type\":\"text\",\"text\":\"\"}"
#define TEXT(text) "{\"type\":\"text_delta\",\"text\":\"" text "\"}"

Test(messages_api, a_stream_has_the_exact_form) {
    kt_reply r;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_answer("{\"stream\":true," ASK "}",
                  START OPEN(0, TEXT_BLOCK) DELTA(0, TEXT("To")) DELTA(0, TEXT(" be")) CLOSE(0)
                      END("\"end_turn\",\"stop_sequence\":null", 3));
    expect_answer("{\"stream\":true,\"stop_sequences\":[\" be\"]," ASK "}",
                  START OPEN(0, TEXT_BLOCK) DELTA(0, TEXT("To")) CLOSE(0)
                      END("\"stop_sequence\",\"stop_sequence\":\" be\"", 2));
    r = post("/v1/messages", "{\"stream\":true," ASK "}");
    cr_expect_not_null(strcasestr(r.headers, "content-type: text/event-stream"), "%s", r.headers);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* What all deltas of block i say, its pieces joined. */
static void join(const char *stream, int i, const char *member, char *out) {
    char head[80];

    *out = '\0';
    snprintf(head, sizeof head, "\"content_block_delta\",\"index\":%d,\"delta\":", i);
    for (const char *at = stream; (at = strstr(at, head)); at++) {
        kt_json_doc *doc;
        const char *line = at + strlen(head);
        cr_assert_eq(kt_json_parse(line, strcspn(line, "\n") - 1, NULL, &doc, NULL), KT_OK);
        strcat(out, kt_json_text(kt_json_root(doc), member));
        kt_json_destroy(doc);
    }
}

Test(messages_api, blocks_stream_one_after_the_other) {
    static const char *const order[] = {
        "event: message_start\n",
        OPEN(0, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":"
                "\"\"}"),
        DELTA(0, "{\"type\":\"signature_delta\",\"signature\":\"\"}") CLOSE(0) OPEN(1, TEXT_BLOCK),
        CLOSE(1) OPEN(2, "{\"type\":\"tool_use\",\"id\":\"\",\"name\":\"get_weather\",\"input\":{}"
                         "}"),
        CLOSE(2) "event: message_delta\n",
        "\"stop_reason\":\"tool_use\"",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"};
    const char *at;
    char text[256], *got;
    kt_reply r;

    fake_chat_init("I think so.\n</think>\n\nSee." CALL, "hermes", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 0);
    r = post("/v1/messages", "{\"stream\":true," ASK "," TOOLS "}");
    at = got = without_ids(r.body);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        cr_assert_not_null(at, "%s\n--- lacks\n%s", got, order[i]);
    }
    cr_expect_eq(strlen(strstr(at, "{")), strlen("{\"type\":\"message_stop\"}\n\n"), "%s", at);
    join(got, 0, "thinking", text);
    cr_expect_str_eq(text, "I think so.");
    join(got, 1, "text", text);
    cr_expect_str_eq(text, "See.");
    join(got, 2, "partial_json", text);
    cr_expect_str_eq(text, "{\"city\": \"Paris\"}");
    free(got);
    kt_reply_free(&r);
    fake_chat_stop();
}

/* A stream that waits gives signs of life in the form of its API. */
Test(messages_api, a_waiting_stream_is_pinged) {
    char text[4096];

    fake_chat_wait("/v1/messages", "{\"stream\":true," ASK "}",
                   "event: ping\ndata: {\"type\": \"ping\"}\n\n", text, sizeof text);
    cr_expect_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0, "%s", text);
}

/* What the end of the server cuts is told in the form of the API, too. */
Test(messages_api, a_stream_that_is_cut_ends_with_an_error) {
    kt_reply r = fake_chat_cut("/v1/messages", "{\"stream\":true," ASK "}");

    cr_expect_not_null(strstr(r.body, "event: message_start\n"), "%s", r.body);
    cr_expect_not_null(strstr(r.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                                      "\"overloaded_error\",\"message\":\"the server is shutting "
                                      "down\"},"),
                       "%s", r.body);
    cr_expect_null(strstr(r.body, "[DONE]"), "%s", r.body);
    kt_reply_free(&r);
}

/* ---- what becomes of a conversation ---- */

#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":" content "}"
#define USE "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"a\":1.50}}"
#define RESULT(more) "{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"" more "}"

Test(messages_api, conversations_are_translated) {
    static const struct {
        const char *members, *prompt;
    } cases[] = {
        {USER, "user: Hi\nassistant:"},
        {"\"system\":\"Be brief.\"," USER, "system: Be brief.\nuser: Hi\nassistant:"},
        {"\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}"
         ",{\"type\":\"text\",\"text\":\"b\"}]," USER,
         "system: a\nb\nuser: Hi\nassistant:"},
        {"\"messages\":[" SAYS("user", "[{\"type\":\"text\",\"text\":\"What is\"},{\"type\":"
                                       "\"text\",\"text\":\"this?\"}]") "]",
         "user: What is\nthis?\nassistant:"},
        {"\"messages\":[" SAYS("user", "\"a\"") "," SAYS(
             "assistant",
             "[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":"
             "\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\",\"text\":"
             "\"b\"}," USE "]") "," SAYS("user", "[" RESULT(",\"content\":\"c\"") "]") "]",
         "user: a\nreasoning: hm\ncalls: [{\"id\":\"t1\",\"type\":\"function\",\"function\":{"
         "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1.50}\"}}]\nassistant: b\ntool: "
         "c\nassistant:"},
        {"\"messages\":[" SAYS("user", "\"a\"") "," SAYS("assistant", "[" USE "]") "," SAYS(
             "user", "[{\"type\":\"text\",\"text\":\"so\"}," RESULT(
                         ",\"is_error\":true,\"content\":[{\"type\":\"text\",\"text\":\"no\"}"
                         "]") ",{\"type\":\"text\",\"text\":\"then\"}]") "]",
         "user: a\ncalls: [{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":1.50}\"}}]\nuser: so\ntool: Error:\nno\nuser: "
         "then\nassistant:"},
        {"\"messages\":[" SAYS("user", "\"a\"") "," SAYS("assistant", "[" USE "]") "," SAYS(
             "user", "[" RESULT("") "]") "]",
         "user: a\ncalls: [{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":1.50}\"}}]\ntool: \nassistant:"},
        /* an answer that the client began */
        {"\"messages\":[" SAYS("user", "\"a\"") "," SAYS("assistant", "\"b\"") "]",
         "user: a\nassistant: b\n"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," USER,
         "user: Hi\nthinking: 1\nassistant:"},
        {"\"thinking\":{\"type\":\"disabled\"}," USER, "user: Hi\nthinking: 0\nassistant:"},
        {"\"thinking\":{\"type\":\"adaptive\"}," USER, "user: Hi\nassistant:"},
        {TOOLS ",\"tool_choice\":{\"type\":\"none\"}," USER, "user: Hi\nassistant:"},
        {"\"tools\":[{\"type\":\"custom\",\"name\":\"f\",\"description\":\"d\",\"input_schema\":{"
         "\"type\":\"object\"},\"cache_control\":null}]," USER,
         "user: Hi\ntools: [{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":"
         "\"d\",\"parameters\":{\"type\":\"object\"}}}]\nassistant:"},
    };
    char body[1024], count[40];

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r;
        int32_t *ids = NULL;
        size_t n = 0;
        snprintf(body, sizeof body, "{\"max_tokens\":1,%s}", cases[i].members);
        r = post("/v1/messages", body);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body);
        cr_expect_str_eq(fake_chat.last, cases[i].prompt, "%s\n--- got\n%s\n--- wanted\n%s", body,
                         fake_chat.last, cases[i].prompt);
        kt_reply_free(&r);
        /* its tokens are counted without max_tokens */
        snprintf(body, sizeof body, "{%s}", cases[i].members);
        r = post("/v1/messages/count_tokens", body);
        cr_assert_eq(kt_tokenizer_encode(fake.engine.tokenizer, cases[i].prompt,
                                         strlen(cases[i].prompt), false, &ids, &n, NULL),
                     KT_OK);
        snprintf(count, sizeof count, "{\"input_tokens\":%zu}", n);
        cr_expect_str_eq(r.body, count);
        free(ids);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

#define RED                                                                                        \
    "\"tool_choice\":{\"type\":\"none\"},\"output_config\":{\"format\":{\"type\":\"json_schema\"," \
    "\"schema\":{\"const\":\"red\"}}}"

/* The model would say prose; it calls what was named, or answers in the form that was asked for. */
Test(messages_api, calls_and_forms_can_be_forced) {
    static const char *const bodies[] = {
        "\"tool_choice\":{\"type\":\"any\"}",
        "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":true}",
        RED};
    char body[600];

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (int i = 0; i < 3; i++) {
        kt_reply r;
        snprintf(body, sizeof body,
                 "{\"temperature\":0,\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":"
                 "\"object\",\"properties\":{},\"additionalProperties\":false}}],%s," ASK "}",
                 bodies[i]);
        r = post("/v1/messages", body);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body);
        cr_expect_not_null(
            strstr(r.body, i < 2 ? "\"name\":\"f\",\"input\":{}}" : "\"text\":\"\\\"red\\\"\"}"),
            "%s", r.body);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

/* ---- errors ---- */

static void check_error(kt_reply r, int status, const char *type, const char *says) {
    kt_json_doc *doc;
    const kt_json *root = fake_parse(&r, &doc), *error = kt_json_get(root, "error");

    cr_expect_eq(r.status, status, "%d, expected %d: %s", r.status, status, r.body);
    cr_expect_str_eq(fake_text_at(root, "type"), "error", "%s", r.body);
    cr_expect_str_eq(fake_text_at(error, "type"), type, "%s", r.body);
    cr_expect_not_null(strstr(fake_text_at(error, "message"), says), "'%s' lacks '%s'",
                       fake_text_at(error, "message"), says);
    cr_expect_eq(strlen(fake_text_at(root, "request_id")), 24, "%s", r.body);
    kt_json_destroy(doc);
    kt_reply_free(&r);
}

Test(messages_api, wrong_requests_are_refused_by_name) {
    static const struct {
        const char *body;
        int status;
        const char *says;
    } cases[] = {
        {"{", 400, "JSON"},
        {"[]", 400, "expected an object"},
        {"{" USER "}", 400, "'max_tokens' is missing"},
        {"{\"max_tokens\":0," USER "}", 400, "'max_tokens' is 0"},
        {"{\"max_tokens\":1}", 400, "'messages' is missing"},
        {"{\"max_tokens\":1,\"messages\":[]}", 400, "empty"},
        {"{\"max_tokens\":1,\"messages\":[7]}", 400, "'messages[0]' is a number"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"system\",\"content\":\"a\"}]}", 400,
         "'messages[0].role' is 'system', expected user or assistant"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\"}]}", 400,
         "'messages[0].content' is missing"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS("user", "[7]") "]}", 400,
         "'messages[0].content[0]' is a number, expected a content block"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS("user", "[{\"type\":\"text\"}]") "]}", 400,
         "'messages[0].content[0].text' is missing"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS("user",
                                                 "[{\"type\":\"image\",\"source\":{}}]") "]}",
         400, "'messages[0].content[0]' is of type 'image', expected text or tool_result"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS("user", "[" USE "]") "]}", 400,
         "'messages[0].content[0]' is of type 'tool_use'"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS("user", "[{\"type\":\"tool_result\"}]") "]}", 400,
         "'messages[0].content[0].tool_use_id' is missing"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS(
             "user", "[" RESULT(",\"content\":[{\"type\":\"image\"}]") "]") "]}",
         400, "'messages[0].content[0].content[0]' is of type 'image'"},
        {"{\"max_tokens\":1,\"messages\":[" SAYS(
             "assistant", "[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\"}]") "]}",
         400, "'messages[0].content[0].input' is missing"},
        {"{\"system\":7," ASK "}", 400, "'system' is a number"},
        {"{\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]," ASK "}", 400,
         "'tools[0]' is of type 'web_search_20250305'"},
        {"{\"tools\":[{\"name\":\"f\"}]," ASK "}", 400, "'tools[0].input_schema' is missing"},
        {"{\"tool_choice\":{\"type\":\"must\"}," ASK "}", 400, "'tool_choice.type' is 'must'"},
        {"{\"tool_choice\":{\"type\":\"tool\"}," ASK "}", 400, "'tool_choice.name' is missing"},
        {"{\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}," TOOLS "," ASK "}", 400, "'g'"},
        {"{\"tool_choice\":{\"type\":\"any\"}," ASK "}", 400, "no 'tools'"},
        {"{\"thinking\":{\"type\":\"often\"}," ASK "}", 400, "'thinking.type' is 'often'"},
        {"{\"output_config\":{\"format\":{\"type\":\"xml\"}}," ASK "}", 400,
         "'output_config.format'"},
        {"{\"stop_sequences\":[\"\"]," ASK "}", 400, "'stop_sequences[0]' has 0 bytes"},
        {"{\"temperature\":3," ASK "}", 400, "'temperature' is 3"},
        {"{\"n\":2," ASK "}", 400, "'n' is not supported"},
        {"{\"stop\":\"a\"," ASK "}", 400, "expected 'stop_sequences'"},
        {"{\"mcp_servers\":[{}]," ASK "}", 400, "'mcp_servers' is not supported"},
        {"{\"model\":\"other\"," ASK "}", 404, "'other'"},
    };

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(post("/v1/messages", cases[i].body), cases[i].status,
                    cases[i].status == 404 ? "not_found_error" : "invalid_request_error",
                    cases[i].says);
    check_error(post("/v1/messages/count_tokens", /* where no grammar is made of it */
                     "{\"output_format\":{\"type\":\"json_schema\",\"schema\":\"a\"}," ASK "}"),
                400, "invalid_request_error",
                "'output_format' is a string, expected a JSON schema");
    check_error(post("/v1/messages/count_tokens", "{}"), 400, "invalid_request_error",
                "'messages' is missing");
    check_error(kt_send_request(fake.port, "POST", "/messages", "", "{}"), 400,
                "invalid_request_error", "'max_tokens'");
    /* labels, hints, what is switched off, and names that nobody knows are no errors */
    expect_answer("{\"metadata\":{\"user_id\":\"u\"},\"service_tier\":\"auto\",\"n\":1,\"stop\":[],"
                  "\"mcp_servers\":[],\"flavour\":7,\"thinking\":null,\"tools\":[],\"seed\":3,"
                  "\"top_k\":4,\"top_p\":0.9,\"temperature\":0," ASK "}",
                  WHOLE("{\"type\":\"text\",\"text\":\"To be\"}",
                        "\"end_turn\",\"stop_sequence\":null", 7, 3));
    fake_chat_stop();
}

Test(messages_api, wants_its_key_under_either_name) {
    const kt_http_options options = {.api_key = "secret"};
    kt_reply r;

    fake_chat_init("To be", "none", "none");
    fake_start(&options, 0);
    check_error(post("/v1/messages", "{" ASK "}"), 401, "authentication_error", "key");
    r = kt_send_request(fake.port, "POST", "/v1/messages", "x-api-key: secret\r\n", "{" ASK "}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "POST", "/v1/messages", "Authorization: Bearer secret\r\n",
                        "{" ASK "}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(messages_api, an_engine_without_memory_is_an_answer) {
    kt_reply r;

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    atomic_store(&fake.engine.fail_open, 1);
    check_error(post("/v1/messages", "{" ASK "}"), 503, "overloaded_error", "memory");
    r = post("/v1/messages", "{\"stream\":true," ASK "}");
    cr_expect(strstr(r.body, "\"type\":\"error\",\"error\":{\"type\":"), "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(messages_api, without_a_template_there_is_none) {
    fake_start(NULL, 0);
    check_error(post("/v1/messages", "{" ASK "}"), 400, "invalid_request_error", "--chat-template");
    fake_stop();
}
