/* The server over plain sockets, with an engine that says a fixed text.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/runtime/fake_server.h"

static char *choice_text(kt_reply r, const char **finish) {
    kt_json_doc *doc;
    const kt_json *root, *choice;
    char *text;

    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    root = fake_parse(&r, &doc);
    choice = kt_json_at(kt_json_get(root, "choices"), 0);
    text = strdup(fake_text_at(choice, "text"));
    if (finish) {
        *finish = strcmp(fake_text_at(choice, "finish_reason"), "stop") == 0     ? "stop"
                  : strcmp(fake_text_at(choice, "finish_reason"), "length") == 0 ? "length"
                                                                                 : "other";
    }
    kt_json_destroy(doc);
    kt_reply_free(&r);
    return text;
}

/* ---- plain answers ---- */

Test(server, answers_in_the_form_of_the_api) {
    kt_json_doc *doc;
    const kt_json *root, *choice, *usage;
    kt_reply r;

    fake_start(NULL, 0);
    r = kt_complete(fake.port,
                    "{\"model\":\"fake\",\"prompt\":\"In that day shall\",\"max_tokens\":5}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_not_null(strcasestr(r.headers, "content-type: application/json"));
    cr_assert_not_null(strcasestr(r.headers, "x-request-id:"));
    cr_assert_null(strcasestr(r.headers, "access-control-allow-origin")); /* no page asked */
    cr_assert_not_null(strcasestr(r.headers, "\r\ndate: "));
    root = fake_parse(&r, &doc);
    cr_assert_str_eq(fake_text_at(root, "object"), "text_completion");
    cr_assert_str_eq(fake_text_at(root, "model"), "fake");
    cr_assert_str_eq(fake_text_at(root, "system_fingerprint"), "fp_fake");
    cr_assert_eq(strncmp(fake_text_at(root, "id"), "cmpl-", 5), 0);
    cr_assert_leq(llabs(kt_json_int(kt_json_get(root, "created"), 0) - kt_clock_unix_ms() / 1000),
                  2);
    choice = kt_json_at(kt_json_get(root, "choices"), 0);
    cr_assert_eq(kt_json_length(kt_json_get(root, "choices")), 1);
    cr_assert_eq(kt_json_int(kt_json_get(choice, "index"), -1), 0);
    cr_assert_eq(
        strncmp(FAKE_TEXT, fake_text_at(choice, "text"), strlen(fake_text_at(choice, "text"))), 0);
    cr_assert_str_eq(fake_text_at(choice, "finish_reason"), "length");
    cr_assert_not_null(kt_json_get(choice, "logprobs"));
    usage = kt_json_get(root, "usage");
    cr_assert_eq(kt_json_int(kt_json_get(usage, "prompt_tokens"), 0), 4);
    cr_assert_eq(kt_json_int(kt_json_get(usage, "completion_tokens"), 0), 5);
    cr_assert_eq(kt_json_int(kt_json_get(usage, "total_tokens"), 0), 9);
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_stop();
}

Test(server, ends_at_the_end_token) {
    const char *finish;
    char *text;

    fake_start(NULL, 0);
    text = choice_text(kt_complete(fake.port, "{\"prompt\":[1,2,3],\"max_tokens\":1000}"), &finish);
    cr_assert_str_eq(text, FAKE_TEXT);
    cr_assert_str_eq(finish, "stop");
    free(text);
    fake_stop();
}

Test(server, lists_its_model) {
    kt_reply r;
    kt_json_doc *doc;
    const kt_json *model;

    fake_start(NULL, 0);
    for (int bare = 0; bare < 2; bare++) {
        r = kt_send_request(fake.port, "GET", bare ? "/models" : "/v1/models", "", NULL);
        model = kt_json_at(kt_json_get(fake_parse(&r, &doc), "data"), 0);
        cr_assert_str_eq(fake_text_at(model, "id"), "fake");
        cr_assert_str_eq(fake_text_at(model, "object"), "model");
        kt_json_destroy(doc);
        kt_reply_free(&r);
    }
    r = kt_send_request(fake.port, "GET", "/v1/models/fake", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_str_eq(fake_text_at(fake_parse(&r, &doc), "id"), "fake");
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_check_error(kt_send_request(fake.port, "GET", "/v1/models/other", "", NULL), 404,
                     "model_not_found", "model", "other");
    fake_stop();
}

Test(server, health_head_and_options) {
    kt_reply r;

    fake_start(NULL, 0);
    r = kt_send_request(fake.port, "GET", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_not_null(strstr(r.body, "\"status\":\"ok\""), "%s", r.body);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "HEAD", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_eq(r.body_size, 0);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "OPTIONS", "/v1/completions",
                        "Origin: http://localhost:3000\r\n", NULL);
    cr_assert_eq(r.status, 204);
    cr_assert_not_null(strcasestr(r.headers, "access-control-allow-methods: POST, OPTIONS\r\n"));
    cr_assert_not_null(
        strcasestr(r.headers, "access-control-allow-origin: http://localhost:3000\r\n"));
    cr_assert_not_null(strcasestr(r.headers, "authorization"));
    kt_reply_free(&r);
    fake_stop();
}

/* ---- requests that are wrong ---- */

Test(server, wrong_requests_are_refused_by_name) {
    static const struct {
        const char *body;
        int status;
        const char *code, *param, *says;
    } cases[] = {
        {"", 400, "invalid_json", "", "JSON"},
        {"{", 400, "invalid_json", "", "1:2"},
        {"{\"prompt\":\"a\"}}", 400, "invalid_json", "", "JSON"},
        {"{\"prompt\":\"\xff\"}", 400, "invalid_json", "", "UTF-8"},
        {"{\"prompt\":\"\\ud800\"}", 400, "invalid_json", "", "surrogate"},
        {"[]", 400, "invalid_type", "", "array"},
        {"null", 400, "invalid_type", "", "null"},
        {"{}", 400, "invalid_type", "prompt", "missing"},
        {"{\"prompt\":null}", 400, "invalid_type", "prompt", "missing"},
        {"{\"prompt\":4}", 400, "invalid_type", "prompt", "a number"},
        {"{\"prompt\":{}}", 400, "invalid_type", "prompt", "an object"},
        {"{\"prompt\":\"\"}", 400, "invalid_value", "prompt", "empty"},
        {"{\"prompt\":[]}", 400, "invalid_value", "prompt", "empty"},
        {"{\"prompt\":[\"a\",\"\"]}", 400, "invalid_value", "prompt[1]", "empty"},
        {"{\"prompt\":[\"a\",1]}", 400, "invalid_type", "prompt[1]", "a number"},
        {"{\"prompt\":[1,\"a\"]}", 400, "invalid_type", "prompt[1]", "a string"},
        {"{\"prompt\":[1,4096]}", 400, "invalid_value", "prompt", "4096"},
        {"{\"prompt\":[-1]}", 400, "invalid_value", "prompt", "-1"},
        {"{\"prompt\":[1.5]}", 400, "invalid_value", "prompt", "1.5"},
        {"{\"prompt\":[99999999999999999999]}", 400, "invalid_value", "prompt", "token id"},
        {"{\"prompt\":\"a\",\"model\":\"other\"}", 404, "model_not_found", "model", "other"},
        {"{\"prompt\":\"a\",\"model\":7}", 400, "invalid_type", "model", "a number"},
        {"{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400, "invalid_type", "temperature",
         "a string, expected a number from 0 to 2"},
        {"{\"prompt\":\"a\",\"temperature\":3}", 400, "invalid_value", "temperature", "3"},
        {"{\"prompt\":\"a\",\"temperature\":-0.1}", 400, "invalid_value", "temperature", "-0.1"},
        {"{\"prompt\":\"a\",\"temperature\":1e999}", 400, "invalid_value", "temperature", "1e999"},
        {"{\"prompt\":\"a\",\"top_p\":1.5}", 400, "invalid_value", "top_p", "1.5"},
        {"{\"prompt\":\"a\",\"top_k\":2.5}", 400, "invalid_value", "top_k", "2.5"},
        {"{\"prompt\":\"a\",\"min_p\":[]}", 400, "invalid_type", "min_p", "an array"},
        {"{\"prompt\":\"a\",\"seed\":\"x\"}", 400, "invalid_type", "seed", "a string"},
        {"{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "invalid_value", "max_tokens", "-1"},
        {"{\"prompt\":\"a\",\"max_tokens\":\"5\"}", 400, "invalid_type", "max_tokens", "a string"},
        {"{\"prompt\":\"a\",\"max_tokens\":true}", 400, "invalid_type", "max_tokens", "a boolean"},
        {"{\"prompt\":\"a\",\"stream\":1}", 400, "invalid_type", "stream", "a number"},
        {"{\"prompt\":\"a\",\"stream_options\":1}", 400, "invalid_type", "stream_options",
         "an object"},
        {"{\"prompt\":\"a\",\"stop\":1}", 400, "invalid_type", "stop", "a string or an array"},
        {"{\"prompt\":\"a\",\"stop\":\"\"}", 400, "invalid_value", "stop", "0 bytes"},
        {"{\"prompt\":\"a\",\"stop\":[\"x\",null]}", 400, "invalid_type", "stop[1]", "null"},
        {"{\"prompt\":\"a\",\"n\":0}", 400, "invalid_value", "n", "0"},
        {"{\"prompt\":[\"a\",\"b\"],\"n\":100}", 400, "invalid_value", "prompt", "too many"},
        {"{\"prompt\":\"a\",\"best_of\":3}", 400, "unsupported_parameter", "best_of", "best_of"},
        {"{\"prompt\":\"a\",\"logit_bias\":[5]}", 400, "invalid_type", "logit_bias", "an array"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"5\":-101}}", 400, "invalid_value", "logit_bias",
         "-101"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"4096\":1}}", 400, "invalid_value", "logit_bias",
         "expected a token id from 0 to 4095"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", 400, "invalid_value", "logit_bias", "[x]"},
        {"{\"prompt\":\"a\",\"stop_token_ids\":5}", 400, "invalid_type", "stop_token_ids",
         "a number"},
        {"{\"prompt\":\"a\",\"stop_token_ids\":[5,4096]}", 400, "invalid_value", "stop_token_ids",
         "[1]' is 4096"},
        {"{\"prompt\":\"a\",\"min_tokens\":17}", 400, "invalid_value", "min_tokens", "16"},
        {"{\"prompt\":\"a\",\"max_tokens\":3,\"max_completion_tokens\":4}", 400, "invalid_value",
         "max_completion_tokens", "3"},
        {"{\"prompt\":\"a\",\"suffix\":\"x\"}", 400, "unsupported_parameter", "suffix", "suffix"},
        {"{\"prompt\":\"a\",\"logprobs\":99}", 400, "invalid_value", "logprobs", "99"},
        {"{\"prompt\":\"a\",\"presence_penalty\":3}", 400, "invalid_value", "presence_penalty",
         "3"},
        {"{\"prompt\":\"a\",\"foo\":[1]}", 400, "unknown_parameter", "foo", "not a parameter"},
        {"{\"prompt\":\"a\",\"max_token\":5}", 400, "unknown_parameter", "max_token",
         "'max_token'"},
        {"{\"prompt\":\"a\",\"n_predict\":5}", 400, "unsupported_parameter", "n_predict",
         "expected 'max_tokens'"},
    };
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_check_error(kt_complete(fake.port, cases[i].body), cases[i].status, cases[i].code,
                         cases[i].param, cases[i].says);
    }
    /* it lives on, and does not mind labels and what is switched off */
    char *text = choice_text(
        kt_complete(fake.port,
                    "{\"prompt\":\"a\",\"user\":\"u\",\"foo\":null,\"metadata\":{\"a\":1},"
                    "\"store\":true,\"response_format\":{\"type\":\"text\"},\"tools\":[],"
                    "\"tool_choice\":\"none\",\"grammar\":\"\",\"mirostat\":0,"
                    "\"typical_p\":1.0,\"use_beam_search\":false,"
                    "\"suffix\":null,\"logit_bias\":{},\"stop\":null,\"seed\":1,"
                    "\"best_of\":1,\"max_tokens\":0}"),
        NULL);
    cr_assert_str_eq(text, "");
    free(text);
    fake_stop();
}

/* What OpenAI's and llama-server's clients send and is not built yet: one that obeyed would answer
 * otherwise. */
Test(server, what_is_not_built_is_refused_and_never_ignored) {
    static const struct {
        const char *name, *value;
    } cases[] = {{"tools", "[{\"type\":\"function\"}]"},
                 {"tool_choice", "\"required\""},
                 {"tool_choice", "\"auto\""},
                 {"functions", "[{}]"},
                 {"guided_json", "{\"type\":\"object\"}"},
                 {"mirostat", "2"},
                 {"typical_p", "0.5"},
                 {"repeat_penalty", "1.1"},
                 {"xtc_probability", "0.1"},
                 {"dry_multiplier", "0.8"},
                 {"use_beam_search", "true"},
                 {"messages", "[]"},
                 {"image_data", "[{\"data\":\"\"}]"},
                 {"reasoning_effort", "\"high\""}};
    char body[200], says[80];

    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"%s\":%s}", cases[i].name, cases[i].value);
        snprintf(says, sizeof says, "'%s' is not supported", cases[i].name);
        fake_check_error(kt_complete(fake.port, body), 400, "unsupported_parameter", cases[i].name,
                         says);
    }
    fake_stop();
}

Test(server, over_long_prompts_are_refused_with_numbers) {
    char *body = malloc(20000);
    size_t n = (size_t)sprintf(body, "{\"prompt\":[");

    fake_start(NULL, 0);
    for (int i = 0; i < 2048; i++) n += (size_t)sprintf(body + n, "%s7", i ? "," : "");
    sprintf(body + n, "]}");
    fake_check_error(kt_complete(fake.port, body), 400, "context_length_exceeded", "prompt",
                     "2048 tokens");
    /* one token less fits, with room for one */
    memmove(body + 11, body + 13, strlen(body + 13) + 1);
    kt_reply r = kt_complete(fake.port, body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_not_null(strstr(r.body, "\"completion_tokens\":1,"), "%s", r.body);
    cr_assert_not_null(strstr(r.body, "\"finish_reason\":\"length\""), "%s", r.body);
    kt_reply_free(&r);
    free(body);
    fake_stop();
}

Test(server, unknown_urls_and_methods) {
    fake_start(NULL, 0);
    fake_check_error(kt_send_request(fake.port, "GET", "/nothing", "", NULL), 404, "unknown_url",
                     "", "/nothing");
    fake_check_error(kt_send_request(fake.port, "GET", "/v2/", "", NULL), 404, "unknown_url", "",
                     "/v2/");
    fake_check_error(kt_send_request(fake.port, "GET", "/v1/completions", "", NULL), 405,
                     "method_not_allowed", "", "GET");
    fake_check_error(kt_send_request(fake.port, "DELETE", "/v1/models", "", NULL), 405,
                     "method_not_allowed", "", "DELETE");
    fake_check_error(kt_send_request(fake.port, "POST", "/nothing", "", "{}"), 404, "unknown_url",
                     "", "POST");
    fake_stop();
}

Test(server, malformed_http_is_refused_and_survived) {
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"nonsense\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"GET /health\r\n\r\n", 400},
        {"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/2.0\r\n\r\n", 505},
        {"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nname : value\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\na: \x01\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1x\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "99999999999999999999999\r\n\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: "
         "3\r\n\r\n{}",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "2\r\nTransfer-Encoding: "
         "chunked\r\n\r\n{}",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
         501},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\nxyz\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\n2\r\n{}x",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\nffffffffffffffffff\r\n",
         400},
    };
    char *huge = malloc(200000);

    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_reply r = kt_raw(fake.port, cases[i].text, strlen(cases[i].text), false);
        cr_assert_eq(r.status, cases[i].status, "%s: %d %s", cases[i].text, r.status, r.body);
        cr_assert_not_null(strstr(r.body, "{\"error\":{\"message\":"), "%s", r.body);
        kt_reply_free(&r);
    }
    memset(huge, 'a', 200000);
    memcpy(huge, "GET /health HTTP/1.1\r\nHost: localhost\r\nx: ", 25);
    fake_check_error(kt_raw(fake.port, huge, 200000, false), 431, "headers_too_large", "",
                     "headers");
    free(huge);
    kt_reply r = kt_send_request(fake.port, "GET", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    fake_stop();
}

static long max_rss_kib(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

Test(server, a_hundred_megabytes_are_refused_without_being_kept, .timeout = 180) {
    const size_t total = (size_t)100 << 20, step = 1 << 20;
    char *block = malloc(step + 16), head[256];
    long before;

    fake_start(NULL, 0);
    memset(block, ' ', step + 16);
    before = max_rss_kib();
    cr_assert_gt(before, 0);
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = kt_dial(fake.port);
        if (chunked) {
            sprintf(head,
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n%zx\r\n",
                    total);
        } else {
            sprintf(
                head,
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                total);
        }
        kt_send_all(fd, head, strlen(head));
        for (size_t sent = 0; sent < total; sent += step) {
            if (!kt_send_all(fd, block, step)) break; /* it may close before all is sent */
        }
        fake_check_error(kt_read_reply(fd, NULL, NULL, false), 413, "request_too_large", "",
                         "body");
        close(fd);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which keep freed memory */
    /* a chunked body may be taken up to the limit of 32 MiB, doubling as it grows */
    cr_assert_lt(max_rss_kib() - before, 96 * 1024, "memory grew by %ld KiB",
                 max_rss_kib() - before);
#endif
    free(block);
    char *text = choice_text(kt_complete(fake.port, "{\"prompt\":\"a\",\"max_tokens\":1}"), NULL);
    free(text);
    fake_stop();
}

Test(server, expect_continue_is_answered) {
    static const char head[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n"
        "Expect: 100-continue\r\nConnection: close\r\n\r\n";
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\": 1}";
    char interim[26] = "";
    int fd;
    kt_reply r;

    cr_assert_eq(sizeof body - 1, 30);
    fake_start(NULL, 0);
    fd = kt_dial(fake.port);
    kt_send_all(fd, head, sizeof head - 1);
    cr_assert_eq(recv(fd, interim, 25, MSG_WAITALL), 25);
    cr_assert_str_eq(interim, "HTTP/1.1 100 Continue\r\n\r\n");
    kt_send_all(fd, body, sizeof body - 1);
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    close(fd);
    fake_stop();
}

Test(server, wants_its_key) {
    kt_http_options options = {.api_key = "other\n secret \n\n"};
    kt_reply r;

    fake_start(&options, 0);
    r = kt_send_request(fake.port, "GET", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "GET", "/v1/models", "", NULL);
    cr_assert_not_null(strstr(r.body, "\"type\":\"authentication_error\""), "%s", r.body);
    fake_check_error(r, 401, "invalid_api_key", "", "key");
    fake_check_error(
        kt_send_request(fake.port, "GET", "/v1/models", "Authorization: Bearer secre\r\n", NULL),
        401, "invalid_api_key", "", "key");
    fake_check_error(kt_send_request(fake.port, "GET", "/v1/models",
                                     "Authorization: Bearer secretsecret\r\n", NULL),
                     401, "invalid_api_key", "", "key");
    fake_check_error(kt_send_request(fake.port, "GET", "/v1/models", "X-Api-Key: \r\n", NULL), 401,
                     "invalid_api_key", "", "key");
    r = kt_send_request(fake.port, "GET", "/v1/models", "Authorization: Bearer secret\r\n", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "GET", "/v1/models", "X-API-Key: secret\r\n", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "GET", "/v1/models", "Authorization: bearer other\r\n", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    fake_stop();
}
