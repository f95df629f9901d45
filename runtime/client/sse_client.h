/* One streamed answer of an OpenAI-compatible server: a request sent, tokens timed as they come.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SSE_CLIENT_H
#define KT_RUNTIME_SSE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "kt/status.h"
#include "runtime/http/http_parse.h"

/* Where requests go. */
typedef struct kt_target {
    char name[300]; /* host:port as in the URL */
    char base[256]; /* path before /v1, without a slash at its end */
    struct sockaddr_storage address;
    socklen_t address_bytes;
} kt_target;

/* "http://HOST[:PORT][/PATH][/v1]" or "HOST:PORT"; looks the host up. KT_E_INVALID for another
 * form, https included; KT_E_NOT_FOUND when the host has no address. */
kt_status kt_target_parse(const char *url, kt_target *out, kt_err *err);

/* What was measured. Times are of kt_clock_ns(); an answer without an error has all of them. */
typedef struct kt_sse_answer {
    char error[200];                             /* "" = the answer came whole */
    int status;                                  /* of HTTP; 0 = none came */
    int64_t start_ns, first_ns, last_ns, end_ns; /* request, first and last piece of text, end */
    int64_t prompt_tokens, cached_tokens; /* as the server counts them; -1 = it does not say */
    int64_t output_tokens;                /* likewise, else the number of pieces */
    int64_t n_pieces;
    float *gap_ms; /* owned: time between pieces, n_pieces - 1 of them */
    size_t gap_capacity;
} kt_sse_answer;
void kt_sse_answer_deinit(kt_sse_answer *a);

/* One connection for one answer, never blocking. The caller polls fd: for writing while is_sending,
 * else for reading, and calls advance then. */
typedef struct kt_sse_stream {
    int fd; /* -1 = over */
    bool is_sending;
    const char *request; /* borrowed until it is sent */
    size_t n_request, n_sent;
    char *in; /* owned: bytes of the head or of the line being read */
    size_t n_in, capacity;
    bool has_head, is_chunked, is_over;
    kt_http_chunks chunks;
    int64_t left; /* of a body of known length; -1 = up to the end */
    kt_sse_answer *answer;
} kt_sse_stream;

/* Start sending a whole request. Errors show in the answer, also later ones; the answer is
 * borrowed. */
void kt_sse_start(kt_sse_stream *s, const kt_target *target, const char *request, size_t size,
                  kt_sse_answer *answer);
/* Go on as far as the socket allows; true when the answer is complete or has failed. */
bool kt_sse_advance(kt_sse_stream *s);
/* Break off with an error text. */
void kt_sse_abort(kt_sse_stream *s, const char *why);

#endif
