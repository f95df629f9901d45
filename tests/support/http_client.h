/* A plain-socket HTTP client for tests. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_HTTP_CLIENT_H
#define KT_TESTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct kt_reply {
    int status;    /* 0 = no answer */
    char *headers; /* NUL-terminated, owned */
    char *body;    /* without chunk framing, NUL-terminated, owned */
    size_t body_size;
} kt_reply;

/* A connection to 127.0.0.1; -1 when refused. Reads give up after ten seconds. */
int kt_dial(int port);
/* Write all; false when the other side has closed. */
bool kt_send_all(int fd, const void *data, size_t n);
/* Read one answer; *leftover (may be NULL) keeps bytes that belong to the next. */
kt_reply kt_read_reply(int fd, char **leftover, size_t *n_leftover, bool head_only);
void kt_reply_free(kt_reply *r);

/* One request on its own connection. body may be NULL; headers are whole lines or "". */
kt_reply kt_send_request(int port, const char *method, const char *path, const char *headers,
                         const char *body);
/* POST /v1/completions with this JSON. */
kt_reply kt_complete(int port, const char *json);
/* Send raw bytes, close our half if asked, read one answer. */
kt_reply kt_raw(int port, const char *bytes, size_t n, bool half_close);

#endif
