/* datasets/schemas/openapi.json tells of every route of the server, and of no other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "runtime/http/route.h"

static kt_json_doc *read_document(void) {
    kt_json_doc *doc = NULL;
    char *text;
    size_t size;
    kt_err err = {0};

    cr_assert_eq(
        kt_file_read(KT_SOURCE_DIR "/datasets/schemas/openapi.json", 1 << 20, &text, &size, &err),
        KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    free(text);
    return doc;
}

/* "/v1/models/{id}" is the route "/v1/models/" followed by '*'. */
static bool is_path_of(const kt_route *r, const char *path) {
    const char *brace = strchr(path, '{'), *star = strchr(r->path, '*');
    const size_t n = brace ? (size_t)(brace - path) : strlen(path);

    return !brace == !star && n == (star ? (size_t)(star - r->path) : strlen(r->path)) &&
           memcmp(path, r->path, n) == 0;
}

static bool is_method_of(const kt_route *r, const char *method) {
    return strcmp(method, strcmp(r->method, "GET") == 0 ? "get" : "post") == 0;
}

Test(openapi, every_route_is_told_and_no_other) {
    kt_json_doc *doc = read_document();
    const kt_json *paths = kt_json_get(kt_json_root(doc), "paths");
    size_t n_told = 0;

    for (size_t i = 0; i < kt_json_length(paths); i++) {
        const char *path, *method;
        size_t size;
        const kt_json *operations = kt_json_member(paths, i, &path, &size);
        for (size_t k = 0; k < kt_json_length(operations); k++, n_told++) {
            const kt_json *operation = kt_json_member(operations, k, &method, &size);
            const kt_json *security = kt_json_get(operation, "security");
            const kt_route *route = NULL;
            for (size_t r = 0; r < kt_builtin_route_count && !route; r++)
                if (is_path_of(kt_builtin_routes[r], path) &&
                    is_method_of(kt_builtin_routes[r], method))
                    route = kt_builtin_routes[r];
            cr_expect_not_null(route, "%s %s is no route", method, path);
            if (route) /* public ones need no key, and say so */
                cr_expect_eq(route->is_public, security != NULL, "%s %s", method, path);
            cr_expect(kt_json_get(operation, "responses"), "%s %s", method, path);
        }
    }
    for (size_t r = 0; r < kt_builtin_route_count; r++)
        cr_expect(strcmp(kt_builtin_routes[r]->method, "GET") == 0 ||
                      strcmp(kt_builtin_routes[r]->method, "POST") == 0,
                  "%s", kt_builtin_routes[r]->path);
    cr_expect_eq(n_told, kt_builtin_route_count, "%zu told, %zu routes", n_told,
                 kt_builtin_route_count);
    kt_json_destroy(doc);
}

/* Every $ref leads somewhere; returns how many there were. */
static int check_references(const kt_json *root, const kt_json *v) {
    const char *ref = kt_json_string(kt_json_get(v, "$ref"), NULL), *key;
    int n = 0;
    size_t size;

    if (ref) {
        const kt_json *at = root;
        char part[100];
        cr_assert_eq(strncmp(ref, "#/", 2), 0, "%s", ref);
        for (const char *p = ref + 2; at && *p; p += strcspn(p, "/"), p += *p == '/') {
            snprintf(part, sizeof part, "%.*s", (int)strcspn(p, "/"), p);
            at = kt_json_get(at, part);
        }
        cr_expect_not_null(at, "%s leads nowhere", ref);
        n++;
    }
    for (size_t i = 0; i < kt_json_length(v); i++)
        n += check_references(root, kt_json_type_of(v) == KT_JSON_OBJECT
                                        ? kt_json_member(v, i, &key, &size)
                                        : kt_json_at(v, i));
    return n;
}

Test(openapi, references_lead_somewhere) {
    kt_json_doc *doc = read_document();

    cr_expect_gt(check_references(kt_json_root(doc), kt_json_root(doc)), 20);
    kt_json_destroy(doc);
}
