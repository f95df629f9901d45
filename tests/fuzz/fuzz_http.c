/* HTTP: a head, then its body in chunks, whole and byte by byte.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/http/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *copy(const uint8_t *data, size_t size) {
    void *out = malloc(size ? size : 1);
    if (!out) abort();
    if (size) memcpy(out, data, size);
    return out;
}

/* Every string of a head lies inside of it and ends. */
static void check_head(const kt_http_head *h, const char *text, size_t size) {
    const char *strings[3] = {h->method, h->path, h->query};
    size_t total = 0;

    for (int i = 0; i < 3; i++) total += strlen(strings[i]);
    if (h->path[0] != '/' && strcmp(h->path, "*") != 0) abort();
    if (h->n_headers < 0 || h->n_headers > KT_HTTP_MAX_HEADERS) abort();
    for (int i = 0; i < h->n_headers; i++) {
        const kt_http_header *x = &h->headers[i];
        if (x->name < text || x->value < text || x->value + strlen(x->value) >= text + size)
            abort();
        total += strlen(x->name) + strlen(x->value);
        if (!kt_http_find_header(h, x->name)) abort();
    }
    if (total > size) abort();
}

static void check_chunks(const uint8_t *data, size_t size) {
    kt_http_chunks whole = {0}, pieces = {0};
    char *text = copy(data, size), *parts = copy(data, size), *body = malloc(size + 1);
    size_t n = 0, used, at = 0, n_parts = 0, got = 0;

    if (!body) abort();
    used = kt_http_chunks_read(&whole, text, size, &n);
    while (at < size && !pieces.done) {
        got = kt_http_chunks_read(&pieces, parts + at, 1, &n);
        if (got == SIZE_MAX) break;
        if (n) body[n_parts++] = parts[at];
        at += got;
        if (got == 0) break;
    }
    if ((used == SIZE_MAX) != (got == SIZE_MAX)) abort();
    if (used != SIZE_MAX) {
        n = 0;
        free(text);
        text = copy(data, size);
        memset(&whole, 0, sizeof whole);
        if (kt_http_chunks_read(&whole, text, size, &n) != used || n > size) abort();
        if (whole.done != pieces.done || n != n_parts || memcmp(text, body, n) != 0) abort();
    }
    free(text);
    free(parts);
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n = kt_http_head_size((const char *)data, size);
    const char *why = NULL;
    kt_http_head head;

    if (n > size) abort();
    if (n > 0) {
        char *text = copy(data, n);
        int status = kt_http_parse_head(text, n, &head, &why);
        if (status ? !why || status < 400 : 0) abort();
        if (status == 0) check_head(&head, text, n);
        free(text);
    }
    check_chunks(data + n, size - n);
    return 0;
}
