/* Attacks on the server: what a review of it tried, and what must become of each.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/http/access.h"
#include "tests/runtime/fake_server.h"

static double seconds_since(int64_t ns) {
    return (double)(kt_clock_ns() - ns) * 1e-9;
}

/* ---- a route of our own, for answers of any size and at any time ---- */

static size_t big_bytes;
static atomic_int n_parked;
static _Atomic(kt_http_exchange *) parked[64];

static void answer_big(kt_http_exchange *x, void *app) {
    char *text = malloc(big_bytes);
    (void)app;

    memset(text, 'x', big_bytes);
    kt_http_reply(x, 200, NULL, "text/plain", text, big_bytes);
    free(text);
}

static void park(kt_http_exchange *x, void *app) {
    (void)app;
    kt_http_keep(x);
    atomic_store(&parked[atomic_fetch_add(&n_parked, 1)], x);
}

static void park_stream(kt_http_exchange *x, void *app) {
    kt_http_stream_begin(x);
    kt_http_stream_event(x, "{}", 2);
    park(x, app);
}

static const kt_route big = {.method = "GET", .path = "/big", .handle = answer_big};
static const kt_route parking = {.method = "POST", .path = "/park", .handle = park};
static const kt_route streaming = {.method = "GET", .path = "/stream", .handle = park_stream};
static const kt_route *const routes[] = {&big, &parking, &streaming};

static kt_http_server *server;
static pthread_t thread;
static int port;

static void *serve(void *arg) {
    (void)arg;
    kt_http_server_run(server, NULL);
    return NULL;
}

static void start(kt_http_options options) {
    kt_err err = {0};

    options.routes = routes;
    options.n_routes = 3;
    cr_assert_eq(kt_http_server_create(&options, &server, &err), KT_OK, "%s", err.message);
    port = kt_http_server_port(server);
    pthread_create(&thread, NULL, serve, NULL);
}

static void release_parked(void) {
    for (int i = 0; i < atomic_load(&n_parked); i++) {
        kt_http_exchange *x = atomic_exchange(&parked[i], NULL);
        if (x) kt_http_release(x);
    }
}

static void stop(void) {
    kt_http_server_stop(server);
    kt_http_server_stop(server);
    pthread_join(thread, NULL);
    release_parked();
    kt_http_server_destroy(server);
}

static void wait_until_parked(int n) {
    for (int i = 0; i < 10000 && atomic_load(&n_parked) < n; i++) fake_sleep(1000);
    cr_assert_geq(atomic_load(&n_parked), n);
}

static int send_text(const char *text) {
    int fd = kt_dial(port);

    cr_assert(fd >= 0 && kt_send_all(fd, text, strlen(text)));
    return fd;
}

#define GET_STREAM "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define POST_PARK "POST /park HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

/* ---- answers ---- */

Test(safety, a_reading_client_gets_twenty_mib) {
    kt_reply r;

    big_bytes = (size_t)20 << 20;
    start((kt_http_options){.max_unsent_bytes = 1 << 16});
    r = kt_send_request(port, "GET", "/big", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_eq(r.body_size, big_bytes, "%zu bytes came", r.body_size);
    kt_reply_free(&r);
    stop();
}

/* A pipelining client that reads nothing must not pile up answers. */
Test(safety, answers_wait_for_those_before_them_to_be_read) {
    const int small = 4096;
    char *all = malloc(2000 * 64), *at = all;
    int fd;
    long before, after;
    FILE *f;

    big_bytes = (size_t)1 << 20;
    start((kt_http_options){0});
    for (int i = 0; i < 1000; i++)
        at += sprintf(at, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
    f = fopen("/proc/self/statm", "r");
    cr_assert_eq(fscanf(f, "%*d %ld", &before), 1);
    fclose(f);
    fd = kt_dial(port);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    cr_assert(kt_send_all(fd, all, (size_t)(at - all)));
    fake_sleep(500 * 1000);
    f = fopen("/proc/self/statm", "r");
    cr_assert_eq(fscanf(f, "%*d %ld", &after), 1);
    fclose(f);
    cr_expect_lt((after - before) * 4096, 64 << 20, "%ld pages of answers", after - before);
    close(fd);
    free(all);
    stop();
}

Test(safety, what_a_client_has_not_read_is_counted) {
    char block[4096];
    kt_http_exchange *x;
    int fd;

    start((kt_http_options){.max_unsent_bytes = (size_t)1 << 30});
    fd = send_text(GET_STREAM);
    wait_until_parked(1);
    x = atomic_load(&parked[0]);
    memset(block, 'y', sizeof block);
    for (int i = 0; i < 10000; i++) kt_http_stream_event(x, block, sizeof block);
    fake_sleep(200 * 1000);
    cr_expect_gt(kt_http_unsent(x), 20 << 20); /* sockets take some megabytes */
    for (size_t got = 0; got < 10000 * sizeof block;) {
        ssize_t n = recv(fd, block, sizeof block, 0);
        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    for (int i = 0; i < 1000 && kt_http_unsent(x) > 0; i++) fake_sleep(1000);
    cr_expect_lt(kt_http_unsent(x), 1 << 20);
    close(fd);
    stop();
}

Test(safety, a_stream_that_is_dropped_ends_with_an_error) {
    kt_reply r;
    int fd;

    start((kt_http_options){0});
    fd = send_text(GET_STREAM);
    wait_until_parked(1);
    release_parked();
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_expect_eq(r.status, 200);
    cr_expect_not_null(strstr(r.body, "data: {}\n\ndata: {\"error\":{\"message\":\"the request was "
                                      "dropped\","),
                       "%s", r.body);
    cr_expect(r.body_size > 14 && !strcmp(r.body + r.body_size - 14, "data: [DONE]\n\n"), "%s",
              r.body);
    kt_reply_free(&r);
    close(fd);
    stop();
}

/* ---- who may ask ---- */

static const struct {
    const char *host, *origin;
    int open, listed, keyed; /* status without a key; with lists; with a key */
} sources[] = {
    {"localhost", NULL, 200, 200, 200},
    {"LOCALHOST:8080", NULL, 200, 200, 200},
    {"127.0.0.1:8080", NULL, 200, 200, 200},
    {"127.8.9.1", NULL, 200, 200, 200},
    {"[::1]:8080", NULL, 200, 200, 200},
    {"[::ffff:127.0.0.1]", NULL, 200, 200, 200},
    {"evil.example", NULL, 403, 403, 200},
    {"localhost.evil.example", NULL, 403, 403, 200},
    {"127.0.0.1.evil.example", NULL, 403, 403, 200},
    {"localhost:80@evil.example", NULL, 403, 403, 200},
    {"10.0.0.1:8080", NULL, 403, 403, 200},
    {"0.0.0.0", NULL, 403, 403, 200},
    {"", NULL, 403, 403, 200},
    {"good.example:8080", NULL, 403, 200, 200},
    {"Good.Example", NULL, 403, 200, 200},
    {"port.example:81", NULL, 403, 200, 200},
    {"port.example:82", NULL, 403, 403, 200},
    {"localhost", "http://localhost:3000", 200, 200, 200},
    {"localhost", "https://127.0.0.1", 200, 200, 200},
    {"localhost", "http://[::1]:9", 200, 200, 200},
    {"localhost", "http://evil.example", 403, 403, 200},
    {"localhost", "http://localhost.evil.example", 403, 403, 200},
    {"localhost", "null", 403, 403, 200},
    {"localhost", "", 403, 403, 200},
    {"localhost", "file://", 403, 403, 200},
    {"localhost", "chrome-extension://localhost", 403, 403, 200},
    {"localhost", "https://app.example", 403, 200, 200},
    {"localhost", "http://app.example", 403, 403, 200},
    {"good.example:8080", "http://good.example:8080", 403, 200, 200}, /* the server's own page */
    {"good.example:8080", "http://good.example:8081", 403, 403, 200},
};

static void ask(int mode) {
    big_bytes = 5;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const int expected[] = {sources[i].open, sources[i].listed, sources[i].keyed};
        char request[400], allowed[200];
        kt_reply r;
        int n = snprintf(
            request, sizeof request, "GET /big HTTP/1.1\r\nHost: %s\r\n%s%s%sX-Api-Key: k\r\n\r\n",
            sources[i].host, sources[i].origin ? "Origin: " : "",
            sources[i].origin ? sources[i].origin : "", sources[i].origin ? "\r\n" : "");
        r = kt_raw(port, request, (size_t)n, false);
        cr_expect_eq(r.status, expected[mode], "%s: %d %s", request, r.status, r.body);
        snprintf(allowed, sizeof allowed, "Access-Control-Allow-Origin: %s\r\n",
                 sources[i].origin ? sources[i].origin : "");
        cr_expect_eq(strstr(r.headers, allowed) != NULL, sources[i].origin && r.status == 200, "%s",
                     r.headers);
        cr_expect(sources[i].origin || !strstr(r.headers, "Access-Control-Allow-Origin"));
        if (r.status == 403)
            cr_expect(strstr(r.body, sources[i].origin && strstr(r.body, "origin_not")
                                         ? "--cors-origins"
                                         : "--allowed-hosts"),
                      "%s", r.body);
        kt_reply_free(&r);
    }
}

Test(safety, without_a_key_only_this_machine_is_answered) {
    start((kt_http_options){0});
    ask(0);
    stop();
}

Test(safety, hosts_and_origins_can_be_listed) {
    start((kt_http_options){.allowed_hosts = "good.example, port.example:81",
                            .cors_origins = " https://app.example"});
    ask(1);
    stop();
}

Test(safety, a_key_opens_it_to_any_host_and_page) {
    start((kt_http_options){.api_key = "k"});
    ask(2);
    stop();
}

Test(safety, with_a_key_listed_origins_are_the_only_ones) {
    kt_reply r;

    big_bytes = 5;
    start((kt_http_options){.api_key = "k", .cors_origins = "https://app.example"});
    r = kt_send_request(port, "GET", "/big", "X-Api-Key: k\r\nOrigin: https://app.example\r\n",
                        NULL);
    cr_expect_eq(r.status, 200);
    kt_reply_free(&r);
    r = kt_send_request(port, "GET", "/big", "X-Api-Key: k\r\nOrigin: https://b.example\r\n", NULL);
    cr_expect_eq(r.status, 403);
    kt_reply_free(&r);
    r = kt_send_request(port, "OPTIONS", "/big", "Origin: https://b.example\r\n", NULL);
    cr_expect_eq(r.status, 403);
    cr_expect_null(strstr(r.headers, "Allow-Origin"));
    kt_reply_free(&r);
    stop();
}

Test(safety, an_origin_needs_a_scheme) {
    kt_access *a = NULL;
    kt_err err = {0};

    cr_expect_eq(kt_access_create(NULL, NULL, "app.example", &a, &err), KT_E_INVALID);
    cr_expect_not_null(strstr(err.message, "https://app.example"), "%s", err.message);
    cr_assert_eq(kt_access_create(NULL, "*", "*", &a, &err), KT_OK);
    cr_expect(kt_access_host(a, "evil.example") && kt_access_origin(a, "null", "evil.example"));
    kt_access_destroy(a);
}

/* ---- places and memory ---- */

Test(safety, the_limit_of_connections_holds, .timeout = 60) {
    int fd[40], n_answered = 0;
    char byte;

    start((kt_http_options){.max_connections = 8, .read_timeout_ms = 30000});
    for (int i = 0; i < 40; i++) fd[i] = send_text(GET_STREAM);
    fake_sleep(3500 * 1000); /* more than three ticks, each of which once let another in */
    cr_expect_eq(atomic_load(&n_parked), 8);
    for (int i = 0; i < 40; i++) n_answered += recv(fd[i], &byte, 1, MSG_DONTWAIT) == 1;
    cr_expect_eq(n_answered, 8);
    for (int i = 0; i < 40; i++) close(fd[i]);
    stop();
}

Test(safety, a_body_that_drips_is_not_waited_for, .timeout = 60) {
    static const char *const framing[] = {"Content-Length: 1000\r\n\r\n",
                                          "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"};

    start((kt_http_options){.read_timeout_ms = 400});
    for (int i = 0; i < 2; i++) {
        char head[200], byte;
        int64_t since = kt_clock_ns();
        int fd;
        kt_reply r;
        snprintf(head, sizeof head, "POST /park HTTP/1.1\r\nHost: localhost\r\n%s", framing[i]);
        fd = send_text(head);
        while (seconds_since(since) < 8 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1 &&
               kt_send_all(fd, "x", 1))
            fake_sleep(50 * 1000);
        cr_expect_lt(seconds_since(since), 6.0, "it may drip for ever");
        r = kt_read_reply(fd, NULL, NULL, false);
        cr_expect_eq(r.status, 408, "%d %s", r.status, r.body);
        kt_reply_free(&r);
        close(fd);
    }
    stop();
}

/* Bytes count while a request holds them: parked ones fill the budget, then it is 503, then there
 * is room again. */
Test(safety, all_bodies_share_one_budget, .timeout = 60) {
    const size_t size = 900 << 10;
    char *body = malloc(size + 1);
    int fd[4], n_before;
    kt_reply r;

    memset(body, ' ', size);
    body[size] = '\0';
    start((kt_http_options){.max_bodies_bytes = (size_t)4 << 20});
    for (int i = 0; i < 4; i++) {
        char head[100];
        sprintf(head, "POST /park HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                size);
        fd[i] = send_text(head);
        kt_send_all(fd[i], body, size);
        wait_until_parked(i + 1);
    }
    r = kt_send_request(port, "POST", "/park", "", body);
    cr_expect_eq(r.status, 503, "%d", r.status);
    cr_expect_not_null(strstr(r.body, "\"code\":\"overloaded\""), "%s", r.body);
    cr_expect_not_null(strstr(r.headers, "Retry-After: "));
    kt_reply_free(&r);
    release_parked();
    for (int i = 0; i < 4; i++) {
        r = kt_read_reply(fd[i], NULL, NULL, false);
        cr_expect_eq(r.status, 500);
        kt_reply_free(&r);
        close(fd[i]);
    }
    n_before = atomic_load(&n_parked);
    fd[0] = send_text("POST /park HTTP/1.1\r\nHost: localhost\r\nContent-Length: 921600\r\n\r\n");
    kt_send_all(fd[0], body, size);
    wait_until_parked(n_before + 1);
    close(fd[0]);
    free(body);
    stop();
}

Test(safety, a_body_can_be_given_back_early) {
    const size_t size = 900 << 10;
    char *body = malloc(size + 1);
    int fd[3];

    memset(body, ' ', size);
    start((kt_http_options){.max_bodies_bytes = (size_t)1 << 20});
    for (int i = 0; i < 3; i++) {
        fd[i] =
            send_text("POST /park HTTP/1.1\r\nHost: localhost\r\nContent-Length: 921600\r\n\r\n");
        kt_send_all(fd[i], body, size);
        wait_until_parked(i + 1);
        kt_http_drop_body(atomic_load(&parked[i]));
    }
    for (int i = 0; i < 3; i++) close(fd[i]);
    free(body);
    stop();
}

/* ---- leaving ---- */

Test(safety, a_client_that_sent_much_ahead_is_noticed_when_it_leaves) {
    static char junk[4 << 20];
    int fd;

    start((kt_http_options){0});
    fd = send_text(POST_PARK);
    memset(junk, 'j', sizeof junk);
    wait_until_parked(1);
    cr_assert(kt_send_all(fd, junk, sizeof junk));
    fake_sleep(100 * 1000);
    cr_expect(!kt_http_gone(atomic_load(&parked[0])));
    close(fd);
    for (int i = 0; i < 1000 && !kt_http_gone(atomic_load(&parked[0])); i++) fake_sleep(1000);
    cr_expect(kt_http_gone(atomic_load(&parked[0])), "it is not noticed");
    stop();
}

/* ---- formalities ---- */

Test(safety, allow_lists_what_a_path_has) {
    kt_reply r;

    start((kt_http_options){0});
    r = kt_send_request(port, "POST", "/big", "", "{}");
    cr_expect_eq(r.status, 405);
    cr_expect_not_null(strstr(r.headers, "Allow: GET, HEAD, OPTIONS\r\n"), "%s", r.headers);
    kt_reply_free(&r);
    r = kt_send_request(port, "GET", "/v1/park", "", NULL); /* with and without /v1 */
    cr_expect_eq(r.status, 405);
    cr_expect_not_null(strstr(r.headers, "Allow: POST, OPTIONS\r\n"), "%s", r.headers);
    kt_reply_free(&r);
    r = kt_send_request(port, "POST", "/big", "Expect: miracles\r\n", "{}");
    cr_expect_eq(r.status, 417);
    kt_reply_free(&r);
    stop();
}

Test(safety, the_date_is_of_the_form_of_rfc_9110) {
    char day[8], month[8], zone[8];
    int d, y, h, m, s;
    kt_reply r;
    const char *at;

    big_bytes = 1;
    start((kt_http_options){0});
    r = kt_send_request(port, "GET", "/big", "", NULL);
    at = strstr(r.headers, "\r\nDate: ");
    cr_assert_not_null(at);
    cr_expect_eq(sscanf(at, "\r\nDate: %3s, %2d %3s %4d %2d:%2d:%2d %3s", day, &d, month, &y, &h,
                        &m, &s, zone),
                 8, "%s", at);
    cr_expect_str_eq(zone, "GMT");
    kt_reply_free(&r);
    stop();
}

static bool can_connect(const char *address) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list;
    char service[16];
    int fd;
    bool ok;

    snprintf(service, sizeof service, "%d", port);
    cr_assert_eq(getaddrinfo(address, service, &hints, &list), 0);
    fd = socket(list->ai_family, SOCK_STREAM, 0);
    ok = fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(list);
    return ok;
}

Test(safety, a_name_listens_on_all_its_addresses) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;

    start((kt_http_options){.host = "localhost"});
    cr_assert_eq(getaddrinfo("localhost", NULL, &hints, &list), 0);
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        char address[64];
        int fd = socket(a->ai_family, SOCK_STREAM, 0);
        getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST);
        if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0) { /* this machine lacks it */
            if (fd >= 0) close(fd);
            continue;
        }
        close(fd);
        cr_expect(can_connect(address), "%s is not listened on", address);
    }
    freeaddrinfo(list);
    stop();
}

/* ---- the end ---- */

static void expect_cut(int waiting, int stream) {
    kt_reply r = kt_read_reply(waiting, NULL, NULL, false);

    cr_expect_eq(r.status, 503, "%d '%s'", r.status, r.body);
    cr_expect_not_null(strstr(r.body, "\"code\":\"shutting_down\""), "%s", r.body);
    kt_reply_free(&r);
    close(waiting);
    r = kt_read_reply(stream, NULL, NULL, false);
    cr_expect_eq(r.status, 200);
    cr_expect_not_null(strstr(r.body, "\"code\":\"shutting_down\""), "%s", r.body);
    cr_expect_not_null(strstr(r.body, "data: [DONE]\n\n"), "%s", r.body);
    kt_reply_free(&r);
    close(stream);
}

Test(safety, what_a_drain_cuts_gets_an_answer) {
    int waiting, stream;
    int64_t since;

    start((kt_http_options){.drain_ms = 300});
    waiting = send_text(POST_PARK);
    wait_until_parked(1);
    stream = send_text(GET_STREAM);
    wait_until_parked(2);
    since = kt_clock_ns();
    kt_http_server_stop(server);
    expect_cut(waiting, stream);
    cr_expect_gt(seconds_since(since), 0.25);
    cr_expect(kt_http_gone(atomic_load(&parked[0])) && kt_http_gone(atomic_load(&parked[1])));
    pthread_join(thread, NULL);
    cr_expect_lt(seconds_since(since), 3.0);
    release_parked();
    kt_http_server_destroy(server);
}

Test(safety, a_second_stop_cuts_within_a_second) {
    int waiting, stream;
    int64_t since;

    start((kt_http_options){.drain_ms = 60000});
    waiting = send_text(POST_PARK);
    wait_until_parked(1);
    stream = send_text(GET_STREAM);
    wait_until_parked(2);
    since = kt_clock_ns();
    kt_http_server_stop(server);
    kt_http_server_stop(server);
    expect_cut(waiting, stream);
    pthread_join(thread, NULL);
    cr_expect_lt(seconds_since(since), 1.0);
    release_parked();
    kt_http_server_destroy(server);
}
