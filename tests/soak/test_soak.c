/* `kt serve` under clients of every kind at once: whole answers, streams, clients that leave,
 * clients that hardly read, broken and oversized requests, and crowds that fill the queue. Every
 * accepted request is answered to its end, nothing sticks and nothing leaks. Ten seconds, or as
 * long as KT_SOAK_SECONDS says (tests/soak/run). SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/http_client.h"
#include "tests/support/served.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

enum { CROWD = 24, MOST_CLIENTS = 16, WORDS_BYTES = 4000 };

/* What all clients share. */
static struct {
    int port;
    int64_t end_ns;
    atomic_llong answered, refused, left, broken;
    atomic_llong resting; /* looks at the machine while an answer rested for its reader */
    pthread_mutex_t lock;
    int n_faults;
    char faults[WORDS_BYTES]; /* the first ones */
} load = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct soak_client {
    pthread_t thread;
    kt_rng rng;
    void (*act)(struct soak_client *c); /* once; called again and again */
} soak_client;

static void pause_ms(int64_t ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Clients run beside the test's thread, where an assertion may not be. */
static void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void fault(const char *format, ...) {
    va_list args;
    size_t used;

    pthread_mutex_lock(&load.lock);
    load.n_faults++;
    used = strlen(load.faults);
    va_start(args, format);
    vsnprintf(load.faults + used, sizeof load.faults - used, format, args);
    va_end(args);
    strncat(load.faults, "\n", sizeof load.faults - strlen(load.faults) - 1);
    pthread_mutex_unlock(&load.lock);
}

/* ---- requests ---- */

/* A chat of some random words; prompts share beginnings, so that pages are reused. */
static void make_chat(kt_rng *rng, int max_tokens, const char *more, char *out, size_t out_bytes) {
    static const char *const words[] = {"king", "day", "water", "Hamlet", "spake", "night", "\\n"};
    int n = snprintf(out, out_bytes, "{\"messages\":[{\"role\":\"user\",\"content\":\"In that");

    for (uint64_t i = kt_rng_below(rng, 60); i > 0; i--)
        n += snprintf(out + n, out_bytes - (size_t)n, " %s", words[kt_rng_below(rng, 7)]);
    snprintf(out + n, out_bytes - (size_t)n, "\"}],\"max_tokens\":%d,\"seed\":%d%s}", max_tokens,
             (int)kt_rng_below(rng, 1000), more);
}

static int open_chat(const char *body, int receive_bytes) {
    char head[200];
    int fd = kt_dial(load.port);

    if (fd < 0) return -1;
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    snprintf(head, sizeof head,
             "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(body));
    kt_send_all(fd, head, strlen(head));
    kt_send_all(fd, body, strlen(body));
    return fd;
}

/* Answered whole, or refused as a full queue is. */
static void judge(const char *who, const kt_reply *r, bool is_stream) {
    const size_t n = r->body_size;
    bool is_whole = strstr(r->body, "\"finish_reason\":\"stop\"") ||
                    strstr(r->body, "\"finish_reason\":\"length\"");

    if (r->status == 429 || r->status == 503) {
        if (!strstr(r->headers, "Retry-After: ") || !strstr(r->body, "\"error\""))
            fault("%s: refused without Retry-After or error: %s%s", who, r->headers, r->body);
        atomic_fetch_add(&load.refused, 1);
        return;
    }
    if (is_stream)
        is_whole = is_whole && n > 14 && strcmp(r->body + n - 14, "data: [DONE]\n\n") == 0 &&
                   !strstr(r->body, "\"error\"");
    else
        is_whole = is_whole && strstr(r->body, "\"usage\"") && r->body[n - 1] == '}';
    if (r->status != 200 || !is_whole)
        fault("%s: status %d, %zu bytes, the end: %.300s", who, r->status, n,
              r->body + (n > 300 ? n - 300 : 0));
    atomic_fetch_add(&load.answered, 1);
}

static void read_and_judge(const char *who, int fd, bool is_stream) {
    kt_reply r;

    if (fd < 0) {
        fault("%s: the connection was refused", who);
        return;
    }
    r = kt_read_reply(fd, NULL, NULL, false);
    close(fd);
    judge(who, &r, is_stream);
    kt_reply_free(&r);
}

/* ---- kinds of clients ---- */

static void whole(soak_client *c) {
    char body[2000];

    make_chat(&c->rng, 1 + (int)kt_rng_below(&c->rng, 40), "", body, sizeof body);
    read_and_judge("whole", open_chat(body, 0), false);
}

static void stream(soak_client *c) {
    char body[2000];

    make_chat(&c->rng, 1 + (int)kt_rng_below(&c->rng, 80),
              ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true}", body,
              sizeof body);
    read_and_judge("stream", open_chat(body, 0), true);
}

/* At any time: before the head is whole, in the queue, in the prompt, in the answer. */
static void leaver(soak_client *c) {
    char body[2000], some[500];
    int fd;

    make_chat(&c->rng, 500, kt_rng_below(&c->rng, 2) ? ",\"stream\":true" : "", body, sizeof body);
    if (kt_rng_below(&c->rng, 5) == 0) body[kt_rng_below(&c->rng, strlen(body))] = '\0';
    fd = open_chat(body, 0);
    if (fd < 0) return;
    pause_ms((int64_t)kt_rng_below(&c->rng, 40));
    if (kt_rng_below(&c->rng, 2)) recv(fd, some, sizeof some, MSG_DONTWAIT);
    close(fd);
    atomic_fetch_add(&load.left, 1);
    pause_ms((int64_t)kt_rng_below(&c->rng, 10));
}

/* All that comes until the other side closes, with chunk framing; NULL when time is over before. */
static char *read_to_the_end(int fd, size_t *size) {
    char *text = NULL;
    ssize_t n;

    *size = 0;
    do {
        text = realloc(text, *size + 65537);
        if (!text) return NULL;
        n = recv(fd, text + *size, 65536, 0);
        if (n > 0) *size += (size_t)n;
        text[*size] = '\0';
    } while (n > 0 && kt_clock_ns() < load.end_ns);
    if (n == 0) return text;
    if (kt_clock_ns() < load.end_ns) fault("slow: the stream broke after %zu bytes", *size);
    free(text);
    return NULL;
}

/* Has an answer begun that is no 200? It stays to be read. */
static bool is_refused(int fd) {
    char head[12];

    return recv(fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof head &&
           memcmp(head, "HTTP/1.1 200", sizeof head) != 0;
}

/* Four long answers, 7 MB with what the system's buffers take, that nobody reads for so long that
 * they have to rest; then to their end. A busy machine takes longer to write so much: until a rest
 * was seen, up to a minute. */
static void slow(soak_client *c) {
    const int64_t since_ns = kt_clock_ns();
    const int64_t least_ns = since_ns + (int64_t)(1000 + kt_rng_below(&c->rng, 6000)) * 1000000;
    const int64_t most_ns = since_ns + 60 * 1000000000LL;
    char body[2000], *text;
    size_t size;
    int fd;

    make_chat(&c->rng, 1000,
              ",\"stream\":true,\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":20,\"n\":4",
              body, sizeof body);
    fd = open_chat(body, 4096);
    if (fd < 0) return;
    for (int64_t now = since_ns; now < load.end_ns; now = kt_clock_ns()) {
        if (now >= (atomic_load(&load.resting) > 0 ? least_ns : most_ns) || is_refused(fd)) break;
        pause_ms(20);
    }
    text = read_to_the_end(fd, &size);
    close(fd);
    if (!text) return;
    if (strncmp(text, "HTTP/1.1 200", 12) != 0)
        atomic_fetch_add(&load.refused, 1);
    else if (!strstr(text, "\"finish_reason\":\"length\"") || size < 40 ||
             !strstr(text + size - 40, "data: [DONE]\n\n"))
        fault("slow: %zu bytes, the end: %.300s", size, text + (size > 300 ? size - 300 : 0));
    else
        atomic_fetch_add(&load.answered, 1);
    free(text);
}

/* More at once than the queue holds; each is answered or told to come again. */
static void crowd(soak_client *c) {
    char body[2000];
    int fd[CROWD];

    for (int i = 0; i < CROWD; i++) {
        make_chat(&c->rng, 16, "", body, sizeof body);
        fd[i] = open_chat(body, 0);
    }
    for (int i = 0; i < CROWD; i++) read_and_judge("crowd", fd[i], false);
    pause_ms(200);
}

/* What no server may accept; none of them may cost a connection for longer than its answer. */
static void broken(soak_client *c) {
#define HEAD(length) "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" length "\r\n\r\n"
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET\r\n\r\n", 400},
        {"\x16\x03\x01\x02\r\n\r\n", 400},
        {"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505},
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404},
        {"PATCH /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405},
        {"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403},
        {HEAD("Content-Length: 99999999999"), 413},
        {HEAD("Content-Length: -1"), 400},
        {HEAD("Transfer-Encoding: chunked") "zz\r\n", 400},
        {HEAD("Content-Length: 2\r\nContent-Length: 3") "{}", 400},
        {HEAD("Connection: close\r\nContent-Length: 2") "{}", 400},
        {HEAD("Connection: close\r\nContent-Length: 4") "[[[[", 400},
        {HEAD("Connection: close\r\nContent-Length: 28") "{\"messages\":[{\"content\":1}]}", 400},
        {HEAD("Connection: close\r\nContent-Length: 17") "{\"messages\":null}", 400},
    };
#undef HEAD
    const size_t i = kt_rng_below(&c->rng, sizeof cases / sizeof *cases);
    kt_reply r = kt_raw(load.port, cases[i].text, strlen(cases[i].text), false);

    if (r.status != cases[i].status)
        fault("broken %zu: status %d, expected %d: %.200s", i, r.status, cases[i].status, r.body);
    kt_reply_free(&r);
    atomic_fetch_add(&load.broken, 1);
    pause_ms(2);
}

static void *run_client(void *arg) {
    soak_client *c = arg;

    while (kt_clock_ns() < load.end_ns) c->act(c);
    return NULL;
}

/* ---- the server meanwhile and afterwards ---- */

static bool says(const char *path, const char *words) {
    kt_reply r = kt_send_request(load.port, "GET", path, "", NULL);
    const bool does = r.status == 200 && strstr(r.body, words);

    kt_reply_free(&r);
    return does;
}

/* All that was accepted is over; what a client left behind too. */
static void expect_idle(void) {
    static const struct {
        const char *path, *words;
    } signs[] = {{"/slots", "[]"},
                 {"/health", "\"running\":0,\"waiting\":0"},
                 {"/machine", "\"batch\":{\"choices\":0"},
                 {"/metrics", "kt_kv_pages_used{model_name=\"tiny-moe\"} 0\n"}};

    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        bool is_idle = says(signs[i].path, signs[i].words);
        for (int wait = 0; !is_idle && wait < 500; wait++) {
            pause_ms(10);
            is_idle = says(signs[i].path, signs[i].words);
        }
        cr_expect(is_idle, "%s never has '%s'", signs[i].path, signs[i].words);
    }
}

/* The most resident memory up to then; /health and /machine answer all the time. */
static long watch(const kt_served *s, int64_t until_ns) {
    long most = 0;

    while (kt_clock_ns() < until_ns) {
        const long now = kt_served_rss(s);
        kt_reply r = kt_send_request(load.port, "GET", "/health", "", NULL);
        if (r.status != 200) fault("/health: status %d", r.status);
        kt_reply_free(&r);
        r = kt_send_request(load.port, "GET", "/machine", "", NULL);
        if (r.status != 200) fault("/machine: status %d", r.status);
        if (!strstr(r.body, "\"resting\":0")) atomic_fetch_add(&load.resting, 1);
        kt_reply_free(&r);
        if (now > most) most = now;
        pause_ms(100);
    }
    return most;
}

static int start_clients(soak_client *clients) {
    static const struct {
        void (*act)(soak_client *c);
        int n;
    } kinds[] = {{whole, 3}, {stream, 3}, {leaver, 3}, {slow, 2}, {crowd, 1}, {broken, 2}};
    int n = 0;

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; i < kinds[k].n; i++, n++) {
            clients[n].act = kinds[k].act;
            kt_rng_seed(&clients[n].rng, (uint64_t)n + 1);
            cr_assert_eq(pthread_create(&clients[n].thread, NULL, run_client, &clients[n]), 0);
        }
    return n;
}

static int seconds_wanted(void) {
    const char *text = getenv("KT_SOAK_SECONDS");
    const int n = text ? atoi(text) : 10;

    cr_assert(n >= 5, "KT_SOAK_SECONDS=%s, expected at least 5", text);
    return n;
}

Test(soak, nothing_leaks_and_nothing_sticks) {
    static const char *const flags[] = {"--queue",     "8",  "--parallel", "6",
                                        "--kv-memory", "4M", NULL};
    const int64_t ns = (int64_t)seconds_wanted() * 1000000000;
    soak_client clients[MOST_CLIENTS];
    kt_served s = kt_served_start(MODEL, flags);
    const int fds = kt_served_fds(&s);
    const int64_t begin = kt_clock_ns();
    long early, late;
    int n;

    load.port = s.port;
    load.end_ns = begin + ns;
    n = start_clients(clients);
    watch(&s, begin + ns / 4); /* memory that is touched once */
    early = watch(&s, begin + ns * 5 / 8);
    late = watch(&s, begin + ns);
    for (int i = 0; i < n; i++) pthread_join(clients[i].thread, NULL);
    expect_idle();
    for (int i = 0; i < 300 && kt_served_fds(&s) != fds; i++) pause_ms(10);
    cr_expect_eq(kt_served_fds(&s), fds, "%d descriptors, %d before", kt_served_fds(&s), fds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which keep freed memory */
    cr_expect_lt(late, early + early / 20 + (4 << 20), "%ld bytes, then %ld", early, late);
#endif
    fprintf(
        stderr,
        "soak: %lld s: %lld answered, %lld refused, %lld left, %lld broken; a rest was seen %lld "
        "times; memory %.1f MiB, then %.1f; %d descriptors\n",
        (long long)(ns / 1000000000), atomic_load(&load.answered), atomic_load(&load.refused),
        atomic_load(&load.left), atomic_load(&load.broken), atomic_load(&load.resting),
        (double)early / 0x1p20, (double)late / 0x1p20, fds);
    cr_expect_eq(load.n_faults, 0, "%d faults, the first:\n%s", load.n_faults, load.faults);
    if (ns >= (int64_t)60 * 1000000000) /* the system's own buffers have to fill first */
        cr_expect_gt(atomic_load(&load.resting), 0, "no answer ever rested for its reader");
    cr_expect(atomic_load(&load.answered) > 0 && atomic_load(&load.refused) > 0 &&
              atomic_load(&load.left) > 0 && atomic_load(&load.broken) > 0);
    cr_expect_eq(kt_served_stop(&s), 0);
}
