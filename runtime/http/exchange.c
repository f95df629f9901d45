/* Exchanges: looking at the request, posting the answer. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "runtime/http/http_impl.h"

void kt_exchange_unref(kt_http_exchange *x) {
    if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
    kt_http_drop_body(x);
    free(x->head_text);
    free(x);
}

void kt_http_drop_body(kt_http_exchange *x) {
    atomic_fetch_sub(&x->server->body_bytes, x->body_capacity);
    free(x->body);
    x->body = NULL;
    x->body_size = x->body_capacity = 0;
}

void kt_http_keep(kt_http_exchange *x) {
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->holders, 1, memory_order_relaxed);
}

void kt_http_release(kt_http_exchange *x) {
    if (atomic_fetch_sub_explicit(&x->holders, 1, memory_order_acq_rel) == 1) {
        int answer = atomic_load_explicit(&x->answer, memory_order_acquire);
        if (answer == KT_ANSWER_NONE)
            kt_http_fail(x, 500, "server_error", NULL, NULL, "the request was dropped");
        else if (answer == KT_ANSWER_STREAM)
            kt_http_stream_fail(x, "the request was dropped");
    }
    kt_exchange_unref(x);
}

bool kt_http_gone(const kt_http_exchange *x) {
    return atomic_load_explicit(&x->gone, memory_order_acquire);
}

size_t kt_http_unsent(const kt_http_exchange *x) {
    return atomic_load_explicit(&x->posted, memory_order_relaxed) +
           atomic_load_explicit(&x->unsent, memory_order_relaxed);
}

const char *kt_http_path_rest(const kt_http_exchange *x) {
    return x->rest;
}

const char *kt_http_body(const kt_http_exchange *x, size_t *size) {
    *size = x->body_size;
    return x->body ? x->body : "";
}

const char *kt_http_request_id(const kt_http_exchange *x) {
    return x->id;
}

/* ---- answers ---- */

/* prefix: put before the data, or NULL. */
static void post(kt_http_exchange *x, kt_post_kind kind, int status, const char *headers,
                 const char *content_type, const char *prefix, const char *data, size_t size) {
    const size_t before = prefix ? strlen(prefix) : 0;
    kt_http_server *s = x->server;
    kt_post *p;
    bool was_empty;

    if (kt_http_gone(x)) return;
    p = calloc(1, sizeof *p + before + size);
    if (p && headers) p->headers = strdup(headers);
    if (!p || (headers && !p->headers)) { /* no memory even to say so: hang up */
        free(p);
        atomic_store(&x->gone, true);
        atomic_store(&s->must_hang_up, true);
        event_active(s->wake, 0, 0);
        return;
    }
    p->x = x;
    p->kind = kind;
    p->status = status;
    p->content_type = content_type;
    p->size = before + size;
    if (before) memcpy(p->data, prefix, before);
    if (size) memcpy(p->data + before, data, size);
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->posted, p->size, memory_order_relaxed);

    pthread_mutex_lock(&s->lock);
    was_empty = !s->first;
    if (s->last)
        s->last->next = p;
    else
        s->first = p;
    s->last = p;
    pthread_mutex_unlock(&s->lock);
    if (was_empty) event_active(s->wake, 0, 0);
}

/* From one state of the answer to the next; false when it is in another. */
static bool advance(kt_http_exchange *x, int from, int to) {
    return atomic_compare_exchange_strong(&x->answer, &from, to);
}

void kt_http_reply(kt_http_exchange *x, int status, const char *headers, const char *content_type,
                   const char *body, size_t size) {
    if (!advance(x, KT_ANSWER_NONE, KT_ANSWER_DONE)) return;
    post(x, KT_POST_REPLY, status, headers, content_type, NULL, body, size);
}

void kt_http_reply_json(kt_http_exchange *x, int status, const char *json, size_t size) {
    kt_http_reply(x, status, NULL, "application/json", json, size);
}

static void put_text_or_null(kt_json_writer *w, const char *key, const char *text) {
    kt_json_key(w, key);
    if (text)
        kt_json_put_string(w, text);
    else
        kt_json_put_null(w);
}

static kt_route_form form_of(const kt_http_exchange *x) {
    return x && x->route ? x->route->form : KT_FORM_OPENAI;
}

bool kt_http_is_anthropic(const kt_http_exchange *x) {
    return form_of(x) == KT_FORM_ANTHROPIC;
}

bool kt_http_has_done(const kt_http_exchange *x) {
    return form_of(x) == KT_FORM_OPENAI;
}

/* Anthropic's word for a status; what is wrong with which parameter stands in the message alone. */
static const char *anthropic_type(int status) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {500, "api_error"},
                 {503, "overloaded_error"}};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return types[i].type;
    return "invalid_request_error";
}

static void write_anthropic_error(const kt_http_exchange *x, kt_json_writer *w, int status,
                                  const char *message) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "error");
    kt_json_key(w, "error");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", anthropic_type(status));
    kt_json_add_string(w, "message", message);
    kt_json_end_object(w);
    kt_json_add_string(w, "request_id", x->id);
    kt_json_end_object(w);
}

/* A member of the open object. */
static void add_openai_error(kt_json_writer *w, const char *message, const char *type,
                             const char *param, const char *code) {
    kt_json_key(w, "error");
    kt_json_begin_object(w);
    kt_json_add_string(w, "message", message);
    put_text_or_null(w, "type", type);
    put_text_or_null(w, "param", param);
    put_text_or_null(w, "code", code);
    kt_json_end_object(w);
}

static const char *text_of_error(kt_json_writer *w, size_t *size) {
    static const char fallback[] =
        "{\"type\":\"error\",\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
        "\"param\":null,\"code\":null}}";
    const char *text = kt_json_writer_text(w, size);

    if (text) return text;
    *size = sizeof fallback - 1;
    return fallback;
}

const char *kt_http_write_error(const kt_http_exchange *x, kt_json_writer *w, int status,
                                const char *message, const char *type, const char *param,
                                const char *code, size_t *size) {
    if (kt_http_is_anthropic(x)) {
        write_anthropic_error(x, w, status, message);
    } else {
        kt_json_begin_object(w);
        add_openai_error(w, message, type, param, code);
        kt_json_end_object(w);
    }
    return text_of_error(w, size);
}

/* An event of responses says itself what is wrong; OpenAI's own clients look for `error`. */
const char *kt_http_write_stream_error(const kt_http_exchange *x, kt_json_writer *w, int status,
                                       const char *message, const char *code, size_t *size) {
    if (form_of(x) != KT_FORM_RESPONSES)
        return kt_http_write_error(x, w, status, message, "server_error", NULL, code, size);
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "error");
    kt_json_add_string(w, "code", code ? code : "server_error");
    kt_json_add_string(w, "message", message);
    kt_json_add_null(w, "param");
    add_openai_error(w, message, "server_error", NULL, code);
    kt_json_end_object(w);
    return text_of_error(w, size);
}

const char *kt_http_error_prefix(const kt_http_exchange *x) {
    return form_of(x) == KT_FORM_OPENAI ? "data: " : "event: error\ndata: ";
}

void kt_http_fail(kt_http_exchange *x, int status, const char *type, const char *param,
                  const char *code, const char *format, ...) {
    const char *headers = NULL, *text;
    kt_json_writer w = {0};
    char message[1024], allow[128], methods[96];
    size_t size = 0;
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    text = kt_http_write_error(x, &w, status, message, type, param, code, &size);
    if (status == 429 || status == 503) headers = "Retry-After: 1\r\n";
    if (status == 401) headers = "WWW-Authenticate: Bearer\r\n";
    if (status == 405) {
        kt_http_list_methods(x->server, x->head.path, methods, sizeof methods);
        snprintf(allow, sizeof allow, "Allow: %s\r\n", methods);
        headers = allow;
    }
    kt_http_reply(x, status, headers, "application/json", text, size);
    kt_json_writer_deinit(&w);
}

void kt_http_stream_begin(kt_http_exchange *x) {
    if (!advance(x, KT_ANSWER_NONE, KT_ANSWER_STREAM)) return;
    post(x, KT_POST_BEGIN, 200, NULL, "text/event-stream", NULL, NULL, 0);
}

void kt_http_stream_event(kt_http_exchange *x, const char *data, size_t size) {
    if (atomic_load(&x->answer) != KT_ANSWER_STREAM) return;
    post(x, KT_POST_EVENT, 0, NULL, NULL, "data: ", data, size);
}

void kt_http_stream_named_event(kt_http_exchange *x, const char *name, const char *data,
                                size_t size) {
    char prefix[96];

    if (atomic_load(&x->answer) != KT_ANSWER_STREAM) return;
    snprintf(prefix, sizeof prefix, "event: %.70s\ndata: ", name);
    post(x, KT_POST_EVENT, 0, NULL, NULL, prefix, data, size);
}

void kt_http_stream_end(kt_http_exchange *x) {
    if (!advance(x, KT_ANSWER_STREAM, KT_ANSWER_DONE)) return;
    post(x, KT_POST_END, 0, NULL, NULL, NULL, NULL, 0);
}

void kt_http_stream_fail(kt_http_exchange *x, const char *message) {
    kt_json_writer w = {0};
    size_t size;
    const char *text = kt_http_write_stream_error(x, &w, 500, message, NULL, &size);

    if (atomic_load(&x->answer) == KT_ANSWER_STREAM)
        post(x, KT_POST_EVENT, 0, NULL, NULL, kt_http_error_prefix(x), text, size);
    if (kt_http_has_done(x)) kt_http_stream_event(x, "[DONE]", 6);
    kt_http_stream_end(x);
    kt_json_writer_deinit(&w);
}

/* ---- rules that need no connection ---- */

const char *kt_http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {417, "Expectation Failed"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].status == status) return reasons[i].reason;
    }
    return "Unknown";
}

static bool path_matches(const char *pattern, const char *path, const char **rest) {
    size_t n = strlen(pattern);

    *rest = "";
    if (n == 0 || pattern[n - 1] != '*') return strcmp(pattern, path) == 0;
    if (strncmp(pattern, path, n - 1) != 0 || !path[n - 1]) return false;
    *rest = path + n - 1;
    return true;
}

/* "/v1/x" and "/x" are the same path, in routes and in requests. */
static const char *bare(const char *path) {
    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

const kt_route *kt_http_find_route(const kt_http_server *s, const kt_http_head *head,
                                   const char **rest, int *status) {
    bool get = strcmp(head->method, "GET") == 0 || strcmp(head->method, "HEAD") == 0;

    *status = 404;
    for (size_t i = 0; i < s->options.n_routes; i++) {
        const kt_route *r = s->options.routes[i];
        if (!path_matches(bare(r->path), bare(head->path), rest)) continue;
        if (strcmp(r->method, get ? "GET" : head->method) == 0) return r;
        *status = 405;
    }
    return NULL;
}

void kt_http_list_methods(const kt_http_server *s, const char *path, char *out, size_t out_bytes) {
    size_t n = 0;
    const char *rest;

    for (size_t i = 0; i < s->options.n_routes && n < out_bytes; i++) {
        const kt_route *r = s->options.routes[i];
        if (!path_matches(bare(r->path), bare(path), &rest)) continue;
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%s, ", r->method,
                              strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    if (n < out_bytes) snprintf(out + n, out_bytes - n, "OPTIONS");
}
