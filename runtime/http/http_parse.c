/* The grammar of RFC 9112, minus what only serves request smuggling: no folded lines, no space
 * before a colon, no bare CR, no second Content-Length, no Content-Length beside Transfer-Encoding.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/http_parse.h"

#include <string.h>

static size_t skip_empty_lines(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && (s[i] == '\r' || s[i] == '\n')) i++;
    return i;
}

size_t kt_http_head_size(const char *text, size_t n) {
    size_t i = skip_empty_lines(text, n);
    const char *nl;

    while (i < n && (nl = memchr(text + i, '\n', n - i)) != NULL) {
        i = (size_t)(nl - text) + 1;
        if (i < n && text[i] == '\n') return i + 1;
        if (i + 1 < n && text[i] == '\r' && text[i + 1] == '\n') return i + 2;
    }
    return 0;
}

static bool is_token_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Cut the next line off *at, NUL-terminated and without its end, which is CR LF. NULL when it ends
 * otherwise or holds control characters. */
static char *next_line(char **at, char *end) {
    char *line = *at, *nl = memchr(line, '\n', (size_t)(end - line)), *stop;

    if (!nl || nl == line || nl[-1] != '\r') return NULL;
    *at = nl + 1;
    stop = nl - 1;
    *stop = '\0';
    for (const char *p = line; p < stop; p++) {
        if ((unsigned char)*p < 32 && *p != '\t') return NULL;
        if (*p == 127) return NULL;
    }
    return line;
}

/* Decode %XX in place. False when it is malformed or hides a NUL. */
static bool percent_decode(char *s) {
    char *out = s;

    for (; *s; s++) {
        int high, low;
        if (*s != '%') {
            *out++ = *s;
            continue;
        }
        high = hex_digit(s[1]);
        low = high < 0 ? -1 : hex_digit(s[2]);
        if (low < 0 || high + low == 0) return false;
        *out++ = (char)(high << 4 | low);
        s += 2;
    }
    *out = '\0';
    return true;
}

static int parse_request_line(char *line, kt_http_head *out, const char **why) {
    char *target, *version, *query;

    *why = "the request line is malformed, expected METHOD PATH HTTP/1.1";
    out->method = line;
    while (is_token_char(*line)) line++;
    if (line == out->method || *line != ' ') return 400;
    *line = '\0';
    target = line + 1;
    version = strchr(target, ' ');
    if (!version || strncmp(version + 1, "HTTP/", 5) != 0) return 400;
    *version++ = '\0';
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        *why = "the HTTP version is not supported, expected HTTP/1.1";
        return 505;
    }
    out->minor = version[7] - '0';
    if (strncmp(target, "http://", 7) == 0) { /* the form sent to proxies */
        char *path = strchr(target + 7, '/');
        if (!path || path == target + 7) return 400;
        memmove(target + 6, target + 7, (size_t)(path - target) - 7); /* room for its end */
        path[-1] = '\0';
        out->host = target + 6;
        target = path;
    }
    if (target[0] == '*' && target[1] == '\0' && strcmp(out->method, "OPTIONS") == 0) {
        out->path = target;
        out->query = "";
        return 0;
    }
    if (target[0] != '/') return 400;
    query = strchr(target, '?');
    if (query) *query++ = '\0';
    out->path = target;
    out->query = query ? query : "";
    *why = "the path has a malformed percent escape";
    return percent_decode(target) ? 0 : 400;
}

static int parse_header(char *line, kt_http_head *out, const char **why) {
    char *colon = line, *value, *end;

    *why = "a header line is malformed, expected NAME: VALUE";
    for (; is_token_char(*colon); colon++) {
        if (*colon >= 'A' && *colon <= 'Z') *colon |= 0x20;
    }
    if (colon == line || *colon != ':') return 400;
    *colon = '\0';
    value = colon + 1 + strspn(colon + 1, " \t");
    for (end = value + strlen(value); end > value && (end[-1] == ' ' || end[-1] == '\t'); end--) {
    }
    *end = '\0';
    if (out->n_headers == KT_HTTP_MAX_HEADERS) {
        *why = "too many headers";
        return 431;
    }
    out->headers[out->n_headers++] = (kt_http_header){line, value};
    return 0;
}

const char *kt_http_find_header(const kt_http_head *head, const char *name) {
    for (int i = 0; i < head->n_headers; i++) {
        if (strcmp(head->headers[i].name, name) == 0) return head->headers[i].value;
    }
    return NULL;
}

/* True when a comma-separated list holds the word, whatever its case. */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);

    while (list && *list) {
        size_t i = 0, item;
        list += strspn(list, ", \t");
        item = strcspn(list, ", \t");
        while (i < item && i < n && (list[i] | 0x20) == (word[i] | 0x20)) i++;
        if (item == n && i == n) return true;
        list += item;
    }
    return false;
}

/* True for decimal digits that fit. */
static bool parse_length(const char *s, uint64_t *out) {
    uint64_t v = 0;

    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return true;
}

static int parse_framing(kt_http_head *out, const char **why) {
    const char *connection = kt_http_find_header(out, "connection");
    const char *expect = kt_http_find_header(out, "expect");
    int lengths = 0, encodings = 0, hosts = 0;

    for (int i = 0; i < out->n_headers; i++) {
        const kt_http_header *h = &out->headers[i];
        if (strcmp(h->name, "content-length") == 0) {
            *why = "Content-Length is malformed or given twice";
            if (++lengths > 1 || !parse_length(h->value, &out->content_length)) return 400;
        } else if (strcmp(h->name, "transfer-encoding") == 0) {
            *why = "only 'Transfer-Encoding: chunked' is supported";
            if (++encodings > 1 || strlen(h->value) != 7 || !has_word(h->value, "chunked")) {
                return 501;
            }
            out->chunked = true;
        } else if (strcmp(h->name, "host") == 0) {
            *why = "the Host header is given twice";
            if (++hosts > 1) return 400;
            if (!out->host) out->host = h->value;
        }
    }
    if (!hosts && out->minor == 1) {
        *why = "the Host header is missing";
        return 400;
    }
    if (encodings && out->minor == 0) {
        *why = "Transfer-Encoding in HTTP/1.0";
        return 400;
    }
    if (lengths && encodings) {
        *why = "Content-Length beside Transfer-Encoding";
        return 400;
    }
    out->keep_alive =
        out->minor == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    out->expect_continue = out->minor == 1 && has_word(expect, "100-continue");
    if (expect && out->minor == 1 && (strlen(expect) != 12 || !out->expect_continue)) {
        *why = "only 'Expect: 100-continue' is supported";
        return 417;
    }
    return 0;
}

int kt_http_parse_head(char *text, size_t n, kt_http_head *out, const char **why) {
    char *at = text + skip_empty_lines(text, n), *end = text + n, *line;
    int status;

    memset(out, 0, sizeof *out);
    *why = "a line of the request does not end with CR LF, or holds control characters";
    line = next_line(&at, end);
    if (!line) return 400;
    status = parse_request_line(line, out, why);
    while (status == 0) {
        *why = "a header does not end with CR LF, or holds control characters";
        line = next_line(&at, end);
        if (!line) return 400;
        if (!*line) return parse_framing(out, why);
        status = parse_header(line, out, why);
    }
    return status;
}

/* ---- chunked body: size [;extension] CRLF, data CRLF, ... 0 CRLF, trailers, CRLF ---- */

enum { in_size, in_extension, after_size, in_data, after_data, after_data_cr, in_trailer };

enum { max_line = 4096 };

/* One byte of framing. False when it does not belong there. */
static bool chunk_byte(kt_http_chunks *c, char b) {
    int digit;

    if (++c->line > max_line) return false;
    switch (c->state) {
    case in_size:
        digit = hex_digit(b);
        if (digit >= 0) {
            if (c->left >> 59) return false;
            c->left = c->left << 4 | (uint64_t)digit;
            c->digits = true;
            return true;
        }
        if (!c->digits) return false;
        if (b == ';' || b == ' ' || b == '\t')
            c->state = in_extension;
        else if (b == '\r')
            c->state = after_size;
        else
            return false;
        return true;
    case in_extension:
        if (b == '\r') c->state = after_size;
        return b != '\n';
    case after_size:
        if (b != '\n') return false;
        c->state = c->left ? in_data : in_trailer;
        c->digits = false;
        c->line = 0;
        return true;
    case after_data: c->state = after_data_cr; return b == '\r';
    case after_data_cr:
        c->state = in_size;
        c->line = 0;
        return b == '\n';
    case in_trailer: /* lines up to an empty one */
        if (b == '\n') {
            c->done = !c->digits;
            c->digits = false;
        } else if (b != '\r') {
            c->digits = true; /* this line is not empty */
        }
        return true;
    default: return false;
    }
}

size_t kt_http_chunks_read(kt_http_chunks *c, char *text, size_t n, size_t *out) {
    size_t i = 0;

    *out = 0;
    while (i < n && !c->done) {
        if (c->state == in_data) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            memmove(text + *out, text + i, take);
            *out += take;
            i += take;
            c->left -= take;
            if (c->left == 0) c->state = after_data;
            continue;
        }
        if (!chunk_byte(c, text[i++])) return SIZE_MAX;
    }
    return i;
}
