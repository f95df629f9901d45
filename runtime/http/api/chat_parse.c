/* Body of POST /v1/chat/completions. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/answer_bound.h"
#include "runtime/http/api/chat.h"

/* ---- the conversation ---- */

static bool parse_model(const kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const char *name = NULL;
    size_t size = 0;

    if (!kt_field_string(body, "model", &name, &size, e)) return false;
    if (!name || strcmp(name, c->app->model_name) == 0) return true; /* there is only one */
    return kt_api_refuse(e, 404, "model", "model_not_found",
                         "the model '%.100s' does not exist; this server has '%.100s'", name,
                         c->app->model_name);
}

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

/* ---- the form of the answer ---- */

static bool parse_response_format(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *format = kt_field(body, "response_format"), *holder;
    const char *type = kt_json_string(kt_field(format, "type"), NULL);

    if (!format) return true;
    if (kt_json_type_of(format) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "response_format", format, "an object");
    if (!type)
        return kt_api_wrong_type(e, "response_format.type", kt_field(format, "type"), "a string");
    if (strcmp(type, "text") == 0) return true;
    c->request.response_format = format;
    if (strcmp(type, "json_object") == 0) {
        c->schema = kt_field(format, "schema"); /* llama-server's and Together's */
        c->json_object = !c->schema;
        return true;
    }
    if (strcmp(type, "json_schema") != 0)
        return kt_api_refuse(e, 400, "response_format", "invalid_value",
                             "'response_format.type' is '%.40s', expected text, json_object or "
                             "json_schema",
                             type);
    holder = kt_field(format, "json_schema");
    c->schema = kt_field(holder, "schema");
    if (c->schema) return true;
    return kt_api_wrong_type(e, "response_format.json_schema.schema", NULL, "a JSON schema");
}

static bool parse_form(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *schema = kt_field(body, "json_schema");
    int forms;

    if (!parse_response_format(c, body, e) ||
        !kt_field_string(body, "grammar", &c->gbnf, &c->gbnf_size, e))
        return false;
    if (c->gbnf && c->gbnf_size == 0) c->gbnf = NULL;
    forms = (c->schema != NULL) + c->json_object + (c->gbnf != NULL) + (schema != NULL);
    if (forms > 1)
        return kt_api_refuse(e, 400, "response_format", "invalid_value",
                             "of 'response_format', 'grammar' and 'json_schema' only one can hold");
    if (schema) c->schema = schema;
    if (forms == 0 || c->tool_choice == KT_TOOL_CHOICE_NONE) return true;
    return kt_api_refuse(e, 400, c->gbnf ? "grammar" : "response_format", "invalid_value",
                         "'%s' and 'tools' exclude each other unless 'tool_choice' is 'none'",
                         c->gbnf ? "grammar" : "response_format");
}

static bool parse_priority(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    int64_t priority = 0;

    if (!kt_field_integer(body, "priority", INT32_MIN, INT32_MAX, &priority, e)) return false;
    c->run.priority = (int)priority;
    return true;
}

static bool parse_stream(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *options = kt_field(body, "stream_options");

    if (options && kt_json_type_of(options) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "stream_options", options, "an object");
    return kt_field_bool(body, "stream", &c->stream, e) &&
           kt_field_bool(options, "include_usage", &c->include_usage, e) &&
           kt_field_bool(options, "continuous_usage_stats", &c->continuous_usage, e) &&
           kt_field_bool(body, "return_progress", &c->progress, e) && parse_priority(c, body, e);
}

static bool parse_lengths(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    int64_t n = 1, best_of, top = 0;
    bool logprobs = false;

    c->run.max_tokens = -1;
    if (!kt_field_integer(body, "n_predict", -1, INT32_MAX, &c->run.max_tokens, e) ||
        !kt_field_integer(body, "max_tokens", -1, INT32_MAX, &c->run.max_tokens, e) ||
        !kt_field_integer(body, "max_completion_tokens", -1, INT32_MAX, &c->run.max_tokens, e) ||
        !kt_field_integer(body, "min_tokens", 0, INT32_MAX, &c->run.min_tokens, e) ||
        !kt_field_integer(body, "n", 1, KT_CHAT_MAX_CHOICES, &n, e) ||
        !kt_field_bool(body, "logprobs", &logprobs, e) ||
        !kt_field_integer(body, "top_logprobs", 0, KT_MAX_TOP_LOGPROBS, &top, e) ||
        !kt_field_bool(body, "ignore_eos", &c->run.ignore_eos, e))
        return false;
    best_of = n;
    if (!kt_field_integer(body, "best_of", 1, KT_CHAT_MAX_CHOICES, &best_of, e)) return false;
    c->run.n = (int)n;
    c->run.logprobs = logprobs ? (int)top : -1;
    if (best_of != n)
        return kt_api_refuse(e, 400, "best_of", "unsupported_parameter",
                             "'best_of' is not supported other than equal to 'n'");
    if (top > 0 && !logprobs)
        return kt_api_refuse(e, 400, "top_logprobs", "invalid_value",
                             "'top_logprobs' needs 'logprobs': true");
    if (c->run.max_tokens < 0 || c->run.min_tokens <= c->run.max_tokens) return true;
    return kt_api_refuse(e, 400, "min_tokens", "invalid_value",
                         "'min_tokens' is %lld, more than 'max_tokens', %lld",
                         (long long)c->run.min_tokens, (long long)c->run.max_tokens);
}

/* ---- sampling ---- */

static bool parse_sampling(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    kt_sampling *s = &c->run.sampling;
    int64_t top_k = s->top_k, seed = 0;

    if (!kt_field_number(body, "temperature", 0, 2, &s->temperature, e) ||
        !kt_field_number(body, "top_p", 0, 1, &s->top_p, e) ||
        !kt_field_number(body, "min_p", 0, 1, &s->min_p, e) ||
        !kt_field_number(body, "repeat_penalty", 0.01, 100, &s->repetition_penalty, e) ||
        !kt_field_number(body, "repetition_penalty", 0.01, 100, &s->repetition_penalty, e) ||
        !kt_field_number(body, "presence_penalty", -2, 2, &s->presence_penalty, e) ||
        !kt_field_number(body, "frequency_penalty", -2, 2, &s->frequency_penalty, e) ||
        !kt_field_integer(body, "top_k", -1, INT32_MAX, &top_k, e) ||
        !kt_field_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, e))
        return false;
    s->top_k = top_k > 0 ? (int32_t)top_k : 0;
    s->seed =
        kt_field(body, "seed") ? (uint64_t)seed : strtoull(kt_http_request_id(c->x) + 8, NULL, 16);
    return true;
}

static bool add_stop(kt_chat_call *c, const kt_json *v, const char *param, kt_api_error *e) {
    kt_stops *s = &c->run.stops;
    size_t size = 0;
    const char *text = kt_json_string(v, &size);

    if (!text) return kt_api_wrong_type(e, param, v, "a string");
    if (size == 0 || size > KT_MAX_STOP_BYTES)
        return kt_api_refuse(e, 400, param, "invalid_value", "'%s' has %zu bytes, expected 1 to %d",
                             param, size, KT_MAX_STOP_BYTES);
    s->text[s->n] = malloc(size + 1);
    if (!s->text[s->n]) return kt_api_no_memory(e);
    memcpy(s->text[s->n], text, size + 1); /* its NUL too */
    s->size[s->n++] = size;
    return true;
}

static bool parse_stop(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "stop");
    char param[32];

    if (!v) return true;
    if (kt_json_type_of(v) == KT_JSON_STRING) return add_stop(c, v, "stop", e);
    if (kt_json_type_of(v) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "stop", v, "a string or an array of strings");
    if (kt_json_length(v) > KT_MAX_STOPS)
        return kt_api_refuse(e, 400, "stop", "invalid_value",
                             "'stop' has %zu strings, at most %d are accepted", kt_json_length(v),
                             KT_MAX_STOPS);
    for (size_t i = 0; i < kt_json_length(v); i++) {
        snprintf(param, sizeof param, "stop[%zu]", i);
        if (!add_stop(c, kt_json_at(v, i), param, e)) return false;
    }
    return true;
}

static bool parse_stop_ids(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "stop_token_ids");
    int64_t vocab = c->app->backend->vocab;
    size_t n = kt_json_length(v);

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "stop_token_ids", v, "an array of token ids");
    if (n > 1024)
        return kt_api_refuse(e, 400, "stop_token_ids", "invalid_value",
                             "'stop_token_ids' has %zu ids, at most 1024 are accepted", n);
    c->run.stop_ids = malloc((n + 1) * sizeof *c->run.stop_ids);
    if (!c->run.stop_ids) return kt_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id = kt_json_int(kt_json_at(v, i), -1);
        if (id < 0 || id >= vocab)
            return kt_api_refuse(e, 400, "stop_token_ids", "invalid_value",
                                 "'stop_token_ids[%zu]' is no token id from 0 to %lld", i,
                                 (long long)vocab - 1);
        c->run.stop_ids[c->run.n_stop_ids++] = (int32_t)id;
    }
    return true;
}

/* One pair: id as a number or as the text of a key; bias a number from -100 to 100, or false. */
static bool add_bias(kt_chat_call *c, int64_t id, const kt_json *bias, kt_api_error *e) {
    bool never = kt_json_type_of(bias) == KT_JSON_BOOL && !kt_json_bool(bias, true);
    double v = kt_json_double(bias, NAN);

    if (id < 0 || id >= c->app->backend->vocab)
        return kt_api_refuse(e, 400, "logit_bias", "invalid_value",
                             "a key of 'logit_bias' is no token id from 0 to %lld",
                             (long long)c->app->backend->vocab - 1);
    if (!never && !(v >= -100 && v <= 100))
        return kt_api_refuse(e, 400, "logit_bias", "invalid_value",
                             "'logit_bias' of token %lld is no number from -100 to 100",
                             (long long)id);
    c->run.bias[c->run.n_bias++] = (kt_token_bias){(int32_t)id, never ? -100.0f : (float)v};
    return true;
}

static int64_t parse_id(const char *text) {
    char *end;
    long long id = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    return id >= 0 && !*end ? id : -1;
}

static bool parse_bias(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "logit_bias");
    kt_json_type type = kt_json_type_of(v);
    size_t n = kt_json_length(v), size;
    const char *key;

    if (!v) return true;
    if (type != KT_JSON_OBJECT && type != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "logit_bias", v, "an object of biases by token id");
    c->run.bias = malloc((n + 1) * sizeof *c->run.bias);
    if (!c->run.bias) return kt_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const kt_json *pair = kt_json_at(v, i), *bias = kt_json_at(pair, 1);
        int64_t id = kt_json_int(kt_json_at(pair, 0), -1);
        if (type == KT_JSON_OBJECT) {
            bias = kt_json_member(v, i, &key, &size);
            id = parse_id(key);
        }
        if (!add_bias(c, id, bias, e)) return false;
    }
    return true;
}

bool kt_chat_parse(kt_chat_call *c, const kt_json *body, kt_api_error *e) {
    c->run.sampling = c->app->backend->defaults;
    return kt_chat_check_refused(body, e) && parse_model(c, body, e) &&
           kt_chat_parse_conversation(c, body, e) && kt_chat_parse_tools(c, body, e) &&
           parse_form(c, body, e) && parse_stream(c, body, e) && parse_lengths(c, body, e) &&
           parse_sampling(c, body, e) && parse_stop(c, body, e) && parse_stop_ids(c, body, e) &&
           parse_bias(c, body, e);
}
