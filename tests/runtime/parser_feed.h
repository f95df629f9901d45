/* Feeding output parsers and writing down what they say. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PARSER_FEED_H
#define KT_TESTS_PARSER_FEED_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "runtime/chat/parser.h"
#include "tests/runtime/parser_cases.h"

typedef struct parser_feed {
    kt_parser *p;
    kt_json_doc *tools;
    char said[32768], arguments[16384], id[512];
    size_t n_said, n_arguments, n_bytes, n_events;
    int open; /* kind of the text being joined, or -1 */
    int n_calls;
    bool counts_only, bad_json;
} parser_feed;

static inline void parser_say(parser_feed *f, const char *text, size_t n) {
    cr_assert_lt(f->n_said + n, sizeof f->said, "too much was said: %.200s", f->said);
    memcpy(f->said + f->n_said, text, n);
    f->n_said += n;
    f->said[f->n_said] = 0;
}

static inline void parser_join(parser_feed *f, const kt_event *e, const char *mark) {
    if (f->open != (int)e->kind) {
        if (f->open >= 0) parser_say(f, ")", 1);
        parser_say(f, mark, 2);
        f->open = (int)e->kind;
    }
    parser_say(f, e->text, e->size);
}

static inline void parser_stop(parser_feed *f) {
    if (f->open >= 0) parser_say(f, ")", 1);
    f->open = -1;
}

static inline void parser_sink(void *arg, const kt_event *e) {
    parser_feed *f = arg;
    kt_json_doc *doc = NULL;

    f->n_events++;
    f->n_bytes += e->size;
    if (f->counts_only) return;
    if (e->kind != KT_EVENT_TOOL_END) cr_assert(e->size > 0 && e->text && e->text[e->size] == 0);
    switch (e->kind) {
    case KT_EVENT_TEXT: parser_join(f, e, "T("); break;
    case KT_EVENT_REASONING: parser_join(f, e, "R("); break;
    case KT_EVENT_TOOL_BEGIN:
        parser_stop(f);
        parser_say(f, "C(", 2);
        parser_say(f, e->text, e->size);
        parser_say(f, ")", 1);
        cr_assert_eq(e->tool, f->n_calls++);
        snprintf(f->id, sizeof f->id, "%s", e->as.call.id);
        f->n_arguments = 0;
        break;
    case KT_EVENT_TOOL_ARGUMENTS:
        parser_join(f, e, "A(");
        cr_assert_lt(f->n_arguments + e->size, sizeof f->arguments);
        memcpy(f->arguments + f->n_arguments, e->text, e->size);
        f->n_arguments += e->size;
        cr_assert_eq(e->tool, f->n_calls - 1);
        break;
    case KT_EVENT_TOOL_END:
        parser_stop(f);
        parser_say(f, e->as.call.is_cut ? "X" : "E", 1);
        if (kt_json_parse(f->arguments, f->n_arguments, NULL, &doc, NULL) != KT_OK ||
            kt_json_type_of(kt_json_root(doc)) != KT_JSON_OBJECT)
            f->bad_json = true;
        kt_json_destroy(doc);
        break;
    default: cr_assert_fail("event of kind %d", e->kind);
    }
}

static inline parser_feed parser_open_with(const char *calls, const char *reasoning, bool inside,
                                           const char *tools, kt_special_token *special) {
    parser_feed f = {.open = -1};
    kt_parser_evidence e = {.tool_parser = calls, .reasoning_parser = reasoning};
    kt_parser_options o = {.starts_in_reasoning = inside, .seed = 7, .first_call = 2};
    kt_err err = {0};

    cr_assert_eq(kt_parser_choose(&e, &o.choice, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(tools, strlen(tools), NULL, &f.tools, &err), KT_OK, "%s",
                 err.message);
    o.tools = kt_json_root(f.tools);
    o.special_token = special;
    cr_assert_eq(kt_parser_create(&o, &f.p, &err), KT_OK, "%s", err.message);
    return f;
}

static inline parser_feed parser_open(const char *calls, const char *reasoning, bool inside,
                                      const char *tools) {
    return parser_open_with(calls, reasoning, inside, tools, NULL);
}

/* Ids of special tokens, as a tokenizer of Kimi's kind has them: every mark in <| |>. */
static const char *const parser_specials[] = {"<|tool_calls_section_begin|>",
                                              "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                                              "<|tool_call_argument_begin|>", "<|tool_call_end|>"};

static inline int32_t parser_special_id(const void *arg, const char *text) {
    (void)arg;
    for (int i = 0; i < 5; i++)
        if (strcmp(parser_specials[i], text) == 0) return 1000 + i;
    return -1;
}

static inline parser_feed parser_open_special(const char *calls, const char *reasoning, bool inside,
                                              const char *tools) {
    return parser_open_with(calls, reasoning, inside, tools, parser_special_id);
}

static inline void parser_push(parser_feed *f, int32_t id, const char *bytes, size_t n) {
    cr_assert_eq(kt_parser_push(f->p, id, bytes, n, parser_sink, f, NULL), KT_OK);
}

static inline void parser_push_special(parser_feed *f, const char *text) {
    parser_push(f, parser_special_id(NULL, text), text, strlen(text));
}

static inline void parser_end(parser_feed *f) {
    cr_assert_eq(kt_parser_finish(f->p, parser_sink, f, NULL), KT_OK);
    parser_stop(f);
}

static inline void parser_close(parser_feed *f) {
    kt_parser_destroy(f->p);
    kt_json_destroy(f->tools);
}

static inline void parser_check_json(const parser_feed *f) {
    cr_assert_not(f->bad_json, "arguments are no JSON: %s", f->said);
}

/* A case's output with a few faults: bytes changed, pieces cut out, repeated, taken from another.
 * */
static inline size_t parser_damage(kt_rng *rng, const parser_case *cases, int n_cases, int which,
                                   char *out, size_t out_bytes) {
    static const char signs[] = "<>{}[]\",:\\\n/ 0-e|";
    const char *text = cases[which].output, *other;
    size_t size = strlen(text), faults = 1 + kt_rng_below(rng, 4);

    cr_assert_lt(4 * size, out_bytes);
    memcpy(out, text, size);
    while (faults--) {
        size_t at = kt_rng_below(rng, size + 1), n = kt_rng_below(rng, 20);
        switch (kt_rng_below(rng, 5)) {
        case 0:
            if (at < size) out[at] = (char)kt_rng_below(rng, 256);
            break;
        case 1:
            if (at < size) out[at] = signs[kt_rng_below(rng, sizeof signs - 1)];
            break;
        case 2: /* cut out */
            if (n > size - at) n = size - at;
            memmove(out + at, out + at + n, size - at - n);
            size -= n;
            break;
        case 3: /* a piece of another case */
            other = cases[kt_rng_below(rng, (uint64_t)n_cases)].output;
            if (n > strlen(other)) n = strlen(other);
            other += kt_rng_below(rng, strlen(other) - n + 1);
            if (size + n > out_bytes) break;
            memmove(out + at + n, out + at, size - at);
            memcpy(out + at, other, n);
            size += n;
            break;
        default: size = at;
        }
    }
    return size;
}

static inline bool parser_has_shared(void) {
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/data/templates/SOURCES.md", getenv("KT_SHARED"));
    f = fopen(path, "r");
    if (f) fclose(f);
    return f != NULL;
}

static inline char *parser_read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);

    if (f && text) *size = fread(text, 1, 1 << 20, f);
    if (f)
        fclose(f);
    else
        free(text), text = NULL;
    return text;
}

#endif
