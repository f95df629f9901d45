/* /v1/chat/completions over an engine that says a fixed text: exact forms, parameters, errors.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/fake_chat.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define TOOLS                                                                                   \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{" \
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":"         \
    "[\"city\"]}}}]"
#define CALL \
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"

static kt_reply chat(const char *body) {
    return kt_send_request(fake.port, "POST", "/v1/chat/completions", "", body);
}

/* The root of an answer of status 200. */
static const kt_json *whole(const char *body, kt_json_doc **doc) {
    kt_reply r = chat(body);
    const kt_json *root;

    cr_assert_eq(r.status, 200, "%s: %d %s", body, r.status, r.body);
    root = fake_parse(&r, doc);
    kt_reply_free(&r);
    return root;
}

static const kt_json *choice_of(const kt_json *root, size_t i) {
    return kt_json_at(kt_json_get(root, "choices"), i);
}

/* ---- whole answers ---- */

Test(chat_api, answers_in_the_form_of_the_api) {
    static const char *const members[] = {
        "id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"};
    kt_json_doc *doc;
    const kt_json *root, *choice, *message, *usage;

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    root = whole("{\"model\":\"fake\"," MESSAGES "}", &doc);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        cr_expect_not_null(kt_json_get(root, members[i]), "%s", members[i]);
    cr_expect_eq(strncmp(fake_text_at(root, "id"), "chatcmpl-", 9), 0);
    cr_expect_str_eq(fake_text_at(root, "object"), "chat.completion");
    choice = choice_of(root, 0);
    message = kt_json_get(choice, "message");
    cr_expect_str_eq(fake_text_at(message, "role"), "assistant");
    cr_expect_str_eq(fake_text_at(message, "content"), FAKE_TEXT);
    cr_expect_str_eq(fake_text_at(choice, "finish_reason"), "stop");
    /* what a validator of OpenAI's schema wants to be there, although null */
    cr_expect(kt_json_get(message, "refusal") && kt_json_get(choice, "logprobs"));
    cr_expect_null(kt_json_get(message, "tool_calls"));
    cr_expect_null(kt_json_get(message, "reasoning_content"));
    usage = kt_json_get(root, "usage");
    cr_expect_eq(kt_json_int(kt_json_get(usage, "completion_tokens"), 0),
                 (int64_t)fake.engine.n_script);
    cr_expect_eq(kt_json_int(kt_json_get(usage, "total_tokens"), 0),
                 kt_json_int(kt_json_get(usage, "prompt_tokens"), 0) +
                     (int64_t)fake.engine.n_script);
    cr_expect_eq(
        kt_json_int(kt_json_get(kt_json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1),
        0);
    kt_json_destroy(doc);
    fake_chat_stop();
}

Test(chat_api, reasoning_has_both_names_and_is_counted) {
    kt_json_doc *doc;
    const kt_json *root, *message;

    fake_chat_init("I think so.\n</think>\n\nYes.", "none", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 0);
    root = whole("{" MESSAGES "}", &doc);
    message = kt_json_get(choice_of(root, 0), "message");
    cr_expect_str_eq(fake_text_at(message, "content"), "Yes.");
    cr_expect_str_eq(fake_text_at(message, "reasoning_content"),
                     fake_text_at(message, "reasoning"));
    cr_expect_not_null(strstr(fake_text_at(message, "reasoning"), "I think so."));
    cr_expect_gt(kt_json_int(kt_json_get(kt_json_get(kt_json_get(root, "usage"),
                                                     "completion_tokens_details"),
                                         "reasoning_tokens"),
                             0),
                 2);
    kt_json_destroy(doc);
    root = whole("{" MESSAGES ",\"include_reasoning\":false}", &doc);
    cr_expect_null(kt_json_get(kt_json_get(choice_of(root, 0), "message"), "reasoning"));
    kt_json_destroy(doc);
    fake_chat_stop();
}

Test(chat_api, tool_calls_are_taken_out_of_the_text) {
    kt_json_doc *doc;
    const kt_json *root, *message, *call;

    fake_chat_init("Let me see." CALL "\n" CALL, "hermes", "none");
    fake_start(NULL, 0);
    root = whole("{" MESSAGES "," TOOLS "}", &doc);
    message = kt_json_get(choice_of(root, 0), "message");
    cr_expect_str_eq(fake_text_at(message, "content"), "Let me see.");
    cr_expect_eq(kt_json_length(kt_json_get(message, "tool_calls")), 2);
    call = kt_json_at(kt_json_get(message, "tool_calls"), 0);
    cr_expect_str_eq(fake_text_at(call, "type"), "function");
    cr_expect_neq(*fake_text_at(call, "id"), '\0');
    cr_expect_str_eq(fake_text_at(kt_json_get(call, "function"), "name"), "get_weather");
    cr_expect_str_eq(fake_text_at(kt_json_get(call, "function"), "arguments"),
                     "{\"city\": \"Paris\"}");
    cr_expect_str_eq(fake_text_at(choice_of(root, 0), "finish_reason"), "tool_calls");
    kt_json_destroy(doc);
    /* one is enough */
    root = whole("{" MESSAGES "," TOOLS ",\"parallel_tool_calls\":false}", &doc);
    message = kt_json_get(choice_of(root, 0), "message");
    cr_expect_eq(kt_json_length(kt_json_get(message, "tool_calls")), 1);
    cr_expect_str_eq(fake_text_at(choice_of(root, 0), "finish_reason"), "tool_calls");
    kt_json_destroy(doc);
    /* without tools, or with tool_choice none, it is text */
    root = whole("{" MESSAGES "," TOOLS ",\"tool_choice\":\"none\"}", &doc);
    message = kt_json_get(choice_of(root, 0), "message");
    cr_expect_null(kt_json_get(message, "tool_calls"));
    cr_expect_not_null(strstr(fake_text_at(message, "content"), "get_weather"));
    cr_expect_str_eq(fake_text_at(choice_of(root, 0), "finish_reason"), "stop");
    kt_json_destroy(doc);
    fake_chat_stop();
}

Test(chat_api, choices_lengths_and_stops) {
    kt_json_doc *doc;
    const kt_json *root;

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    root = whole("{" MESSAGES ",\"n\":3,\"max_tokens\":9,\"max_completion_tokens\":2}", &doc);
    cr_expect_eq(kt_json_length(kt_json_get(root, "choices")), 3);
    for (size_t i = 0; i < 3; i++) {
        cr_expect_eq(kt_json_int(kt_json_get(choice_of(root, i), "index"), -1), (int64_t)i);
        cr_expect_str_eq(fake_text_at(choice_of(root, i), "finish_reason"), "length");
    }
    cr_expect_eq(kt_json_int(kt_json_get(kt_json_get(root, "usage"), "completion_tokens"), 0), 6);
    kt_json_destroy(doc);
    root = whole("{" MESSAGES ",\"stop\":[\"nowhere\",\"that is\"]}", &doc);
    cr_expect_str_eq(fake_text_at(kt_json_get(choice_of(root, 0), "message"), "content"),
                     "To be, or not to be: ");
    cr_expect_str_eq(fake_text_at(choice_of(root, 0), "finish_reason"), "stop");
    cr_expect_str_eq(fake_text_at(choice_of(root, 0), "stop_reason"), "that is");
    kt_json_destroy(doc);
    fake_chat_stop();
}

/* Token ids in play: the first of the script stops, is forbidden, or must not end the answer yet.
 */
Test(chat_api, tokens_can_stop_be_forbidden_and_be_kept_from_ending) {
    char body[300];
    kt_json_doc *doc;
    const kt_json *root;
    int32_t first;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    first = fake.engine.script[0];
    snprintf(body, sizeof body, "{" MESSAGES ",\"stop_token_ids\":[%d]}", first);
    root = whole(body, &doc);
    cr_expect_str_eq(fake_text_at(kt_json_get(choice_of(root, 0), "message"), "content"), "");
    cr_expect_eq(kt_json_int(kt_json_get(choice_of(root, 0), "stop_reason"), -1), first);
    kt_json_destroy(doc);
    for (int form = 0; form < 3; form++) {
        static const char *const forms[] = {"{\"%d\":-100}", "[[%d,false]]", "[[\"To\",-100]]"};
        char bias[40];
        snprintf(bias, sizeof bias, forms[form], first);
        snprintf(body, sizeof body, "{" MESSAGES ",\"temperature\":0,\"logit_bias\":%s}", bias);
        root = whole(body, &doc);
        cr_expect_neq(strncmp(fake_text_at(kt_json_get(choice_of(root, 0), "message"), "content"),
                              "To be", 5),
                      0);
        kt_json_destroy(doc);
    }
    root = whole("{" MESSAGES ",\"temperature\":0,\"min_tokens\":20,\"max_tokens\":30}", &doc);
    cr_expect_geq(kt_json_int(kt_json_get(kt_json_get(root, "usage"), "completion_tokens"), 0), 20);
    kt_json_destroy(doc);
    fake_chat_stop();
}

Test(chat_api, logprobs_are_in_the_form_of_chat) {
    kt_json_doc *doc;
    const kt_json *content, *token;

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    content = kt_json_get(
        kt_json_get(choice_of(whole("{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":2,"
                                    "\"max_tokens\":3}",
                                    &doc),
                              0),
                    "logprobs"),
        "content");
    cr_assert_eq(kt_json_length(content), 3);
    token = kt_json_at(content, 0);
    cr_expect_str_eq(fake_text_at(token, "token"), "To");
    cr_expect_eq(kt_json_int(kt_json_at(kt_json_get(token, "bytes"), 0), 0), 'T');
    cr_expect_gt(kt_json_double(kt_json_get(token, "logprob"), -1), -1e-6);
    cr_expect_eq(kt_json_length(kt_json_get(token, "top_logprobs")), 2);
    cr_expect_str_eq(fake_text_at(kt_json_at(kt_json_get(token, "top_logprobs"), 0), "token"),
                     "To");
    kt_json_destroy(doc);
    fake_chat_stop();
}

/* ---- streams ---- */

/* The stream with what changes from run to run replaced: id, created, fingerprint, call ids, times.
 */
static char *stream(const char *body) {
    static const char *const cut[] = {"\"id\":\"", "\"created\":", "\"system_fingerprint\":\"",
                                      "\"timings\":{"};
    kt_reply r = chat(body);
    char *out, *to;

    cr_assert_eq(r.status, 200, "%s: %d %s", body, r.status, r.body);
    cr_expect_not_null(strcasestr(r.headers, "content-type: text/event-stream"));
    out = to = malloc(r.body_size + 1);
    for (const char *at = r.body; *at;) {
        size_t k = 0;
        while (k < 4 && strncmp(at, cut[k], strlen(cut[k])) != 0) k++;
        if (k < 4) {
            to = stpcpy(to, cut[k]);
            at += strlen(cut[k]);
            at += strcspn(at, k == 1 ? "," : k == 3 ? "}" : "\"");
            continue;
        }
        *to++ = *at++;
    }
    *to = '\0';
    kt_reply_free(&r);
    return out;
}

#define HEAD                                                                                   \
    "data: {\"id\":\"\",\"object\":\"chat.completion.chunk\",\"created\":,\"model\":\"fake\"," \
    "\"system_fingerprint\":\"\",\"choices\":["
#define CHUNK(i, delta, finish)                                                              \
    HEAD "{\"index\":" #i ",\"delta\":" delta ",\"logprobs\":null,\"finish_reason\":" finish \
         "}]}\n\n"
#define ROLE CHUNK(0, "{\"role\":\"assistant\",\"content\":null}", "null")
#define DONE "data: [DONE]\n\n"

static void expect_stream(const char *body, const char *wanted) {
    char *got = stream(body);

    cr_expect_str_eq(got, wanted, "%s\n--- got\n%s\n--- wanted\n%s", body, got, wanted);
    free(got);
}

Test(chat_api, a_stream_has_the_exact_form) {
    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_stream("{\"stream\":true," MESSAGES "}",
                  ROLE CHUNK(0, "{\"content\":\"To\"}", "null")
                      CHUNK(0, "{\"content\":\" be\"}", "null")
                          CHUNK(0, "{}", "\"stop\",\"stop_reason\":null") DONE);
    expect_stream("{\"stream\":true,\"max_tokens\":1," MESSAGES "}",
                  ROLE CHUNK(0, "{\"content\":\"To\"}", "null")
                      CHUNK(0, "{}", "\"length\",\"stop_reason\":null") DONE);
    expect_stream("{\"stream\":true,\"max_tokens\":0," MESSAGES "}",
                  ROLE CHUNK(0, "{}", "\"length\",\"stop_reason\":null") DONE);
    fake_chat_stop();
    fake_chat_init("", "none", "none"); /* the end token comes first */
    fake_start(NULL, 0);
    expect_stream("{\"stream\":true," MESSAGES "}",
                  ROLE CHUNK(0, "{}", "\"stop\",\"stop_reason\":null") DONE);
    fake_chat_stop();
}

Test(chat_api, usage_comes_last_when_asked_for) {
    char *got, *usage;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    got = stream("{\"stream\":true,\"stream_options\":{\"include_usage\":true}," MESSAGES "}");
    cr_expect_not_null(strstr(got, "\"finish_reason\":null}],\"usage\":null}\n\n"), "%s", got);
    usage = strstr(got, "\"choices\":[],\"usage\":{\"prompt_tokens\":");
    cr_expect_not_null(usage, "%s", got);
    cr_expect(usage && strstr(usage, "\"timings\":{}}\n\ndata: [DONE]\n\n"), "%s", got);
    free(got);
    got = stream("{\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}," MESSAGES
                 "}");
    cr_expect_not_null(strstr(got, "\"completion_tokens\":1,"), "%s", got);
    cr_expect_null(strstr(got, "\"choices\":[]"), "%s", got);
    free(got);
    fake_chat_stop();
}

Test(chat_api, tool_calls_stream_as_fragments) {
    char *got, *first;

    fake_chat_init(CALL, "hermes", "none");
    fake_start(NULL, 0);
    got = stream("{\"stream\":true," TOOLS "," MESSAGES "}");
    first = strstr(got, "{\"tool_calls\":[{\"index\":0,\"id\":\"\",\"type\":\"function\","
                        "\"function\":{\"name\":\"get_weather\",\"arguments\":\"\"}}]}");
    cr_expect_not_null(first, "%s", got);
    cr_expect(first &&
                  strstr(first, "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\""),
              "%s", got);
    cr_expect_not_null(
        strstr(got, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\""), "%s", got);
    cr_expect_null(strstr(got, "\"content\":\""), "no text: %s", got);
    free(got);
    fake_chat_stop();
}

Test(chat_api, choices_and_logprobs_stream_side_by_side) {
    char *got;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    got = stream("{\"stream\":true,\"n\":2,\"logprobs\":true,\"max_tokens\":2," MESSAGES "}");
    for (int i = 0; i < 2; i++) {
        char role[120];
        snprintf(role, sizeof role,
                 "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":null},\"logprobs\":"
                 "null",
                 i);
        cr_expect_not_null(strstr(got, role), "%s", got);
    }
    cr_expect_not_null(strstr(got, "{\"content\":\"To\"},\"logprobs\":{\"content\":[{\"token\":"
                                   "\"To\",\"logprob\":"),
                       "%s", got);
    free(got);
    got = stream("{\"stream\":true,\"return_progress\":true," MESSAGES "}");
    cr_expect_not_null(strstr(got, "\"choices\":[],\"prompt_progress\":{\"total\":"), "%s", got);
    free(got);
    fake_chat_stop();
}

/* ---- grammars ---- */

/* The model would say prose; the form is kept all the same. */
Test(chat_api, answers_keep_the_form_that_was_asked_for) {
    static const char *const bodies[] = {
        "{\"max_tokens\":300,\"temperature\":0,\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"name\":\"x\",\"schema\":{\"enum\":[\"red\",\"blue\"]}}}," MESSAGES "}",
        "{\"max_tokens\":300,\"temperature\":0,\"json_schema\":{\"enum\":[\"red\",\"blue\"]}"
        "," MESSAGES "}",
        "{\"max_tokens\":300,\"temperature\":0,\"grammar\":\"root ::= "
        "\\\"\\\\\\\"red\\\\\\\"\\\"\"," MESSAGES "}"};
    kt_json_doc *doc;
    const kt_json *root;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        const char *text;
        root = whole(bodies[i], &doc);
        text = fake_text_at(kt_json_get(choice_of(root, 0), "message"), "content");
        cr_expect(!strcmp(text, "\"red\"") || !strcmp(text, "\"blue\""), "%s: '%s'", bodies[i],
                  text);
        cr_expect_str_eq(fake_text_at(choice_of(root, 0), "finish_reason"), "stop");
        kt_json_destroy(doc);
    }
    fake_chat_stop();
}

/* The model would say prose; it calls all the same, and what was named. */
Test(chat_api, calls_can_be_forced) {
    static const char tools[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\":{\"enum\":[1]}},\"required\":[\"a\"],"
        "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"g\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}}}]";
    static const char *const choices[] = {"\"required\"",
                                          "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"};
    kt_json_doc *doc, *arguments;
    char body[1000];

    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (int i = 0; i < 2; i++) {
        const kt_json *message, *function;
        const char *text;
        snprintf(body, sizeof body,
                 "{\"temperature\":0,\"max_tokens\":400,\"parallel_tool_calls\":false,"
                 "\"tool_choice\":%s,%s," MESSAGES "}",
                 choices[i], tools);
        message = kt_json_get(choice_of(whole(body, &doc), 0), "message");
        cr_assert_eq(kt_json_length(kt_json_get(message, "tool_calls")), 1);
        function = kt_json_get(kt_json_at(kt_json_get(message, "tool_calls"), 0), "function");
        if (i == 1) cr_expect_str_eq(fake_text_at(function, "name"), "f");
        text = fake_text_at(function, "arguments");
        cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &arguments, NULL), KT_OK, "%s", text);
        cr_expect_eq(kt_json_int(kt_json_get(kt_json_root(arguments), "a"), 1), 1);
        kt_json_destroy(arguments);
        kt_json_destroy(doc);
    }
    fake_chat_stop();
}

/* ---- what is refused ---- */

Test(chat_api, wrong_requests_are_refused_by_name) {
    static const struct {
        const char *body;
        int status;
        const char *code, *param, *says;
    } cases[] = {
        {"{}", 400, "invalid_type", "messages", "missing"},
        {"[]", 400, "invalid_type", "", "object"},
        {"{\"messages\":[]}", 400, "invalid_value", "messages", "empty"},
        {"{\"messages\":\"Hi\"}", 400, "invalid_type", "messages", "a string"},
        {"{\"messages\":[{\"role\":\"user\"}]}", 400, "invalid_value", "messages",
         "messages[0].content"},
        {"{\"model\":\"other\"," MESSAGES "}", 404, "model_not_found", "model", "other"},
        {"{\"n\":0," MESSAGES "}", 400, "invalid_value", "n", "0"},
        {"{\"n\":129," MESSAGES "}", 400, "invalid_value", "n", "129"},
        {"{\"temperature\":\"a\"," MESSAGES "}", 400, "invalid_type", "temperature", "a string"},
        {"{\"top_logprobs\":2," MESSAGES "}", 400, "invalid_value", "top_logprobs", "'logprobs'"},
        {"{\"top_logprobs\":21," MESSAGES "}", 400, "invalid_value", "top_logprobs", "21"},
        {"{\"logprobs\":3," MESSAGES "}", 400, "invalid_type", "logprobs", "a number"},
        {"{\"max_tokens\":-2," MESSAGES "}", 400, "invalid_value", "max_tokens", "-2"},
        {"{\"min_tokens\":5,\"max_tokens\":4," MESSAGES "}", 400, "invalid_value", "min_tokens",
         "5"},
        {"{\"stop\":[\"\"]," MESSAGES "}", 400, "invalid_value", "stop[0]", "0 bytes"},
        {"{\"stop_token_ids\":[4096]," MESSAGES "}", 400, "invalid_value", "stop_token_ids",
         "4095"},
        {"{\"logit_bias\":{\"x\":1}," MESSAGES "}", 400, "invalid_value", "logit_bias", "key"},
        {"{\"logit_bias\":{\"1\":101}," MESSAGES "}", 400, "invalid_value", "logit_bias", "100"},
        {"{\"logit_bias\":[[\"To\",true]]," MESSAGES "}", 400, "invalid_type", "logit_bias[To]",
         "a boolean"},
        {"{\"logit_bias\":[[5,1,2]]," MESSAGES "}", 400, "invalid_type", "logit_bias", "pairs"},
        {"{\"logit_bias\":3," MESSAGES "}", 400, "invalid_type", "logit_bias", "a number"},
        {"{\"tools\":{}," MESSAGES "}", 400, "invalid_type", "tools", "an object"},
        {"{\"tools\":[{\"type\":\"web\"}]," MESSAGES "}", 400, "invalid_value", "tools[0]", "web"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{}}]," MESSAGES "}", 400, "invalid_type",
         "tools[0].function.name", "missing"},
        {"{\"tool_choice\":\"required\"," MESSAGES "}", 400, "invalid_value", "tool_choice",
         "no 'tools'"},
        {"{\"tool_choice\":\"maybe\"," TOOLS "," MESSAGES "}", 400, "invalid_value", "tool_choice",
         "maybe"},
        {"{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}," TOOLS
         "," MESSAGES "}",
         400, "invalid_value", "tool_choice", "'f'"},
        {"{\"response_format\":{\"type\":\"xml\"}," MESSAGES "}", 400, "invalid_value",
         "response_format", "xml"},
        {"{\"response_format\":{\"type\":\"json_schema\"}," MESSAGES "}", 400, "invalid_type",
         "response_format.json_schema.schema", "missing"},
        {"{\"response_format\":{\"type\":\"json_object\"},\"grammar\":\"root ::= "
         "\\\"a\\\"\"," MESSAGES "}",
         400, "invalid_value", "response_format", "only one"},
        {"{\"grammar\":\"root ::= (\"," MESSAGES "}", 400, "invalid_value", "grammar", "1:"},
        {"{\"response_format\":{\"type\":\"json_object\"}," TOOLS "," MESSAGES "}", 400,
         "invalid_value", "response_format", "'tools'"},
        {"{\"continue_final_message\":true,\"add_generation_prompt\":true," MESSAGES "}", 400,
         "invalid_value", "continue_final_message", "exclude"},
        {"{\"chat_template_kwargs\":[]," MESSAGES "}", 400, "invalid_type", "chat_template_kwargs",
         "an array"},
        {"{\"functions\":[{}]," MESSAGES "}", 400, "unsupported_parameter", "functions", "'tools'"},
        {"{\"mirostat\":2," MESSAGES "}", 400, "unsupported_parameter", "mirostat", "mirostat"},
        {"{\"typical_p\":0.5," MESSAGES "}", 400, "unsupported_parameter", "typical_p",
         "typical_p"},
        {"{\"skip_special_tokens\":false," MESSAGES "}", 400, "unsupported_parameter",
         "skip_special_tokens", "skip"},
        {"{\"modalities\":[\"text\",\"audio\"]," MESSAGES "}", 400, "unsupported_parameter",
         "modalities", "text"},
        {"{\"best_of\":2," MESSAGES "}", 400, "unsupported_parameter", "best_of", "'n'"},
    };
    fake_chat_init(FAKE_TEXT, "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        fake_check_error(chat(cases[i].body), cases[i].status, cases[i].code, cases[i].param,
                         cases[i].says);
    /* names that nobody knows, labels, and what is switched off are no errors */
    kt_reply r =
        chat("{\"max_tokens\":1,\"flavour\":7,\"user\":\"u\",\"metadata\":{},\"store\":true,"
             "\"mirostat\":0,\"typical_p\":1,\"functions\":[],\"tools\":[],\"stop\":null,"
             "\"tool_choice\":\"none\",\"modalities\":[\"text\"],\"logit_bias\":{},"
             "\"response_format\":{\"type\":\"text\"},\"reasoning_effort\":\"low\"," MESSAGES "}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(chat_api, a_conversation_that_does_not_fit_is_refused_with_numbers) {
    char *body = malloc(20000), *at = body + sprintf(body, "{\"messages\":[{\"role\":\"user\","
                                                           "\"content\":\"");

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    for (int i = 0; i < 3000; i++) at += sprintf(at, " a b");
    strcpy(at, "\"}]}");
    fake_check_error(chat(body), 400, "context_length_exceeded", "messages", "2048 tokens");
    free(body);
    fake_chat_stop();
}

/* 128 choices with 20 alternatives a token would gather hundreds of megabytes. */
Test(chat_api, an_answer_that_could_be_too_large_is_refused) {
    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    fake_check_error(chat("{\"n\":128,\"logprobs\":true,\"top_logprobs\":20," MESSAGES "}"), 400,
                     "answer_too_large", "n", "64");
    fake_chat_stop();
}

Test(chat_api, without_a_template_there_is_none) {
    fake_start(NULL, 0);
    fake_check_error(chat("{" MESSAGES "}"), 400, "no_chat_template", "", "--chat-template");
    fake_check_error(kt_send_request(fake.port, "POST", "/apply-template", "", "{" MESSAGES "}"),
                     400, "no_chat_template", "", "--chat-template");
    fake_stop();
}

Test(chat_api, the_template_can_be_seen) {
    static const struct {
        const char *body, *prompt;
    } cases[] = {
        {"{" MESSAGES "}", "{\"prompt\":\"user: Hi\\nassistant:\"}"},
        {"{\"add_generation_prompt\":false," MESSAGES "}", "{\"prompt\":\"user: Hi\\n\"}"},
        {"{\"enable_thinking\":false," MESSAGES "}",
         "{\"prompt\":\"user: Hi\\nthinking: 0\\nassistant:\"}"},
    };
    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r = kt_send_request(fake.port, "POST", "/apply-template", "", cases[i].body);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(r.body, cases[i].prompt, "%s", r.body);
        kt_reply_free(&r);
    }
    fake_chat_stop();
}

/* A stream begins when it is accepted: its client sees signs of life while it waits for others. */
Test(chat_api, a_waiting_stream_gives_signs_of_life) {
    char text[4096];

    fake_chat_wait("/v1/chat/completions", "{\"stream\":true," MESSAGES "}", ":\n\n", text,
                   sizeof text);
    cr_expect_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0, "%s", text);
}
