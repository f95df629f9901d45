/* Body of POST /v1/responses: what OpenAI's newer clients send becomes the body of a chat, which is
 * then parsed like any other. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/chat_body.h"
#include "runtime/http/api/refused.h"
#include "runtime/http/api/responses_call.h"

/* The conversation on its way. What an assistant said comes as several items, which are one turn;
 * what stands in front of all else is one message of the system, since templates have room for no
 * more. */
typedef struct conversation {
    kt_json_writer *w;
    kt_text system;
    bool has_begun; /* something other than the system's message was written */
    bool is_open;   /* a turn of the assistant, of which there are: */
    kt_text text, thinking;
    kt_json_writer calls;
} conversation;

/* ---- turns ---- */

static void begin_turn(conversation *c) {
    if (!c->is_open) kt_json_begin_array(&c->calls);
    c->is_open = true;
}

/* Everything that was held back. */
static bool flush(conversation *c, kt_api_error *e) {
    bool ok = true;

    if (!c->has_begun && c->system.size) kt_body_put_message(c->w, "system", &c->system);
    c->has_begun = true;
    if (c->is_open) ok = kt_body_put_assistant(c->w, &c->text, &c->thinking, &c->calls, e);
    kt_json_writer_deinit(&c->calls);
    c->calls = (kt_json_writer){0};
    c->text.size = c->thinking.size = 0;
    c->is_open = false;
    return ok;
}

/* ---- items ---- */

static const char *const text_types[] = {"input_text", "output_text", "text", NULL};
static const char *const thought_types[] = {"reasoning_text", "summary_text", "text", NULL};

static bool take_system(conversation *c, const kt_text *text, kt_api_error *e) {
    if ((c->system.size && kt_text_append(&c->system, "\n\n", 2, NULL) != KT_OK) ||
        kt_text_append(&c->system, text->data ? text->data : "", text->size, NULL) != KT_OK)
        return kt_api_no_memory(e);
    return true;
}

static bool put_text(conversation *c, const char *role, const kt_text *text, kt_api_error *e) {
    const bool is_system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;

    if (is_system && !c->has_begun) return take_system(c, text, e);
    if (!flush(c, e)) return false;
    kt_body_put_message(c->w, role, text);
    return true;
}

static bool take_message(conversation *c, const kt_json *item, const char *where, kt_api_error *e) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = kt_body_string(item, "role", where, NULL, e);
    const kt_json *content = kt_field(item, "content");
    char at[KT_WHERE_BYTES];
    kt_text text = {0};
    size_t i = 0;
    bool ok;

    if (!role) return false;
    while (i < 4 && strcmp(role, roles[i]) != 0) i++;
    if (i == 4)
        return kt_api_refuse(e, 400, where, "invalid_value",
                             "'%s.role' is '%.40s', expected user, assistant, system or developer",
                             where, role);
    snprintf(at, sizeof at, "%.50s.content", where);
    if (i == 1) { /* the assistant's: more of its turn may follow */
        if (!c->is_open && !flush(c, e)) return false;
        begin_turn(c);
        return kt_body_join_text(content, text_types, "output_text", at, &c->text, e);
    }
    ok = kt_body_join_text(content, text_types, "input_text", at, &text, e) &&
         put_text(c, role, &text, e);
    free(text.data);
    return ok;
}

/* What is not readable (encrypted_content alone) cannot be used. */
static bool take_reasoning(conversation *c, const kt_json *item, const char *where,
                           kt_api_error *e) {
    const kt_json *content = kt_field(item, "content"), *summary = kt_field(item, "summary");
    const bool is_whole = kt_json_length(content) > 0;
    char at[KT_WHERE_BYTES];

    if (!c->is_open && !flush(c, e)) return false;
    begin_turn(c);
    snprintf(at, sizeof at, "%.50s.%s", where, is_whole ? "content" : "summary");
    if (!is_whole && !summary) return true;
    return kt_body_join_text(is_whole ? content : summary, thought_types,
                             is_whole ? "reasoning_text" : "summary_text", at, &c->thinking, e);
}

static bool add_call(conversation *c, const kt_json *item, const char *name, const char *arguments,
                     size_t size, kt_api_error *e) {
    if (!c->is_open && !flush(c, e)) return false;
    begin_turn(c);
    kt_body_put_call(&c->calls, kt_json_text(item, "call_id"), name, arguments, size);
    return true;
}

/* What must be there of a call; the member is what was said to the tool. */
static const char *said_to_tool(const kt_json *item, const char *member, const char *where,
                                size_t *size, kt_api_error *e) {
    if (!kt_body_string(item, "call_id", where, NULL, e) ||
        !kt_body_string(item, "name", where, NULL, e))
        return NULL;
    return kt_body_string(item, member, where, size, e);
}

static bool take_call(conversation *c, const kt_json *item, const char *where, kt_api_error *e) {
    size_t size = 0;
    const char *arguments = said_to_tool(item, "arguments", where, &size, e);
    char name[KT_TOOL_NAME_BYTES];

    if (!arguments) return false;
    kt_responses_tool_name(kt_json_text(item, "namespace"), kt_json_text(item, "name"), name);
    return add_call(c, item, name, arguments, size, e);
}

static bool take_custom_call(conversation *c, const kt_json *item, const char *where,
                             kt_api_error *e) {
    size_t size = 0, n = 0;
    const char *input = said_to_tool(item, "input", where, &size, e), *text;
    char name[KT_TOOL_NAME_BYTES];
    kt_json_writer arguments = {0};
    bool ok;

    if (!input) return false;
    kt_json_begin_object(&arguments);
    kt_json_key(&arguments, "input");
    kt_json_put_string_n(&arguments, input, size);
    kt_json_end_object(&arguments);
    text = kt_json_writer_text(&arguments, &n);
    kt_responses_tool_name(kt_json_text(item, "namespace"), kt_json_text(item, "name"), name);
    ok = text ? add_call(c, item, name, text, n, e) : kt_api_no_memory(e);
    kt_json_writer_deinit(&arguments);
    return ok;
}

/* What a tool gave. A picture cannot be read here; that one was there is told, since a conversation
 * that has it once has it in every request. */
static bool join_output(const kt_json *output, const char *where, kt_text *text, kt_api_error *e) {
    static const char picture[] = "[a picture, which this model cannot read]";
    bool ok = true;

    if (kt_json_type_of(output) != KT_JSON_ARRAY)
        return kt_body_join_text(output, text_types, "input_text", where, text, e);
    for (size_t i = 0; ok && i < kt_json_length(output); i++) {
        const kt_json *part = kt_json_at(output, i);
        char at[KT_WHERE_BYTES];
        const char *type;
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        type = kt_body_type(part, at, e);
        if (!type) return false;
        if (strcmp(type, "input_image") == 0)
            ok = kt_body_add_line(text, picture, sizeof picture - 1, e);
        else if (kt_body_is_among(type, text_types))
            ok = kt_body_add_member(text, part, "text", at, e);
        else
            ok = kt_body_refuse_type(type, at, "input_text or input_image", e);
    }
    return ok;
}

static bool take_result(conversation *c, const kt_json *item, const char *where, kt_api_error *e) {
    const char *id = kt_body_string(item, "call_id", where, NULL, e);
    char at[KT_WHERE_BYTES];
    kt_text text = {0};
    bool ok;

    if (!id) return false;
    snprintf(at, sizeof at, "%.50s.output", where);
    ok = join_output(kt_field(item, "output"), at, &text, e) && flush(c, e);
    if (ok) kt_body_put_result(c->w, id, &text);
    free(text.data);
    return ok;
}

/* What a tool that runs at another server did: of that nothing is for the model to read. */
static bool pass_over(conversation *c, const kt_json *item, const char *where, kt_api_error *e) {
    (void)c;
    (void)item;
    (void)where;
    (void)e;
    return true;
}

static bool take_item(conversation *c, const kt_json *item, size_t i, kt_api_error *e) {
    static const struct {
        const char *type;
        bool (*take)(conversation *c, const kt_json *item, const char *where, kt_api_error *e);
    } types[] = {{"message", take_message},
                 {"reasoning", take_reasoning},
                 {"function_call", take_call},
                 {"function_call_output", take_result},
                 {"custom_tool_call", take_custom_call},
                 {"custom_tool_call_output", take_result},
                 {"web_search_call", pass_over},
                 {"image_generation_call", pass_over}};
    const char *type;
    char where[KT_WHERE_BYTES];

    snprintf(where, sizeof where, "input[%zu]", i);
    if (kt_json_type_of(item) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, where, item, "an item, an object");
    type = kt_field(item, "type") || !kt_field(item, "role") ? kt_body_type(item, where, e)
                                                             : types[0].type;
    if (!type) return false;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (strcmp(type, types[k].type) == 0) return types[k].take(c, item, where, e);
    return kt_body_refuse_type(
        type, where, "message, reasoning, or a call of a function or custom tool or its output", e);
}

/* ---- the conversation ---- */

static bool take_input(conversation *c, const kt_json *input, kt_api_error *e) {
    kt_text text = {0};
    bool ok = true;

    if (kt_json_type_of(input) == KT_JSON_STRING) {
        ok = kt_body_join_text(input, text_types, "", "input", &text, e) &&
             put_text(c, "user", &text, e);
        free(text.data);
        return ok;
    }
    if (kt_json_type_of(input) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "input", input, "a string or an array of items");
    for (size_t i = 0; ok && i < kt_json_length(input); i++)
        ok = take_item(c, kt_json_at(input, i), i, e);
    return ok;
}

static bool put_conversation(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *input = kt_field(body, "input");
    const char *instructions = NULL;
    conversation c = {.w = w};
    size_t size = 0;
    bool ok;

    if (kt_json_type_of(input) == KT_JSON_ARRAY && kt_json_length(input) == 0)
        return kt_api_refuse(e, 400, "input", "invalid_value",
                             "'input' is empty, expected at least one item");
    if (!kt_field_string(body, "instructions", &instructions, &size, e)) return false;
    kt_json_key(w, "messages");
    kt_json_begin_array(w);
    ok = (!size || kt_body_add_line(&c.system, instructions, size, e)) &&
         take_input(&c, input, e) && flush(&c, e);
    kt_json_end_array(w);
    kt_json_writer_deinit(&c.calls);
    free(c.system.data);
    free(c.text.data);
    free(c.thinking.data);
    return ok;
}

/* ---- reasoning and the form of the answer ---- */

/* A summary is a wish: reasoning comes whole. */
static bool put_reasoning(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *reasoning = kt_field(body, "reasoning");
    const char *effort = NULL;
    size_t size;

    if (!reasoning) return true;
    if (kt_json_type_of(reasoning) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "reasoning", reasoning, "an object");
    if (!kt_field_string(reasoning, "effort", &effort, &size, e)) return false;
    if (effort) kt_json_add_string(w, "reasoning_effort", effort);
    return true;
}

static bool put_format(kt_json_writer *w, const kt_json *format, kt_api_error *e) {
    const char *type = kt_body_type(format, "text.format", e);
    const kt_json *schema = kt_field(format, "schema");

    if (!type) return false;
    if (strcmp(type, "json_schema") == 0) {
        if (kt_json_type_of(schema) != KT_JSON_OBJECT && kt_json_type_of(schema) != KT_JSON_BOOL)
            return kt_api_wrong_type(e, "text.format.schema", schema, "a JSON schema");
        kt_body_add_schema(w, schema);
        return true;
    }
    if (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0)
        return kt_body_refuse_type(type, "text.format", "text, json_object or json_schema", e);
    kt_json_key(w, "response_format");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", type);
    kt_json_end_object(w);
    return true;
}

static bool put_form(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *text = kt_field(body, "text"), *format = kt_field(text, "format");
    const char *verbosity = NULL;
    size_t size;

    if (text && kt_json_type_of(text) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "text", text, "an object");
    if (!kt_field_string(text, "verbosity", &verbosity, &size, e)) return false;
    if (verbosity && strcmp(verbosity, "medium") != 0)
        return kt_api_refuse(e, 400, "text.verbosity", "unsupported_parameter",
                             "'text.verbosity' is '%.40s'; only medium is supported", verbosity);
    return !format || put_format(w, format, e);
}

/* ---- what comes with the answer ---- */

/* Reasoning is in plain text already; what the tools of a server found is not there. */
static bool put_include(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *include = kt_field(body, "include");
    int64_t top = 0;
    bool logprobs;

    if (!kt_field_integer(body, "top_logprobs", 0, KT_MAX_TOP_LOGPROBS, &top, e)) return false;
    if (include && kt_json_type_of(include) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "include", include, "an array of strings");
    logprobs = top > 0;
    for (size_t i = 0; i < kt_json_length(include); i++) {
        const char *what = kt_json_string(kt_json_at(include, i), NULL);
        if (!what)
            return kt_api_wrong_type(e, "include", kt_json_at(include, i), "an array of strings");
        logprobs |= strcmp(what, "message.output_text.logprobs") == 0;
    }
    if (logprobs) kt_json_add_bool(w, "logprobs", true);
    return true;
}

static bool put_length(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    int64_t n = 0;

    if (!kt_field_integer(body, "max_output_tokens", 1, INT32_MAX, &n, e)) return false;
    if (n) kt_json_add_int(w, "max_tokens", n);
    return true;
}

/* ---- the body ---- */

/* What is translated above, and by which names: of these the client's own are not taken over. */
static const char *const translated[] = {"include",         "input",          "instructions",
                                         "logprobs",        "max_tokens",     "max_output_tokens",
                                         "messages",        "reasoning",      "reasoning_effort",
                                         "response_format", "stream_options", "text",
                                         "tool_choice",     "tools"};

static bool put_body(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    kt_json_begin_object(w);
    if (!put_conversation(w, body, e) || !kt_responses_add_tools(w, body, e) ||
        !put_reasoning(w, body, e) || !put_form(w, body, e) || !put_include(w, body, e) ||
        !put_length(w, body, e))
        return false;
    kt_body_add_rest(w, body, translated, sizeof translated / sizeof *translated);
    kt_json_end_object(w);
    return true;
}

bool kt_responses_translate(const kt_json *body, kt_json_doc **out, kt_api_error *e) {
    kt_json_writer w = {0};
    const bool ok = kt_api_check_refused(body, KT_ON_RESPONSES, e) && put_body(&w, body, e);

    return kt_body_end(&w, ok, out, e);
}

void kt_responses_rename(kt_api_error *e) {
    if (strcmp(e->param, "messages") == 0) snprintf(e->param, sizeof e->param, "input");
}
