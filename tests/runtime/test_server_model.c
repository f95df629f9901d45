/* The server on the real engine with the bundled model: the recorded greedy texts, and a client
 * that leaves. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"
#include "tests/support/damage.h"
#include "tests/support/http_client.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

static struct {
    kt_engine *engine;
    kt_backend backend;
    kt_app *app;
    kt_http_server *server;
    pthread_t thread;
    int port;
} real; /* a test is a process of its own */

static void *serve(void *arg) {
    (void)arg;
    kt_http_server_run(real.server, NULL);
    return NULL;
}

/* device: NULL = none. */
static void start_on(const char *model, const char *device) {
    kt_engine_options engine = {.model_dir = model,
                                .weights = KT_QUANT_BF16,
                                .table_path = "",
                                .allow_nonfinite = true,
                                .device = device,
                                .deterministic = device == NULL};
    kt_app_options app = {.backend = &real.backend};
    kt_http_options http = {.routes = kt_builtin_routes, .n_routes = kt_builtin_route_count};
    kt_err err = {0};

    cr_assert_eq(kt_engine_create(&engine, &real.engine, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_backend_from_engine(real.engine, model, "bf16", &real.backend, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(kt_app_create(&app, &real.app, &err), KT_OK, "%s", err.message);
    http.app = real.app;
    cr_assert_eq(kt_http_server_create(&http, &real.server, &err), KT_OK, "%s", err.message);
    real.port = kt_http_server_port(real.server);
    cr_assert_eq(pthread_create(&real.thread, NULL, serve, NULL), 0);
}

static void start_with(const char *model) {
    start_on(model, NULL);
}

static void start(void) {
    start_with(MODEL);
}

static void stop(void) {
    kt_http_server_stop(real.server);
    pthread_join(real.thread, NULL);
    kt_app_destroy(real.app);
    kt_http_server_destroy(real.server);
    kt_engine_destroy(real.engine);
}

/* Each prompt of expected.json, as text and as ids, gives the text that the reference gave. */
Test(server_model, answers_the_recorded_texts, .timeout = 400) {
    kt_json_doc *expected;
    const kt_json *cases;
    kt_err err = {0};
    char *file;
    size_t size;

    start();
    cr_assert_eq(kt_file_read(MODEL "/expected.json", 1 << 20, &file, &size, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_json_parse(file, size, NULL, &expected, &err), KT_OK, "%s", err.message);
    cases = kt_json_get(kt_json_get(kt_json_root(expected), "greedy"), "cases");
    cr_assert_gt(kt_json_length(cases), 0);
    for (size_t i = 0; i < 2 * kt_json_length(cases); i++) {
        const kt_json *c = kt_json_at(cases, i / 2), *choice, *usage;
        const char *want = kt_json_string(kt_json_get(c, "greedy_text"), NULL);
        const char *got, *end;
        size_t n;
        kt_json_writer w = {0};
        kt_json_doc *doc;
        kt_reply r;
        kt_json_begin_object(&w);
        kt_json_key(&w, "prompt");
        kt_json_put_value(&w, kt_json_get(c, i % 2 ? "prompt_ids" : "prompt"));
        kt_json_key(&w, "temperature");
        kt_json_put_int(&w, 0);
        kt_json_key(&w, "max_tokens");
        kt_json_put_int(&w, (int64_t)kt_json_length(kt_json_get(c, "greedy_ids")));
        kt_json_end_object(&w);
        r = kt_complete(real.port, kt_json_writer_text(&w, NULL));
        cr_assert_eq(r.status, 200, "%s", r.body);
        cr_assert_eq(kt_json_parse(r.body, r.body_size, NULL, &doc, &err), KT_OK, "%s", r.body);
        choice = kt_json_at(kt_json_get(kt_json_root(doc), "choices"), 0);
        usage = kt_json_get(kt_json_root(doc), "usage");
        /* the record shows the stop token, an answer does not; it is counted all the same */
        end = strstr(want, "<|im_end|>");
        got = kt_json_string(kt_json_get(choice, "text"), NULL);
        n = end ? (size_t)(end - want) : strlen(want);
        cr_assert(strlen(got) == n && memcmp(got, want, n) == 0, "case %zu: '%s'", i / 2, got);
        cr_assert_str_eq(kt_json_string(kt_json_get(choice, "finish_reason"), NULL),
                         end ? "stop" : "length");
        cr_assert_eq(kt_json_int(kt_json_get(usage, "completion_tokens"), -1),
                     (int64_t)kt_json_length(kt_json_get(c, "greedy_ids")), "case %zu", i / 2);
        cr_assert_eq(kt_json_int(kt_json_get(usage, "prompt_tokens"), -1),
                     (int64_t)kt_json_length(kt_json_get(c, "prompt_ids")));
        kt_json_destroy(doc);
        kt_reply_free(&r);
        kt_json_writer_deinit(&w);
    }
    kt_json_destroy(expected);
    free(file);
    stop();
}

/* Of one layer, in a temporary folder. */
static void make_small_model(char *folder, size_t bytes) {
    const kt_model_shape shape = {.layers = 1,
                                  .hidden = 64,
                                  .vocab = 4096, /* that of the tokenizer */
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 32,
                                  .experts = 4,
                                  .topk = 2,
                                  .expert_size = 32,
                                  .dense_layer = -1,
                                  .dtype = KT_DTYPE_BF16};
    char command[1200], *out;

    kt_temp_make(folder, bytes);
    kt_random_model(&shape, 1, folder);
    snprintf(command, sizeof command, "cp " MODEL "/tokenizer.json %s", folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
}

/* A NaN that was let in: an error in JSON, or an error event in a stream that is already open. */
Test(server_model, logits_that_are_not_finite_end_the_request, .timeout = 120) {
    static const char words[] = "the logits after token";
    const uint16_t nan = 0x7fc0;
    char folder[512];
    kt_reply r;

    make_small_model(folder, sizeof folder);
    kt_damage_element(folder, "model.norm.weight", 2, &nan);
    start_with(folder);
    r = kt_complete(real.port, "{\"prompt\":\"In that day\",\"max_tokens\":3}");
    cr_expect_eq(r.status, 500, "%d: %s", r.status, r.body);
    cr_expect(strstr(r.body, "{\"error\":{\"message\":") && strstr(r.body, words), "%s", r.body);
    kt_reply_free(&r);
    r = kt_complete(real.port, "{\"prompt\":\"In that day\",\"max_tokens\":3,\"stream\":true}");
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body, "data: {\"error\":") && strstr(r.body, words), "%s", r.body);
    kt_reply_free(&r);
    stop();
    kt_temp_remove(folder);
}

/* In the middle of a request: that one and those that follow end with an error that says so. */
Test(server_model, a_lost_device_ends_requests_with_an_error, .timeout = 120) {
    char folder[512];

    make_small_model(folder, sizeof folder);
    start_on(folder, "emulated:fail-after=40");
    for (int i = 0; i < 3; i++) {
        kt_reply r = kt_complete(real.port, "{\"prompt\":\"In that day\",\"max_tokens\":200,"
                                            "\"ignore_eos\":true}");
        cr_expect_eq(r.status, 500, "request %d: %d: %s", i, r.status, r.body);
        cr_expect(strstr(r.body, "{\"error\":{\"message\":") && strstr(r.body, "lost"),
                  "request %d: %s", i, r.body);
        kt_reply_free(&r);
    }
    stop();
    kt_temp_remove(folder);
}

Test(server_model, a_client_that_leaves_frees_the_engine, .timeout = 180) {
    static const char body[] =
        "{\"prompt\":\"In that day\",\"max_tokens\":2000,\"ignore_eos\":true}";
    int64_t since;
    char head[128];
    int fd;

    start();
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    fd = kt_dial(real.port);
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, body, sizeof body - 1));
    while (kt_scheduler_count(real.app->scheduler).running == 0) usleep(200);
    close(fd);
    since = kt_clock_ns();
    while (atomic_load(&real.app->n_cancelled) + atomic_load(&real.app->n_finished) == 0) {
        cr_assert_lt(kt_clock_ns() - since, INT64_C(20000000000), "still running after 20 s");
        usleep(200);
    }
    cr_assert_eq(atomic_load(&real.app->n_cancelled), 1, "it ran to its end");
    cr_expect_eq(kt_scheduler_count(real.app->scheduler).running, 0);
    stop();
}

/* ---- many at once ---- */

enum { MANY = 16 };

static kt_reply many_replies[MANY];

static char *many_body(int i) {
    static const char *const words[] = {"In that day", "And God said", "Blessed", "The king of",
                                        "Now therefore"};
    char *body;
    cr_assert_geq(asprintf(&body,
                           "{\"prompt\":\"%s %d\",\"max_tokens\":%d,\"temperature\":%d,\"seed\":%d,"
                           "\"top_k\":20,\"ignore_eos\":true,\"repetition_penalty\":1.1}",
                           words[i % 5], i, 20 + 3 * i, i % 2, i),
                  0);
    return body;
}

static void *one_of_many(void *arg) {
    const int i = *(int *)arg;
    char *body = many_body(i);

    many_replies[i] = kt_complete(real.port, body);
    free(body);
    return NULL;
}

static char *text_of(kt_reply *r) {
    kt_json_doc *doc;
    char *text;

    cr_assert_eq(r->status, 200, "%d: %s", r->status, r->body);
    cr_assert_eq(kt_json_parse(r->body, r->body_size, NULL, &doc, NULL), KT_OK);
    text = strdup(kt_json_string(
        kt_json_get(kt_json_at(kt_json_get(kt_json_root(doc), "choices"), 0), "text"), NULL));
    kt_json_destroy(doc);
    kt_reply_free(r);
    return text;
}

Test(server_model, sixteen_clients_get_what_each_gets_alone, .timeout = 400) {
    pthread_t threads[MANY];
    int number[MANY];
    kt_scheduler_counts counts;

    start();
    for (int i = 0; i < MANY; i++) {
        number[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, one_of_many, &number[i]), 0);
    }
    for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
    counts = kt_scheduler_count(real.app->scheduler);
    cr_expect_lt(counts.steps, counts.decode_rows, "%lld steps for %lld rows: nothing was shared",
                 (long long)counts.steps, (long long)counts.decode_rows);
    for (int i = 0; i < MANY; i++) {
        char *body = many_body(i), *alone, *among = text_of(&many_replies[i]);
        kt_reply r = kt_complete(real.port, body);
        alone = text_of(&r);
        cr_expect_str_eq(among, alone, "client %d", i);
        free(body), free(alone), free(among);
    }
    stop();
}

/* A prompt that was computed is not computed again, and choices share theirs. */
Test(server_model, a_known_prompt_is_taken_from_the_cache, .timeout = 120) {
    char body[2000], words[1600] = "", *first, *again;
    kt_scheduler_counts counts;
    kt_reply r;

    start();
    for (int i = 0; i < 100; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "and %d men ", i);
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":12,\"temperature\":0}", words);
    r = kt_complete(real.port, body);
    cr_expect_not_null(strstr(r.body, "\"cached_tokens\":0"), "%s", r.body);
    first = text_of(&r);
    r = kt_complete(real.port, body);
    counts = kt_scheduler_count(real.app->scheduler);
    cr_expect(counts.cached_tokens >= 256 && counts.cached_tokens % 64 == 0, "%lld tokens",
              (long long)counts.cached_tokens);
    cr_expect_null(strstr(r.body, "\"cached_tokens\":0"), "%s", r.body);
    again = text_of(&r);
    cr_expect_str_eq(first, again);
    free(first), free(again);
    snprintf(body, sizeof body,
             "{\"prompt\":\"In that day\",\"max_tokens\":9,\"n\":3,\"temperature\":0}");
    r = kt_complete(real.port, body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_expect_eq(kt_scheduler_count(real.app->scheduler).kv.pages_used, 0, "pages are still held");
    kt_reply_free(&r);
    stop();
}
