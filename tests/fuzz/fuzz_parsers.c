/* libFuzzer: any bytes as a model's output. The first byte chooses the notation, the second whether
 * it starts in reasoning and how the rest is cut. Whole and in pieces the events must be the same
 * and arguments must be JSON. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "runtime/chat/calls.h"
#include "runtime/chat/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"a\":{\"type\":\"array\"},\"n\":{\"type\":[\"string\",\"null\"]"
    "}}}}}]";

typedef struct record {
    char *text; /* kind, then what was said, for each change of kind */
    size_t size, capacity, arguments;
    int last;
} record;

static void put(record *r, const char *text, size_t n) {
    if (r->size + n > r->capacity) {
        r->capacity = 2 * (r->size + n) + 64;
        r->text = realloc(r->text, r->capacity);
        if (!r->text) abort();
    }
    if (n) memcpy(r->text + r->size, text, n);
    r->size += n;
}

static void check_arguments(const record *r) {
    kt_json_doc *doc = NULL;
    kt_err err = {0};

    /* a key twice is the model's own */
    if (kt_json_parse(r->text + r->arguments, r->size - r->arguments, NULL, &doc, &err) != KT_OK &&
        !strstr(err.message, "two members"))
        abort();
    kt_json_destroy(doc);
}

static void take(void *arg, const kt_event *e) {
    record *r = arg;
    char kind = (char)('0' + e->kind);

    if (e->kind == KT_EVENT_TOOL_END) check_arguments(r);
    if ((int)e->kind != r->last) put(r, &kind, 1);
    if (e->kind == KT_EVENT_TOOL_ARGUMENTS && (int)e->kind != r->last) r->arguments = r->size;
    r->last = (int)e->kind;
    put(r, e->text, e->size);
}

static record parse(const kt_parser_options *o, const char *text, size_t size, uint64_t seed) {
    record r = {.last = -1};
    kt_parser *p;
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    if (kt_parser_create(o, &p, NULL) != KT_OK) abort();
    for (size_t at = 0, n; at < size; at += n) {
        n = seed ? 1 + kt_rng_below(&rng, 6) : size;
        if (n > size - at) n = size - at;
        if (kt_parser_push(p, -1, text + at, n, take, &r, NULL) != KT_OK) abort();
    }
    if (kt_parser_finish(p, take, &r, NULL) != KT_OK) abort();
    kt_parser_destroy(p);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kt_json_doc *doc;
    kt_parser_evidence e = {.reasoning_parser = "qwen3"};
    kt_parser_options o = {.seed = 1};
    record whole, pieces;

    if (size < 2) return 0;
    if (data[1] & 2) e.reasoning_parser = "harmony";
    if (!doc && kt_json_parse(tools, sizeof tools - 1, NULL, &doc, NULL) != KT_OK) abort();
    e.tool_parser = kt_builtin_calls[data[0] % kt_builtin_calls_count]->name;
    if (kt_parser_choose(&e, &o.choice, NULL) != KT_OK) abort();
    o.tools = kt_json_root(doc);
    o.starts_in_reasoning = data[1] & 1;
    whole = parse(&o, (const char *)data + 2, size - 2, 0);
    pieces = parse(&o, (const char *)data + 2, size - 2, 1 + data[1]);
    if (whole.size != pieces.size || (whole.size && memcmp(whole.text, pieces.text, whole.size)))
        abort();
    free(whole.text);
    free(pieces.text);
    return 0;
}
