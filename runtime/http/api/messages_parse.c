/* Body of POST /v1/messages: what Anthropic's clients send becomes the body of a chat, which is
 * then parsed like any other. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/chat_body.h"
#include "runtime/http/api/messages_call.h"
#include "runtime/http/api/refused.h"

/* The blocks of a text. */
static const char *const texts[] = {"text", NULL};

static bool join_text(const kt_json *content, const char *where, kt_text *out, kt_api_error *e) {
    return kt_body_join_text(content, texts, "text", where, out, e);
}

/* ---- what the user says ---- */

/* A result is a message of its own. An error is told by its first word. */
static bool put_result(kt_json_writer *w, const kt_json *block, const char *where,
                       kt_api_error *e) {
    const kt_json *content = kt_field(block, "content");
    const char *id = kt_body_string(block, "tool_use_id", where, NULL, e);
    char param[KT_WHERE_BYTES + 16];
    bool is_error = false, ok = true;
    kt_text text = {0};

    if (!id || !kt_field_bool(block, "is_error", &is_error, e)) return false;
    if (is_error) ok = kt_body_add_line(&text, "Error:", 6, e);
    snprintf(param, sizeof param, "%.50s.content", where);
    if (ok && content) ok = join_text(content, param, &text, e);
    if (ok) kt_body_put_result(w, id, &text);
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
        char at[KT_WHERE_BYTES];
        const char *type;
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        type = kt_body_type(block, at, e);
        if (!type) {
            ok = false;
        } else if (strcmp(type, "text") == 0) {
            ok = kt_body_add_member(&text, block, "text", at, e);
            has_text = true;
        } else if (strcmp(type, "tool_result") == 0) {
            if (has_text) kt_body_put_message(w, "user", &text);
            text.size = 0;
            has_text = false;
            ok = put_result(w, block, at, e);
        } else {
            ok = kt_body_refuse_type(type, at, "text or tool_result", e);
        }
    }
    if (ok && has_text) kt_body_put_message(w, "user", &text);
    free(text.data);
    return ok;
}

/* ---- what the assistant said ---- */

static bool put_call(kt_json_writer *w, const kt_json *block, const char *where, kt_api_error *e) {
    const kt_json *input = kt_field(block, "input");
    char param[KT_WHERE_BYTES + 16];
    kt_json_writer arguments = {0};
    const char *id = kt_body_string(block, "id", where, NULL, e), *name, *text;
    size_t size;

    name = id ? kt_body_string(block, "name", where, NULL, e) : NULL;
    if (!name) return false;
    snprintf(param, sizeof param, "%s.input", where);
    if (kt_json_type_of(input) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, input, "an object");
    kt_json_put_value(&arguments, input);
    text = kt_json_writer_text(&arguments, &size);
    if (text) kt_body_put_call(w, id, name, text, size);
    kt_json_writer_deinit(&arguments);
    return text || kt_api_no_memory(e);
}

/* calls is the inside of an array. Thinking that was made unreadable for clients cannot be used. */
static bool take_block(const kt_json *block, const char *where, kt_text *text, kt_text *thinking,
                       kt_json_writer *calls, kt_api_error *e) {
    const char *type = kt_body_type(block, where, e);

    if (!type) return false;
    if (strcmp(type, "text") == 0) return kt_body_add_member(text, block, "text", where, e);
    if (strcmp(type, "thinking") == 0)
        return kt_body_add_member(thinking, block, "thinking", where, e);
    if (strcmp(type, "tool_use") == 0) return put_call(calls, block, where, e);
    if (strcmp(type, "redacted_thinking") == 0) return true;
    return kt_body_refuse_type(type, where, "text, thinking or tool_use", e);
}

static bool translate_assistant(kt_json_writer *w, const kt_json *content, const char *where,
                                kt_api_error *e) {
    kt_json_writer calls = {0};
    kt_text text = {0}, thinking = {0};
    bool ok = true;

    kt_json_begin_array(&calls);
    for (size_t i = 0; ok && i < kt_json_length(content); i++) {
        char at[KT_WHERE_BYTES];
        snprintf(at, sizeof at, "%.40s[%zu]", where, i);
        ok = take_block(kt_json_at(content, i), at, &text, &thinking, &calls, e);
    }
    if (ok) ok = kt_body_put_assistant(w, &text, &thinking, &calls, e);
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
    char where[KT_WHERE_BYTES];
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
    if (ok) kt_body_put_message(w, role, &text);
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
    if (ok && text.size) kt_body_put_message(w, "system", &text);
    free(text.data);
    for (size_t i = 0; ok && i < kt_json_length(messages); i++)
        ok = translate_message(w, kt_json_at(messages, i), i, e);
    kt_json_end_array(w);
    if (ok && is_begun(messages)) kt_json_add_bool(w, "continue_final_message", true);
    return ok;
}

/* ---- tools ---- */

static bool put_tool(kt_json_writer *w, const kt_json *tool, size_t i, kt_api_error *e) {
    const char *type = kt_json_string(kt_field(tool, "type"), NULL), *name;
    const kt_json *schema = kt_field(tool, "input_schema");
    char where[KT_WHERE_BYTES], param[KT_WHERE_BYTES + 16];

    snprintf(where, sizeof where, "tools[%zu]", i);
    if (kt_json_type_of(tool) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, where, tool, "an object");
    if (type && strcmp(type, "custom") != 0)
        return kt_body_refuse_type(type, where, "custom: tools that a server runs are not built",
                                   e);
    name = kt_body_string(tool, "name", where, NULL, e);
    if (!name) return false;
    snprintf(param, sizeof param, "%s.input_schema", where);
    if (kt_json_type_of(schema) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, schema, "a JSON schema, an object");
    kt_body_put_tool(w, name, kt_field(tool, "description"), schema);
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
    if (words[i][1])
        kt_json_add_string(w, "tool_choice", words[i][1]);
    else
        kt_body_add_named_choice(w, kt_json_string(name, NULL));
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
    kt_body_add_schema(w, schema);
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
    kt_body_add_rest(w, body, translated, sizeof translated / sizeof *translated);
    kt_json_end_object(w);
    return true;
}

bool kt_messages_translate(const kt_json *body, bool is_run, kt_json_doc **out, kt_api_error *e) {
    kt_json_writer w = {0};
    const bool ok = kt_api_check_refused(body, KT_ON_MESSAGES, e) &&
                    (!is_run || check_length(body, e)) && put_body(&w, body, e);

    return kt_body_end(&w, ok, out, e);
}
