/* The chat of a real model's files behind the routes and an engine that says a fixed text: cases of
 * other servers' suites that need a template. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/chat_load.h"
#include "tests/runtime/fake_server.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"
#define CHAT "/v1/chat/completions"

static struct {
    fake_engine engine;
    kt_backend backend;
    kt_loaded_chat *chat;
} model;

/* model: a folder, or NULL: no template. */
static void load(const char *folder) {
    const kt_chat_source source = {.model = folder};
    const kt_parser_evidence evidence = {.tool_parser = "hermes"};
    kt_err err = {0};

    cr_assert(fake_init(&model.engine, &model.backend, TINY "/tokenizer.json"));
    cr_assert_eq(kt_loaded_chat_create(folder ? &source : NULL, &evidence, &model.backend,
                                       &model.chat, &err),
                 KT_OK, "%s", err.message);
}

static void start(const char *folder) {
    load(folder);
    fake.chat = kt_loaded_chat_model(model.chat);
    fake_start(NULL, 0);
}

static void stop(void) {
    fake_stop();
    kt_loaded_chat_destroy(model.chat);
    fake_deinit(&model.engine);
}

static kt_reply post(const char *path, const char *body) {
    return kt_send_request(fake.port, "POST", path, "", body);
}

static void expect_body(const char *path, const char *body, const char *wanted) {
    kt_reply r = post(path, body);

    cr_expect_eq(r.status, 200, "%s: %s", body, r.body);
    cr_expect_str_eq(r.body, wanted, "%s: %s", body, r.body);
    kt_reply_free(&r);
}

#define USER "{\"role\":\"user\",\"content\":\"Hey\"}"
#define PROMPT "<|im_start|>user\\nHey<|im_end|>\\n<|im_start|>assistant\\n"

Test(chat_load, invalid_messages_are_refused) {
    static const char *const messages[] = {
        "null",
        "\"string\"",
        "[123]",
        "[{}]",
        "[{\"role\":123}]",
        "[{\"role\":\"system\",\"content\":123}]",
        "[{\"role\":\"system\",\"content\":\"test\"},{}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"};
    char body[300];

    start(TINY);
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        kt_reply r;
        snprintf(body, sizeof body, "{\"messages\":%s}", messages[i]);
        r = post(CHAT, body);
        cr_expect_eq(r.status, 400, "%s: %d %s", body, r.status, r.body);
        cr_expect_not_null(strstr(r.body, "\"error\":{\"message\":\""), "%s", r.body);
        cr_expect_not_null(strstr(r.body, "messages"), "%s", r.body);
        kt_reply_free(&r);
    }
    stop();
}

/* Parts of text are one text, for both APIs. */
Test(chat_load, parts_are_joined) {
    start(TINY);
    expect_body("/apply-template",
                "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"What "
                "is\"},{\"type\":\"text\",\"text\":\"it\"}]}]}",
                "{\"prompt\":\"<|im_start|>user\\nWhat is\\nit<|im_end|>\\n<|im_start|>assistant\\n"
                "\"}");
    stop();
}

/* An answer that was begun is gone on with. */
Test(chat_load, a_prefill_is_left_open) {
    static const char *const contents[] = {"\"Whill\"", "[{\"type\":\"text\",\"text\":\"Whill\"}]"};
    char body[400];

    start(TINY);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":%s}],"
                 "\"continue_final_message\":true}",
                 contents[i]);
        expect_body("/apply-template", body, "{\"prompt\":\"" PROMPT "Whill\"}");
    }
    stop();
}

/* The tokens of both APIs' prompts are those of the same text. */
Test(chat_load, both_apis_make_the_same_prompt) {
    static const char prompt[] = "<|im_start|>user\nHey<|im_end|>\n<|im_start|>assistant\n";
    int32_t *ids = NULL;
    size_t n = 0;
    char count[60];
    kt_reply r;

    start(TINY);
    cr_assert_eq(
        kt_tokenizer_encode(fake.engine.tokenizer, prompt, strlen(prompt), true, &ids, &n, NULL),
        KT_OK);
    snprintf(count, sizeof count, "{\"input_tokens\":%zu}", n);
    expect_body("/v1/messages/count_tokens", "{\"messages\":[" USER "]}", count);
    r = post(CHAT, "{\"max_tokens\":1,\"messages\":[" USER "]}");
    snprintf(count, sizeof count, "\"usage\":{\"prompt_tokens\":%zu,", n);
    cr_expect_not_null(strstr(r.body, count), "%s lacks %s", r.body, count);
    kt_reply_free(&r);
    free(ids);
    stop();
}

/* Over-long streams are refused before they begin. */
Test(chat_load, a_stream_that_does_not_fit_is_an_error_with_status) {
    char *body = malloc(60000), *at = body + sprintf(body, "{\"stream\":true,\"messages\":[" USER);

    start(TINY);
    for (int i = 0; i < 400; i++) at += sprintf(at, "," USER);
    strcpy(at, "]}");
    fake_check_error(post(CHAT, body), 400, "context_length_exceeded", "messages",
                     "context is 2048 tokens");
    free(body);
    stop();
}

/* ---- streams ---- */

/* Calls `check` with each event of a stream and its number. */
static void each_event(const char *stream, void (*check)(const kt_json *event, int i)) {
    int i = 0;

    for (const char *at = stream; (at = strstr(at, "data: {")); i++) {
        kt_json_doc *doc;
        at += 6;
        cr_assert_eq(kt_json_parse(at, strcspn(at, "\n"), NULL, &doc, NULL), KT_OK, "%s", at);
        check(kt_json_root(doc), i);
        kt_json_destroy(doc);
    }
    cr_assert_gt(i, 2, "%s", stream);
}

static int n_with_timings;

static void check_timings(const kt_json *event, int i) {
    const kt_json *timings = kt_json_get(event, "timings");
    const int64_t n = kt_json_int(kt_json_get(timings, "predicted_n"), -1);

    cr_expect(i > 0 || !timings, "the first event tells the role");
    cr_expect(i == 0 || (n >= 1 && n <= 10), "event %d: %d", i, (int)n);
    cr_expect(!timings || kt_json_double(kt_json_get(timings, "predicted_per_second"), -1) > 0);
    n_with_timings += timings != NULL;
}

Test(chat_load, timings_come_with_every_token_when_wanted) {
    kt_reply r;

    start(TINY);
    r = post(CHAT, "{\"max_tokens\":10,\"stream\":true,\"timings_per_token\":true,"
                   "\"stream_options\":{\"include_usage\":true},\"messages\":[" USER "]}");
    each_event(r.body, check_timings);
    cr_expect_geq(n_with_timings, 8, "%s", r.body);
    kt_reply_free(&r);
    stop();
}

static int64_t progress_total, progress_done = -1;
static int n_progress;

static void check_progress(const kt_json *event, int i) {
    const kt_json *p = kt_json_get(event, "prompt_progress");
    const int64_t done = kt_json_int(kt_json_get(p, "processed"), -2);
    (void)i;

    if (!p) return;
    if (n_progress++ == 0) {
        progress_total = kt_json_int(kt_json_get(p, "total"), 0);
        cr_expect_eq(done, kt_json_int(kt_json_get(p, "cache"), -1), "the first is what is cached");
    }
    cr_expect_eq(kt_json_int(kt_json_get(p, "total"), 0), progress_total);
    cr_expect_gt(done, progress_done);
    progress_done = done;
}

/* Chunks of a long prompt are reported one by one, from what was cached to all of it. */
Test(chat_load, progress_goes_from_what_is_cached_to_all) {
    char *body = malloc(30000), *at = body;
    kt_reply r;

    at += sprintf(at, "{\"max_tokens\":2,\"stream\":true,\"return_progress\":true,\"messages\":["
                      "{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 300; i++) at += sprintf(at, "This is a test. ");
    strcpy(at, "\"}]}");
    start(TINY);
    r = post(CHAT, body);
    each_event(r.body, check_progress);
    cr_expect_geq(n_progress, 3, "%d reports of %d tokens", n_progress, (int)progress_total);
    cr_expect(progress_total > 512 && progress_done == progress_total);
    kt_reply_free(&r);
    free(body);
    stop();
}

/* ---- prompts of completions ---- */

Test(chat_load, texts_and_their_tokens_are_the_same_prompt) {
    int32_t *ids = NULL;
    size_t n = 0;
    char body[300], count[60];
    int at;
    kt_reply r;

    start(TINY);
    cr_assert_eq(
        kt_tokenizer_encode(fake.engine.tokenizer, "In that day", 11, true, &ids, &n, NULL), KT_OK);
    at = sprintf(body, "{\"max_tokens\":2,\"prompt\":[[");
    for (size_t i = 0; i < n; i++) at += sprintf(body + at, "%s%d", i ? "," : "", ids[i]);
    strcpy(body + at, "],\"In that day\"]}");
    r = kt_complete(fake.port, body);
    cr_expect_eq(r.status, 200, "%s", r.body);
    snprintf(count, sizeof count, "\"usage\":{\"prompt_tokens\":%zu,", 2 * n);
    cr_expect_not_null(strstr(r.body, count), "%s", r.body);
    cr_expect_not_null(strstr(r.body, "{\"index\":1,\"text\":\"To be\""), "%s", r.body);
    kt_reply_free(&r);
    free(ids);
    stop();
}

/* ---- loading ---- */

Test(chat_load, without_a_template_there_are_grammars_only) {
    char line[200];
    kt_reply r;

    start(NULL);
    cr_expect_not_null(strstr(kt_loaded_chat_line(model.chat, line, sizeof line), "none"));
    r = kt_complete(fake.port, "{\"prompt\":\"a\",\"max_tokens\":20,\"grammar\":\"root ::= "
                               "\\\"seventeen\\\"\"}");
    cr_expect_not_null(strstr(r.body, "\"text\":\"seventeen\""), "%s", r.body);
    kt_reply_free(&r);
    fake_check_error(post(CHAT, "{\"messages\":[" USER "]}"), 400, "no_chat_template", "",
                     "--chat-template");
    stop();
}

/* Masks are as long as the model's logits: a larger tokenizer gets no grammars. */
Test(chat_load, a_tokenizer_larger_than_the_model_has_no_grammars) {
    const kt_parser_evidence evidence = {0};
    kt_loaded_chat *small;

    load(NULL);
    cr_expect_not_null(kt_loaded_chat_model(model.chat)->vocabulary);
    model.backend.vocab = 4000;
    cr_assert_eq(kt_loaded_chat_create(NULL, &evidence, &model.backend, &small, NULL), KT_OK);
    cr_expect_null(kt_loaded_chat_model(small)->vocabulary);
    kt_loaded_chat_destroy(small);
    kt_loaded_chat_destroy(model.chat);
    fake_deinit(&model.engine);
}
