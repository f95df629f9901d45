/* One streamed answer of an OpenAI-compatible server: a request sent, events read as they come.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SSE_CLIENT_H
#define KT_RUNTIME_SSE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/http/http_parse.h"

enum { KT_TARGET_ADDRESSES = 4 };

/* Where requests go. */
typedef struct kt_target {
    char name[300]; /* host:port as in the URL, an IPv6 address in brackets; unix:PATH */
    char host[300]; /* as servers are told: the same, or localhost */
    char base[256]; /* path before /v1, without a slash at its end */
    struct sockaddr_storage address[KT_TARGET_ADDRESSES]; /* tried in this order */
    socklen_t address_bytes[KT_TARGET_ADDRESSES];
    int n_addresses;
} kt_target;

/* "http://HOST[:PORT][/PATH][/v1]", "HOST:PORT", or "unix:PATH", a socket of this machine; looks
 * the host up. KT_E_INVALID for another form, https included; KT_E_NOT_FOUND when the host has no
 * address. */
kt_status kt_target_parse(const char *url, kt_target *out, kt_err *err);

bool kt_target_is_socket(const char *url); /* "unix:PATH" */

/* A whole POST request with a JSON body, malloc'd; NULL without memory. key: API key, or NULL. */
char *kt_sse_write_request(const kt_target *target, const char *path, const char *key,
                           const char *body, size_t body_size, size_t *size);

/* An event of the answer, which is borrowed, and the time of kt_clock_ns() at which it came. */
typedef void kt_sse_sink(void *arg, const kt_json *event, int64_t now_ns);

/* One connection for one answer, never blocking. The caller polls fd: for writing while is_sending,
 * else for reading, and calls advance then. */
typedef struct kt_sse_stream {
    int fd;          /* -1 = over */
    char error[300]; /* "" = the answer came whole */
    int status;      /* of HTTP; 0 = none came */
    bool is_refused; /* the error is the server's own */
    bool is_sending;
    const kt_target *target; /* borrowed */
    int n_tried;             /* of its addresses */
    const char *request;     /* borrowed until it is sent */
    size_t n_request, n_sent;
    char *in; /* owned: bytes of the head or of the line being read */
    size_t n_in, capacity;
    bool has_head, is_chunked, is_over;
    kt_http_chunks chunks;
    int64_t left; /* of a body of known length; -1 = up to the end */
    kt_sse_sink *sink;
    void *arg;
} kt_sse_stream;

/* Start sending a whole request. Errors show in the stream, also later ones. */
void kt_sse_start(kt_sse_stream *s, const kt_target *target, const char *request, size_t size,
                  kt_sse_sink *sink, void *arg);
/* Go on as far as the socket allows; true when the answer is complete or has failed. */
bool kt_sse_advance(kt_sse_stream *s);
/* Break off with an error text. */
void kt_sse_abort(kt_sse_stream *s, const char *why);

#endif
