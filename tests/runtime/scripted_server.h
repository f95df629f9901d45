/* A server that answers every request by a script: for tests of what loads servers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_SCRIPTED_SERVER_H
#define KT_TESTS_SCRIPTED_SERVER_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef enum scripted_kind {
    SCRIPTED_CHUNKED,     /* events in chunks, each byte a chunk of its own */
    SCRIPTED_CLOSED,      /* no length: the end of the connection ends the body */
    SCRIPTED_LENGTH,      /* Content-Length */
    SCRIPTED_ERROR,       /* 404 with a JSON error */
    SCRIPTED_CUT,         /* the connection ends in the middle */
    SCRIPTED_EVENT_ERROR, /* an error event after one piece */
    SCRIPTED_GARBAGE,
    SCRIPTED_SILENT /* reads and never answers */
} scripted_kind;

typedef struct scripted_server {
    scripted_kind kind;
    bool chat, no_usage;
    int head_ms, gap_ms, n_pieces;
    int fd, port;
    pthread_t thread;
    atomic_int n_requests, n_active, most_active;
    char last[8192]; /* the latest request */
} scripted_server;

typedef struct scripted_visit {
    scripted_server *server;
    int fd;
} scripted_visit;

static inline void scripted_sleep(int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static inline void scripted_put(const scripted_visit *v, const char *text, size_t n) {
    for (size_t i = 0; i < n && v->server->kind == SCRIPTED_CHUNKED; i++) {
        char chunk[8];
        int size = snprintf(chunk, sizeof chunk, "1\r\n%c\r\n", text[i]);
        if (send(v->fd, chunk, (size_t)size, MSG_NOSIGNAL) < 0) return;
    }
    if (v->server->kind != SCRIPTED_CHUNKED) send(v->fd, text, n, MSG_NOSIGNAL);
}

static inline size_t scripted_piece(const scripted_server *s, int i, char *out, size_t bytes) {
    static const char *const members[] = {"content", "reasoning_content", "content"};
    if (s->chat)
        return (size_t)snprintf(out, bytes, "data: {\"choices\":[{\"delta\":{\"%s\":\"w\"}}]}\n\n",
                                members[i % 3]);
    return (size_t)snprintf(out, bytes, "data: {\"choices\":[{\"text\":\" w%d\"}]}\r\n\r\n", i);
}

static inline size_t scripted_tail(const scripted_server *s, char *out, size_t bytes) {
    if (s->no_usage) return (size_t)snprintf(out, bytes, "data: [DONE]\n\n");
    return (size_t)snprintf(out, bytes,
                            ": a comment\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
                            "\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":"
                            "3}}}\n\ndata: [DONE]\n\n",
                            s->n_pieces);
}

static inline void scripted_answer(const scripted_visit *v) {
    const scripted_server *s = v->server;
    static const char error[] =
        "data: {\"error\":{\"message\":\"out of luck\"}}\n\ndata: [DONE]\n\n";
    static const char cut[] = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
    char text[512], head[256];
    size_t total = 0;

    scripted_sleep(s->head_ms);
    for (int i = 0; i < s->n_pieces; i++) total += scripted_piece(s, i, text, sizeof text);
    total += scripted_tail(s, text, sizeof text);
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n");
    send(v->fd, head, strlen(head), MSG_NOSIGNAL);
    snprintf(head, sizeof head, "Content-Length: %zu\r\n", total);
    if (s->kind == SCRIPTED_CHUNKED)
        strcpy(head, "Transfer-Encoding: chunked\r\n");
    else if (s->kind != SCRIPTED_LENGTH)
        strcpy(head, "X: y\r\n");
    strcat(head, "\r\n");
    send(v->fd, head, strlen(head), MSG_NOSIGNAL);
    if (s->kind == SCRIPTED_CUT || s->kind == SCRIPTED_EVENT_ERROR) {
        scripted_put(v, cut, sizeof cut - 1);
        if (s->kind == SCRIPTED_EVENT_ERROR) scripted_put(v, error, sizeof error - 1);
        return;
    }
    for (int i = 0; i < s->n_pieces; i++) {
        if (i) scripted_sleep(s->gap_ms);
        scripted_put(v, text, scripted_piece(s, i, text, sizeof text));
    }
    scripted_put(v, text, scripted_tail(s, text, sizeof text));
    if (s->kind == SCRIPTED_CHUNKED) send(v->fd, "0\r\n\r\n", 5, MSG_NOSIGNAL);
}

/* Read a request up to the end of its body. */
static inline bool scripted_read(scripted_visit *v, char *text, size_t bytes) {
    size_t n = 0;

    for (;;) {
        const char *end, *length;
        ssize_t got = recv(v->fd, text + n, bytes - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        text[n] = 0;
        end = strstr(text, "\r\n\r\n");
        length = strstr(text, "Content-Length: ");
        if (end && length && n >= (size_t)(end + 4 - text) + strtoul(length + 16, NULL, 10))
            return true;
    }
}

static inline void *scripted_serve(void *arg) {
    static const char error[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 43\r\n\r\n"
                                "{\"error\":{\"message\":\"no such model\",\"x\":1}}";
    scripted_visit *v = arg;
    scripted_server *s = v->server;
    char text[8192];
    int active = atomic_fetch_add(&s->n_active, 1) + 1;

    if (active > atomic_load(&s->most_active)) atomic_store(&s->most_active, active);
    if (scripted_read(v, text, sizeof text)) {
        memcpy(s->last, text, sizeof s->last);
        atomic_fetch_add(&s->n_requests, 1);
        if (s->kind == SCRIPTED_ERROR)
            send(v->fd, error, sizeof error - 1, MSG_NOSIGNAL);
        else if (s->kind == SCRIPTED_GARBAGE)
            send(v->fd, "SSH-2.0-x\r\n\r\n\r\n", 15, MSG_NOSIGNAL);
        else if (s->kind == SCRIPTED_SILENT)
            recv(v->fd, text, 1, 0);
        else
            scripted_answer(v);
    }
    atomic_fetch_sub(&s->n_active, 1);
    close(v->fd);
    free(v);
    return NULL;
}

static inline void *scripted_accept(void *arg) {
    scripted_server *s = arg;

    for (;;) {
        pthread_t thread;
        scripted_visit *v;
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0) return NULL;
        v = malloc(sizeof *v);
        cr_assert_not_null(v);
        *v = (scripted_visit){s, fd};
        cr_assert_eq(pthread_create(&thread, NULL, scripted_serve, v), 0);
        pthread_detach(thread);
    }
}

static inline void scripted_start(scripted_server *s) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;

    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(s->fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(s->fd, 64), 0);
    cr_assert_eq(getsockname(s->fd, (struct sockaddr *)&at, &bytes), 0);
    s->port = ntohs(at.sin_port);
    cr_assert_eq(pthread_create(&s->thread, NULL, scripted_accept, s), 0);
}

static inline void scripted_stop(scripted_server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    while (atomic_load(&s->n_active)) scripted_sleep(1);
}

#endif
