/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int kt_dial(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    const struct timeval limit = {60, 0}; /* a busy machine may be slow */
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

bool kt_send_all(int fd, const void *data, size_t n) {
    const char *p = data;

    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

typedef struct buffer {
    char *data;
    size_t size, capacity;
} buffer;

/* Read more; false at the end. */
static bool fill(int fd, buffer *b) {
    ssize_t n;

    if (b->capacity - b->size < 65537) b->data = realloc(b->data, b->capacity += 131072);
    n = recv(fd, b->data + b->size, 65536, 0);
    if (n > 0) b->size += (size_t)n;
    b->data[b->size] = '\0';
    return n > 0;
}

/* Copy a chunked body at b->data + at into r; returns where it ends, 0 when it is cut off. */
static size_t read_chunks(int fd, buffer *b, size_t at, kt_reply *r) {
    for (;;) {
        size_t size, line;
        char *end;
        while (!(end = memmem(b->data + at, b->size - at, "\r\n", 2))) {
            if (!fill(fd, b)) return 0;
        }
        line = (size_t)(end - b->data) + 2;
        size = strtoul(b->data + at, NULL, 16);
        while (b->size < line + size + 2) {
            if (!fill(fd, b)) return 0;
        }
        r->body = realloc(r->body, r->body_size + size + 1);
        memcpy(r->body + r->body_size, b->data + line, size);
        r->body_size += size;
        r->body[r->body_size] = '\0';
        at = line + size + 2;
        if (size == 0) return at;
    }
}

kt_reply kt_read_reply(int fd, char **leftover, size_t *n_leftover, bool head_only) {
    kt_reply r = {0};
    buffer b = {0};
    char *end, *length;
    size_t at, done = 0;

    if (leftover && *leftover) {
        b.size = *n_leftover;
        b.capacity = b.size + 131072;
        b.data = realloc(*leftover, b.capacity);
        b.data[b.size] = '\0';
        *leftover = NULL;
    }
    while (!b.data || !(end = strstr(b.data, "\r\n\r\n"))) {
        if (!fill(fd, &b)) goto done;
    }
    at = (size_t)(end - b.data) + 4;
    if (sscanf(b.data, "HTTP/1.1 %d", &r.status) != 1) goto done;
    if (r.status == 100) { /* the real answer follows */
        memmove(b.data, b.data + at, b.size - at + 1);
        b.size -= at;
        if (leftover) {
            *leftover = b.data;
            *n_leftover = b.size;
            return kt_read_reply(fd, leftover, n_leftover, head_only);
        }
        char *rest = b.data;
        size_t n = b.size;
        return kt_read_reply(fd, &rest, &n, head_only);
    }
    r.headers = strndup(b.data, at - 2);
    if (strcasestr(r.headers, "transfer-encoding: chunked")) {
        done = read_chunks(fd, &b, at, &r);
    } else if ((length = strcasestr(r.headers, "content-length:")) && !head_only) {
        r.body_size = strtoul(length + 15, NULL, 10);
        while (b.size < at + r.body_size && fill(fd, &b)) {
        }
        if (b.size < at + r.body_size) r.body_size = b.size - at;
        r.body = strndup(b.data + at, r.body_size);
        done = at + r.body_size;
    } else if (!length && r.status != 204 && !head_only) {
        while (fill(fd, &b)) {
        }
        r.body_size = b.size - at;
        r.body = strndup(b.data + at, r.body_size);
        done = b.size;
    } else {
        done = at;
    }
done:
    if (!r.headers) r.headers = strdup("");
    if (!r.body) r.body = strdup("");
    if (leftover && done && done < b.size) {
        *n_leftover = b.size - done;
        *leftover = malloc(*n_leftover + 1);
        memcpy(*leftover, b.data + done, *n_leftover);
    }
    free(b.data);
    return r;
}

void kt_reply_free(kt_reply *r) {
    free(r->headers);
    free(r->body);
    memset(r, 0, sizeof *r);
}

kt_reply kt_raw(int port, const char *bytes, size_t n, bool half_close) {
    int fd = kt_dial(port);
    kt_reply r;

    if (fd < 0) return (kt_reply){0, strdup(""), strdup(""), 0};
    kt_send_all(fd, bytes, n);
    if (half_close) shutdown(fd, SHUT_WR);
    r = kt_read_reply(fd, NULL, NULL, n >= 5 && memcmp(bytes, "HEAD ", 5) == 0);
    close(fd);
    return r;
}

kt_reply kt_send_request(int port, const char *method, const char *path, const char *headers,
                         const char *body) {
    char *text = NULL;
    kt_reply r;
    int n;

    if (body)
        n = asprintf(&text,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                     method, path, headers, strlen(body), body);
    else
        n = asprintf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sConnection: close\r\n\r\n",
                     method, path, headers);
    r = kt_raw(port, text, (size_t)n, false);
    free(text);
    return r;
}

kt_reply kt_complete(int port, const char *json) {
    return kt_send_request(port, "POST", "/v1/completions", "", json);
}
