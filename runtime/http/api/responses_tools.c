/* Tools of the Responses API. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/chat_body.h"
#include "runtime/http/api/responses_call.h"

/* ---- names ---- */

void kt_responses_tool_name(const char *space, const char *name, char *out) {
    const size_t n = strlen(space);
    const bool is_parted = n == 0 || space[n - 1] == '_';

    snprintf(out, KT_TOOL_NAME_BYTES, "%.300s%s%.300s", space, is_parted ? "" : "__", name);
}

static bool has_name(const kt_json *tool, const char *space, const kt_text *name) {
    char known[KT_TOOL_NAME_BYTES];

    kt_responses_tool_name(space, kt_json_text(tool, "name"), known);
    return strlen(known) == name->size && memcmp(known, name->data, name->size) == 0;
}

static bool is_type(const kt_json *tool, const char *type) {
    return strcmp(kt_json_text(tool, "type"), type) == 0;
}

kt_tool_place kt_responses_find_tool(const kt_json *body, const kt_text *name) {
    const kt_json *tools = kt_field(body, "tools");

    for (size_t i = 0; i < kt_json_length(tools); i++) {
        const kt_json *tool = kt_json_at(tools, i), *inner;
        if (!is_type(tool, "namespace")) {
            if (has_name(tool, "", name))
                return (kt_tool_place){.tool = tool, .is_custom = is_type(tool, "custom")};
            continue;
        }
        inner = kt_field(tool, "tools");
        for (size_t k = 0; k < kt_json_length(inner); k++)
            if (has_name(kt_json_at(inner, k), kt_json_text(tool, "name"), name))
                return (kt_tool_place){.tool = kt_json_at(inner, k),
                                       .space = tool,
                                       .is_custom = is_type(kt_json_at(inner, k), "custom")};
    }
    return (kt_tool_place){0};
}

/* ---- one tool ---- */

static bool put_function(kt_json_writer *w, const kt_json *tool, const char *space,
                         const char *where, kt_api_error *e) {
    const char *name = kt_body_string(tool, "name", where, NULL, e);
    const kt_json *parameters = kt_field(tool, "parameters");
    char param[KT_WHERE_BYTES + 16], known[KT_TOOL_NAME_BYTES];

    if (!name) return false;
    snprintf(param, sizeof param, "%s.parameters", where);
    if (parameters && kt_json_type_of(parameters) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, parameters, "a JSON schema, an object");
    kt_responses_tool_name(space, name, known);
    kt_body_put_tool(w, known, kt_field(tool, "description"), parameters);
    return true;
}

/* What the model reads of the text that a tool takes: nothing, or its grammar, which is not
 * enforced. */
static bool tell_form(const kt_json *tool, kt_text *out, kt_api_error *e) {
    const kt_json *format = kt_field(tool, "format");
    const kt_json *inner = kt_field(format, "grammar"), *grammar = inner ? inner : format;
    const char *parts[] = {"A text of this form, a grammar in the syntax ",
                           kt_json_text(grammar, "syntax"), ":\n",
                           kt_json_text(grammar, "definition")};

    for (int i = 0; *parts[3] && i < 4; i++)
        if (kt_text_append(out, parts[i], strlen(parts[i]), NULL) != KT_OK)
            return kt_api_no_memory(e);
    return true;
}

/* The schema of its only argument. */
static void put_schema(kt_json_writer *w, const kt_text *form) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "object");
    kt_json_key(w, "properties");
    kt_json_begin_object(w);
    kt_json_key(w, "input");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "string");
    if (form->size) kt_api_add_text(w, "description", form);
    kt_json_end_object(w);
    kt_json_end_object(w);
    kt_json_key(w, "required");
    kt_json_begin_array(w);
    kt_json_put_string(w, "input");
    kt_json_end_array(w);
    kt_json_add_bool(w, "additionalProperties", false);
    kt_json_end_object(w);
}

/* A function with one argument. */
static bool put_custom(kt_json_writer *w, const kt_json *tool, const char *space, const char *where,
                       kt_api_error *e) {
    const char *name = kt_body_string(tool, "name", where, NULL, e);
    char known[KT_TOOL_NAME_BYTES];
    kt_json_writer schema = {0};
    kt_json_doc *parameters;
    kt_text form = {0};
    bool ok = name && tell_form(tool, &form, e);

    if (ok) put_schema(&schema, &form);
    ok = kt_body_end(&schema, ok, &parameters, e);
    if (ok) {
        kt_responses_tool_name(space, name, known);
        kt_body_put_tool(w, known, kt_field(tool, "description"), kt_json_root(parameters));
    }
    kt_json_destroy(parameters);
    free(form.data);
    return ok;
}

/* Whoever asks for these has set something up at a server that has them. */
static const char *const refused[] = {
    "file_search", "code_interpreter", "computer", "computer_use_preview", "mcp", NULL};

static bool is_taken(const char *type) {
    static const char *const taken[] = {"function", "custom", "namespace", NULL};
    return kt_body_is_among(type, taken);
}

static bool put_tool(kt_json_writer *w, const kt_json *tool, const char *space, const char *where,
                     kt_api_error *e);

static bool put_namespace(kt_json_writer *w, const kt_json *space, const char *where,
                          kt_api_error *e) {
    const char *name = kt_body_string(space, "name", where, NULL, e);
    const kt_json *tools = kt_field(space, "tools");
    char at[KT_WHERE_BYTES];

    if (!name) return false;
    snprintf(at, sizeof at, "%.50s.tools", where);
    if (kt_json_type_of(tools) != KT_JSON_ARRAY) return kt_api_wrong_type(e, at, tools, "an array");
    for (size_t i = 0; i < kt_json_length(tools); i++) {
        snprintf(at, sizeof at, "%.30s.tools[%zu]", where, i);
        if (!put_tool(w, kt_json_at(tools, i), name, at, e)) return false;
    }
    return true;
}

static bool put_tool(kt_json_writer *w, const kt_json *tool, const char *space, const char *where,
                     kt_api_error *e) {
    const char *type;

    if (kt_json_type_of(tool) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, where, tool, "an object");
    type = kt_body_type(tool, where, e);
    if (!type) return false;
    if (strcmp(type, "function") == 0) return put_function(w, tool, space, where, e);
    if (strcmp(type, "custom") == 0) return put_custom(w, tool, space, where, e);
    if (strcmp(type, "namespace") == 0 && !*space) return put_namespace(w, tool, where, e);
    if (!kt_body_is_among(type, refused)) return true;
    return kt_body_refuse_type(
        type, where, "function, custom or namespace: tools that a server runs are not built", e);
}

/* ---- all of them ---- */

static bool add_list(kt_json_writer *w, const kt_json *tools, kt_api_error *e) {
    char where[KT_WHERE_BYTES];

    if (!tools) return true;
    if (kt_json_type_of(tools) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "tools", tools, "an array");
    kt_json_key(w, "tools");
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_json_length(tools); i++) {
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!put_tool(w, kt_json_at(tools, i), "", where, e)) return false;
    }
    kt_json_end_array(w);
    return true;
}

/* Words are the same as a chat's, which checks them. */
static bool add_choice(kt_json_writer *w, const kt_json *choice, kt_api_error *e) {
    static const char *const named[] = {"function", "custom", NULL};
    char known[KT_TOOL_NAME_BYTES];
    const char *type, *name;

    if (!choice) return true;
    if (kt_json_type_of(choice) != KT_JSON_OBJECT) {
        kt_json_key(w, "tool_choice");
        kt_json_put_value(w, choice);
        return true;
    }
    type = kt_body_type(choice, "tool_choice", e);
    if (!type) return false;
    if (!kt_body_is_among(type, named))
        return kt_body_refuse_type(type, "tool_choice", "function or custom", e);
    name = kt_body_string(choice, "name", "tool_choice", NULL, e);
    if (!name) return false;
    kt_responses_tool_name(kt_json_text(choice, "namespace"), name, known);
    kt_body_add_named_choice(w, known);
    return true;
}

bool kt_responses_add_tools(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    return add_list(w, kt_field(body, "tools"), e) &&
           add_choice(w, kt_field(body, "tool_choice"), e);
}

void kt_responses_repeat_tools(kt_json_writer *w, const kt_json *body) {
    const kt_json *tools = kt_field(body, "tools");

    kt_json_key(w, "tools");
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_json_length(tools); i++)
        if (is_taken(kt_json_text(kt_json_at(tools, i), "type")))
            kt_json_put_value(w, kt_json_at(tools, i));
    kt_json_end_array(w);
}
