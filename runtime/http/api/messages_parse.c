/* Body of POST /v1/messages: what Anthropic's clients send becomes the body of a chat, which is
 * then parsed like any other. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/messages_call.h"
#include "runtime/http/api/refused.h"

enum { WHERE_BYTES = 64 };

/* ---- text ---- */

static bool add_line(kt_text *t, const char *text, size_t size, kt_api_error *e) {
    if ((t->size && kt_text_append(t, "\n", 1, NULL) != KT_OK) ||
        kt_text_append(t, text, size, NULL) != KT_OK)
        return kt_api_no_memory(e);
    return true;
}

/* A block's "type". NULL with *e. */
static const char *type_of(const kt_json *block, const char *where, kt_api_error *e) {
    const char *type = kt_json_string(kt_field(block, "type"), NULL);
    char param[WHERE_BYTES + 8];

    if (type) return type;
    snprintf(param, sizeof param, "%s.type", where);
    if (kt_json_type_of(block) != KT_JSON_OBJECT)
        kt_api_wrong_type(e, where, block, "a content block, an object");
    else
        kt_api_wrong_type(e, param, kt_field(block, "type"), "a string");
    return NULL;
}

static bool refuse_block(const char *type, const char *where, const char *expected,
                         kt_api_error *e) {
    return kt_api_refuse(e, 400, where, "unsupported_value", "'%s' is of type '%.40s', expected %s",
                         where, type, expected);
}

/* The string member of a block, added to t as a line. */
static bool add_member(kt_text *t, const kt_json *block, const char *member, const char *where,
                       kt_api_error *e) {
    char param[WHERE_BYTES + 16];
    const char *text;
    size_t size = 0;

    snprintf(param, sizeof param, "%s.%s", where, member);
    text = kt_json_string(kt_field(block, member), &size);
    if (!text) return kt_api_wrong_type(e, param, kt_field(block, member), "a string");
    return add_line(t, text, size, e);
}

/* A string, or blocks of text, which become lines. */
static bool join_text(const kt_json *content, const char *where, kt_text *out, kt_api_error *e) {
    size_t size;
    const char *text = kt_json_string(content, &size), *type;
    char at[WHERE_BYTES];

    if (text) return add_line(out, text, size, e);
    if (kt_json_type_of(content) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, where, content, "a string or an array of text blocks");
    for (size_t i = 0; i < kt_json_length(content); i++) {
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        type = type_of(kt_json_at(content, i), at, e);
        if (!type) return false;
        if (strcmp(type, "text") != 0) return refuse_block(type, at, "text", e);
        if (!add_member(out, kt_json_at(content, i), "text", at, e)) return false;
    }
    return true;
}

static void put_message(kt_json_writer *w, const char *role, const kt_text *text) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", role);
    kt_api_add_text(w, "content", text);
    kt_json_end_object(w);
}

/* ---- what the user says ---- */

/* A result is a message of its own. An error is told by its first word. */
static bool put_result(kt_json_writer *w, const kt_json *block, const char *where,
                       kt_api_error *e) {
    const kt_json *content = kt_field(block, "content");
    const char *id = kt_json_string(kt_field(block, "tool_use_id"), NULL);
    char param[WHERE_BYTES + 16];
    bool is_error = false, ok = true;
    kt_text text = {0};

    snprintf(param, sizeof param, "%s.tool_use_id", where);
    if (!id) return kt_api_wrong_type(e, param, kt_field(block, "tool_use_id"), "a string");
    if (!kt_field_bool(block, "is_error", &is_error, e)) return false;
    if (is_error) ok = add_line(&text, "Error:", 6, e);
    snprintf(param, sizeof param, "%.50s.content", where);
    if (ok && content) ok = join_text(content, param, &text, e);
    if (ok) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", "tool");
        kt_json_add_string(w, "tool_call_id", id);
        kt_api_add_text(w, "content", &text);
        kt_json_end_object(w);
    }
    free(text.data);
    return ok;
}

/* Text between results is a message, too. */
static bool put_user(kt_json_writer *w, const kt_json *content, const char *where,
                     kt_api_error *e) {
    const size_t n = kt_json_length(content);
    kt_text text = {0};
    bool ok = true, has_text = n == 0;

    for (size_t i = 0; ok && i < n; i++) {
        const kt_json *block = kt_json_at(content, i);
        char at[WHERE_BYTES];
        const char *type;
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        type = type_of(block, at, e);
        if (!type) {
            ok = false;
        } else if (strcmp(type, "text") == 0) {
            ok = add_member(&text, block, "text", at, e);
            has_text = true;
        } else if (strcmp(type, "tool_result") == 0) {
            if (has_text) put_message(w, "user", &text);
            text.size = 0;
            has_text = false;
            ok = put_result(w, block, at, e);
        } else {
            ok = refuse_block(type, at, "text or tool_result", e);
        }
    }
    if (ok && has_text) put_message(w, "user", &text);
    free(text.data);
    return ok;
}

/* ---- what the assistant said ---- */

static bool put_call(kt_json_writer *w, const kt_json *block, const char *where, kt_api_error *e) {
    static const char *const members[] = {"id", "name"};
    const kt_json *input = kt_field(block, "input");
    char param[WHERE_BYTES + 16];
    kt_json_writer arguments = {0};
    const char *text;
    size_t size;

    for (int i = 0; i < 2; i++) {
        snprintf(param, sizeof param, "%s.%s", where, members[i]);
        if (!kt_json_string(kt_field(block, members[i]), NULL))
            return kt_api_wrong_type(e, param, kt_field(block, members[i]), "a string");
    }
    snprintf(param, sizeof param, "%s.input", where);
    if (kt_json_type_of(input) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, input, "an object");
    kt_json_put_value(&arguments, input);
    text = kt_json_writer_text(&arguments, &size);
    if (text) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "id", kt_json_text(block, "id"));
        kt_json_add_string(w, "type", "function");
        kt_json_key(w, "function");
        kt_json_begin_object(w);
        kt_json_add_string(w, "name", kt_json_text(block, "name"));
        kt_json_key(w, "arguments");
        kt_json_put_string_n(w, text, size);
        kt_json_end_object(w);
        kt_json_end_object(w);
    }
    kt_json_writer_deinit(&arguments);
    return text || kt_api_no_memory(e);
}

/* calls is the inside of an array. Thinking that was made unreadable for clients cannot be used. */
static bool take_block(const kt_json *block, const char *where, kt_text *text, kt_text *thinking,
                       kt_json_writer *calls, kt_api_error *e) {
    const char *type = type_of(block, where, e);

    if (!type) return false;
    if (strcmp(type, "text") == 0) return add_member(text, block, "text", where, e);
    if (strcmp(type, "thinking") == 0) return add_member(thinking, block, "thinking", where, e);
    if (strcmp(type, "tool_use") == 0) return put_call(calls, block, where, e);
    if (strcmp(type, "redacted_thinking") == 0) return true;
    return refuse_block(type, where, "text, thinking or tool_use", e);
}

static void put_assistant(kt_json_writer *w, const kt_text *text, const kt_text *thinking,
                          const char *calls, size_t calls_size) {
    const bool has_calls = calls_size > 2; /* "[]" */

    kt_json_begin_object(w);
    kt_json_add_string(w, "role", "assistant");
    if (text->size || !has_calls)
        kt_api_add_text(w, "content", text);
    else
        kt_json_add_null(w, "content");
    if (thinking->size) kt_api_add_text(w, "reasoning_content", thinking);
    if (has_calls) {
        kt_json_key(w, "tool_calls");
        kt_json_put_raw(w, calls, calls_size);
    }
    kt_json_end_object(w);
}

static bool translate_assistant(kt_json_writer *w, const kt_json *content, const char *where,
                                kt_api_error *e) {
    kt_json_writer calls = {0};
    kt_text text = {0}, thinking = {0};
    const char *calls_text;
    size_t size;
    bool ok = true;

    kt_json_begin_array(&calls);
    for (size_t i = 0; ok && i < kt_json_length(content); i++) {
        char at[WHERE_BYTES];
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        ok = take_block(kt_json_at(content, i), at, &text, &thinking, &calls, e);
    }
    kt_json_end_array(&calls);
    calls_text = kt_json_writer_text(&calls, &size);
    if (ok && !calls_text) ok = kt_api_no_memory(e);
    if (ok) put_assistant(w, &text, &thinking, calls_text, size);
    kt_json_writer_deinit(&calls);
    free(text.data);
    free(thinking.data);
    return ok;
}

/* ---- the conversation ---- */

static bool translate_message(kt_json_writer *w, const kt_json *message, size_t i,
                              kt_api_error *e) {
    const char *role = kt_json_string(kt_field(message, "role"), NULL);
    const kt_json *content = kt_field(message, "content");
    char where[WHERE_BYTES];
    kt_text text = {0};
    bool is_user, ok;

    snprintf(where, sizeof where, "messages[%zu]", i);
    if (kt_json_type_of(message) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, where, message, "an object");
    is_user = role && strcmp(role, "user") == 0;
    if (!is_user && (!role || strcmp(role, "assistant") != 0))
        return kt_api_refuse(e, 400, where, "invalid_value",
                             "'%s.role' is '%.40s', expected user or assistant", where,
                             role ? role : "");
    snprintf(where, sizeof where, "messages[%zu].content", i);
    if (kt_json_type_of(content) == KT_JSON_ARRAY)
        return is_user ? put_user(w, content, where, e) : translate_assistant(w, content, where, e);
    ok = join_text(content, where, &text, e);
    if (ok) put_message(w, role, &text);
    free(text.data);
    return ok;
}

/* An answer that the client began is gone on with. */
static bool is_begun(const kt_json *messages) {
    const kt_json *last = kt_json_at(messages, kt_json_length(messages) - 1);
    const kt_json *content = kt_json_get(last, "content");
    const kt_json *end = kt_json_at(content, kt_json_length(content) - 1);

    return strcmp(kt_json_text(last, "role"), "assistant") == 0 &&
           (kt_json_type_of(content) == KT_JSON_STRING ||
            strcmp(kt_json_text(end, "type"), "text") == 0);
}

static bool put_conversation(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *messages = kt_field(body, "messages"), *system = kt_field(body, "system");
    kt_text text = {0};
    bool ok = true;

    if (kt_json_type_of(messages) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "messages", messages, "an array of messages");
    if (kt_json_length(messages) == 0)
        return kt_api_refuse(e, 400, "messages", "invalid_value",
                             "'messages' is empty, expected at least one message");
    kt_json_key(w, "messages");
    kt_json_begin_array(w);
    if (system) ok = join_text(system, "system", &text, e);
    if (ok && text.size) put_message(w, "system", &text);
    free(text.data);
    for (size_t i = 0; ok && i < kt_json_length(messages); i++)
        ok = translate_message(w, kt_json_at(messages, i), i, e);
    kt_json_end_array(w);
    if (ok && is_begun(messages)) kt_json_add_bool(w, "continue_final_message", true);
    return ok;
}

/* ---- tools ---- */

static bool put_tool(kt_json_writer *w, const kt_json *tool, size_t i, kt_api_error *e) {
    const char *type = kt_json_string(kt_field(tool, "type"), NULL);
    const kt_json *description = kt_field(tool, "description");
    const kt_json *schema = kt_field(tool, "input_schema");
    char where[WHERE_BYTES], param[WHERE_BYTES + 16];

    snprintf(where, sizeof where, "tools[%zu]", i);
    if (kt_json_type_of(tool) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, where, tool, "an object");
    if (type && strcmp(type, "custom") != 0)
        return refuse_block(type, where, "custom: tools that a server runs are not built", e);
    snprintf(param, sizeof param, "%s.name", where);
    if (!kt_json_string(kt_field(tool, "name"), NULL))
        return kt_api_wrong_type(e, param, kt_field(tool, "name"), "a string");
    snprintf(param, sizeof param, "%s.input_schema", where);
    if (kt_json_type_of(schema) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, schema, "a JSON schema, an object");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "function");
    kt_json_key(w, "function");
    kt_json_begin_object(w);
    kt_json_add_string(w, "name", kt_json_text(tool, "name"));
    if (description) {
        kt_json_key(w, "description");
        kt_json_put_value(w, description);
    }
    kt_json_key(w, "parameters");
    kt_json_put_value(w, schema);
    kt_json_end_object(w);
    kt_json_end_object(w);
    return true;
}

static bool put_tools(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *tools = kt_field(body, "tools");

    if (!tools) return true;
    if (kt_json_type_of(tools) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "tools", tools, "an array");
    kt_json_key(w, "tools");
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_json_length(tools); i++)
        if (!put_tool(w, kt_json_at(tools, i), i, e)) return false;
    kt_json_end_array(w);
    return true;
}

static bool put_tool_choice(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    static const char *const words[][2] = {
        {"auto", "auto"}, {"any", "required"}, {"none", "none"}, {"tool", NULL}};
    const kt_json *choice = kt_field(body, "tool_choice"), *name = kt_field(choice, "name");
    const char *type = kt_json_string(kt_field(choice, "type"), NULL);
    bool is_single = false;
    size_t i = 0;

    if (!choice) return true;
    if (kt_json_type_of(choice) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "tool_choice", choice, "an object");
    while (i < 4 && (!type || strcmp(type, words[i][0]) != 0)) i++;
    if (i == 4)
        return kt_api_refuse(e, 400, "tool_choice", "invalid_value",
                             "'tool_choice.type' is '%.40s', expected auto, any, tool or none",
                             type ? type : "");
    if (!words[i][1] && !kt_json_string(name, NULL))
        return kt_api_wrong_type(e, "tool_choice.name", name, "a string");
    if (!kt_field_bool(choice, "disable_parallel_tool_use", &is_single, e)) return false;
    kt_json_key(w, "tool_choice");
    if (words[i][1]) {
        kt_json_put_string(w, words[i][1]);
    } else {
        kt_json_begin_object(w);
        kt_json_add_string(w, "type", "function");
        kt_json_key(w, "function");
        kt_json_begin_object(w);
        kt_json_add_string(w, "name", kt_json_string(name, NULL));
        kt_json_end_object(w);
        kt_json_end_object(w);
    }
    if (is_single) kt_json_add_bool(w, "parallel_tool_calls", false);
    return true;
}

/* ---- thinking and the form of the answer ---- */

/* Budgets are a wish: max_tokens bounds what is thought and said. */
static bool put_thinking(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *thinking = kt_field(body, "thinking");
    const char *type = kt_json_string(kt_field(thinking, "type"), NULL);
    int64_t budget = 1;

    if (!thinking) return true;
    if (kt_json_type_of(thinking) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "thinking", thinking, "an object");
    if (!kt_field_integer(thinking, "budget_tokens", 1, INT32_MAX, &budget, e)) return false;
    if (type && strcmp(type, "adaptive") == 0) return true; /* as the template has it */
    if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0))
        return kt_api_refuse(e, 400, "thinking", "invalid_value",
                             "'thinking.type' is '%.40s', expected enabled, disabled or adaptive",
                             type ? type : "");
    kt_json_add_bool(w, "enable_thinking", strcmp(type, "enabled") == 0);
    return true;
}

static bool put_format(kt_json_writer *w, const kt_json *format, const char *where,
                       kt_api_error *e) {
    const kt_json *schema = kt_field(format, "schema");

    if (!format) return true;
    if (strcmp(kt_json_text(format, "type"), "json_schema") != 0 || !schema)
        return kt_api_refuse(e, 400, where, "invalid_value",
                             "'%s' is no {\"type\": \"json_schema\", \"schema\": ...}", where);
    if (kt_json_type_of(schema) != KT_JSON_OBJECT && kt_json_type_of(schema) != KT_JSON_BOOL)
        return kt_api_wrong_type(e, where, schema, "a JSON schema");
    kt_json_key(w, "response_format");
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", "json_schema");
    kt_json_key(w, "json_schema");
    kt_json_begin_object(w);
    kt_json_key(w, "schema");
    kt_json_put_value(w, schema);
    kt_json_end_object(w);
    kt_json_end_object(w);
    return true;
}

static bool put_output(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    const kt_json *config = kt_field(body, "output_config");
    const kt_json *format = kt_field(config, "format"), *older = kt_field(body, "output_format");
    const char *effort = NULL;
    size_t size;

    if (config && kt_json_type_of(config) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "output_config", config, "an object");
    if (!kt_field_string(config, "effort", &effort, &size, e)) return false;
    if (effort) kt_json_add_string(w, "reasoning_effort", effort);
    return format ? put_format(w, format, "output_config.format", e)
                  : put_format(w, older, "output_format", e);
}

/* ---- the rest ---- */

/* What is translated above, and by which names: of these the client's own are not taken over. */
static const char *const translated[] = {"continue_final_message",
                                         "enable_thinking",
                                         "messages",
                                         "output_config",
                                         "output_format",
                                         "parallel_tool_calls",
                                         "reasoning_effort",
                                         "response_format",
                                         "system",
                                         "thinking",
                                         "tool_choice",
                                         "tools"};

static bool is_translated(const char *name) {
    for (size_t i = 0; i < sizeof translated / sizeof *translated; i++)
        if (strcmp(name, translated[i]) == 0) return true;
    return false;
}

static void put_rest(kt_json_writer *w, const kt_json *body) {
    for (size_t i = 0; i < kt_json_length(body); i++) {
        const char *name;
        size_t size;
        const kt_json *v = kt_json_member(body, i, &name, &size);
        if (is_translated(name)) continue;
        kt_json_key_n(w, name, size);
        kt_json_put_value(w, v);
    }
}

/* max_tokens, without which Anthropic's API answers nothing. */
static bool check_length(const kt_json *body, kt_api_error *e) {
    int64_t n;

    if (!kt_field(body, "max_tokens"))
        return kt_api_wrong_type(e, "max_tokens", NULL, "an integer from 1");
    return kt_field_integer(body, "max_tokens", 1, INT32_MAX, &n, e);
}

static bool put_body(kt_json_writer *w, const kt_json *body, kt_api_error *e) {
    kt_json_begin_object(w);
    if (!put_conversation(w, body, e) || !put_tools(w, body, e) || !put_tool_choice(w, body, e) ||
        !put_thinking(w, body, e) || !put_output(w, body, e))
        return false;
    put_rest(w, body);
    kt_json_end_object(w);
    return true;
}

bool kt_messages_translate(const kt_json *body, bool is_run, kt_json_doc **out, kt_api_error *e) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;
    bool ok = kt_api_check_refused(body, KT_ON_MESSAGES, e) && (!is_run || check_length(body, e)) &&
              put_body(&w, body, e);

    *out = NULL;
    text = ok ? kt_json_writer_text(&w, &size) : NULL;
    if (ok && (!text || kt_json_parse(text, size, NULL, out, NULL) != KT_OK))
        ok = kt_api_no_memory(e);
    kt_json_writer_deinit(&w);
    return ok;
}
