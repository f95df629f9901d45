/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/chat_body.h"

#include <stdio.h>
#include <string.h>

#include "runtime/http/api/call.h"

/* ---- reading ---- */

bool kt_body_add_line(kt_text *t, const char *text, size_t size, kt_api_error *e) {
    if ((t->size && kt_text_append(t, "\n", 1, NULL) != KT_OK) ||
        kt_text_append(t, text, size, NULL) != KT_OK)
        return kt_api_no_memory(e);
    return true;
}

const char *kt_body_type(const kt_json *block, const char *where, kt_api_error *e) {
    const char *type = kt_json_string(kt_field(block, "type"), NULL);
    char param[KT_WHERE_BYTES + 8];

    if (type) return type;
    snprintf(param, sizeof param, "%s.type", where);
    if (kt_json_type_of(block) != KT_JSON_OBJECT)
        kt_api_wrong_type(e, where, block, "a content block, an object");
    else
        kt_api_wrong_type(e, param, kt_field(block, "type"), "a string");
    return NULL;
}

bool kt_body_refuse_type(const char *type, const char *where, const char *expected,
                         kt_api_error *e) {
    return kt_api_refuse(e, 400, where, "unsupported_value", "'%s' is of type '%.40s', expected %s",
                         where, type, expected);
}

const char *kt_body_string(const kt_json *object, const char *member, const char *where,
                           size_t *size, kt_api_error *e) {
    const kt_json *v = kt_field(object, member);
    const char *text = kt_json_string(v, size);
    char param[KT_WHERE_BYTES + 16];

    snprintf(param, sizeof param, "%s.%s", where, member);
    if (!text) kt_api_wrong_type(e, param, v, "a string");
    return text;
}

bool kt_body_add_member(kt_text *t, const kt_json *block, const char *member, const char *where,
                        kt_api_error *e) {
    size_t size = 0;
    const char *text = kt_body_string(block, member, where, &size, e);

    return text && kt_body_add_line(t, text, size, e);
}

bool kt_body_is_among(const char *type, const char *const *types) {
    while (*types && strcmp(type, *types) != 0) types++;
    return *types != NULL;
}

bool kt_body_join_text(const kt_json *content, const char *const *types, const char *expected,
                       const char *where, kt_text *out, kt_api_error *e) {
    size_t size;
    const char *text = kt_json_string(content, &size), *type;
    char at[KT_WHERE_BYTES];

    if (text) return kt_body_add_line(out, text, size, e);
    if (kt_json_type_of(content) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, where, content, "a string or an array of text blocks");
    for (size_t i = 0; i < kt_json_length(content); i++) {
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        type = kt_body_type(kt_json_at(content, i), at, e);
        if (!type) return false;
        if (!kt_body_is_among(type, types)) return kt_body_refuse_type(type, at, expected, e);
        if (!kt_body_add_member(out, kt_json_at(content, i), "text", at, e)) return false;
    }
    return true;
}

/* ---- messages ---- */

void kt_body_put_message(kt_json_writer *w, const char *role, const kt_text *text) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", role);
    kt_api_add_text(w, "content", text);
    kt_json_end_object(w);
}

void kt_body_put_result(kt_json_writer *w, const char *id, const kt_text *text) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", "tool");
    kt_json_add_string(w, "tool_call_id", id);
    kt_api_add_text(w, "content", text);
    kt_json_end_object(w);
}

/* {"type": "function", "function": {"name": ..: both objects stay open. */
static void begin_function(kt_json_writer *w, const char *name) {
    kt_json_add_string(w, "type", "function");
    kt_json_key(w, "function");
    kt_json_begin_object(w);
    kt_json_add_string(w, "name", name);
}

static void end_function(kt_json_writer *w) {
    kt_json_end_object(w);
    kt_json_end_object(w);
}

void kt_body_put_call(kt_json_writer *w, const char *id, const char *name, const char *arguments,
                      size_t size) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", id);
    begin_function(w, name);
    kt_json_key(w, "arguments");
    kt_json_put_string_n(w, arguments, size);
    end_function(w);
}

bool kt_body_put_assistant(kt_json_writer *w, const kt_text *text, const kt_text *thinking,
                           kt_json_writer *calls, kt_api_error *e) {
    const char *list;
    size_t size;
    bool has_calls;

    kt_json_end_array(calls);
    list = kt_json_writer_text(calls, &size);
    if (!list) return kt_api_no_memory(e);
    has_calls = size > 2; /* "[]" */
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", "assistant");
    if (text->size || !has_calls)
        kt_api_add_text(w, "content", text);
    else
        kt_json_add_null(w, "content");
    if (thinking->size) kt_api_add_text(w, "reasoning_content", thinking);
    if (has_calls) {
        kt_json_key(w, "tool_calls");
        kt_json_put_raw(w, list, size);
    }
    kt_json_end_object(w);
    return true;
}

/* ---- tools and forms ---- */

void kt_body_put_tool(kt_json_writer *w, const char *name, const kt_json *description,
                      const kt_json *parameters) {
    kt_json_begin_object(w);
    begin_function(w, name);
    if (description) {
        kt_json_key(w, "description");
        kt_json_put_value(w, description);
    }
    if (parameters) {
        kt_json_key(w, "parameters");
        kt_json_put_value(w, parameters);
    }
    end_function(w);
}

void kt_body_add_named_choice(kt_json_writer *w, const char *name) {
    kt_json_key(w, "tool_choice");
    kt_json_begin_object(w);
    begin_function(w, name);
    end_function(w);
}

void kt_body_add_schema(kt_json_writer *w, const kt_json *schema) {
    kt_json_key(w, "response_format");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "json_schema");
    kt_json_key(w, "json_schema");
    kt_json_begin_object(w);
    kt_json_key(w, "schema");
    kt_json_put_value(w, schema);
    kt_json_end_object(w);
    kt_json_end_object(w);
}

/* ---- the rest ---- */

static bool is_translated(const char *name, const char *const *translated, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, translated[i]) == 0) return true;
    return false;
}

void kt_body_add_rest(kt_json_writer *w, const kt_json *body, const char *const *translated,
                      size_t n) {
    for (size_t i = 0; i < kt_json_length(body); i++) {
        const char *name;
        size_t size;
        const kt_json *v = kt_json_member(body, i, &name, &size);
        if (is_translated(name, translated, n)) continue;
        kt_json_key_n(w, name, size);
        kt_json_put_value(w, v);
    }
}

bool kt_body_end(kt_json_writer *w, bool ok, kt_json_doc **out, kt_api_error *e) {
    size_t size;
    const char *text = ok ? kt_json_writer_text(w, &size) : NULL;

    *out = NULL;
    if (ok && (!text || kt_json_parse(text, size, NULL, out, NULL) != KT_OK))
        ok = kt_api_no_memory(e);
    kt_json_writer_deinit(w);
    return ok;
}
