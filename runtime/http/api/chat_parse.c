/* Body of POST /v1/chat/completions. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/chat.h"

/* ---- the conversation ---- */

static bool parse_thinking(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    kt_chat_request *r = &c->request;
    const kt_json *kwargs = kt_field(body, "chat_template_kwargs");
    bool include = true, enable = false;
    size_t size;

    if (!kt_field_string(body, "reasoning_effort", &r->reasoning_effort, &size, e) ||
        !kt_field_bool(body, "enable_thinking", &enable, e) ||
        !kt_field_bool(body, "include_reasoning", &include, e))
        return false;
    if (kwargs && kt_json_type_of(kwargs) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "chat_template_kwargs", kwargs, "an object");
    r->kwargs = kwargs;
    if (kt_field(body, "enable_thinking")) r->enable_thinking = enable ? 1 : -1;
    c->hide_reasoning = !include;
    return true;
}

bool kt_chat_parse_conversation(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    kt_chat_request *r = &c->request;
    const kt_json *documents = kt_field(body, "documents");
    bool add = true;

    r->messages = kt_field(body, "messages");
    if (kt_json_type_of(r->messages) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "messages", r->messages, "an array of messages");
    if (kt_json_length(r->messages) == 0)
        return kt_api_refuse(e, 400, "messages", "invalid_value",
                             "'messages' is empty, expected at least one message");
    if (documents && kt_json_type_of(documents) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "documents", documents, "an array");
    r->documents = documents;
    if (!kt_field_bool(body, "continue_final_message", &r->continue_final_message, e) ||
        !kt_field_bool(body, "add_generation_prompt", &add, e))
        return false;
    r->no_generation_prompt = !add || r->continue_final_message;
    if (r->continue_final_message && add && kt_field(body, "add_generation_prompt"))
        return kt_api_refuse(e, 400, "continue_final_message", "invalid_value",
                             "'continue_final_message' and 'add_generation_prompt' exclude each "
                             "other");
    return parse_thinking(c, body, e);
}

/* ---- the answer ---- */

/* Tool calls have a form of their own. */
static bool check_form(const kt_chat_call *c, kt_api_error *e) {
    const char *param = c->call.form.param;

    if (!param || c->tool_choice == KT_TOOL_CHOICE_NONE) return true;
    return kt_api_refuse(e, 400, param, "invalid_value",
                         "'%s' and 'tools' exclude each other unless 'tool_choice' is 'none'",
                         param);
}

static bool parse_lengths(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    kt_request *r = &c->call.run;
    bool logprobs = false;
    int64_t top = 0;

    r->max_tokens = -1;
    if (!kt_field_integer(body, "n_predict", -1, INT32_MAX, &r->max_tokens, e) ||
        !kt_field_integer(body, "max_tokens", -1, INT32_MAX, &r->max_tokens, e) ||
        !kt_field_integer(body, "max_completion_tokens", -1, INT32_MAX, &r->max_tokens, e) ||
        !kt_field_bool(body, "logprobs", &logprobs, e) ||
        !kt_field_integer(body, "top_logprobs", 0, KT_MAX_TOP_LOGPROBS, &top, e))
        return false;
    r->logprobs = logprobs ? (int)top : -1;
    if (top == 0 || logprobs) return true;
    return kt_api_refuse(e, 400, "top_logprobs", "invalid_value",
                         "'top_logprobs' needs 'logprobs': true");
}

bool kt_chat_parse(kt_chat_call *c, const kt_json *body, const char *stop, kt_api_error *e) {
    if (!kt_api_parse_model(c->call.app, body, e) || !kt_chat_parse_conversation(c, body, e) ||
        !kt_chat_parse_tools(c, body, e) || !kt_api_parse_form(&c->call, body, e) ||
        !check_form(c, e) || !kt_field_bool(body, "return_progress", &c->progress, e) ||
        !parse_lengths(c, body, e))
        return false;
    c->request.response_format = c->call.form.response_format;
    return kt_api_parse_run(&c->call, body, stop, e);
}
