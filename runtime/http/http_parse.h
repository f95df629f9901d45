/* HTTP/1.1 requests, parsed strictly and without any I/O. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_HTTP_PARSE_H
#define KT_RUNTIME_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KT_HTTP_MAX_HEAD (32 * 1024) /* request line and headers */
#define KT_HTTP_MAX_HEADERS 100

typedef struct kt_http_header {
    const char *name, *value; /* NUL-terminated, inside the head; names in lower case */
} kt_http_header;

typedef struct kt_http_head {
    const char *method; /* upper case */
    const char *path;   /* percent-decoded, without the query; starts with '/' */
    const char *query;  /* behind '?', "" if none */
    const char *host; /* of the target or, there being none, of the Host header; NULL in HTTP/1.0 */
    int minor;        /* HTTP/1.minor */
    kt_http_header headers[KT_HTTP_MAX_HEADERS];
    int n_headers;
    bool chunked;
    bool keep_alive;
    bool expect_continue;
    uint64_t content_length; /* 0 when absent or chunked */
} kt_http_head;

/* Bytes of the head at the start of text, with its empty line; 0 = not complete yet. Empty lines in
 * front of a request are part of it. */
size_t kt_http_head_size(const char *text, size_t n);

/* Parse a complete head. text is changed (names lowered, NULs written) and must live as long as
 * *out. Returns 0, or the status to answer with and *why a static sentence. */
int kt_http_parse_head(char *text, size_t n, kt_http_head *out, const char **why);

/* Value of a header (name in lower case), or NULL. */
const char *kt_http_find_header(const kt_http_head *head, const char *name);

/* Decoder of a chunked body. Zero-initialise. */
typedef struct kt_http_chunks {
    int state;
    uint64_t left; /* of the current chunk */
    size_t line;   /* bytes of the current line of framing */
    bool done, digits;
} kt_http_chunks;

/* Decode text in place: *out bytes of body are left at its start. Returns the bytes consumed, fewer
 * than n only when the body is done; SIZE_MAX when the framing is malformed. */
size_t kt_http_chunks_read(kt_http_chunks *c, char *text, size_t n, size_t *out);

#endif
