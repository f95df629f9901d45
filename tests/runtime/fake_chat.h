/* A way to write conversations for tests of chat routes: "role: content" lines; reasoning, calls
 * and tools have lines of their own. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_CHAT_H
#define KT_TESTS_FAKE_CHAT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/runtime/fake_server.h"

static struct {
    char last[2048]; /* the latest prompt */
    kt_chat_model model;
    kt_vocabulary *vocabulary;
    bool starts_in_reasoning;
} fake_chat;

static inline kt_status fake_chat_line(kt_text *t, const char *name, const char *text,
                                       size_t size) {
    KT_TRY(kt_text_append(t, name, strlen(name), NULL));
    KT_TRY(kt_text_append(t, ": ", 2, NULL));
    KT_TRY(kt_text_append(t, text, size, NULL));
    return kt_text_append(t, "\n", 1, NULL);
}

static inline kt_status fake_chat_json(kt_text *t, const char *name, const kt_json *v) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;
    kt_status st;

    if (!v) return KT_OK;
    kt_json_put_value(&w, v);
    text = kt_json_writer_text(&w, &size);
    st = text ? fake_chat_line(t, name, text, size) : KT_E_NOMEM;
    kt_json_writer_deinit(&w);
    return st;
}

static inline kt_status fake_chat_message(kt_text *t, const kt_json *m, size_t i, kt_err *err) {
    const kt_json *calls = kt_json_get(m, "tool_calls");
    const char *reasoning = kt_json_text(m, "reasoning_content"), *text;
    size_t size;

    text = kt_json_string(kt_json_get(m, "content"), &size);
    if (*reasoning) KT_TRY(fake_chat_line(t, "reasoning", reasoning, strlen(reasoning)));
    KT_TRY(fake_chat_json(t, "calls", calls));
    if (text) return fake_chat_line(t, kt_json_text(m, "role"), text, size);
    if (calls) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "messages[%zu].content: no string", i);
}

static inline kt_status fake_chat_render(const kt_chat_request *r, kt_text *t, kt_err *err) {
    for (size_t i = 0; i < kt_json_length(r->messages); i++)
        KT_TRY(fake_chat_message(t, kt_json_at(r->messages, i), i, err));
    KT_TRY(fake_chat_json(t, "tools", r->tools));
    if (r->enable_thinking)
        KT_TRY(fake_chat_line(t, "thinking", r->enable_thinking > 0 ? "1" : "0", 1));
    if (!r->no_generation_prompt) KT_TRY(kt_text_append(t, "assistant:", 10, NULL));
    return kt_text_append(t, "", 1, NULL);
}

static inline kt_status fake_chat_prompt(const void *self, const kt_chat_request *r, bool with_ids,
                                         kt_model_prompt *out, kt_err *err) {
    kt_text t = {0};
    kt_status st = fake_chat_render(r, &t, err);
    (void)self;

    if (st != KT_OK) {
        free(t.data);
        return st;
    }
    *out = (kt_model_prompt){
        .text = t.data, .size = t.size - 1, .starts_in_reasoning = fake_chat.starts_in_reasoning};
    snprintf(fake_chat.last, sizeof fake_chat.last, "%s", out->text);
    if (!with_ids) return KT_OK;
    return kt_tokenizer_encode(fake.engine.tokenizer, out->text, out->size, false, &out->ids,
                               &out->n_ids, err);
}

/* Before fake_start: what the model says, and in which notations. */
static inline void fake_chat_init(const char *says, const char *calls, const char *reasoning) {
    const kt_parser_evidence evidence = {.tool_parser = calls, .reasoning_parser = reasoning};
    kt_tokenizer *t;
    kt_err err = {0};

    fake_says = says;
    fake_chat.model = (kt_chat_model){.make_prompt = fake_chat_prompt, .template_text = "fake"};
    cr_assert_eq(kt_parser_choose(&evidence, &fake_chat.model.parsers, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(
        kt_tokenizer_load(KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json", &t, &err),
        KT_OK, "%s", err.message);
    cr_assert_eq(kt_vocabulary_from_tokenizer(t, (int32_t[]){4095}, 1, &fake_chat.vocabulary, &err),
                 KT_OK, "%s", err.message);
    kt_tokenizer_destroy(t);
    fake_chat.model.vocabulary = fake_chat.vocabulary;
    fake.chat = &fake_chat.model;
}

static inline void fake_chat_stop(void) {
    fake_stop();
    kt_vocabulary_destroy(fake_chat.vocabulary);
}

/* A connection on which a request has been sent. */
static inline int fake_chat_send(const char *path, const char *body) {
    char head[200];
    const int fd = kt_dial(fake.port);

    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path,
             strlen(body));
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, body, strlen(body)));
    return fd;
}

/* Two streams, of which the second waits for the first, whose prompt takes a minute: what the
 * second is sent until the mark has come. The server is ended. */
static inline void fake_chat_wait(const char *path, const char *body, const char *mark, char *text,
                                  size_t text_bytes) {
    const kt_http_options options = {.ping_ms = 50};
    int fd[2];

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(&options, 0);
    atomic_store(&fake.engine.prefill_us, 60 * 1000 * 1000);
    for (int i = 0; i < 2; i++) {
        fd[i] = fake_chat_send(path, body);
        fake_sleep(50 * 1000);
    }
    *text = '\0';
    for (size_t n = 0; !strstr(text, mark);) {
        const ssize_t got = recv(fd[1], text + n, text_bytes - 1 - n, 0);
        cr_assert_gt(got, 0, "%s", text);
        n += (size_t)got;
        text[n] = '\0';
    }
    close(fd[0]);
    close(fd[1]);
    fake_chat_stop();
}

/* What a stream has said when the end of the server has cut it. */
static inline kt_reply fake_chat_cut(const char *path, const char *body) {
    const kt_http_options options = {.drain_ms = 100};
    kt_reply r;
    int fd;

    fake_chat_init(FAKE_TEXT, "none", "none");
    fake_start(&options, 0);
    atomic_store(&fake.engine.decode_us, 200 * 1000);
    fd = fake_chat_send(path, body);
    while (atomic_load(&fake.engine.n_steps) < 2) fake_sleep(1000);
    kt_http_server_stop(fake.server);
    r = kt_read_reply(fd, NULL, NULL, false);
    close(fd);
    fake_chat_stop();
    return r;
}

#endif
