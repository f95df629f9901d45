/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/http/access.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"

/* A text cut into items: owned, NUL after each. */
typedef struct list {
    char *text;
    const char **item;
    size_t n;
} list;

struct kt_access {
    list keys, hosts, origins;
};

static void list_deinit(list *l) {
    free(l->text);
    free((void *)l->item);
}

/* ends: the characters that end an item; spaces around it are left out. */
static kt_status list_init(list *l, const char *text, const char *ends, kt_err *err) {
    char *at;
    size_t n = 1;

    if (!text) return KT_OK;
    for (const char *p = text; *p; p++) n += strchr(ends, *p) != NULL;
    l->text = strdup(text);
    l->item = calloc(n, sizeof *l->item);
    if (!l->text || !l->item) return kt_fail(err, KT_E_NOMEM, "no memory for the server");
    for (at = l->text; at;) {
        char *item = at + strspn(at, " \t\r"), *end = at + strcspn(at, ends);
        at = *end ? end + 1 : NULL;
        while (end > item && strchr(" \t\r", end[-1])) end--;
        if (end <= item) continue;
        *end = '\0';
        l->item[l->n++] = item;
    }
    return KT_OK;
}

static bool list_has(const list *l, const char *word) {
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->item[i], "*") == 0 || strcasecmp(l->item[i], word) == 0) return true;
    return false;
}

kt_status kt_access_create(const char *keys, const char *hosts, const char *origins,
                           kt_access **out, kt_err *err) {
    kt_access *a = calloc(1, sizeof *a);
    kt_status st = a ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the server");

    *out = NULL;
    if (st == KT_OK) st = list_init(&a->keys, keys, "\n", err);
    if (st == KT_OK) st = list_init(&a->hosts, hosts, ",", err);
    if (st == KT_OK) st = list_init(&a->origins, origins, ",", err);
    for (size_t i = 0; st == KT_OK && i < a->origins.n; i++) {
        const char *origin = a->origins.item[i];
        if (strcmp(origin, "*") != 0 && !strstr(origin, "://"))
            st = kt_fail(err, KT_E_INVALID, "origin '%s' has no scheme, expected 'https://%s'",
                         origin, origin);
    }
    if (st != KT_OK) {
        kt_access_destroy(a);
        return st;
    }
    *out = a;
    return KT_OK;
}

void kt_access_destroy(kt_access *a) {
    if (!a) return;
    list_deinit(&a->keys);
    list_deinit(&a->hosts);
    list_deinit(&a->origins);
    free(a);
}

/* ---- keys ---- */

static unsigned differs(const char *given, const char *secret) {
    size_t n = strlen(given), m = strlen(secret);
    unsigned bits = n != m;

    for (size_t i = 0; i < n; i++)
        bits |= (unsigned char)given[i] ^ (unsigned char)secret[m ? i % m : 0];
    return bits;
}

static bool is_key(const kt_access *a, const char *given) {
    bool found = false;

    for (size_t i = 0; i < a->keys.n; i++) found |= differs(given, a->keys.item[i]) == 0;
    return found;
}

bool kt_access_wants_key(const kt_access *a) {
    return a->keys.n > 0;
}

bool kt_access_has_key(const kt_access *a, const kt_http_head *head) {
    const char *bearer = kt_http_find_header(head, "authorization");
    const char *key = kt_http_find_header(head, "x-api-key");

    if (a->keys.n == 0) return true;
    if (bearer && strncasecmp(bearer, "bearer ", 7) == 0 &&
        is_key(a, bearer + 7 + strspn(bearer + 7, " ")))
        return true;
    return key && is_key(a, key);
}

/* ---- hosts and origins ---- */

/* The name or address of "name", "name:port", "1.2.3.4:port", "[v6]:port". False when it is none of
 * these. */
static bool cut_port(const char *authority, char *out, size_t out_bytes) {
    const char *begin = authority, *end = authority + strcspn(authority, ":"), *port;

    if (*authority == '[') {
        begin = authority + 1;
        end = strchr(begin, ']');
        if (!end) return false;
    }
    port = *authority == '[' ? end + 1 : end;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")])) return false;
    if (end == begin || (size_t)(end - begin) >= out_bytes) return false;
    memcpy(out, begin, (size_t)(end - begin));
    out[end - begin] = '\0';
    return true;
}

static bool is_loopback(const char *name) {
    struct in6_addr v6;
    struct in_addr v4;

    if (strcasecmp(name, "localhost") == 0) return true;
    if (inet_pton(AF_INET, name, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, name, &v6) != 1) return false;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6);
}

bool kt_access_host(const kt_access *a, const char *host) {
    char name[256];

    if (a->keys.n > 0 || list_has(&a->hosts, host)) return true;
    return cut_port(host, name, sizeof name) && (is_loopback(name) || list_has(&a->hosts, name));
}

bool kt_access_origin(const kt_access *a, const char *origin, const char *host) {
    const char *authority = strstr(origin, "://");
    size_t scheme = authority ? (size_t)(authority - origin) : 0;
    char name[256];

    if (list_has(&a->origins, origin)) return true;
    if (a->keys.n > 0 && a->origins.n == 0) return true;
    if (!((scheme == 4 && strncasecmp(origin, "http", 4) == 0) ||
          (scheme == 5 && strncasecmp(origin, "https", 5) == 0)))
        return false;
    authority += 3;
    if (host && strcasecmp(authority, host) == 0) return true;
    return cut_port(authority, name, sizeof name) && is_loopback(name);
}
