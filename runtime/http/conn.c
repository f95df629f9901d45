/* One connection: a state machine driven by bytes, answers and time.
 *
 * libevent's bufferevents do the reading and writing; the protocol is here and not evhttp's,
 * because evhttp answers an oversized or malformed request itself, in HTML, and has no hook to
 * refuse a body before it is read.
 *
 * Reading stays enabled while an answer is awaited: that is how a client that leaves during a
 * silent prefill is noticed at once. Of what a client sends ahead 64 KiB are kept for the next
 * request; if more comes, all is thrown away and the connection closed behind the answer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/http/http_impl.h"

enum {
    read_ahead_bytes = 64 * 1024,
    linger_ms = 10 * 1000, /* how long a refused body is thrown away for its sender to read why */
    body_bytes_per_s = 64 * 1024 /* the least rate at which a body must come */
};

static int64_t ms_to_ns(int ms) {
    return (int64_t)ms * 1000000;
}

static void set_read_timeout(kt_conn *c, int ms) {
    const struct timeval write = {60, 0}; /* a client that takes nothing for a minute */
    const struct timeval read = {ms / 1000, ms % 1000 * 1000};
    bufferevent_set_timeouts(c->bev, ms ? &read : NULL, &write);
}

/* Separate the exchange from the connection: nobody waits for it any more. */
static void detach(kt_conn *c) {
    kt_http_exchange *x = c->x;

    if (!x) return;
    c->x = NULL;
    x->conn = NULL;
    atomic_store_explicit(&x->gone, true, memory_order_release);
    kt_exchange_unref(x);
}

void kt_conn_close(kt_conn *c) {
    kt_http_server *s = c->server;

    detach(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    bufferevent_free(c->bev);
    free(c);
    atomic_fetch_sub(&s->n_conns, 1);
    kt_http_update_listeners(s);
    if (s->draining && !s->conns) event_base_loopbreak(s->base);
}

/* Flush, close our half, and throw away what comes until the client closes its own. */
static void begin_close(kt_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);

    detach(c);
    evbuffer_drain(in, evbuffer_get_length(in));
    c->state = KT_CONN_CLOSE;
    c->deadline_ns = kt_clock_ns() + ms_to_ns(linger_ms);
    set_read_timeout(c, linger_ms);
}

static void shut_down_when_flushed(kt_conn *c) {
    if (c->shut_down || evbuffer_get_length(bufferevent_get_output(c->bev)) > 0) return;
    c->shut_down = true;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

/* ---- writing answers ---- */

/* The form that RFC 9110 wants, in no locale. */
static void write_date(struct evbuffer *out) {
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)(kt_clock_unix_ms() / 1000);
    struct tm t;

    gmtime_r(&now, &t);
    evbuffer_add_printf(out, "Date: %.3s, %02d %.3s %04d %02d:%02d:%02d GMT\r\n",
                        days + 3 * t.tm_wday, t.tm_mday, months + 3 * t.tm_mon, t.tm_year + 1900,
                        t.tm_hour, t.tm_min, t.tm_sec);
}

static void write_head(kt_conn *c, int status, const char *content_type, const char *headers,
                       const char *framing) {
    struct evbuffer *out = bufferevent_get_output(c->bev);

    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nServer: kt\r\nVary: Origin\r\n", status,
                        kt_http_reason(status));
    write_date(out);
    if (c->x && c->x->origin)
        evbuffer_add_printf(
            out,
            "Access-Control-Allow-Origin: %s\r\n"
            "Access-Control-Expose-Headers: X-Request-Id, Request-Id, Retry-After\r\n",
            c->x->origin);
    if (c->x) evbuffer_add_printf(out, "X-Request-Id: %s\r\n", c->x->id);
    if (kt_http_is_anthropic(c->x)) evbuffer_add_printf(out, "Request-Id: %s\r\n", c->x->id);
    if (content_type) evbuffer_add_printf(out, "Content-Type: %s\r\n", content_type);
    evbuffer_add_printf(out, "%s%sConnection: %s\r\n\r\n", headers ? headers : "", framing,
                        c->keep_alive ? "keep-alive" : "close");
}

static void serve_input(kt_conn *c);

/* The answer is complete: on to the next request, or close. */
static void finish(kt_conn *c) {
    detach(c);
    if (!c->keep_alive || c->server->draining) {
        begin_close(c);
        shut_down_when_flushed(c);
        return;
    }
    c->state = KT_CONN_HEAD;
    c->deadline_ns = 0;
    set_read_timeout(c, c->server->options.read_timeout_ms);
}

static void write_reply(kt_conn *c, int status, const char *headers, const char *content_type,
                        const char *body, size_t size) {
    bool head_only = c->x && strcmp(c->x->head.method, "HEAD") == 0;
    char framing[64] = "";

    if (status != 204) snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", size);
    write_head(c, status, content_type, headers, framing);
    if (!head_only && size) bufferevent_write(c->bev, body, size);
}

/* What the socket takes at once of parts [n]: a token's event nearly always. By way of the buffer
 * it would cost three more system calls, to wait for a socket that was ready. */
static size_t send_now(const kt_conn *c, struct iovec *part, size_t n) {
    struct msghdr message = {.msg_iov = part, .msg_iovlen = n};
    ssize_t sent = 0;

    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        sent = sendmsg(bufferevent_getfd(c->bev), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent > 0 ? (size_t)sent : 0; /* errors are met again by the buffer */
}

static struct iovec part_of(const char *text, size_t size) {
    return (struct iovec){(void *)(uintptr_t)text, size};
}

static void write_chunk(kt_conn *c, const char *prefix, const char *data, size_t size,
                        const char *suffix) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    const size_t total = strlen(prefix) + size + strlen(suffix);
    char length[24] = "";
    struct iovec part[5];
    size_t sent;

    if (c->chunked_answer) snprintf(length, sizeof length, "%zx\r\n", total);
    part[0] = part_of(length, strlen(length));
    part[1] = part_of(prefix, strlen(prefix));
    part[2] = part_of(data, size);
    part[3] = part_of(suffix, strlen(suffix));
    part[4] = part_of("\r\n", c->chunked_answer ? 2 : 0);
    sent = send_now(c, part, 5);
    for (int i = 0; i < 5; i++) {
        const size_t skipped = sent < part[i].iov_len ? sent : part[i].iov_len;
        sent -= skipped;
        if (skipped < part[i].iov_len)
            evbuffer_add(out, (char *)part[i].iov_base + skipped, part[i].iov_len - skipped);
    }
    c->last_write_ns = kt_clock_ns();
}

static void log_answer(const kt_conn *c, int status) {
    const kt_http_exchange *x = c->x;

    kt_log_write(c->server->options.log, KT_LOG_INFO, "http", "%s %s %d %.1f ms id=%s",
                 x->head.method, x->head.path, status, (double)(kt_clock_ns() - x->start_ns) * 1e-6,
                 x->id);
}

static void begin_stream(kt_conn *c) {
    c->chunked_answer = c->x->head.minor == 1;
    if (!c->chunked_answer) c->keep_alive = false;
    write_head(c, 200, "text/event-stream; charset=utf-8",
               "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
               c->chunked_answer ? "Transfer-Encoding: chunked\r\n" : "");
    c->state = KT_CONN_STREAM;
    c->last_write_ns = kt_clock_ns();
}

static void end_stream(kt_conn *c) {
    log_answer(c, 200);
    if (c->chunked_answer) bufferevent_write(c->bev, "0\r\n\r\n", 5);
    finish(c);
}

static size_t backlog(const kt_conn *c) {
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* A whole answer may be of any size: it was bounded at admission, and the time-out of writing
 * judges its reader. Of a stream only counts what was unread before this part came. */
void kt_conn_deliver(kt_post *p) {
    kt_conn *c = p->x->conn;

    atomic_fetch_sub_explicit(&p->x->posted, p->size, memory_order_relaxed);
    if (!c) return;
    if (p->kind == KT_POST_EVENT && backlog(c) > c->server->options.max_unsent_bytes) {
        kt_log_write(c->server->options.log, KT_LOG_WARN, "http",
                     "id=%s: a client that does not read its answer was dropped", p->x->id);
        kt_conn_close(c);
        return;
    }
    switch (p->kind) {
    case KT_POST_REPLY:
        log_answer(c, p->status);
        write_reply(c, p->status, p->headers, p->content_type, p->data, p->size);
        finish(c);
        break;
    case KT_POST_BEGIN: begin_stream(c); break;
    case KT_POST_EVENT: write_chunk(c, "", p->data, p->size, "\n\n"); break;
    case KT_POST_END: end_stream(c); break;
    }
    if (c->state == KT_CONN_HEAD) serve_input(c); /* the next request may be here already */
}

/* ---- reading requests ---- */

static void write_error(kt_conn *c, int status, const char *code, const char *message) {
    const char *type = status >= 500 ? "server_error" : "invalid_request_error";
    kt_json_writer w = {0};
    size_t size;
    const char *body = kt_http_write_error(c->x, &w, status, message, type, NULL, code, &size);

    c->keep_alive = false;
    write_reply(c, status, status == 503 ? "Retry-After: 1\r\n" : NULL, "application/json", body,
                size);
    kt_json_writer_deinit(&w);
}

/* Answer an error of the protocol, for which no route is asked, and close. */
static void refuse(kt_conn *c, int status, const char *code, const char *message) {
    write_error(c, status, code, message);
    begin_close(c);
    shut_down_when_flushed(c);
}

static void cut_stream(kt_conn *c) {
    kt_json_writer w = {0};
    size_t size;
    const char *text = kt_http_write_stream_error(c->x, &w, 503, "the server is shutting down",
                                                  "shutting_down", &size);

    write_chunk(c, kt_http_error_prefix(c->x), text, size, "\n\n");
    if (kt_http_has_done(c->x)) write_chunk(c, "data: ", "[DONE]", 6, "\n\n");
    kt_json_writer_deinit(&w);
    c->keep_alive = false;
    end_stream(c);
}

void kt_conn_cut(kt_conn *c) {
    switch (c->state) {
    case KT_CONN_BODY:
    case KT_CONN_WAIT:
        log_answer(c, 503);
        refuse(c, 503, "shutting_down", "the server is shutting down");
        break;
    case KT_CONN_STREAM: cut_stream(c); break;
    case KT_CONN_HEAD: kt_conn_end_idle(c); break;
    case KT_CONN_CLOSE: break;
    }
}

void kt_conn_end_idle(kt_conn *c) {
    if (backlog(c) == 0) {
        kt_conn_close(c);
        return;
    }
    begin_close(c);
}

static void call_route(kt_conn *c) {
    kt_http_exchange *x = c->x;

    c->state = KT_CONN_WAIT;
    c->deadline_ns = 0;
    set_read_timeout(c, 0);
    kt_http_keep(x);
    x->route->handle(x, c->server->options.app);
    kt_http_release(x);
}

static kt_http_exchange *new_exchange(kt_conn *c, size_t head_size) {
    kt_http_server *s = c->server;
    kt_http_exchange *x = calloc(1, sizeof *x);

    if (x) x->head_text = malloc(head_size + 1);
    if (!x || !x->head_text) {
        free(x);
        return NULL;
    }
    bufferevent_read(c->bev, x->head_text, head_size);
    x->head_text[head_size] = '\0';
    x->server = s;
    x->conn = c;
    x->rest = "";
    x->start_ns = kt_clock_ns();
    snprintf(x->id, sizeof x->id, "%08x%016llx", (unsigned)kt_rng_u64(&s->rng),
             (unsigned long long)kt_rng_u64(&s->rng));
    atomic_init(&x->refs, 1);
    return x;
}

static void preflight(kt_conn *c) {
    char methods[96], headers[400];

    kt_http_list_methods(c->server, c->x->head.path, methods, sizeof methods);
    snprintf(headers, sizeof headers,
             "Access-Control-Allow-Methods: %s\r\n"
             "Access-Control-Allow-Headers: Authorization, Content-Type, X-Api-Key, *\r\n"
             "Access-Control-Max-Age: 86400\r\nAllow: %s\r\n",
             methods, methods);
    write_reply(c, 204, headers, NULL, NULL, 0);
    finish(c);
}

/* Whether the request comes from where requests may come from. */
static bool check_source(kt_conn *c) {
    const kt_access *a = c->server->access;
    const kt_http_head *h = &c->x->head;
    const char *origin = kt_http_find_header(h, "origin");

    if (h->host && !kt_access_host(a, h->host)) { /* a browser always names one */
        refuse(
            c, 403, "host_not_allowed",
            "this server has no API key, so it answers only to loopback names such as localhost; "
            "start it with --api-key or --allowed-hosts to use it by this Host");
        return false;
    }
    if (origin && !kt_access_origin(a, origin, h->host)) {
        refuse(c, 403, "origin_not_allowed",
               "web pages of this Origin may not use the server; see --cors-origins");
        return false;
    }
    c->x->origin = origin;
    return true;
}

static bool has_body(const kt_http_head *h) {
    return h->chunked || h->content_length > 0;
}

/* What can be said before the body is read. True to go on. */
static bool admit(kt_conn *c) {
    kt_http_exchange *x = c->x;
    const kt_http_head *h = &x->head;
    size_t max = c->server->options.max_body_bytes;
    const char *why = NULL;
    char message[200];
    int status;

    if (h->content_length > max) {
        snprintf(message, sizeof message, "the body has %llu bytes, at most %zu are accepted",
                 (unsigned long long)h->content_length, max);
        refuse(c, 413, "request_too_large", message);
        return false;
    }
    x->route = kt_http_find_route(c->server, h, &x->rest, &status);
    if (x->route && x->route->is_public) return true;
    if (x->route && kt_access_has_key(c->server->access, h)) {
        if (c->server->options.why_not) why = c->server->options.why_not(c->server->options.app);
        if (!why) return true;
    }
    if (has_body(h)) c->keep_alive = false; /* the body is not wanted */
    kt_http_keep(x);
    c->state = KT_CONN_WAIT;
    if (why)
        kt_http_fail(x, 503, "server_error", NULL, "loading", "%s", why);
    else if (x->route)
        kt_http_fail(x, 401, "authentication_error", NULL, "invalid_api_key",
                     "a valid API key is required: 'Authorization: Bearer KEY'");
    else if (status == 405)
        kt_http_fail(x, 405, "invalid_request_error", NULL, "method_not_allowed",
                     "%.20s is not allowed on %.200s", h->method, h->path);
    else
        kt_http_fail(x, 404, "invalid_request_error", NULL, "unknown_url",
                     "unknown URL: %.20s %.200s", h->method, h->path);
    kt_http_release(x);
    return false;
}

/* A body may take the usual time-out, and a second more for each 64 KiB that were announced or,
 * when none were, have come: a byte now and then holds no place for long. */
static void set_body_deadline(kt_conn *c) {
    const kt_http_head *h = &c->x->head;
    uint64_t bytes = h->chunked ? c->x->body_size : h->content_length;

    c->deadline_ns = c->body_begin_ns + ms_to_ns(c->server->options.read_timeout_ms) +
                     (int64_t)(bytes * 1000 / body_bytes_per_s) * 1000000;
}

/* Take a head off the input. True when there may be more to do with what is left. */
static bool read_head(kt_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t n = evbuffer_get_length(in), head_size;
    const char *why, *text;
    int status;

    if (n == 0 || backlog(c) > read_ahead_bytes) return false; /* answers are to be read first */
    if (!c->deadline_ns) {
        c->deadline_ns = kt_clock_ns() + ms_to_ns(c->server->options.read_timeout_ms);
    }
    if (n > KT_HTTP_MAX_HEAD) n = KT_HTTP_MAX_HEAD;
    text = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    head_size = text ? kt_http_head_size(text, n) : 0;
    if (head_size == 0) {
        if (n < KT_HTTP_MAX_HEAD) return false;
        refuse(c, 431, "headers_too_large", "the request's headers are too large");
        return false;
    }
    c->x = new_exchange(c, head_size);
    if (!c->x) {
        refuse(c, 503, "out_of_memory", "no memory for the request");
        return false;
    }
    status = kt_http_parse_head(c->x->head_text, head_size, &c->x->head, &why);
    if (status != 0) {
        c->x->head.method = "?";
        refuse(c, status, "malformed_request", why);
        return false;
    }
    c->keep_alive = c->x->head.keep_alive && !c->server->draining;
    if (!check_source(c)) return false;
    if (strcmp(c->x->head.method, "OPTIONS") == 0 && !has_body(&c->x->head)) {
        preflight(c);
        return true;
    }
    if (!admit(c)) return false;
    memset(&c->chunks, 0, sizeof c->chunks);
    c->state = KT_CONN_BODY;
    c->body_begin_ns = kt_clock_ns();
    set_body_deadline(c);
    if (c->x->head.expect_continue && evbuffer_get_length(in) == 0) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        bufferevent_write(c->bev, go_on, sizeof go_on - 1);
    }
    return true;
}

/* Room for n more bytes of body and a NUL. Grows with what arrives, not with what is announced, and
 * within what all requests together may have. False after a refusal. */
static bool grow_body(kt_conn *c, size_t n) {
    kt_http_exchange *x = c->x;
    kt_http_server *s = c->server;
    size_t want = x->body_capacity ? x->body_capacity : 4096, more;
    char *grown;

    while (want - x->body_size <= n) want *= 2;
    more = want - x->body_capacity;
    if (more == 0) return true;
    if (atomic_fetch_add(&s->body_bytes, more) + more > s->options.max_bodies_bytes) {
        atomic_fetch_sub(&s->body_bytes, more);
        refuse(c, 503, "overloaded", "the requests in work hold all the memory for bodies");
        return false;
    }
    grown = realloc(x->body, want);
    if (!grown) {
        atomic_fetch_sub(&s->body_bytes, more);
        refuse(c, 503, "out_of_memory", "no memory for the body of the request");
        return false;
    }
    x->body = grown;
    x->body_capacity = want;
    return true;
}

/* Move body bytes from the input. True when the body is complete. */
static bool read_body(kt_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    kt_http_exchange *x = c->x;
    size_t n = evbuffer_get_length(in), max = c->server->options.max_body_bytes;

    if (!x->head.chunked && x->head.content_length - x->body_size < n) {
        n = (size_t)(x->head.content_length - x->body_size);
    }
    if (n > 0 && !grow_body(c, n)) return false;
    if (!x->head.chunked) {
        if (n) bufferevent_read(c->bev, x->body + x->body_size, n);
        x->body_size += n;
        if (x->body_size < x->head.content_length) return false;
    } else {
        size_t got = 0, used;
        if (n) evbuffer_copyout(in, x->body + x->body_size, n);
        used = n ? kt_http_chunks_read(&c->chunks, x->body + x->body_size, n, &got) : 0;
        if (used == SIZE_MAX) {
            refuse(c, 400, "malformed_request", "the chunked body is malformed");
            return false;
        }
        evbuffer_drain(in, used);
        x->body_size += got;
        if (x->body_size > max) {
            refuse(c, 413, "request_too_large", "the body is larger than what is accepted");
            return false;
        }
        set_body_deadline(c);
        if (!c->chunks.done) return false;
    }
    if (x->body) x->body[x->body_size] = '\0';
    return true;
}

static void serve_input(kt_conn *c) {
    bool more = true;

    while (more) {
        switch (c->state) {
        case KT_CONN_HEAD: more = read_head(c); break;
        case KT_CONN_BODY:
            more = read_body(c);
            if (more) call_route(c);
            break;
        default: more = false;
        }
    }
}

/* ---- events ---- */

static void on_read(struct bufferevent *bev, void *arg) {
    kt_conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t n = evbuffer_get_length(in);

    /* More than is kept must be thrown away, else the end of the connection behind it would not be
     * seen. */
    if ((c->state == KT_CONN_WAIT || c->state == KT_CONN_STREAM) && n >= read_ahead_bytes) {
        c->is_deaf = true;
        c->keep_alive = false;
    }
    if (c->state == KT_CONN_CLOSE || c->is_deaf) {
        evbuffer_drain(in, n);
        return;
    }
    serve_input(c);
}

static void on_write(struct bufferevent *bev, void *arg) {
    kt_conn *c = arg;
    (void)bev;

    if (c->state == KT_CONN_HEAD) serve_input(c); /* what waited for this answer to be taken */
    if (c->state != KT_CONN_CLOSE) return;
    if (c->peer_done)
        kt_conn_close(c);
    else
        shut_down_when_flushed(c);
}

/* A client that closes its half while an answer is awaited has left: nothing tells that apart from
 * one that still listens. A finished answer is delivered to either. */
static void on_event(struct bufferevent *bev, short what, void *arg) {
    kt_conn *c = arg;
    bool unsent = evbuffer_get_length(bufferevent_get_output(bev)) > 0;

    if ((what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_READING) && c->state == KT_CONN_BODY) {
        refuse(c, 408, "timeout", "the request's body stopped coming");
        bufferevent_enable(bev, EV_READ);
        return;
    }
    if ((what & BEV_EVENT_EOF) && unsent &&
        (c->state == KT_CONN_HEAD || c->state == KT_CONN_CLOSE)) {
        c->peer_done = true;
        c->state = KT_CONN_CLOSE;
        c->deadline_ns = kt_clock_ns() + ms_to_ns(linger_ms);
        return;
    }
    kt_conn_close(c);
}

void kt_conn_tick(kt_conn *c, int64_t now_ns) {
    if (c->deadline_ns && now_ns > c->deadline_ns) {
        if (c->state == KT_CONN_HEAD)
            refuse(c, 408, "timeout", "the request's head did not come in time");
        else if (c->state == KT_CONN_BODY)
            refuse(c, 408, "timeout", "the request's body did not come in time");
        else
            kt_conn_close(c);
        return;
    }
    if (c->state == KT_CONN_STREAM &&
        now_ns - c->last_write_ns >= ms_to_ns(c->server->options.ping_ms)) {
        write_chunk(c, kt_http_is_anthropic(c->x) ? "event: ping\ndata: {\"type\": \"ping\"}" : ":",
                    NULL, 0, "\n\n");
    }
}

/* Keeps count of what the client has not taken, for who makes the stream. */
static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg) {
    kt_conn *c = arg;
    (void)info;

    if (c->x) atomic_store_explicit(&c->x->unsent, evbuffer_get_length(out), memory_order_relaxed);
}

void kt_conn_accept(kt_http_server *s, evutil_socket_t fd) {
    kt_conn *c = calloc(1, sizeof *c);

    if (c) c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c || !c->bev || !evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c)) {
        if (c && c->bev)
            bufferevent_free(c->bev);
        else
            evutil_closesocket(fd);
        free(c);
        return;
    }
    c->server = s;
    c->next = s->conns;
    if (s->conns) s->conns->prev = c;
    s->conns = c;
    atomic_fetch_add(&s->n_conns, 1);
    kt_http_update_listeners(s);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, read_ahead_bytes);
    set_read_timeout(c, s->options.read_timeout_ms);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}
