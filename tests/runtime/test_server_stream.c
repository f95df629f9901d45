/* Streams, clients that leave, queues, and hostile traffic. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "runtime/token/utf8_scan.h"
#include "tests/runtime/fake_server.h"
#include "tests/support/attempts.h"

/* ---- streams ---- */

typedef struct events {
    kt_text text; /* of choice 0 */
    int n_chunks, n_with_finish, n_usage, n_comments;
    bool done;
    char finish[16];
    int64_t completion_tokens;
} events;

static void read_event(events *e, const char *data, size_t n) {
    kt_json_doc *doc;
    const kt_json *root, *choice, *usage;
    kt_err err = {0};
    const char *text, *finish;
    size_t size;

    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        e->done = true;
        return;
    }
    cr_assert(!e->done, "an event after [DONE]");
    cr_assert_eq(kt_json_parse(data, n, NULL, &doc, &err), KT_OK, "%.*s: %s", (int)n, data,
                 err.message);
    root = kt_json_root(doc);
    cr_assert_null(kt_json_get(root, "error"), "%.*s", (int)n, data);
    choice = kt_json_at(kt_json_get(root, "choices"), 0);
    usage = kt_json_get(root, "usage");
    if (kt_json_type_of(usage) == KT_JSON_OBJECT) {
        cr_assert_eq(kt_json_length(kt_json_get(root, "choices")), 0);
        e->n_usage++;
        e->completion_tokens = kt_json_int(kt_json_get(usage, "completion_tokens"), -1);
    }
    text = kt_json_string(kt_json_get(choice, "text"), &size);
    if (text && kt_json_int(kt_json_get(choice, "index"), -1) == 0) {
        cr_assert_eq(e->n_with_finish, 0, "text after the finish");
        kt_text_append(&e->text, text, size, NULL);
    }
    finish = kt_json_string(kt_json_get(choice, "finish_reason"), NULL);
    if (finish) {
        e->n_with_finish++;
        snprintf(e->finish, sizeof e->finish, "%s", finish);
    }
    e->n_chunks++;
    kt_json_destroy(doc);
}

static events read_stream(kt_reply r) {
    events e = {0};
    const char *at = r.body;

    cr_assert_eq(r.status, 200, "%d %s", r.status, r.body);
    cr_assert_not_null(strcasestr(r.headers, "text/event-stream"));
    while (*at) {
        const char *end = strstr(at, "\n\n");
        cr_assert_not_null(end, "an event without its empty line: %s", at);
        if (*at == ':')
            e.n_comments++;
        else {
            cr_assert_eq(strncmp(at, "data: ", 6), 0, "%s", at);
            read_event(&e, at + 6, (size_t)(end - at) - 6);
        }
        at = end + 2;
    }
    cr_assert(e.done, "no [DONE]");
    kt_text_append(&e.text, "", 1, NULL);
    kt_reply_free(&r);
    return e;
}

Test(stream, says_the_same_as_the_whole_answer) {
    events e;

    fake_start(NULL, 0);
    e = read_stream(kt_complete(fake.port, "{\"prompt\":\"a b\",\"max_tokens\":500,\"stream\":true,"
                                           "\"stream_options\":{\"include_usage\":true}}"));
    cr_assert_str_eq(e.text.data, FAKE_TEXT);
    cr_assert_str_eq(e.finish, "stop");
    cr_assert_eq(e.n_with_finish, 1);
    cr_assert_eq(e.n_usage, 1);
    cr_assert_eq(e.completion_tokens, (int64_t)fake.engine.n_script);
    cr_assert_gt(e.n_chunks, 5);
    free(e.text.data);

    e = read_stream(kt_complete(fake.port, "{\"prompt\":\"a\",\"max_tokens\":3,\"stream\":true}"));
    cr_assert_eq(e.n_usage, 0);
    cr_assert_str_eq(e.finish, "length");
    free(e.text.data);
    fake_stop();
}

Test(stream, of_several_choices_has_their_indices) {
    kt_reply r;

    fake_start(NULL, 0);
    r = kt_complete(fake.port,
                    "{\"prompt\":[\"a\",\"b c\"],\"n\":2,\"max_tokens\":3,\"stream\":true}");
    for (int i = 0; i < 4; i++) {
        char index[32];
        snprintf(index, sizeof index, "\"index\":%d,", i);
        cr_assert_not_null(strstr(r.body, index), "%s", r.body);
    }
    cr_assert_null(strstr(r.body, "\"index\":4"));
    kt_reply_free(&r);
    r = kt_complete(fake.port, "{\"prompt\":[\"a\",\"b c\"],\"n\":2,\"max_tokens\":3}");
    cr_assert_not_null(strstr(r.body, "\"completion_tokens\":12,"), "%s", r.body);
    kt_reply_free(&r);
    fake_stop();
}

/* Each cut of a text that holds a stop string must give the same. */
Test(stream, stop_strings_match_across_any_cut) {
    static const char text[] = "say abcab, then abcabd and more";
    kt_stops stops = {{strdup("abcabd"), strdup("zzz"), strdup("more")}, {6, 3, 4}, 3};

    for (size_t cut = 0; cut <= sizeof text - 1; cut++) {
        for (size_t cut2 = cut; cut2 <= sizeof text - 1; cut2++) {
            const size_t ends[] = {cut, cut2, sizeof text - 1};
            kt_text held = {0}, out = {0};
            bool stopped = false;
            size_t at = 0;
            for (int i = 0; i < 3 && !stopped; i++) {
                cr_assert_eq(
                    kt_stops_push(&stops, &held, text + at, ends[i] - at, &out, &stopped, NULL),
                    KT_OK);
                at = ends[i];
            }
            cr_assert(stopped);
            cr_assert(out.size == 16 && memcmp(out.data, text, 16) == 0, "'%.*s'", (int)out.size,
                      out.data);
            free(held.data);
            free(out.data);
        }
    }
    kt_stops_deinit(&stops);
}

Test(stream, stop_strings_end_the_text) {
    static const struct {
        const char *stop, *text, *finish;
    } cases[] = {
        {"\"that is\"", "To be, or not to be: ", "stop"},
        {"[\"nowhere\",\"be: that\"]", "To be, or not to ", "stop"},
        {"\"To\"", "", "stop"},
        {"\"\xf0\x9f\xa6\x99\"", "To be, or not to be: that is the question ", "stop"},
        {"\"done. no\"", FAKE_TEXT, "stop"}, /* held back to the end, then shown */
    };
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        kt_reply r;
        kt_json_doc *doc;
        events e;
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":200,\"stop\":%s}",
                 cases[i].stop);
        r = kt_complete(fake.port, body);
        const kt_json *choice = kt_json_at(kt_json_get(fake_parse(&r, &doc), "choices"), 0);
        cr_assert_str_eq(fake_text_at(choice, "text"), cases[i].text);
        cr_assert_str_eq(fake_text_at(choice, "finish_reason"), cases[i].finish);
        kt_json_destroy(doc);
        kt_reply_free(&r);
        snprintf(body, sizeof body,
                 "{\"prompt\":\"a\",\"max_tokens\":200,\"stream\":true,\"stop\":%s}",
                 cases[i].stop);
        e = read_stream(kt_complete(fake.port, body));
        cr_assert_str_eq(e.text.data, cases[i].text);
        free(e.text.data);
    }
    fake_stop();
}

Test(stream, echo_and_logprobs) {
    kt_json_doc *doc;
    const kt_json *logprobs;
    kt_reply r;
    events e;

    fake_start(NULL, 0);
    e = read_stream(kt_complete(fake.port, "{\"prompt\":\"Say: \",\"max_tokens\":2,\"echo\":true,"
                                           "\"stream\":true}"));
    cr_assert_eq(strncmp(e.text.data, "Say: To", 7), 0, "%s", e.text.data);
    free(e.text.data);
    r = kt_complete(fake.port, "{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":2}");
    logprobs = kt_json_get(kt_json_at(kt_json_get(fake_parse(&r, &doc), "choices"), 0), "logprobs");
    cr_assert_eq(kt_json_length(kt_json_get(logprobs, "tokens")), 3, "%s", r.body);
    cr_assert_eq(kt_json_length(kt_json_get(logprobs, "token_logprobs")), 3);
    cr_assert_eq(kt_json_length(kt_json_get(logprobs, "text_offset")), 3);
    cr_assert_eq(kt_json_length(kt_json_at(kt_json_get(logprobs, "top_logprobs"), 0)), 2);
    /* one logit of 50 over 4095 of at most 0.06: nothing is left for the others */
    cr_assert_gt(kt_json_double(kt_json_at(kt_json_get(logprobs, "token_logprobs"), 0), -1), -1e-6);
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_stop();
}

Test(stream, outlives_the_read_timeout_with_pings) {
    kt_http_options options = {.read_timeout_ms = 100, .ping_ms = 50};
    events e;

    fake_start(&options, 0);
    atomic_store(&fake.engine.prefill_us, 150 * 1000); /* 4 tokens: 0.6 s of silence */
    e = read_stream(kt_complete(fake.port, "{\"prompt\":\"In that day shall\",\"max_tokens\":200,"
                                           "\"stream\":true}"));
    cr_assert_str_eq(e.text.data, FAKE_TEXT);
    cr_assert_geq(e.n_comments, 3, "%d pings", e.n_comments);
    free(e.text.data);
    fake_stop();
}

Test(stream, an_engine_without_memory_is_an_answer) {
    fake_start(NULL, 0);
    atomic_store(&fake.engine.fail_open, 1);
    fake_check_error(kt_complete(fake.port, "{\"prompt\":\"a\"}"), 503, "out_of_memory", "",
                     "no memory");
    fake_check_error(kt_complete(fake.port, "{\"prompt\":\"a\",\"stream\":true}"), 503,
                     "out_of_memory", "", "no memory");
    atomic_store(&fake.engine.fail_open, 0);
    fake_stop();
}

/* ---- clients that leave ---- */

static int post_and_stay(const char *json) {
    char head[256];
    int fd = kt_dial(fake.port);
    sprintf(head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
            strlen(json));
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, json, strlen(json)));
    return fd;
}

/* Milliseconds until the engine has this many running and waiting; fails after half a minute. */
static double wait_for(int running, int waiting) {
    int64_t start = kt_clock_ns();
    for (;;) {
        kt_scheduler_counts c = kt_scheduler_count(fake.app->scheduler);
        double ms = (double)(kt_clock_ns() - start) * 1e-6;
        if (c.running == running && c.waiting == waiting) return ms;
        cr_assert_lt(ms, 30000, "running %d, waiting %d; expected %d, %d", c.running, c.waiting,
                     running, waiting);
        fake_sleep(500);
    }
}

/* Requests that were left are counted just after their slots are free. */
static void expect_cancelled(int n) {
    for (int i = 0; i < 3000 && atomic_load(&fake.app->n_cancelled) < n; i++) fake_sleep(10000);
    cr_expect_eq(atomic_load(&fake.app->n_cancelled), n);
}

/* Post, leave, and see the slot free within 100 ms in one of three attempts, since another process
 * may have the processor for as long. Returns the attempts. */
static int leave(const char *json) {
    kt_attempts tries = {3, 0};
    double ms = 100;

    while (kt_attempts_next(&tries, ms < 100)) {
        int fd = post_and_stay(json);
        wait_for(1, 0);
        fake_sleep(20000);
        close(fd);
        ms = wait_for(0, 0);
    }
    cr_assert_lt(ms, 100, "the slot was free after %.0f ms, three times", ms);
    return tries.done;
}

Test(leaving, during_prefill_frees_the_slot_at_once) {
    int n;

    fake_start(NULL, 0);
    atomic_store(&fake.engine.prefill_us, 60 * 1000 * 1000);
    n = leave("{\"prompt\":\"In that day shall\",\"stream\":true}");
    n += leave("{\"prompt\":\"In that day shall\"}");
    expect_cancelled(n);
    fake_stop();
}

Test(leaving, during_decode_frees_the_slot_at_once) {
    fake_start(NULL, 0);
    atomic_store(&fake.engine.decode_us, 10 * 1000);
    leave("{\"prompt\":\"a\",\"max_tokens\":1500,\"ignore_eos\":true,\"stream\":true}");
    fake_stop();
}

Test(leaving, the_queue_makes_room) {
    int fd[4];

    fake.max_running = 1;
    fake_start(NULL, 2);
    atomic_store(&fake.engine.prefill_us, 60 * 1000 * 1000);
    for (int i = 0; i < 3; i++) {
        fd[i] = post_and_stay("{\"prompt\":\"a\"}");
        wait_for(1, i);
    }
    kt_reply r = kt_complete(fake.port, "{\"prompt\":\"a\"}");
    cr_assert_not_null(strcasestr(r.headers, "retry-after:"));
    fake_check_error(r, 429, "queue_full", "", "2 requests");
    close(fd[1]);
    wait_for(1, 1);
    fd[3] = post_and_stay("{\"prompt\":\"a\"}");
    wait_for(1, 2);
    for (int i = 0; i < 4; i++) {
        if (i != 1) close(fd[i]);
    }
    wait_for(0, 0);
    fake_stop();
}

/* ---- many, slow and pipelining clients ---- */

static void *one_client(void *arg) {
    char body[256];
    bool streams = *(int *)arg % 2;
    snprintf(body, sizeof body, "{\"prompt\":\"client %d\",\"max_tokens\":200,\"stream\":%s}",
             *(int *)arg, streams ? "true" : "false");
    kt_reply r = kt_complete(fake.port, body);
    bool good = r.status == 200 && strstr(r.body, streams ? "data: [DONE]" : "done.") != NULL;
    kt_reply_free(&r);
    return good ? arg : NULL;
}

Test(clients, sixteen_at_once_are_all_answered) {
    pthread_t thread[16];
    int number[16];

    fake_start(NULL, 0);
    atomic_store(&fake.engine.decode_us, 200);
    for (int i = 0; i < 16; i++) {
        number[i] = i;
        pthread_create(&thread[i], NULL, one_client, &number[i]);
    }
    for (int i = 0; i < 16; i++) {
        void *result;
        pthread_join(thread[i], &result);
        cr_assert_not_null(result, "client %d", i);
    }
    fake_stop();
}

Test(clients, may_pipeline_requests) {
    static const char requests[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "29\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":2}"
        "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        "\r\nPOST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5;x=y\r\n{\"pro\r\n12\r\nmpt\":\"a\",\"n\":1   }\r\n0\r\nTrailer: x\r\n\r\n"
        "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static const int expect[] = {200, 200, 204, 200, 404, 200};
    char *leftover = NULL;
    size_t n = 0;
    int fd;

    fake_start(NULL, 0);
    fd = kt_dial(fake.port);
    kt_send_all(fd, requests, sizeof requests - 1);
    for (size_t i = 0; i < sizeof expect / sizeof *expect; i++) {
        kt_reply r = kt_read_reply(fd, &leftover, &n, false);
        cr_assert_eq(r.status, expect[i], "answer %zu is %d: %s", i, r.status, r.body);
        kt_reply_free(&r);
    }
    cr_assert_eq(recv(fd, &n, 1, 0), 0, "the connection stays open");
    free(leftover);
    close(fd);
    fake_stop();
}

Test(clients, may_be_slow) {
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\n{\"pro\r\n9\r\nmpt\":\"a\"}\r\n0\r\n\r\n";
    kt_reply r;
    int fd;

    fake_start(NULL, 0);
    fd = kt_dial(fake.port);
    for (size_t i = 0; i < sizeof request - 1; i++) {
        kt_send_all(fd, request + i, 1);
        if (i % 8 == 0) fake_sleep(1000);
    }
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    close(fd);
    fake_stop();
}

Test(clients, that_never_finish_a_request_are_closed) {
    static const char cut_off[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{";
    kt_http_options options = {.read_timeout_ms = 100};
    char byte;
    int fd;
    kt_reply r;

    fake_start(&options, 0);
    fd = kt_dial(fake.port); /* silent */
    cr_assert_eq(recv(fd, &byte, 1, 0), 0);
    close(fd);
    fd = kt_dial(fake.port); /* a drop now and then keeps nobody here */
    for (int i = 0; i < 40 && kt_send_all(fd, i ? "x" : "GET /", i ? 1 : 5); i++) fake_sleep(20000);
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_assert(r.status == 408 || r.status == 0, "%d", r.status);
    kt_reply_free(&r);
    close(fd);
    fd = kt_dial(fake.port);
    kt_send_all(fd, cut_off, strlen(cut_off));
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_assert_eq(r.status, 408, "%d", r.status);
    kt_reply_free(&r);
    close(fd);
    fake_stop();
}

Test(clients, of_http_1_0_and_half_closed_ones_get_their_answer) {
    static const char request[] = "GET /health HTTP/1.0\r\n\r\n";
    kt_reply r;

    fake_start(NULL, 0);
    r = kt_raw(fake.port, request, sizeof request - 1, true);
    cr_assert_eq(r.status, 200);
    cr_assert_not_null(strcasestr(r.headers, "connection: close"));
    kt_reply_free(&r);
    fake_stop();
}

Test(clients, beyond_the_limit_wait_for_a_place) {
    kt_http_options options = {.max_connections = 4};
    int fd[4];
    kt_reply r;

    fake_start(&options, 0);
    for (int i = 0; i < 4; i++) fd[i] = kt_dial(fake.port);
    fake_sleep(50000);
    int waiting = kt_dial(fake.port);
    kt_send_all(waiting, "GET /health HTTP/1.0\r\n\r\n", 24);
    for (int i = 0; i < 4; i++) close(fd[i]);
    r = kt_read_reply(waiting, NULL, NULL, false);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    close(waiting);
    fake_stop();
}

/* A client that asks for much and reads nothing must not fill the memory. */
Test(clients, that_do_not_read_are_dropped) {
    kt_http_options options = {.max_unsent_bytes = 64 * 1024};
    const int small = 4096;
    int fd = -1;

    fake_start(&options, 0);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    close(fd);
    fd = post_and_stay(
        "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"],\"n\":20,\"max_tokens\":1900,"
        "\"ignore_eos\":true,\"stream\":true}");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    expect_cancelled(1);
    close(fd);
    fake_stop();
}

/* ---- noise ---- */

Test(noise, mutated_requests_leave_the_server_alive, .timeout = 120) {
    static const char good[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
        "74\r\n\r\n"
        "{\"prompt\":\"In that day\",\"max_tokens\":4,\"stop\":[\"x\"],\"temperature\":0,\"n\":1}";
    kt_http_options options = {.read_timeout_ms = 50};
    kt_reply r;
    kt_rng rng;

    fake_start(&options, 0);
    kt_rng_seed(&rng, 1);
    for (int i = 0; i < 300; i++) {
        char bad[sizeof good];
        size_t n = sizeof good - 1, changes = 1 + kt_rng_below(&rng, 4);
        memcpy(bad, good, sizeof good);
        for (size_t k = 0; k < changes; k++) {
            size_t at = kt_rng_below(&rng, n);
            switch (kt_rng_below(&rng, 3)) {
            case 0: bad[at] = (char)kt_rng_below(&rng, 256); break;
            case 1: bad[at] ^= (char)(1 << kt_rng_below(&rng, 8)); break;
            default: bad[at] = "\r\n{}[]\",:%0 9"[kt_rng_below(&rng, 13)];
            }
        }
        if (kt_rng_below(&rng, 4) == 0) n = kt_rng_below(&rng, n);
        r = kt_raw(fake.port, bad, n, false);
        cr_assert(r.status == 0 || r.status == 200 || (r.status >= 400 && r.status < 506), "%d: %s",
                  r.status, r.body);
        if (r.status >= 400) cr_assert_not_null(strstr(r.body, "\"error\""), "%s", r.body);
        kt_reply_free(&r);
    }
    r = kt_send_request(fake.port, "GET", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    fake_stop();
}

Test(noise, chunk_framing_survives_every_cut) {
    static const char body[] =
        "5\r\nhello\r\n1;a=b\r\n \r\n00006 \r\nworld!\r\n0\r\nX: y\r\n\r\nnext";
    const size_t size = sizeof body - 1;

    for (size_t a = 0; a <= size; a++) {
        for (size_t b = a; b <= size; b++) {
            const size_t ends[] = {a, b, size};
            kt_http_chunks c = {0};
            char out[64];
            size_t at = 0, n = 0;
            for (int i = 0; i < 3; i++) {
                char part[64];
                size_t got, used;
                memcpy(part, body + at, ends[i] - at);
                used = kt_http_chunks_read(&c, part, ends[i] - at, &got);
                cr_assert_neq(used, SIZE_MAX);
                memcpy(out + n, part, got);
                n += got;
                at += used;
                if (c.done) break;
                cr_assert_eq(at, ends[i]);
            }
            cr_assert(c.done && n == 12 && memcmp(out, "hello world!", 12) == 0);
            cr_assert_eq(at, size - 4, "consumed %zu", at);
        }
    }
}

/* ---- the end ---- */

Test(stopping, waits_for_what_is_being_answered) {
    int fd, late = -1;
    kt_reply r;

    fake_start(NULL, 0);
    atomic_store(&fake.engine.decode_us, 100 * 1000);
    fd = post_and_stay("{\"prompt\":\"a\",\"max_tokens\":10}");
    wait_for(1, 0);
    kt_http_server_stop(fake.server);
    for (int i = 0; i < 50 && (late = kt_dial(fake.port)) >= 0; i++) {
        close(late);
        fake_sleep(10000);
    }
    cr_assert_eq(late, -1, "it still accepts");
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    close(fd);
    fake_stop();
}

Test(stopping, does_not_wait_for_ever) {
    kt_http_options options = {.drain_ms = 100};
    int64_t start;
    int fd;

    fake.max_running = 1;
    fake_start(&options, 0);
    atomic_store(&fake.engine.prefill_us, 60 * 1000 * 1000);
    fd = post_and_stay("{\"prompt\":\"a\"}");
    wait_for(1, 0);
    int waiting = post_and_stay("{\"prompt\":\"a\"}");
    wait_for(1, 1);
    start = kt_clock_ns();
    fake_stop(); /* the prefill alone would go on for a minute */
    cr_assert_lt((double)(kt_clock_ns() - start) * 1e-9, 20.0);
    close(fd);
    close(waiting);
}

Test(stopping, a_port_in_use_is_said) {
    kt_http_server *second;
    kt_http_options options = {0};
    kt_err err = {0};
    char port[16];

    fake_start(NULL, 0);
    options.port = fake.port;
    cr_assert_eq(kt_http_server_create(&options, &second, &err), KT_E_IO);
    snprintf(port, sizeof port, "port %d", fake.port);
    cr_assert_not_null(strstr(err.message, port), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "in use"), "%s", err.message);
    options.host = "no.such.host.invalid";
    cr_assert_neq(kt_http_server_create(&options, &second, &err), KT_OK);
    cr_assert_not_null(strstr(err.message, "no.such.host.invalid"), "%s", err.message);
    fake_stop();
}
