/* Queue, application and server with every allocation failing once, and requests to a running
 * server during such failures. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "runtime/http/access.h"
#include "runtime/sched/sched_impl.h"
#include "tests/runtime/fake_chat.h"
#include "tests/support/nomem.h"

static kt_status make_queue(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_job_queue_create(4, out, err);
}
static void unmake_queue(void *out) {
    kt_job_queue_destroy(*(kt_job_queue **)out);
}

static kt_status make_app(void *out, const void *with, kt_err *err) {
    const kt_app_options options = {.backend = with, .queue = 3};
    return kt_app_create(&options, out, err);
}
static void unmake_app(void *out) {
    kt_app_destroy(*(kt_app **)out);
}

/* With a backend: kt_scheduler_ready is a part of it. */
static kt_status make_scheduler(void *out, const void *with, kt_err *err) {
    const kt_scheduler_options options = {
        .backend = with, .max_running = 4, .speculate = KT_SPECULATE_HEAD};
    return kt_scheduler_create(&options, out, err);
}
static void unmake_scheduler(void *out) {
    kt_scheduler_destroy(*(kt_scheduler **)out);
}

/* A text that outgrows its first tables. */
static kt_status push_tokens(void *out, const void *with, kt_err *err) {
    kt_ngram *x = out;

    (void)with;
    for (int32_t i = 0; i < 600; i++)
        if (!kt_ngram_push(x, i % 7)) {
            kt_ngram_deinit(x);
            return kt_fail(err, KT_E_NOMEM, "no memory for n-grams");
        }
    return KT_OK;
}
static void forget_tokens(void *out) {
    kt_ngram_deinit(out);
}

/* A step of drafts by the head, which is never made here. */
static kt_status no_drafts(void *self, kt_draft_span *spans, int n_spans, float *logits,
                           kt_err *err) {
    (void)self, (void)spans, (void)n_spans, (void)logits;
    return kt_fail(err, KT_E_INTERNAL, "asked for drafts");
}

/* A request's answers and lanes, as kt_scheduler_submit makes them. */
static kt_status open_request(void *out, const void *with, kt_err *err) {
    const kt_token_bias bias[] = {{3, 1.0f}};
    kt_request *r = out;
    kt_status st;

    kt_request_init(r);
    r->prompts = calloc(1, sizeof *r->prompts);
    if (r->prompts) r->prompts[0].ids = calloc(4, sizeof(int32_t));
    r->bias = malloc(sizeof bias);
    st = r->prompts && r->prompts[0].ids && r->bias ? KT_OK : KT_E_NOMEM;
    if (st != KT_OK) kt_fail(err, st, "no memory for the case itself");
    if (r->bias) memcpy(r->bias, bias, sizeof bias), r->n_bias = 1;
    if (r->prompts) r->n_prompts = 1, r->prompts[0].n_ids = 4;
    r->n = 2;
    r->min_tokens = 1;
    r->sampling.repetition_penalty = 1.2f;
    if (st == KT_OK) st = kt_request_open(r, with, err);
    if (st == KT_OK) st = kt_lanes_create(r, err);
    if (st != KT_OK) kt_request_deinit(r);
    return st;
}
static void close_request(void *out) {
    kt_request_deinit(out);
}

static kt_status make_server(void *out, const void *with, kt_err *err) {
    return kt_http_server_create(with, out, err);
}
static void unmake_server(void *out) {
    kt_http_server_destroy(*(kt_http_server **)out);
}

static kt_status make_access(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_access_create("a\nb", "c,d", "http://e,https://f", out, err);
}
static void unmake_access(void *out) {
    kt_access_destroy(*(kt_access **)out);
}

Test(server_nomem, queue_application_and_server_are_whole_or_none, .timeout = 60) {
    static fake_engine engine;
    static const kt_backend backend = {.self = &engine,
                                       .model_name = "none",
                                       .vocab = 100,
                                       .max_rows = 64,
                                       .usage = fake_usage,
                                       .guess = fake_guess,
                                       .go_back = fake_go_back,
                                       .draft = no_drafts};
    const kt_http_options http = {.routes = kt_builtin_routes,
                                  .n_routes = kt_builtin_route_count,
                                  .api_key = "a key",
                                  .allowed_hosts = "a.example",
                                  .cors_origins = "https://a.example",
                                  .catch_signals = true};
    kt_nomem_case c = {.out_bytes = sizeof(void *)};

    c.function = "kt_job_queue_create", c.make = make_queue, c.unmake = unmake_queue;
    c.says = "queue";
    kt_nomem_check(&c);
    c.function = "kt_app_create", c.make = make_app, c.unmake = unmake_app, c.with = &backend;
    c.says = ""; /* the application, its queue or its scheduler */
    kt_nomem_check(&c);
    c.function = "kt_scheduler_create", c.make = make_scheduler, c.unmake = unmake_scheduler;
    kt_nomem_check(&c);
    c.function = "kt_ngram_push", c.make = push_tokens, c.unmake = forget_tokens;
    c.out_bytes = sizeof(kt_ngram);
    kt_nomem_check(&c);
    c.out_bytes = sizeof(void *);
    c.function = "kt_access_create", c.make = make_access, c.unmake = unmake_access;
    c.says = "server";
    kt_nomem_check(&c);
    c.function = "kt_http_server_create", c.make = make_server, c.unmake = unmake_server;
    c.with = &http, c.says = "server";
    kt_nomem_check(&c);
}

Test(server_nomem, a_request_is_open_or_closed, .timeout = 60) {
    const kt_request_model model = {.vocab = 100, .max_context = 64};
    const kt_nomem_case c = {.function = "kt_request_open",
                             .make = open_request,
                             .unmake = close_request,
                             .with = &model,
                             .out_bytes = sizeof(kt_request),
                             .says = "no memory"};
    kt_nomem_check(&c);
}

/* ---- requests ---- */

/* What is held while nobody asks: the server puts things away after an answer, so let it rest. */
static long rest(void) {
    long held = kt_nomem_held();

    for (int same = 0; same < 200;) {
        fake_sleep(1000);
        long now = kt_nomem_held();
        same = now == held ? same + 1 : 0;
        held = now;
    }
    return held;
}

/* Is everything put away within ten seconds, so that no more than that is held? */
static bool is_back_to(long held) {
    for (int i = 0; i < 10000 && kt_nomem_held() != held; i++) fake_sleep(1000);
    return kt_nomem_held() == held;
}

/* The text that an answer, or one of its events, has of choice 0, whatever the route; or NULL. */
static const char *text_of(const kt_json *root, size_t *n) {
    const kt_json *choice = kt_json_at(kt_json_get(root, "choices"), 0);
    const kt_json *delta = kt_json_get(choice ? choice : root, "delta");
    const kt_json *block = kt_json_at(kt_json_get(root, "content"), 0);
    const kt_json *const places[] = {
        kt_json_get(choice, "text"), kt_json_get(kt_json_get(choice, "message"), "content"),
        kt_json_get(delta, "content"), kt_json_get(delta, "text"), kt_json_get(block, "text")};

    const kt_json *items = kt_json_get(root, "output");

    for (size_t i = 0; i < kt_json_length(items); i++) {
        const kt_json *part = kt_json_at(kt_json_get(kt_json_at(items, i), "content"), 0);
        if (strcmp(kt_json_text(part, "type"), "output_text") == 0)
            return kt_json_string(kt_json_get(part, "text"), n);
    }
    if (strcmp(kt_json_text(root, "type"), "response.output_text.delta") == 0)
        return kt_json_string(delta, n);
    if (choice && kt_json_int(kt_json_get(choice, "index"), -1) != 0) return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (kt_json_string(places[i], n)) return kt_json_string(places[i], n);
    return NULL;
}

/* The text of choice 0 of an answer, whole or in events, into out; false when it holds an error.
 * *is_last: no event comes after it. */
static bool take_text(const char *json, size_t size, kt_text *out, bool *is_last) {
    kt_json_doc *doc;
    const kt_json *root;
    kt_err err = {0};
    const char *text;
    bool is_error;
    size_t n = 0;

    cr_assert_eq(kt_json_parse(json, size, NULL, &doc, &err), KT_OK, "%.*s: %s", (int)size, json,
                 err.message);
    root = kt_json_root(doc);
    is_error = kt_json_type_of(kt_json_get(root, "error")) == KT_JSON_OBJECT;
    *is_last |= strcmp(kt_json_text(root, "type"), "message_stop") == 0 ||
                strcmp(kt_json_text(root, "type"), "response.completed") == 0;
    text = text_of(root, &n);
    if (text) cr_assert_eq(kt_text_append(out, text, n, NULL), KT_OK);
    kt_json_destroy(doc);
    return !is_error;
}

/* An answer of status 200 is the whole text, or says that it is not: by an error among its events
 * or by a connection that ends before the stream does. */
static void check_answer(const kt_reply *r, bool is_stream, const char *want, long number) {
    kt_text text = {0};
    bool is_good = true, is_done = !is_stream;

    if (!is_stream) is_good = take_text(r->body, r->body_size, &text, &is_done);
    for (const char *at = r->body; is_stream && (at = strstr(at, "data: "));) {
        const char *end = strstr(at += 6, "\n\n");
        if (!end) break;
        cr_assert_not(is_done, "allocation %ld: an event after the last: %s", number, r->body);
        if (strncmp(at, "[DONE]", 6) == 0)
            is_done = true;
        else
            is_good &= take_text(at, (size_t)(end - at), &text, &is_done);
    }
    if (is_good && is_done)
        cr_assert(text.size == strlen(want) && memcmp(text.data, want, text.size) == 0,
                  "allocation %ld: a part of the answer is missing: %s", number, r->body);
    free(text.data);
}

/* One request after the other while the 1st, 2nd, ... allocation of the server fails: a right
 * answer, one that says what is wrong, or a closed connection. Nobody waits, nothing is kept. */
static void check_requests(const char *path, const char *body, const char *want, long held) {
    bool did_fail = true, is_stream = body && strstr(body, "stream");
    long tried = 0;

    for (long i = -1; did_fail || i < 1; i++) {
        int64_t start = kt_clock_ns();
        kt_reply r;
        kt_nomem_after(i);
        r = kt_send_request(fake.port, body ? "POST" : "GET", path, "", body);
        did_fail = kt_nomem_failed() && i >= 0;
        cr_assert(r.status == 200 || (did_fail && (r.status == 0 || r.status >= 500)),
                  "%s, allocation %ld: status %d: %s", path, i, r.status, r.body);
        cr_assert_lt(kt_clock_ns() - start, INT64_C(20000000000), "%s, allocation %ld: no answer",
                     path, i);
        if (r.status == 200 && want) check_answer(&r, is_stream, want, i);
        kt_reply_free(&r);
        tried += did_fail;
        cr_assert(is_back_to(held), "%s, allocation %ld: something is kept", path, i);
    }
    cr_assert_gt(tried, 3, "%s: only %ld failures", path, tried);
}

#define SAMPLED "\"max_tokens\":12,\"temperature\":0,\"logit_bias\":{\"3\":-1}"
#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"}]," SAMPLED

/* Requests of every route, whole and streamed, tried with the same text as the answer. */
static void check_route(const char *path, const char *members) {
    char body[600], *want;
    bool is_last = false;
    kt_text text = {0};
    kt_reply r;
    long held;

    snprintf(body, sizeof body, "{%s}", members);
    r = kt_send_request(fake.port, "POST", path, "", body);
    cr_assert(r.status == 200 && take_text(r.body, r.body_size, &text, &is_last), "%s", r.body);
    cr_assert_gt(text.size, 10, "%s", r.body);
    want = strndup(text.data, text.size);
    kt_reply_free(&r);
    held = rest();
    check_requests(path, body, want, held);
    snprintf(body, sizeof body, "{%s,\"stream\":true}", members);
    check_requests(path, body, want, held);
    free(text.data);
    free(want);
}

Test(server_nomem, requests_without_memory_are_answered_or_hung_up_on, .timeout = 240) {
    long held;

    kt_nomem_spare_me();
    fake_start(NULL, 4);
    held = rest();
    check_requests("/health", NULL, NULL, held);
    check_requests("/v1/models", NULL, NULL, held);
    check_route("/v1/completions",
                "\"prompt\":\"Hello there\",\"n\":2,\"logprobs\":2,\"stop\":[\"zzz\"]," SAMPLED);
    fake_stop();
}

Test(server_nomem, chats_without_memory_are_answered_or_hung_up_on, .timeout = 240) {
    kt_nomem_spare_me();
    fake_chat_init(FAKE_TEXT, "hermes", "none");
    fake_start(NULL, 4);
    check_route("/v1/chat/completions",
                "\"n\":2,\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"zzz\",\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}}]," CHAT);
    check_route("/v1/messages", "\"stop_sequences\":[\"zzz\"],\"system\":[{\"type\":\"text\","
                                "\"text\":\"Be brief.\"}],\"tools\":[{\"name\":\"f\","
                                "\"input_schema\":{}}]," CHAT);
    fake_chat_stop();
}

Test(server_nomem, responses_without_memory_are_answered_or_hung_up_on, .timeout = 240) {
    kt_nomem_spare_me();
    fake_chat_init(
        "Hm.\n</think>\n\nLet me see.<tool_call>\n{\"name\": \"m__f\", \"arguments\": {\"input\": "
        "\"a\"}}\n</tool_call>",
        "hermes", "qwen3");
    fake_chat.starts_in_reasoning = true;
    fake_start(NULL, 4);
    check_route("/v1/responses", "\"top_logprobs\":1,\"temperature\":0,\"instructions\":\"Be "
                                 "brief.\",\"tools\":[{\"type\":\"namespace\",\"name\":"
                                 "\"m__\",\"tools\":[{\"type\":\"custom\",\"name\":\"f\"}]}],"
                                 "\"input\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"type\":"
                                 "\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"f\",\"input\":"
                                 "\"a\"},{\"type\":\"custom_tool_call_output\","
                                 "\"call_id\":\"c\",\"output\":\"b\"}]");
    fake_chat_stop();
}

Test(server_nomem, grammars_without_memory_are_answered_or_hung_up_on, .timeout = 240) {
    kt_nomem_spare_me();
    fake_chat_init("To be, or not to be", "hermes", "none");
    fake_start(NULL, 4);
    check_route("/v1/chat/completions",
                "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{"
                "\"const\":\"seventeen\"}}}," CHAT);
    check_route("/v1/completions", "\"prompt\":\"Hello there\",\"grammar\":\"root ::= "
                                   "\\\"seventeen\\\"{2}\"," SAMPLED);
    fake_chat_stop();
}
