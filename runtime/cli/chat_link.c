/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_link.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { POLL_MS = 100 };

kt_status kt_chat_link_init(kt_chat_link *l, const char *url, kt_err *err) {
    static const char scheme[] = "http://";
    const char *path;

    memset(l, 0, sizeof *l);
    KT_TRY(kt_target_parse(url, &l->target, err));
    if (kt_target_is_socket(url)) url = ""; /* no path of the API in it */
    path = strstr(url, "://") ? url + sizeof scheme - 1 : url;
    path += strcspn(path, "/");
    snprintf(l->path, sizeof l->path, "%s", path);
    while (*l->path && l->path[strlen(l->path) - 1] == '/') l->path[strlen(l->path) - 1] = '\0';
    if (!*l->path) snprintf(l->path, sizeof l->path, "/v1");
    return KT_OK;
}

/* The events of one answer on their way. */
typedef struct link_call {
    kt_chat_link_sink *sink;
    void *arg;
} link_call;

static void take_event(void *arg, const kt_json *event, int64_t now_ns) {
    const link_call *c = arg;
    (void)now_ns;

    c->sink(c->arg, event);
}

static kt_status run(const kt_chat_link *l, kt_sse_stream *s, kt_err *err) {
    while (s->fd >= 0) {
        struct pollfd p = {.fd = s->fd, .events = s->is_sending ? POLLOUT : POLLIN};
        if (l->is_stopped && l->is_stopped()) {
            kt_sse_abort(s, "stopped");
            return kt_fail(err, KT_E_CANCELLED, "stopped");
        }
        if (poll(&p, 1, POLL_MS) > 0) kt_sse_advance(s);
    }
    if (!*s->error) return KT_OK;
    if (s->status && (s->is_refused || s->status != 200))
        return kt_fail(err, KT_E_INVALID, "%s (status %d)", s->error, s->status);
    return kt_fail(err, KT_E_IO, "%s: %s", l->target.name, s->error);
}

kt_status kt_chat_link_post(const kt_chat_link *l, const char *what, const char *body, size_t size,
                            kt_chat_link_sink *sink, void *arg, kt_err *err) {
    link_call c = {.sink = sink, .arg = arg};
    char path[320], *request;
    size_t request_size;
    kt_sse_stream s;
    kt_status st;

    snprintf(path, sizeof path, "%s%s", l->path, what);
    request = kt_sse_write_request(&l->target, path, l->key, body, size, &request_size);
    if (!request) return kt_fail(err, KT_E_NOMEM, "no memory for the conversation");
    kt_sse_start(&s, &l->target, request, request_size, take_event, &c);
    st = run(l, &s, err);
    free(request);
    return st;
}
