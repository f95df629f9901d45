/* Rendering conversations, and what a template can do. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/chat/chat_format.h"

/* ---- what a template can do ---- */

/* One rendering of the messages, with a tool. KT_OK also when the template fails, without text. */
static kt_status try_out(const kt_chat_format *f, const char *messages, kt_rendered *out,
                         kt_err *err) {
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"kt_f\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"kt_key\":{\"type\":\"string\","
        "\"description\":\"d\"}},\"required\":[\"kt_key\"]}}}]";
    const kt_template_options options = {.has_now = true, .limits = {.steps = 1000000}};
    const kt_json *tokens = kt_json_root(f->tokens);
    kt_json_writer w = {0};
    kt_json_doc *doc = NULL;
    kt_err why = {KT_OK, ""};
    const char *text;
    size_t size;
    kt_status st;

    kt_json_begin_object(&w);
    kt_json_key(&w, "messages");
    kt_json_put_raw(&w, messages, strlen(messages));
    kt_json_key(&w, "tools");
    kt_json_put_raw(&w, tools, sizeof tools - 1);
    kt_json_add_bool(&w, "add_generation_prompt", true);
    for (size_t i = 0; i < kt_json_length(tokens); i++) {
        const char *key;
        const kt_json *value = kt_json_member(tokens, i, &key, &size);
        kt_json_key_n(&w, key, size);
        kt_json_put_value(&w, value);
    }
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &doc, err) : KT_E_NOMEM;
    if (st == KT_OK) st = kt_template_render(f->t, kt_json_root(doc), &options, out, &why);
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    if (st != KT_E_NOMEM) return KT_OK;
    return kt_fail(err, st, "%.200s: no memory to try out the template", f->origin);
}

/* Does a rendering of the messages hold `with`, and neither `without` nor `nor`, which may be
 * NULL? */
static kt_status shows(const kt_chat_format *f, const char *messages, const char *with,
                       const char *without, const char *nor, bool *out, kt_err *err) {
    kt_rendered r = {0};

    KT_TRY(try_out(f, messages, &r, err));
    *out = r.text && strstr(r.text, with) && !(without && strstr(r.text, without)) &&
           !(nor && strstr(r.text, nor));
    kt_rendered_deinit(&r);
    return KT_OK;
}

#define CALL(content, arguments)                                                           \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" content  \
    ",\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":" \
    "\"kt_f\",\"arguments\":" arguments "}}]},{\"role\":\"tool\",\"tool_call_id\":"        \
    "\"call00001\",\"name\":\"kt_f\",\"content\":\"r\"}]"
#define OBJECT "{\"kt_key\":\"kt_value\"}"
#define TEXT "\"{\\\"kt_key\\\": \\\"kt_value\\\"}\""

#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"

kt_status kt_chat_probe(kt_chat_format *f, kt_err *err) {
    f->has_channels = kt_template_mentions(f->t, "<|channel|>analysis<|message|>");
    if (kt_template_mentions(f->t, "developer")) /* some do, and leave out what it says */
        KT_TRY(shows(f, "[" SAYS("developer", "kt_said") "," SAYS("user", "q") "]", "kt_said", NULL,
                     NULL, &f->knows_developer, err));
    KT_TRY(shows(f,
                 "[" SAYS("user", "q") "," SAYS("assistant", "a") "," SAYS(
                     "system", "kt_late") "," SAYS("user", "q") "]",
                 "kt_late", NULL, NULL, &f->late_system, err));
    KT_TRY(shows(f, CALL("\"\"", OBJECT), "kt_value", "{'kt_key'", "{\\\"kt_key",
                 &f->object_arguments, err));
    KT_TRY(shows(f, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"kt_part\"}]}]",
                 "kt_part", "'type'", "\"text\"", &f->part_list, err));
    return f->object_arguments
               ? shows(f, CALL("null", OBJECT), "kt_value", "None", "null", &f->null_content, err)
               : shows(f, CALL("null", TEXT), "kt_value", "None", "null", &f->null_content, err);
}

/* ---- rendering ---- */

static void cut_at(kt_rendered *r, size_t size) {
    r->size = size;
    r->text[size] = '\0';
    while (r->n_trusted && r->trusted[r->n_trusted - 1].begin >= size) r->n_trusted--;
    if (r->n_trusted && r->trusted[r->n_trusted - 1].end > size)
        r->trusted[r->n_trusted - 1].end = size;
}

static size_t find_last(const char *text, size_t n, const char *what, size_t size) {
    for (size_t i = n >= size ? n - size + 1 : 0; i-- > 0;)
        if (memcmp(text + i, what, size) == 0) return i;
    return SIZE_MAX;
}

/* End the text behind the last message's content. Templates may strip it: then behind what is left
 * of it. */
static kt_status leave_open(const kt_json *context, kt_rendered *r, kt_err *err) {
    const kt_json *messages = kt_json_get(context, "messages");
    const kt_json *content =
        kt_json_get(kt_json_at(messages, kt_json_length(messages) - 1), "content");
    size_t n, found, whole;
    const char *text;

    if (kt_json_type_of(content) == KT_JSON_ARRAY)
        content = kt_json_get(kt_json_at(content, kt_json_length(content) - 1), "text");
    text = kt_json_string(content, &n);
    if (!text)
        return kt_fail(err, KT_E_INVALID, "continue_final_message: the last message has no text");
    while (n && strchr(" \t\r\n", *text)) text++, n--;
    whole = n;
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    found = find_last(r->text, r->size, text, n);
    if (found == SIZE_MAX)
        return kt_fail(
            err, KT_E_INVALID,
            "continue_final_message: the template does not write the last message as it is");
    if (whole <= r->size - found && memcmp(r->text + found, text, whole) == 0) n = whole;
    cut_at(r, found + n);
    return KT_OK;
}

kt_status kt_chat_render(const kt_chat_format *f, const kt_chat_request *request, kt_rendered *out,
                         kt_err *err) {
    const kt_template_options options = {.has_now = request->has_now, .now = request->now};
    kt_json_doc *context;
    kt_rendered r = {0};
    kt_status st;

    KT_TRY(kt_chat_context(f, request, &context, err));
    st = kt_template_render(f->t, kt_json_root(context), &options, &r, err);
    if (st == KT_OK && request->continue_final_message)
        st = leave_open(kt_json_root(context), &r, err);
    kt_json_destroy(context);
    if (st == KT_OK)
        *out = r;
    else
        kt_rendered_deinit(&r);
    return st;
}

kt_status kt_chat_render_variables(const kt_chat_format *f, const kt_json *variables,
                                   const kt_template_options *options, kt_rendered *out,
                                   kt_err *err) {
    const kt_json *tokens = kt_json_root(f->tokens);
    kt_json_writer w = {0};
    kt_json_doc *doc = NULL;
    const char *key, *text;
    size_t size;
    kt_status st;

    if (kt_json_length(tokens) == 0 || kt_json_type_of(variables) != KT_JSON_OBJECT)
        return kt_template_render(f->t, variables, options, out, err);
    kt_json_begin_object(&w);
    for (size_t i = 0; i < kt_json_length(variables); i++) {
        const kt_json *value = kt_json_member(variables, i, &key, &size);
        kt_json_key_n(&w, key, size);
        kt_json_put_value(&w, value);
    }
    for (size_t i = 0; i < kt_json_length(tokens); i++) {
        const kt_json *value = kt_json_member(tokens, i, &key, &size);
        if (kt_json_get_n(variables, key, size)) continue;
        kt_json_key_n(&w, key, size);
        kt_json_put_value(&w, value);
    }
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &doc, err)
              : kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the variables", f->origin);
    if (st == KT_OK) st = kt_template_render(f->t, kt_json_root(doc), options, out, err);
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    return st;
}

/* ---- tokens ---- */

void kt_chat_prompt_deinit(kt_chat_prompt *p) {
    kt_rendered_deinit(&p->rendered);
    free(p->ids);
    memset(p, 0, sizeof *p);
}

/* Is the last thing in the text, but for white space, a mark that the template wrote? */
static bool ends_with_mark(const kt_rendered *r, const char *mark) {
    size_t end = r->size, n = strlen(mark);

    while (end && strchr(" \t\r\n", r->text[end - 1]) && r->text[end - 1]) end--;
    if (end < n || memcmp(r->text + end - n, mark, n) != 0) return false;
    for (size_t i = r->n_trusted; i-- > 0;)
        if (r->trusted[i].begin <= end - n) return r->trusted[i].end >= end;
    return false;
}

/* ---- turns ---- */

/* A message's text without white space around it, which templates strip: the first part's, if there
 * are parts. */
static const char *text_of(const kt_json *message, size_t *size) {
    const kt_json *content = kt_json_get(message, "content");
    const char *text;

    if (kt_json_type_of(content) == KT_JSON_ARRAY)
        content = kt_json_get(kt_json_at(content, 0), "text");
    text = kt_json_string(content, size);
    if (!text) *size = 0;
    while (*size && strchr(" \t\r\n", *text)) text++, --*size;
    while (*size && strchr(" \t\r\n", text[*size - 1])) --*size;
    return text;
}

/* Ids [n] in front of byte `at` of the text that they are of. */
static size_t ids_before(const kt_tokenizer *t, const kt_chat_prompt *p, size_t at) {
    size_t bytes = 0, i = 0, size;

    for (; i < p->n_ids; i++) {
        size = 0;
        kt_tokenizer_bytes(t, p->ids[i], &size, NULL);
        if ((bytes += size) > at) break;
    }
    return i;
}

/* The texts of messages stand in the prompt in their order, those of users where they begin. */
static void find_turns(const kt_tokenizer *t, const kt_json *messages, kt_chat_prompt *p) {
    const kt_rendered *r = &p->rendered;
    size_t at = 0, first = 0, last = 0, n;

    for (size_t i = 0; i < kt_json_length(messages); i++) {
        const kt_json *message = kt_json_at(messages, i);
        const char *text = text_of(message, &n);
        const char *found = n ? memmem(r->text + at, r->size - at, text, n) : NULL;
        if (!found) continue;
        at = (size_t)(found - r->text);
        if (strcmp(kt_json_text(message, "role"), "user") == 0) {
            if (!first) first = at;
            last = at;
        }
        at += n;
    }
    p->first_turn = ids_before(t, p, first);
    p->last_turn = last > first ? ids_before(t, p, last) : p->first_turn;
}

kt_status kt_chat_encode(const kt_chat_format *f, const kt_tokenizer *t,
                         const kt_chat_request *request, kt_chat_prompt *out, kt_err *err) {
    kt_chat_prompt p = {0};
    kt_status st = kt_chat_render(f, request, &p.rendered, err);

    if (st == KT_OK)
        st = kt_tokenizer_encode_spans(t, p.rendered.text, p.rendered.size, p.rendered.trusted,
                                       p.rendered.n_trusted, &p.ids, &p.n_ids, err);
    if (st != KT_OK) {
        kt_chat_prompt_deinit(&p);
        return st;
    }
    p.starts_in_reasoning = ends_with_mark(&p.rendered, "<think>") ||
                            ends_with_mark(&p.rendered, "<seed:think>") ||
                            ends_with_mark(&p.rendered, "[THINK]");
    find_turns(t, request->messages, &p);
    *out = p;
    return KT_OK;
}
