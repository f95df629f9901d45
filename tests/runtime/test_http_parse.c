/* Heads and bodies of requests: what is read, what is refused and why.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "runtime/http/http_parse.h"

static char text[20000]; /* what the last head points into */

/* The head of a request, its status and, where it is refused, the reason. */
static int parse(const char *request, kt_http_head *head, const char **why) {
    snprintf(text, sizeof text, "%s", request);
    *why = NULL;
    return kt_http_parse_head(text, strlen(text), head, why);
}

static kt_http_head accept(const char *request) {
    kt_http_head head;
    const char *why;
    int status = parse(request, &head, &why);

    cr_assert_eq(status, 0, "'%s' gives %d: %s", request, status, why);
    return head;
}

#define GET "GET /x HTTP/1.1\r\nHost: x\r\n"
#define POST "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"

Test(http_parse, malformed_heads_are_refused_with_a_reason) {
    static const struct {
        const char *text;
        int status;
        const char *why;
    } cases[] = {
        {"GET /x\r\n\r\n", 400, "METHOD PATH"},
        {"GET  /x HTTP/1.1\r\n\r\n", 400, "METHOD PATH"},
        {" GET /x HTTP/1.1\r\n\r\n", 400, "METHOD PATH"},
        {"GET x HTTP/1.1\r\n\r\n", 400, "METHOD PATH"},
        {"GET * HTTP/1.1\r\n\r\n", 400, "METHOD PATH"},
        {"GET http://host HTTP/1.1\r\n\r\n", 400, "METHOD PATH"},
        {"G\x01T /x HTTP/1.1\r\n\r\n", 400, "control"},
        {"GET /x HTTP/1.1 \r\n\r\n", 505, "version"},
        {"GET /x HTTP/1.2\r\n\r\n", 505, "version"},
        {"GET /%4 HTTP/1.1\r\n\r\n", 400, "percent"},
        {"GET /%g0 HTTP/1.1\r\n\r\n", 400, "percent"},
        {"GET /%0g HTTP/1.1\r\n\r\n", 400, "percent"},
        {"GET /a%00 HTTP/1.1\r\n\r\n", 400, "percent"},
        {"GET /x\x7f HTTP/1.1\r\n\r\n", 400, "control"},
        {GET "a: b\x7f\r\n\r\n", 400, "control"}, /* DEL, the control character above 32 */
        {GET "a: \x1f\r\n\r\n", 400, "control"},
        {GET "a: b\rc: d\r\n\r\n", 400, "control"},         /* a CR alone ends no line */
        {"GET /x HTTP/1.1\nHost: x\r\n\r\n", 400, "CR LF"}, /* nor does an LF */
        {GET "a: b\n\r\n", 400, "CR LF"},
        {GET "a: b\r\n\n", 400, "CR LF"},
        {"GET /x HTTP/1.1\r\n\r\n", 400, "Host header is missing"},
        {GET "Host: y\r\n\r\n", 400, "Host header is given twice"},
        {"GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n", 400, "METHOD PATH"},
        {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0"},
        {POST "Expect: 200-ok\r\n\r\n", 417, "100-continue"},
        {POST "Expect: 100-continue, x\r\n\r\n", 417, "100-continue"},
        {GET "a : b\r\n\r\n", 400, "NAME: VALUE"},
        {GET "a b: c\r\n\r\n", 400, "NAME: VALUE"},
        {GET ": c\r\n\r\n", 400, "NAME: VALUE"},
        {GET "a: b\r\n folded\r\n\r\n", 400, "NAME: VALUE"},
        {GET "a: b\r\n\tfolded\r\n\r\n", 400, "NAME: VALUE"},
        {POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\n", 400, "twice"},
        {POST "Content-Length:\r\n\r\n", 400, "malformed"},
        {POST "Content-Length: +2\r\n\r\n", 400, "malformed"},
        {POST "Content-Length: 2, 2\r\n\r\n", 400, "malformed"},
        {POST "Content-Length: 0x2\r\n\r\n", 400, "malformed"},
        {POST "Content-Length: 18446744073709551616\r\n\r\n", 400, "malformed"},
        {POST "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "beside"},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n", 400, "beside"},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", 400, "beside"},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "chunked"},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "chunked"},
        {POST "Transfer-Encoding: chunked,\r\n\r\n", 501, "chunked"},
        {POST "Transfer-Encoding: chunker\r\n\r\n", 501, "chunked"},
        {POST "Transfer-Encoding:\r\n\r\n", 501, "chunked"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_http_head head;
        const char *why;
        int status = parse(cases[i].text, &head, &why);
        cr_expect_eq(status, cases[i].status, "'%s' gives %d, expected %d", cases[i].text, status,
                     cases[i].status);
        cr_expect(why && strstr(why, cases[i].why), "'%s': '%s' lacks '%s'", cases[i].text,
                  why ? why : "", cases[i].why);
    }
}

Test(http_parse, heads_are_read_as_they_stand) {
    kt_http_head h = accept("\r\n\nGET /a%2Fb%20c?q=%20 HTTP/1.1\r\nHost:  x \t\r\nX-Y:\r\n\r\n");

    cr_expect_str_eq(h.method, "GET");
    cr_expect_str_eq(h.path, "/a/b c");
    cr_expect_str_eq(h.query, "q=%20"); /* as it was sent */
    cr_expect_eq(h.minor, 1);
    cr_expect_eq(h.n_headers, 2);
    cr_expect_str_eq(kt_http_find_header(&h, "host"), "x");
    cr_expect_str_eq(kt_http_find_header(&h, "x-y"), "");
    cr_expect_null(kt_http_find_header(&h, "x"));
    cr_expect(!h.chunked && h.content_length == 0 && !h.expect_continue);

    cr_expect_str_eq(h.host, "x");
    h = accept("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    cr_expect_str_eq(h.path, "*");
    h = accept("GET /x HTTP/1.0\r\n\r\n");
    cr_expect_null(h.host);
    h = accept("GET http://host:8/a?b HTTP/1.1\r\nHost: localhost\r\n\r\n");
    cr_expect_str_eq(h.path, "/a");
    cr_expect_str_eq(h.host, "host:8"); /* the target's counts */
    cr_expect_str_eq(h.query, "b");
    h = accept(POST "Content-Length: 18446744073709551609\r\n\r\n");
    cr_expect_eq(h.content_length, UINT64_MAX - 6);
    h = accept(POST "transfer-ENCODING: Chunked\r\n\r\n");
    cr_expect(h.chunked);
}

Test(http_parse, connections_stay_as_the_version_and_the_client_say) {
    static const struct {
        const char *text;
        bool keeps;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, CLOSE\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: clos\r\n\r\n", true},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(accept(cases[i].text).keep_alive, cases[i].keeps, "%s", cases[i].text);
    cr_expect(accept(POST "Expect: 100-continue\r\n\r\n").expect_continue);
    cr_expect(!accept("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expect_continue);
}

/* `n` headers of one line each, Host being one. */
static int parse_headers(int n) {
    kt_http_head head;
    const char *why;
    char request[20000];
    size_t at = (size_t)sprintf(request, GET);

    for (int i = 1; i < n; i++) at += (size_t)sprintf(request + at, "h%d: v\r\n", i);
    sprintf(request + at, "\r\n");
    return parse(request, &head, &why);
}

Test(http_parse, the_number_of_headers_is_limited) {
    cr_expect_eq(parse_headers(KT_HTTP_MAX_HEADERS), 0);
    cr_expect_eq(parse_headers(KT_HTTP_MAX_HEADERS + 1), 431);
}

Test(http_parse, a_head_ends_with_its_empty_line) {
    static const struct {
        const char *text;
        size_t size;
    } cases[] = {{"GET / HTTP/1.1\r\n\r\nrest", 18},
                 {"GET / HTTP/1.1\n\nrest", 16},
                 {"GET / HTTP/1.1\r\n\nrest", 17},
                 {"GET / HTTP/1.1\r\na: b\r\n\r\n", 24},
                 {"GET / HTTP/1.1\r\n", 0},
                 {"GET / HTTP/1.1\r\n\r", 0},
                 {"\r\n\r\n", 0},
                 {"\r\nGET / HTTP/1.1\r\n\r\n", 20},
                 {"", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t got = kt_http_head_size(cases[i].text, strlen(cases[i].text));
        cr_expect_eq(got, cases[i].size, "'%s': %zu, expected %zu", cases[i].text, got,
                     cases[i].size);
    }
}

/* ---- chunked bodies ---- */

/* Bytes taken, SIZE_MAX when refused; the body in out. */
static size_t read_body(const char *chunks, char *out, size_t *n, bool *done) {
    kt_http_chunks c = {0};
    size_t used;

    strcpy(out, chunks);
    used = kt_http_chunks_read(&c, out, strlen(chunks), n);
    *done = c.done;
    return used;
}

Test(http_parse, chunk_framing_is_strict) {
    static const char *const bad[] = {"\r\n",
                                      "x\r\n",
                                      "-1\r\n",
                                      " 1\r\na\r\n",
                                      ";a\r\n",
                                      "1\ra\r\n",
                                      "1\na\r\n",
                                      "1\r\nab\r\n",
                                      "1\r\na\n",
                                      "1\r\na\rx",
                                      "1;e\na\r\n",
                                      "2\r\na\r\n0\r\n",
                                      "1\r\na\r\ng",
                                      "1 x\ny",
                                      "00000000000000001\n",
                                      "10000000000000000\r\n"};
    char out[64];
    size_t n;
    bool done;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t used = read_body(bad[i], out, &n, &done);
        cr_expect(used == SIZE_MAX && !done, "'%s' is taken", bad[i]);
    }
    cr_expect_eq(read_body("1\r\na\r\n0\r\n\r\n", out, &n, &done), 11);
    cr_expect(done && n == 1 && out[0] == 'a');
    cr_expect_eq(read_body("A\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET", out, &n, &done), 26);
    cr_expect(done && n == 10 && memcmp(out, "0123456789", 10) == 0);
    cr_expect_eq(read_body("1\r\na\r\n0\r\nX: y\r\n", out, &n, &done), 15);
    cr_expect(!done, "the trailers have no end yet");
}

/* A line of framing may have 4,096 bytes: extensions that never end are not read for ever. */
Test(http_parse, endless_extensions_are_refused) {
    static char line[5000];
    kt_http_chunks c = {0};
    size_t n;

    memset(line, 'x', sizeof line);
    memcpy(line, "1;", 2);
    cr_expect_eq(kt_http_chunks_read(&c, line, 4096, &n), 4096);
    cr_expect_eq(kt_http_chunks_read(&c, line + 4096, 1, &n), SIZE_MAX);
}
