/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/cli/chat_link.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "runtime/http/http_parse.h"
#include "runtime/token/text.h"

enum { POLL_MS = 100, MAX_TEXT = 64 << 20 };

/* One request under way. */
typedef struct link_call {
    const kt_chat_link *link;
    int fd;
    kt_text in;   /* bytes of the head, then of events, without the framing */
    size_t at;    /* of in: what was handed over */
    int status;   /* 0 = the head is not complete */
    bool chunked; /* framing of the body */
    kt_http_chunks chunks;
    bool is_done; /* [DONE] */
    kt_chat_link_sink *sink;
    void *arg;
} link_call;

kt_status kt_chat_link_init(kt_chat_link *l, const char *url, kt_err *err) {
    const char *at = url, *path, *end;
    bool v6;

    memset(l, 0, sizeof *l);
    if (strncmp(at, "http://", 7) != 0)
        return kt_fail(err, KT_E_INVALID, "'%s' is no address, expected http://HOST:PORT", url);
    at += 7;
    path = at + strcspn(at, "/");
    v6 = *at == '[';
    if (v6) at++;
    end = at + strcspn(at, v6 ? "]" : ":/");
    if (end == at || (size_t)(end - at) >= sizeof l->host || (v6 && *end != ']'))
        return kt_fail(err, KT_E_INVALID, "'%s' has no host", url);
    memcpy(l->host, at, (size_t)(end - at));
    if (v6) end++;
    snprintf(l->port, sizeof l->port, "80");
    if (*end == ':') snprintf(l->port, sizeof l->port, "%.*s", (int)(path - end - 1), end + 1);
    snprintf(l->path, sizeof l->path, "%s", path);
    while (*l->path && l->path[strlen(l->path) - 1] == '/') l->path[strlen(l->path) - 1] = '\0';
    if (!*l->path) snprintf(l->path, sizeof l->path, "/v1");
    return KT_OK;
}

static kt_status connect_to(link_call *c, kt_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    const kt_chat_link *l = c->link;
    int rc = getaddrinfo(l->host, l->port, &hints, &list), error = 0;

    if (rc != 0) return kt_fail(err, KT_E_IO, "%s: %s", l->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd >= 0 && connect(c->fd, a->ai_addr, a->ai_addrlen) == 0) break;
        error = errno;
        if (c->fd >= 0) close(c->fd);
        c->fd = -1;
    }
    freeaddrinfo(list);
    if (c->fd >= 0) return KT_OK;
    return kt_fail(err, KT_E_IO, "%s port %s: %s", l->host, l->port, strerror(error));
}

static kt_status send_all(const link_call *c, const char *data, size_t n, kt_err *err) {
    while (n > 0) {
        ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return kt_fail(err, KT_E_IO, "the server left: %s", strerror(errno));
        data += sent;
        n -= (size_t)sent;
    }
    return KT_OK;
}

static kt_status send_request(const link_call *c, const char *what, const char *body, size_t size,
                              kt_err *err) {
    const kt_chat_link *l = c->link;
    bool v6 = strchr(l->host, ':') != NULL;
    char head[2048];
    int n = snprintf(head, sizeof head,
                     "POST %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n%s%s%s\r\n",
                     l->path, what, v6 ? "[" : "", l->host, v6 ? "]" : "", l->port, size,
                     l->key ? "Authorization: Bearer " : "", l->key ? l->key : "",
                     l->key ? "\r\n" : "");

    if (n < 0 || (size_t)n >= sizeof head)
        return kt_fail(err, KT_E_INVALID, "the address or the key is too long");
    KT_TRY(send_all(c, head, (size_t)n, err));
    return send_all(c, body, size, err);
}

/* The head, once it is complete: status and framing. It leaves the buffer. */
static kt_status read_head(link_call *c, kt_err *err) {
    char *end = memmem(c->in.data, c->in.size, "\r\n\r\n", 4);
    size_t size, got = 0;

    if (!end) return KT_OK;
    size = (size_t)(end - c->in.data) + 4;
    *end = '\0';
    if (sscanf(c->in.data, "HTTP/1.%*c %d", &c->status) != 1 || c->status < 200)
        return kt_fail(err, KT_E_IO, "this is no HTTP server");
    c->chunked = strcasestr(c->in.data, "\r\ntransfer-encoding: chunked") != NULL;
    memmove(c->in.data, c->in.data + size, c->in.size - size);
    c->in.size -= size;
    if (!c->chunked) return KT_OK;
    if (kt_http_chunks_read(&c->chunks, c->in.data, c->in.size, &got) == SIZE_MAX)
        return kt_fail(err, KT_E_IO, "the answer is malformed");
    c->in.size = got;
    return KT_OK;
}

/* What the server says is wrong. */
static kt_status tell_error(const kt_json *root, int status, kt_err *err) {
    const kt_json *error = kt_json_get(root, "error");
    const char *message = kt_json_text(error, "message");

    if (!*message) message = kt_json_string(error, NULL) ? kt_json_string(error, NULL) : "";
    return kt_fail(err, KT_E_INVALID, "%s (status %d)", *message ? message : "the server refuses",
                   status);
}

static kt_status take_event(link_call *c, const char *data, size_t size, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_status st = KT_OK;

    if (size == 6 && memcmp(data, "[DONE]", 6) == 0) {
        c->is_done = true;
        return KT_OK;
    }
    if (kt_json_parse(data, size, NULL, &doc, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_IO, "an event of the answer");
    if (kt_json_get(kt_json_root(doc), "error"))
        st = tell_error(kt_json_root(doc), c->status, err);
    else
        c->sink(c->arg, kt_json_root(doc));
    kt_json_destroy(doc);
    return st;
}

/* Whole events of what has come. */
static kt_status take_events(link_call *c, kt_err *err) {
    char *end;

    while (!c->is_done && c->at < c->in.size &&
           (end = memmem(c->in.data + c->at, c->in.size - c->at, "\n\n", 2))) {
        const char *line = c->in.data + c->at;
        c->at = (size_t)(end - c->in.data) + 2;
        if (strncmp(line, "data: ", 6) == 0)
            KT_TRY(take_event(c, line + 6, (size_t)(end - line) - 6, err));
    }
    memmove(c->in.data, c->in.data + c->at, c->in.size - c->at);
    c->in.size -= c->at;
    c->at = 0;
    return KT_OK;
}

/* More bytes; *n = 0 at the end, or -1 when there were none yet. */
static kt_status read_more(link_call *c, ssize_t *n, kt_err *err) {
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    size_t used, got = 0;

    *n = -1;
    if (c->link->is_stopped && c->link->is_stopped())
        return kt_fail(err, KT_E_CANCELLED, "stopped");
    if (poll(&p, 1, POLL_MS) <= 0) return KT_OK;
    if (c->in.size > MAX_TEXT) return kt_fail(err, KT_E_IO, "the answer has no end");
    KT_TRY(kt_text_reserve(&c->in, 65537, err));
    *n = recv(c->fd, c->in.data + c->in.size, 65536, 0);
    if (*n < 0) return kt_fail(err, KT_E_IO, "the server left: %s", strerror(errno));
    if (c->status && c->chunked) {
        used = kt_http_chunks_read(&c->chunks, c->in.data + c->in.size, (size_t)*n, &got);
        if (used == SIZE_MAX) return kt_fail(err, KT_E_IO, "the answer is malformed");
        c->in.size += got;
    } else {
        c->in.size += (size_t)*n;
    }
    c->in.data[c->in.size] = '\0';
    return KT_OK;
}

static kt_status read_answer(link_call *c, kt_err *err) {
    ssize_t n;

    do {
        KT_TRY(read_more(c, &n, err));
        if (n > 0 && !c->status) KT_TRY(read_head(c, err));
        if (c->status == 200) KT_TRY(take_events(c, err));
    } while (n != 0 && !c->is_done && !c->chunks.done);
    if (c->is_done) return KT_OK;
    if (!c->status || c->status == 200)
        return kt_fail(err, KT_E_IO, "the server left before the end of its answer");
    return KT_E_INVALID;
}

/* A refusal's body is one JSON object. */
static kt_status read_refusal(link_call *c, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_status st;

    kt_json_parse(c->in.data, c->in.size, NULL, &doc, NULL);
    st = tell_error(kt_json_root(doc), c->status, err);
    kt_json_destroy(doc);
    return st;
}

kt_status kt_chat_link_post(const kt_chat_link *l, const char *what, const char *body, size_t size,
                            kt_chat_link_sink *sink, void *arg, kt_err *err) {
    link_call c = {.link = l, .fd = -1, .sink = sink, .arg = arg};
    kt_status st = connect_to(&c, err);

    if (st == KT_OK) st = send_request(&c, what, body, size, err);
    if (st == KT_OK) {
        st = read_answer(&c, err);
        if (st == KT_E_INVALID && c.status != 200) st = read_refusal(&c, err);
    }
    if (c.fd >= 0) close(c.fd);
    free(c.in.data);
    return st;
}
