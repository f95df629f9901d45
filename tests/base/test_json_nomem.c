/* JSON with every allocation failing once: no crash, no leak, a clear status.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/nomem.h"

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

static kt_status parse(void *out, const void *with, kt_err *err) {
    return kt_json_parse(with, strlen(with), NULL, out, err);
}
static void unparse(void *out) {
    kt_json_destroy(*(kt_json_doc **)out);
}

Test(json_nomem, every_failing_allocation_is_survived) {
    static char text[200000];
    const kt_nomem_case c = {.function = "kt_json_parse",
                             .make = parse,
                             .unmake = unparse,
                             .with = text,
                             .out_bytes = sizeof(kt_json_doc *),
                             .says = "memory"};

    make_text(text, sizeof text);
    cr_assert_gt(kt_nomem_check(&c), 10, "hardly an allocation was seen");
}

Test(json_nomem, writer_reports_failure_at_the_end) {
    long before = kt_nomem_held(), failures = 0;
    bool did_fail = true;

    for (long i = 0; did_fail; i++) {
        kt_json_writer w = {0};
        kt_nomem_after(i);
        kt_json_begin_array(&w);
        for (int k = 0; k < 1000; k++) kt_json_put_string(&w, "some text of a certain length");
        kt_json_end_array(&w);
        did_fail = kt_nomem_failed();
        cr_assert(did_fail == (kt_json_writer_text(&w, NULL) == NULL));
        failures += did_fail;
        kt_json_writer_deinit(&w);
        cr_assert_eq(kt_nomem_held(), before);
    }
    cr_assert_gt(failures, 3);
}
