/* GET /: the built-in page. It needs no key, as it holds nothing but itself; what it asks for does.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/server.h"
#include "runtime/http/ui/page.h"

/* Nothing foreign is loaded, nothing frames it, and no script runs but its own. */
#define POLICY                                                                                \
    "Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src data:; "        \
    "style-src 'unsafe-inline'; script-src 'nonce-%s'; base-uri 'none'; form-action 'none'; " \
    "frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n"                           \
    "Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"

static void handle(kt_http_exchange *x, void *app) {
    static const char mark[] = "@NONCE@";
    const char *nonce = kt_http_request_id(x);
    const char *at = memmem(kt_page_html, kt_page_html_size, mark, sizeof mark - 1);
    size_t before = at ? (size_t)(at - kt_page_html) : kt_page_html_size, n = strlen(nonce);
    size_t behind = at ? kt_page_html_size - before - (sizeof mark - 1) : 0;
    char headers[600], *page = malloc(before + n + behind);
    (void)app;

    if (!page) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the page");
        return;
    }
    memcpy(page, kt_page_html, before);
    memcpy(page + before, nonce, n);
    if (behind) memcpy(page + before + n, at + sizeof mark - 1, behind);
    snprintf(headers, sizeof headers, POLICY, nonce);
    kt_http_reply(x, 200, headers, "text/html; charset=utf-8", page, before + n + behind);
    free(page);
}

const kt_route kt_route_page_root = {
    .method = "GET", .path = "/", .is_public = true, .handle = handle};
