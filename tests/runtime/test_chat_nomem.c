/* Chat templates with every allocation failing once. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/chat/messages.h"
#include "tests/support/nomem.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static const char source[] =
    "{% macro m(x) %}{{ x | tojson }}{% endmacro %}{% set ns = namespace(t='') %}"
    "{% for k in messages %}{% set ns.t = ns.t + k.content | upper %}{{ m([k.role, 1.5]) }}"
    "{% endfor %}{{ ns.t.split('A') | join('-') }}";

TestSuite(chat_nomem, .timeout = 120);

static kt_status create_template(void *out, const void *with, kt_err *err) {
    return kt_template_create(with, strlen(with), "t.jinja", out, err);
}

static void destroy_template(void *out) {
    kt_template_destroy(*(kt_template **)out);
}

Test(chat_nomem, a_template_is_compiled_or_says_why_not) {
    const kt_nomem_case c = {.function = "kt_template_create",
                             .make = create_template,
                             .unmake = destroy_template,
                             .with = source,
                             .out_bytes = sizeof(kt_template *),
                             .says = "t.jinja"};
    kt_nomem_check(&c);
}

typedef struct rendering {
    const kt_template *t;
    const kt_json *context;
} rendering;

static kt_status render(void *out, const void *with, kt_err *err) {
    const rendering *r = with;
    return kt_template_render(r->t, r->context, NULL, out, err);
}

static void forget_rendering(void *out) {
    kt_rendered_deinit(out);
}

Test(chat_nomem, a_template_is_rendered_or_says_why_not) {
    static const char context[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"banana\"}]}";
    kt_json_doc *doc = NULL;
    kt_template *t = NULL;
    rendering r;
    const kt_nomem_case c = {.function = "kt_template_render",
                             .make = render,
                             .unmake = forget_rendering,
                             .with = &r,
                             .out_bytes = sizeof(kt_rendered),
                             .says = "t.jinja"};

    cr_assert_eq(kt_json_parse(context, sizeof context - 1, NULL, &doc, NULL), KT_OK);
    cr_assert_eq(kt_template_create(source, sizeof source - 1, "t.jinja", &t, NULL), KT_OK);
    r = (rendering){t, kt_json_root(doc)};
    kt_nomem_check(&c);
    kt_template_destroy(t);
    kt_json_destroy(doc);
}

static kt_status load_format(void *out, const void *with, kt_err *err) {
    return kt_chat_format_load(&(kt_chat_source){.model = with}, out, err);
}

static kt_status create_format(void *out, const void *with, kt_err *err) {
    return kt_chat_format_create(with, strlen(with), "t.jinja", NULL, out, err);
}

static void destroy_format(void *out) {
    kt_chat_format_destroy(*(kt_chat_format **)out);
}

Test(chat_nomem, a_format_is_loaded_or_says_why_not) {
    kt_nomem_case c = {.function = "kt_chat_format_load",
                       .make = load_format,
                       .unmake = destroy_format,
                       .with = TINY,
                       .out_bytes = sizeof(kt_chat_format *),
                       .says = "",
                       .most = 200};

    kt_nomem_check(&c);
    c.function = "kt_chat_format_create";
    c.make = create_format;
    c.with = source;
    kt_nomem_check(&c);
}
