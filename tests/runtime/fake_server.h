/* A server with a fake engine in the test's process. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_SERVER_H
#define KT_TESTS_FAKE_SERVER_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/json.h"
#include "runtime/http/app.h"
#include "runtime/http/http_parse.h"
#include "runtime/http/server.h"
#include "runtime/serve/stop_match.h"
#include "tests/runtime/fake_backend.h"
#include "tests/support/http_client.h"

/* A test is a process of its own, so one of these is enough. */
static struct {
    fake_engine engine;
    kt_backend backend;
    const kt_chat_model *chat; /* NULL = none; to be set before fake_start */
    kt_app *app;
    kt_http_server *server;
    pthread_t thread;
    int port;
    int max_running;          /* to be set before; 0 = the usual */
    kt_speculation speculate; /* likewise */
} fake;

static inline void *fake_serve(void *arg) {
    (void)arg;
    kt_http_server_run(fake.server, NULL);
    return NULL;
}

static inline void fake_start(const kt_http_options *options, int queue) {
    kt_app_options app = {.backend = &fake.backend,
                          .chat = fake.chat,
                          .queue = queue,
                          .max_running = fake.max_running,
                          .speculate = fake.speculate};
    kt_http_options http = options ? *options : (kt_http_options){0};
    kt_err err = {0};

    cr_assert(fake_init(&fake.engine, &fake.backend,
                        KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json"));
    cr_assert_eq(kt_app_create(&app, &fake.app, &err), KT_OK, "%s", err.message);
    http.routes = kt_builtin_routes;
    http.n_routes = kt_builtin_route_count;
    http.app = fake.app;
    cr_assert_eq(kt_http_server_create(&http, &fake.server, &err), KT_OK, "%s", err.message);
    fake.port = kt_http_server_port(fake.server);
    cr_assert_eq(pthread_create(&fake.thread, NULL, fake_serve, NULL), 0);
}

static inline void fake_stop(void) {
    kt_http_server_stop(fake.server);
    pthread_join(fake.thread, NULL);
    kt_app_destroy(fake.app);
    kt_http_server_destroy(fake.server);
    cr_assert_eq(atomic_load(&fake.engine.n_open), 0, "a sequence was leaked");
    fake_deinit(&fake.engine);
}

static inline const kt_json *fake_parse(const kt_reply *r, kt_json_doc **doc) {
    kt_err err = {0};
    kt_status st = kt_json_parse(r->body, r->body_size, NULL, doc, &err);
    cr_assert_eq(st, KT_OK, "status %d, body '%s': %s", r->status, r->body, err.message);
    return kt_json_root(*doc);
}

static inline const char *fake_text_at(const kt_json *object, const char *key) {
    const char *t = kt_json_string(kt_json_get(object, key), NULL);
    return t ? t : "";
}

/* The four keys of OpenAI's error form, and what the message must name. */
static inline void fake_check_error(kt_reply r, int status, const char *code, const char *param,
                                    const char *says) {
    kt_json_doc *doc;
    const kt_json *error;

    cr_assert_eq(r.status, status, "status %d, expected %d: %s", r.status, status, r.body);
    error = kt_json_get(fake_parse(&r, &doc), "error");
    cr_assert_eq(kt_json_length(error), 4, "%s", r.body);
    cr_assert(kt_json_get(error, "message") && kt_json_get(error, "type") &&
                  kt_json_get(error, "param") && kt_json_get(error, "code"),
              "%s", r.body);
    cr_assert_str_eq(fake_text_at(error, "code"), code, "%s", r.body);
    cr_assert_str_eq(fake_text_at(error, "param"), param, "%s", r.body);
    cr_assert_not_null(strstr(fake_text_at(error, "message"), says), "'%s' lacks '%s'",
                       fake_text_at(error, "message"), says);
    kt_json_destroy(doc);
    kt_reply_free(&r);
}

#endif
