/* A response and its items as JSON. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/http/api/responses_call.h"

static void add_empty_array(kt_json_writer *w, const char *key) {
    kt_json_key(w, key);
    kt_json_begin_array(w);
    kt_json_end_array(w);
}

/* ---- items ---- */

void kt_responses_add_id(const kt_responses_call *c, kt_json_writer *w, const char *key) {
    static const char *const prefixes[] = {"", "msg", "rs", "fc"};
    const char *prefix = c->called.is_custom ? "ctc" : prefixes[c->open];
    char id[64];

    snprintf(id, sizeof id, "%s_%s_%lld", prefix, kt_http_request_id(c->chat.call.x),
             (long long)c->n_items - 1);
    kt_json_add_string(w, key, id);
}

void kt_responses_add_logprobs(kt_json_writer *w, const char *members, size_t size) {
    kt_json_key(w, "logprobs");
    kt_json_begin_array(w);
    if (size) kt_json_put_raw(w, members, size);
    kt_json_end_array(w);
}

/* What deltas will say is empty before them. */
static void add_said(kt_json_writer *w, const char *key, const kt_text *t, bool is_begun) {
    static const kt_text nothing;

    kt_api_add_text(w, key, is_begun ? &nothing : t);
}

void kt_responses_put_part(const kt_responses_call *c, kt_json_writer *w, bool is_begun) {
    const bool is_message = c->open == KT_ITEM_MESSAGE;

    kt_json_begin_object(w);
    kt_json_add_string(w, "type", is_message ? "output_text" : "reasoning_text");
    add_said(w, "text", &c->text, is_begun);
    if (is_message) {
        add_empty_array(w, "annotations");
        kt_responses_add_logprobs(w, c->logprobs.data, is_begun ? 0 : c->logprobs.size);
    }
    kt_json_end_object(w);
}

void kt_responses_add_name(const kt_responses_call *c, kt_json_writer *w) {
    if (c->called.tool)
        kt_json_add_string(w, "name", kt_json_text(c->called.tool, "name"));
    else
        kt_api_add_text(w, "name", &c->tool);
}

void kt_responses_put_item(const kt_responses_call *c, kt_json_writer *w, bool is_begun,
                           const char *status) {
    static const char *const types[] = {"", "message", "reasoning", "function_call"};
    const bool is_custom = c->called.is_custom;

    kt_json_begin_object(w);
    kt_responses_add_id(c, w, "id");
    kt_json_add_string(w, "type", is_custom ? "custom_tool_call" : types[c->open]);
    kt_json_add_string(w, "status", status);
    if (c->open == KT_ITEM_CALL) {
        kt_api_add_text(w, "call_id", &c->tool_id);
        kt_responses_add_name(c, w);
        if (c->called.space)
            kt_json_add_string(w, "namespace", kt_json_text(c->called.space, "name"));
        add_said(w, is_custom ? "input" : "arguments", &c->text, is_begun);
    } else {
        if (c->open == KT_ITEM_MESSAGE)
            kt_json_add_string(w, "role", "assistant");
        else
            add_empty_array(w, "summary");
        kt_json_key(w, "content");
        kt_json_begin_array(w);
        if (!is_begun) kt_responses_put_part(c, w, false);
        kt_json_end_array(w);
    }
    kt_json_end_object(w);
}

/* ---- what is repeated of the request ---- */

/* The member as it was sent, or this JSON. */
static void repeat(kt_json_writer *w, const kt_json *of, const char *key, const char *otherwise) {
    const kt_json *v = kt_field(of, key);

    kt_json_key(w, key);
    if (v)
        kt_json_put_value(w, v);
    else
        kt_json_put_raw(w, otherwise, strlen(otherwise));
}

static void repeat_request(const kt_responses_call *c, kt_json_writer *w) {
    const kt_json *body = kt_json_root(c->chat.call.body), *reasoning = kt_field(body, "reasoning");
    const kt_sampling *s = &c->chat.call.run.sampling;

    repeat(w, body, "instructions", "null");
    repeat(w, body, "max_output_tokens", "null");
    repeat(w, body, "max_tool_calls", "null");
    repeat(w, body, "metadata", "{}");
    repeat(w, body, "parallel_tool_calls", "true");
    repeat(w, body, "prompt_cache_key", "null");
    repeat(w, body, "safety_identifier", "null");
    repeat(w, body, "tool_choice", "\"auto\"");
    repeat(w, body, "top_logprobs", "0");
    repeat(w, body, "user", "null");
    kt_responses_repeat_tools(w, body);
    kt_json_key(w, "reasoning");
    kt_json_begin_object(w);
    repeat(w, reasoning, "effort", "null");
    kt_json_add_null(w, "summary");
    kt_json_end_object(w);
    kt_json_key(w, "text");
    kt_json_begin_object(w);
    repeat(w, kt_field(body, "text"), "format", "{\"type\":\"text\"}");
    kt_json_end_object(w);
    kt_json_add_double(w, "temperature", (double)s->temperature);
    kt_json_add_double(w, "top_p", (double)s->top_p);
    kt_json_add_double(w, "presence_penalty", (double)s->presence_penalty);
    kt_json_add_double(w, "frequency_penalty", (double)s->frequency_penalty);
}

/* What this server has for every request. */
static void put_constants(kt_json_writer *w) {
    kt_json_add_bool(w, "background", false);
    kt_json_add_null(w, "error");
    kt_json_add_null(w, "previous_response_id");
    kt_json_add_string(w, "service_tier", "default");
    kt_json_add_bool(w, "store", false);
    kt_json_add_string(w, "truncation", "disabled");
}

/* ---- the response ---- */

static void put_usage(const kt_api_call *c, kt_json_writer *w) {
    const kt_request *r = &c->run;

    kt_json_begin_object(w);
    kt_json_add_int(w, "input_tokens", r->prompt_tokens);
    kt_json_key(w, "input_tokens_details");
    kt_json_begin_object(w);
    kt_json_add_int(w, "cached_tokens", r->cached_tokens);
    kt_json_end_object(w);
    kt_json_add_int(w, "output_tokens", r->completion_tokens);
    kt_json_key(w, "output_tokens_details");
    kt_json_begin_object(w);
    kt_json_add_int(w, "reasoning_tokens", c->reasoning_tokens);
    kt_json_end_object(w);
    kt_json_add_int(w, "total_tokens", r->prompt_tokens + r->completion_tokens);
    kt_json_end_object(w);
}

void kt_responses_put(const kt_responses_call *c, kt_json_writer *w, bool is_over,
                      const char *output, size_t size) {
    const kt_api_call *call = &c->chat.call;
    const bool is_cut = is_over && c->finish == KT_FINISH_LENGTH;
    char id[48];

    snprintf(id, sizeof id, "%s%s", call->kind->id_prefix, kt_http_request_id(call->x));
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", id);
    kt_json_add_string(w, "object", "response");
    kt_json_add_int(w, "created_at", call->created_s);
    kt_json_key(w, "completed_at");
    if (is_over)
        kt_json_put_int(w, kt_clock_unix_ms() / 1000);
    else
        kt_json_put_null(w);
    kt_json_add_string(w, "status", is_cut ? "incomplete" : is_over ? "completed" : "in_progress");
    kt_json_key(w, "incomplete_details");
    if (is_cut) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "reason", "max_output_tokens");
        kt_json_end_object(w);
    } else {
        kt_json_put_null(w);
    }
    kt_json_add_string(w, "model", call->app->model_name);
    kt_json_key(w, "output");
    kt_json_put_raw(w, output, size);
    kt_json_key(w, "usage");
    if (is_over)
        put_usage(call, w);
    else
        kt_json_put_null(w);
    put_constants(w);
    repeat_request(c, w);
}
