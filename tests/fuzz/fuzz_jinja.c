/* Chat templates: whatever the text, compiling and rendering end within their limits, trusted spans
 * are ascending and inside of the text, and an error names its place.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a <b> \\u00e9\"}, {\"role\": "
    "\"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", "
    "\"arguments\": {\"k\": [1, 2.5, null, true]}}}]}], \"n\": 3, \"l\": [3, 1, 2], \"s\": "
    "\"x,y,z\", \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

static void check(const kt_rendered *r) {
    size_t end = 0;

    if (r->text[r->size] != '\0') abort();
    for (size_t i = 0; i < r->n_trusted; i++) {
        if (r->trusted[i].begin < end || r->trusted[i].end <= r->trusted[i].begin) abort();
        end = r->trusted[i].end;
    }
    if (end > r->size) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const kt_template_options options = {
        .has_now = true,
        .limits = {.steps = 20000, .memory_bytes = 1 << 20, .output_bytes = 1 << 16, .depth = 20}};
    kt_err err = {KT_OK, ""};
    kt_template *t = NULL;
    kt_json_doc *doc = NULL;
    kt_rendered r = {0};

    if (kt_template_create((const char *)data, size, "t", &t, &err) != KT_OK) {
        if (strncmp(err.message, "t:", 2) != 0) abort();
        return 0;
    }
    if (kt_json_parse(context, sizeof context - 1, NULL, &doc, NULL) != KT_OK) abort();
    if (kt_template_render(t, kt_json_root(doc), &options, &r, &err) == KT_OK)
        check(&r);
    else if (strncmp(err.message, "t:", 2) != 0)
        abort();
    kt_rendered_deinit(&r);
    kt_json_destroy(doc);
    kt_template_destroy(t);
    return 0;
}
