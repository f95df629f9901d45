/* JSON with every allocation failing once: no crash, no leak, a clear status. The linker sends this
 * program's malloc, calloc, realloc and free through the functions below.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static long until_failure = -1; /* allocations that still succeed; -1 = all */
static long live;

static int fails(void) {
    if (until_failure < 0) return 0;
    return until_failure-- == 0;
}

static void *counted(void *p) {
    live += p != NULL;
    return p;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : counted(__real_malloc(size));
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : counted(__real_calloc(n, size));
}
void *__wrap_realloc(void *p, size_t size) {
    if (fails()) return NULL;
    return p ? __real_realloc(p, size) : counted(__real_realloc(p, size));
}
void __wrap_free(void *p) {
    live -= p != NULL;
    __real_free(p);
}

/* Deep, wide and long enough that every kind of growth happens. */
static size_t make_text(char *text, size_t room) {
    size_t n = 0;
    for (int i = 0; i < 100; i++) n += (size_t)snprintf(text + n, room - n, "[");
    for (int i = 0; i < 3000; i++)
        n += (size_t)snprintf(text + n, room - n, "%s{\"a%d\":\"b\"}", i ? "," : "", i);
    n += (size_t)snprintf(text + n, room - n, ",{");
    for (int i = 0; i < 500; i++)
        n += (size_t)snprintf(text + n, room - n, "%s\"k%d\":%d", i ? "," : "", i, i);
    n += (size_t)snprintf(text + n, room - n, "}");
    for (int i = 0; i < 100; i++) n += (size_t)snprintf(text + n, room - n, "]");
    return n;
}

Test(json_nomem, every_failing_allocation_is_survived) {
    static char text[200000];
    size_t size = make_text(text, sizeof text);
    long before = live, failures = 0;

    for (long i = 0;; i++) {
        kt_json_doc *doc = NULL;
        kt_err err = {0};
        kt_status st;
        until_failure = i;
        st = kt_json_parse(text, size, NULL, &doc, &err);
        if (until_failure >= 0) { /* nothing failed any more */
            until_failure = -1;
            cr_assert_eq(st, KT_OK, "%s", err.message);
            kt_json_destroy(doc);
            break;
        }
        failures++;
        cr_assert_eq(st, KT_E_NOMEM);
        cr_assert_null(doc);
        cr_assert_eq(live, before, "allocation %ld: %ld blocks leaked", i, live - before);
    }
    cr_assert_eq(live, before);
    cr_assert_gt(failures, 10, "only %ld allocations were seen", failures);
}

Test(json_nomem, writer_reports_failure_at_the_end) {
    long before = live, failures = 0;

    for (long i = 0;; i++) {
        kt_json_writer w = {0};
        const char *text;
        until_failure = i;
        kt_json_begin_array(&w);
        for (int k = 0; k < 1000; k++) kt_json_put_string(&w, "some text of a certain length");
        kt_json_end_array(&w);
        text = kt_json_writer_text(&w, NULL);
        if (until_failure >= 0) {
            until_failure = -1;
            cr_assert_not_null(text);
            kt_json_writer_deinit(&w);
            break;
        }
        failures++;
        cr_assert_null(text);
        kt_json_writer_deinit(&w);
        cr_assert_eq(live, before);
    }
    cr_assert_gt(failures, 3);
}
