/* tools and tool_choice. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "runtime/http/api/chat.h"

static bool check_tool(const kt_json *tool, size_t i, kt_api_error *e) {
    const kt_json *function = kt_field(tool, "function"), *parameters;
    const char *type = kt_json_string(kt_field(tool, "type"), NULL);
    char param[64];
    size_t size = 0;

    snprintf(param, sizeof param, "tools[%zu]", i);
    if (kt_json_type_of(tool) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, tool, "an object");
    if (!type || strcmp(type, "function") != 0)
        return kt_api_refuse(e, 400, param, "invalid_value",
                             "'%s.type' is '%.40s', expected 'function'", param, type ? type : "");
    snprintf(param, sizeof param, "tools[%zu].function", i);
    if (kt_json_type_of(function) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, function, "an object");
    parameters = kt_field(function, "parameters");
    snprintf(param, sizeof param, "tools[%zu].function.name", i);
    if (!kt_json_string(kt_field(function, "name"), &size))
        return kt_api_wrong_type(e, param, kt_field(function, "name"), "a string");
    if (size == 0 || size > 256)
        return kt_api_refuse(e, 400, param, "invalid_value",
                             "'%s' has %zu bytes, expected 1 to 256", param, size);
    snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
    if (parameters && kt_json_type_of(parameters) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, param, parameters, "a JSON schema, an object");
    return true;
}

static bool has_tool(const kt_json *tools, const char *name) {
    for (size_t i = 0; i < kt_json_length(tools); i++) {
        const kt_json *function = kt_json_get(kt_json_at(tools, i), "function");
        if (strcmp(kt_json_text(function, "name"), name) == 0) return true;
    }
    return false;
}

static bool parse_named(kt_chat_call *c, const kt_json *choice, const kt_json *tools,
                        kt_api_error *e) {
    const kt_json *function = kt_field(choice, "function");
    const kt_json *name = kt_field(function ? function : choice, "name");

    c->tool_choice = KT_TOOL_CHOICE_NAMED;
    c->tool_name = kt_json_string(name, NULL);
    if (!c->tool_name) return kt_api_wrong_type(e, "tool_choice.function.name", name, "a string");
    if (has_tool(tools, c->tool_name)) return true;
    return kt_api_refuse(e, 400, "tool_choice", "invalid_value",
                         "'tool_choice' names '%.100s', which is none of 'tools'", c->tool_name);
}

static bool parse_choice(kt_chat_call *c, const kt_json *choice, const kt_json *tools,
                         kt_api_error *e) {
    static const char *const words[] = {"none", "auto", "required"};
    const char *word = kt_json_string(choice, NULL);

    if (kt_json_type_of(choice) == KT_JSON_OBJECT) return parse_named(c, choice, tools, e);
    if (!word) return kt_api_wrong_type(e, "tool_choice", choice, "a string or an object");
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        c->tool_choice = (kt_tool_choice)i;
        if (i < 2 || kt_json_length(tools) > 0) return true;
        return kt_api_refuse(e, 400, "tool_choice", "invalid_value",
                             "'tool_choice' is 'required', but there are no 'tools'");
    }
    return kt_api_refuse(e, 400, "tool_choice", "invalid_value",
                         "'tool_choice' is '%.40s', expected none, auto, required or an object",
                         word);
}

/* Kimi counts calls over the whole conversation. */
static int count_calls(const kt_json *messages) {
    size_t n = 0;

    for (size_t i = 0; i < kt_json_length(messages); i++)
        n += kt_json_length(kt_json_get(kt_json_at(messages, i), "tool_calls"));
    return n < 100000 ? (int)n : 100000;
}

bool kt_chat_parse_tools(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *tools = kt_field(body, "tools"), *choice = kt_field(body, "tool_choice");

    c->parallel_tools = true;
    if (!kt_field_bool(body, "parallel_tool_calls", &c->parallel_tools, e)) return false;
    if (tools && kt_json_type_of(tools) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "tools", tools, "an array");
    for (size_t i = 0; i < kt_json_length(tools); i++)
        if (!check_tool(kt_json_at(tools, i), i, e)) return false;
    c->tool_choice = kt_json_length(tools) > 0 ? KT_TOOL_CHOICE_AUTO : KT_TOOL_CHOICE_NONE;
    if (choice && !parse_choice(c, choice, tools, e)) return false;
    if (kt_json_length(tools) == 0) c->tool_choice = KT_TOOL_CHOICE_NONE;
    c->request.tools = c->tool_choice == KT_TOOL_CHOICE_NONE ? NULL : tools;
    c->first_call = count_calls(kt_field(body, "messages"));
    return true;
}
