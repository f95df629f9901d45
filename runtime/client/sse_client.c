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
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"

enum { MAX_LINE = 1 << 22, READ_BYTES = 1 << 16 };

static kt_status look_up(const char *host, const char *port, const char *url, kt_target *t,
                         kt_err *err) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host, port, &want, &found);

    if (failed)
        return kt_fail(err, KT_E_NOT_FOUND, "%s: host '%s': %s", url, host, gai_strerror(failed));
    memcpy(&t->address, found->ai_addr, found->ai_addrlen);
    t->address_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return KT_OK;
}

kt_status kt_target_parse(const char *url, kt_target *out, kt_err *err) {
    static const char scheme[] = "http://";
    const char *at = url, *end, *colon;
    char host[256], port[16] = "80";
    kt_target t = {0};
    size_t n;

    if (strncasecmp(url, "https:", 6) == 0)
        return kt_fail(err, KT_E_INVALID, "%s: https is not spoken here, expected http://", url);
    if (strncasecmp(url, scheme, sizeof scheme - 1) == 0) at += sizeof scheme - 1;
    end = at + strcspn(at, "/?#");
    colon = memrchr(at, ':', (size_t)(end - at));
    if (colon && memchr(colon, ']', (size_t)(end - colon))) colon = NULL;
    n = (size_t)((colon ? colon : end) - at);
    if (n >= 2 && *at == '[' && at[n - 1] == ']') at++, n -= 2;
    if (n == 0 || n >= sizeof host || (colon && end - colon > 6))
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
    snprintf(t.name, sizeof t.name, "%s:%s", host, port);
    KT_TRY(look_up(host, port, url, &t, err));
    *out = t;
    return KT_OK;
}

void kt_sse_answer_deinit(kt_sse_answer *a) {
    free(a->gap_ms);
    a->gap_ms = NULL;
}

static void finish(kt_sse_stream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    free(s->in);
    s->in = NULL;
    if (!s->answer->end_ns) s->answer->end_ns = kt_clock_ns();
}

void kt_sse_abort(kt_sse_stream *s, const char *why) {
    if (!*s->answer->error) snprintf(s->answer->error, sizeof s->answer->error, "%s", why);
    finish(s);
}

void kt_sse_start(kt_sse_stream *s, const kt_target *target, const char *request, size_t size,
                  kt_sse_answer *answer) {
    const int on = 1;

    memset(s, 0, sizeof *s);
    memset(answer, 0, sizeof *answer);
    s->answer = answer;
    s->request = request;
    s->n_request = size;
    s->is_sending = true;
    s->left = -1;
    answer->prompt_tokens = answer->cached_tokens = answer->output_tokens = -1;
    answer->start_ns = kt_clock_ns();
    s->fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) {
        kt_sse_abort(s, strerror(errno));
        return;
    }
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(s->fd, (const struct sockaddr *)&target->address, target->address_bytes) != 0 &&
        errno != EINPROGRESS)
        kt_sse_abort(s, strerror(errno));
}

/* ---- events ---- */

static void note_piece(kt_sse_answer *a, int64_t now) {
    if (a->n_pieces++ == 0)
        a->first_ns = now;
    else {
        size_t i = (size_t)a->n_pieces - 2;
        if (i == a->gap_capacity) {
            size_t capacity = a->gap_capacity ? 2 * a->gap_capacity : 64;
            float *grown = realloc(a->gap_ms, capacity * sizeof *grown);
            if (!grown) {
                snprintf(a->error, sizeof a->error, "no memory for the times of the answer");
                return;
            }
            a->gap_ms = grown;
            a->gap_capacity = capacity;
        }
        a->gap_ms[i] = (float)((double)(now - a->last_ns) * 1e-6);
    }
    a->last_ns = now;
}

static bool has_text(const kt_json *object, const char *key) {
    return *kt_json_text(object, key) != 0;
}

/* Does a choice bring something that a reader sees? */
static bool brings_text(const kt_json *choice) {
    const kt_json *delta = kt_json_get(choice, "delta");

    return has_text(choice, "text") || has_text(delta, "content") ||
           has_text(delta, "reasoning_content") || has_text(delta, "reasoning") ||
           kt_json_length(kt_json_get(delta, "tool_calls")) > 0;
}

static void read_error(kt_sse_answer *a, const kt_json *error) {
    const char *text = kt_json_text(error, "message");

    if (!*text) text = kt_json_string(error, NULL);
    snprintf(a->error, sizeof a->error, "%s", text && *text ? text : "the server reports an error");
}

/* False after the last event. */
static bool read_event(kt_sse_answer *a, const char *text, size_t n, int64_t now) {
    kt_json_doc *doc = NULL;
    const kt_json *root, *usage;

    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) return false;
    if (kt_json_parse(text, n, NULL, &doc, NULL) != KT_OK) {
        snprintf(a->error, sizeof a->error, "an event is no JSON: %.100s", text);
        return true;
    }
    root = kt_json_root(doc);
    if (kt_json_get(root, "error")) read_error(a, kt_json_get(root, "error"));
    if (brings_text(kt_json_at(kt_json_get(root, "choices"), 0))) note_piece(a, now);
    usage = kt_json_get(root, "usage");
    if (kt_json_type_of(usage) == KT_JSON_OBJECT) {
        a->prompt_tokens = kt_json_int(kt_json_get(usage, "prompt_tokens"), -1);
        a->output_tokens = kt_json_int(kt_json_get(usage, "completion_tokens"), -1);
        a->cached_tokens = kt_json_int(
            kt_json_get(kt_json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1);
    }
    kt_json_destroy(doc);
    return true;
}

/* Whole lines of the body; the rest of the last one stays in `in`. */
static void read_lines(kt_sse_stream *s, int64_t now) {
    size_t from = 0;
    bool done = false;

    if (s->answer->status != 200) return; /* the body is an error: kept whole */
    for (size_t i = 0; i < s->n_in && !done; i++) {
        size_t n = i - from;
        const char *line = s->in + from;
        if (s->in[i] != '\n') continue;
        if (n && line[n - 1] == '\r') n--;
        if (n >= 5 && memcmp(line, "data:", 5) == 0) {
            line += 5, n -= 5;
            if (n && *line == ' ') line++, n--;
            done = !read_event(s->answer, line, n, now);
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
    s->answer->status = atoi(s->in + 9);
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
    kt_sse_answer *a = s->answer;
    kt_json_doc *doc = NULL;

    if (!*a->error && !s->has_head)
        snprintf(a->error, sizeof a->error, "the server closed the connection");
    if (!*a->error && a->status != 200) {
        if (kt_json_parse(s->in, s->n_in, NULL, &doc, NULL) == KT_OK &&
            kt_json_get(kt_json_root(doc), "error"))
            read_error(a, kt_json_get(kt_json_root(doc), "error"));
        else
            snprintf(a->error, sizeof a->error, "HTTP status %d", a->status);
        kt_json_destroy(doc);
    }
    if (!*a->error && !s->is_over) snprintf(a->error, sizeof a->error, "the answer broke off");
    if (!*a->error && a->n_pieces == 0)
        snprintf(a->error, sizeof a->error, "the answer holds no text");
    if (a->output_tokens < 0) a->output_tokens = a->n_pieces;
    finish(s);
}

static bool send_more(kt_sse_stream *s) {
    while (s->n_sent < s->n_request) {
        ssize_t n = send(s->fd, s->request + s->n_sent, s->n_request - s->n_sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n < 0) {
            kt_sse_abort(s, strerror(errno));
            return true;
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
