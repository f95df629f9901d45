/* HTTP/1.1 without keep-alive: connect, send, read events up to [DONE].
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/client/sse_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"

enum { MAX_LINE = 1 << 22, READ_BYTES = 1 << 16 };

/* ---- where to ---- */

bool kt_target_is_socket(const char *url) {
    return strncmp(url, "unix:", 5) == 0;
}

static kt_status look_up(const char *host, const char *port, const char *url, kt_target *t,
                         kt_err *err) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host, port, &want, &found);

    if (failed)
        return kt_fail(err, KT_E_NOT_FOUND, "%s: host '%s': %s", url, host, gai_strerror(failed));
    for (const struct addrinfo *a = found; a && t->n_addresses < KT_TARGET_ADDRESSES;
         a = a->ai_next) {
        memcpy(&t->address[t->n_addresses], a->ai_addr, a->ai_addrlen);
        t->address_bytes[t->n_addresses++] = a->ai_addrlen;
    }
    freeaddrinfo(found);
    return KT_OK;
}

static kt_status parse_socket(const char *path, kt_target *out, kt_err *err) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);

    if (n == 0 || n >= sizeof a.sun_path)
        return kt_fail(err, KT_E_INVALID, "'unix:%s': a path of %zu bytes, expected 1 to %zu", path,
                       n, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, n);
    *out = (kt_target){.host = "localhost", .n_addresses = 1, .address_bytes = {sizeof a}};
    snprintf(out->name, sizeof out->name, "unix:%s", path);
    memcpy(&out->address[0], &a, sizeof a);
    return KT_OK;
}

kt_status kt_target_parse(const char *url, kt_target *out, kt_err *err) {
    static const char scheme[] = "http://";
    const char *at = url, *end, *colon;
    char host[256], port[16] = "80";
    kt_target t = {0};
    bool v6;
    size_t n;

    if (kt_target_is_socket(url)) return parse_socket(url + 5, out, err);
    if (strncasecmp(url, "https:", 6) == 0)
        return kt_fail(err, KT_E_INVALID, "%s: https is not spoken here, expected http://HOST:PORT",
                       url);
    if (strncasecmp(url, scheme, sizeof scheme - 1) == 0) at += sizeof scheme - 1;
    end = at + strcspn(at, "/?#");
    colon = memrchr(at, ':', (size_t)(end - at));
    if (colon && memchr(colon, ']', (size_t)(end - colon))) colon = NULL;
    n = (size_t)((colon ? colon : end) - at);
    v6 = n >= 2 && *at == '[' && at[n - 1] == ']';
    if (v6) at++, n -= 2;
    if (n == 0 || (*at == '[' && !v6))
        return kt_fail(err, KT_E_INVALID, "'%s' has no host, expected http://HOST:PORT", url);
    if (n >= sizeof host || (colon && end - colon > 6))
        return kt_fail(err, KT_E_INVALID, "'%s' is no URL, expected http://HOST:PORT", url);
    memcpy(host, at, n);
    host[n] = 0;
    if (colon) snprintf(port, sizeof port, "%.*s", (int)(end - colon - 1), colon + 1);
    if (!*port || strspn(port, "0123456789") != strlen(port))
        return kt_fail(err, KT_E_INVALID, "'%s': port '%s' is no number", url, port);
    n = strlen(end);
    while (n && end[n - 1] == '/') n--;
    if (n >= 3 && memcmp(end + n - 3, "/v1", 3) == 0) n -= 3;
    if (n >= sizeof t.base) return kt_fail(err, KT_E_INVALID, "'%s': the path is too long", url);
    memcpy(t.base, end, n);
    snprintf(t.name, sizeof t.name, v6 ? "[%s]:%s" : "%s:%s", host, port);
    memcpy(t.host, t.name, sizeof t.host);
    KT_TRY(look_up(host, port, url, &t, err));
    *out = t;
    return KT_OK;
}

char *kt_sse_write_request(const kt_target *target, const char *path, const char *key,
                           const char *body, size_t body_size, size_t *size) {
    const size_t room =
        body_size + strlen(path) + strlen(target->host) + 300 + (key ? strlen(key) : 0);
    char *text = malloc(room);

    if (!text) return NULL;
    *size = (size_t)snprintf(
        text, room,
        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
        "Accept: text/event-stream\r\nConnection: close\r\nContent-Length: %zu\r\n%s%s%s\r\n",
        path, target->host, body_size, key ? "Authorization: Bearer " : "", key ? key : "",
        key ? "\r\n" : "");
    memcpy(text + *size, body, body_size);
    *size += body_size;
    return text;
}

/* ---- beginning and end ---- */

static void finish(kt_sse_stream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    free(s->in);
    s->in = NULL;
}

void kt_sse_abort(kt_sse_stream *s, const char *why) {
    if (!*s->error) snprintf(s->error, sizeof s->error, "%s", why);
    finish(s);
}

/* The next of the target's addresses; the last one's error stays. */
static void dial(kt_sse_stream *s, const char *why) {
    const int on = 1;

    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    while (s->fd < 0 && s->n_tried < s->target->n_addresses) {
        const int i = s->n_tried++;
        const struct sockaddr *a = (const struct sockaddr *)&s->target->address[i];
        s->fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (s->fd >= 0) setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (s->fd >= 0 &&
            (connect(s->fd, a, s->target->address_bytes[i]) == 0 || errno == EINPROGRESS))
            return;
        why = strerror(errno);
        if (s->fd >= 0) close(s->fd);
        s->fd = -1;
    }
    kt_sse_abort(s, why);
}

void kt_sse_start(kt_sse_stream *s, const kt_target *target, const char *request, size_t size,
                  kt_sse_sink *sink, void *arg) {
    *s = (kt_sse_stream){.fd = -1,
                         .is_sending = true,
                         .target = target,
                         .request = request,
                         .n_request = size,
                         .left = -1,
                         .sink = sink,
                         .arg = arg};
    dial(s, "the host has no address");
}

/* ---- events ---- */

static void read_error(kt_sse_stream *s, const kt_json *error) {
    const char *text = kt_json_text(error, "message");

    if (!*text) text = kt_json_string(error, NULL);
    s->is_refused = true;
    if (!*s->error)
        snprintf(s->error, sizeof s->error, "%s",
                 text && *text ? text : "the server reports an error");
}

/* False after the last event. */
static bool read_event(kt_sse_stream *s, const char *text, size_t n, int64_t now) {
    kt_json_doc *doc = NULL;
    const kt_json *error;

    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) return false;
    if (kt_json_parse(text, n, NULL, &doc, NULL) != KT_OK) {
        if (!*s->error)
            snprintf(s->error, sizeof s->error, "an event is no JSON: %.*s",
                     (int)(n < 100 ? n : 100), text);
        return false;
    }
    error = kt_json_get(kt_json_root(doc), "error");
    if (error)
        read_error(s, error);
    else
        s->sink(s->arg, kt_json_root(doc), now);
    kt_json_destroy(doc);
    return !*s->error;
}

/* Whole lines of the body; the rest of the last one stays in `in`. */
static void read_lines(kt_sse_stream *s, int64_t now) {
    size_t from = 0;
    bool done = false;

    if (s->status != 200) return; /* the body is an error: kept whole */
    for (size_t i = 0; i < s->n_in && !done; i++) {
        size_t n = i - from;
        const char *line = s->in + from;
        if (s->in[i] != '\n') continue;
        if (n && line[n - 1] == '\r') n--;
        if (n >= 5 && memcmp(line, "data:", 5) == 0) {
            line += 5, n -= 5;
            if (n && *line == ' ') line++, n--;
            done = !read_event(s, line, n, now);
        }
        from = i + 1;
    }
    memmove(s->in, s->in + from, s->n_in - from);
    s->n_in -= from;
    s->is_over |= done;
}

/* ---- HTTP ---- */

static bool header_is(const char *head, const char *name, const char *value) {
    const char *at = strcasestr(head, name);
    return at && strncasecmp(at + strlen(name) + strspn(at + strlen(name), " \t"), value,
                             strlen(value)) == 0;
}

/* The head is in `in` up to `end`; what follows it is body. Returns false when it is none. */
static bool read_head(kt_sse_stream *s, size_t end) {
    const char *length;

    s->in[end - 1] = 0;
    if (s->n_in < 12 || memcmp(s->in, "HTTP/1.", 7) != 0) return false;
    s->status = atoi(s->in + 9);
    s->is_chunked = header_is(s->in, "\ntransfer-encoding:", "chunked");
    length = strcasestr(s->in, "\ncontent-length:");
    if (length) s->left = strtoll(length + 16, NULL, 10);
    s->has_head = true;
    s->n_in -= end;
    memmove(s->in, s->in + end, s->n_in);
    return true;
}

/* n new bytes of body lie at in[at]; take the framing off. False when it is malformed. */
static bool take_body(kt_sse_stream *s, size_t at, size_t n) {
    size_t out = n, used;

    if (s->is_chunked) {
        used = kt_http_chunks_read(&s->chunks, s->in + at, n, &out);
        if (used == SIZE_MAX) return false;
        if (s->chunks.done) s->is_over = true;
    } else if (s->left >= 0) {
        if ((int64_t)out > s->left) out = (size_t)s->left;
        s->left -= (int64_t)out;
        if (s->left == 0) s->is_over = true;
    }
    s->n_in = at + out;
    return true;
}

static bool take_bytes(kt_sse_stream *s, size_t n, int64_t now) {
    size_t at = s->n_in;

    s->n_in += n;
    if (!s->has_head) {
        char *end = memmem(s->in, s->n_in, "\r\n\r\n", 4);
        if (!end) return s->n_in < MAX_LINE;
        if (!read_head(s, (size_t)(end - s->in) + 4)) return false;
        at = 0;
        n = s->n_in;
    }
    if (!take_body(s, at, n)) return false;
    read_lines(s, now);
    return s->n_in < MAX_LINE;
}

/* The end of the body: is what came an answer? */
static void conclude(kt_sse_stream *s) {
    kt_json_doc *doc = NULL;

    if (!*s->error && s->has_head && s->status != 200) {
        if (kt_json_parse(s->in, s->n_in, NULL, &doc, NULL) == KT_OK &&
            kt_json_get(kt_json_root(doc), "error"))
            read_error(s, kt_json_get(kt_json_root(doc), "error"));
        else
            snprintf(s->error, sizeof s->error, "HTTP status %d", s->status);
        kt_json_destroy(doc);
    }
    if (!s->has_head)
        kt_sse_abort(s, "the server closed the connection");
    else if (!s->is_over)
        kt_sse_abort(s, "the answer broke off");
    else
        finish(s);
}

static bool send_more(kt_sse_stream *s) {
    while (s->n_sent < s->n_request) {
        ssize_t n = send(s->fd, s->request + s->n_sent, s->n_request - s->n_sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n < 0) {
            dial(s, strerror(errno)); /* nothing was sent: it was never connected */
            return s->fd < 0;
        }
        s->n_sent += (size_t)n;
    }
    s->is_sending = false;
    return false;
}

static bool make_room(kt_sse_stream *s) {
    char *grown;

    if (s->n_in + READ_BYTES <= s->capacity) return true;
    grown = realloc(s->in, s->n_in + 2 * READ_BYTES);
    if (!grown) return false;
    s->in = grown;
    s->capacity = s->n_in + 2 * READ_BYTES;
    return true;
}

bool kt_sse_advance(kt_sse_stream *s) {
    if (s->fd < 0) return true;
    if (s->is_sending) return send_more(s);
    while (s->fd >= 0) {
        ssize_t n;
        if (!make_room(s)) {
            kt_sse_abort(s, "no memory for the answer");
            return true;
        }
        n = recv(s->fd, s->in + s->n_in, READ_BYTES, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n < 0)
            kt_sse_abort(s, strerror(errno));
        else if (n == 0)
            conclude(s);
        else if (!take_bytes(s, (size_t)n, kt_clock_ns()))
            kt_sse_abort(s, "the answer is not the HTTP that is spoken here");
        else if (s->is_over)
            conclude(s);
    }
    return true;
}
