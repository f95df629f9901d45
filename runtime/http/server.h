/* HTTP server: connections, routes, answers that may come later and from another thread.
 *
 * One thread runs the event loop (kt_http_server_run) and calls the routes. Answers are posted to
 * it and may come from any thread. Errors of the protocol are answered in the form of the OpenAI
 * API.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SERVER_H
#define KT_RUNTIME_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "kt/status.h"
#include "runtime/http/route.h"

typedef struct kt_http_server kt_http_server;
typedef struct kt_http_exchange kt_http_exchange; /* one request and its answer */

typedef struct kt_http_options {
    const char *host;              /* NULL = 127.0.0.1; a name listens on all its addresses */
    int port;                      /* 0 = any free one */
    const char *socket_path;       /* NULL, or a UNIX socket instead of host and port */
    const kt_route *const *routes; /* borrowed */
    size_t n_routes;
    void *app; /* handed to the routes */
    /* NULL, or asked with app before a route that is not public is called: a reason not to call it
     * becomes status 503 with the code "loading". Event thread. */
    const char *(*why_not)(void *app);
    /* NULL, or told with app on the first call of stop how many requests are still being answered.
     */
    void (*on_drain)(void *app, int n_requests);
    /* Keys one a line; hosts and origins with commas between them (access.h). Borrowed during
     * create. */
    const char *api_key, *allowed_hosts, *cors_origins;
    size_t max_body_bytes;   /* of one request; 0 = 32 MiB */
    size_t max_bodies_bytes; /* of all requests together, else 503; 0 = 256 MiB */
    size_t max_unsent_bytes; /* a stream's client that leaves more unread is dropped; 0 = 8 MiB */
    int max_connections;     /* 0 = 512 */
    /* Between bytes of a request, or between requests, and for a body and a second more for each 64
     * KiB of it; 0 = 60 s. */
    int read_timeout_ms;
    int ping_ms;        /* silence on a stream after which a comment is sent; 0 = 15 s */
    int drain_ms;       /* after the first signal; 0 = 5 s, negative = none */
    bool catch_signals; /* SIGINT and SIGTERM stop the server, a second one at once */
    const kt_log *log;  /* borrowed; may be NULL */
} kt_http_options;

/* Bind and listen. A port or socket in use is an error that says so. The file of a UNIX socket is
 * removed when the server accepts nothing more (unix_socket.h). */
kt_status kt_http_server_create(const kt_http_options *options, kt_http_server **out, kt_err *err);
/* After run returned and every exchange was released. Accepts NULL. */
void kt_http_server_destroy(kt_http_server *s);
int kt_http_server_port(const kt_http_server *s); /* 0 on a UNIX socket */

/* Serve until stopped. When it returns, signals do again what they did before the server was
 * created. */
kt_status kt_http_server_run(kt_http_server *s, kt_err *err);
/* Accept nothing more and return from run when the requests in work are answered. After drain_ms,
 * or at the second call, those that are not get status 503 or an error event, and count as left by
 * their clients; run returns a second (second call: 300 ms) later, when all of them took it or not.
 * From any thread, any number of times; the third call ends the wait at once. */
void kt_http_server_stop(kt_http_server *s);
int kt_http_server_stops(const kt_http_server *s); /* how often stop was called, signals included */

/* ---- the request; the strings live as long as the exchange ---- */

/* What '*' of the route stands for, else "". */
const char *kt_http_path_rest(const kt_http_exchange *x);
const char *kt_http_body(const kt_http_exchange *x, size_t *size);
/* The body is not needed any more, which makes room for those of others. By the one thread that
 * reads it. */
void kt_http_drop_body(kt_http_exchange *x);
const char *kt_http_request_id(const kt_http_exchange *x); /* 24 hexadecimal digits, unique */

/* True from the moment that nobody waits for the answer. Lock-free; any thread. */
bool kt_http_gone(const kt_http_exchange *x);
/* Bytes of the answer that the client has not taken yet, up to the system's own buffers. Lock-free;
 * any thread. Who makes a stream waits with more of it while this is large. */
size_t kt_http_unsent(const kt_http_exchange *x);

/* A route that answers later keeps the exchange and releases it when done. Thread-safe. An exchange
 * released without an answer is answered with status 500, a stream without its end is ended by an
 * error event. */
void kt_http_keep(kt_http_exchange *x);
void kt_http_release(kt_http_exchange *x);

/* ---- the answer; any thread, never blocks; after the client left it does nothing ---- */

/* The whole answer. headers: further lines "Name: value\r\n" or NULL. */
void kt_http_reply(kt_http_exchange *x, int status, const char *headers, const char *content_type,
                   const char *body, size_t size);
void kt_http_reply_json(kt_http_exchange *x, int status, const char *json, size_t size);

/* {"error":{"message","type","param","code"}}; param and code may be NULL. 429 and 503 get a
 * Retry-After, 405 the methods that the path has. */
void kt_http_fail(kt_http_exchange *x, int status, const char *type, const char *param,
                  const char *code, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Server-sent events: begin once, send "data: <json>\n\n" any number of times, end once. name:
 * NULL, or put before the data as "event: <name>\n". */
void kt_http_stream_begin(kt_http_exchange *x);
void kt_http_stream_event(kt_http_exchange *x, const char *data, size_t size);
void kt_http_stream_named_event(kt_http_exchange *x, const char *name, const char *data,
                                size_t size);
void kt_http_stream_end(kt_http_exchange *x);
/* An error inside of a stream, {"error":{...}} as kt_http_fail writes it with status 500; then
 * [DONE] and the end. */
void kt_http_stream_fail(kt_http_exchange *x, const char *message);

#endif
