/* Events of a chat as those of OpenAI's Responses API: items of reasoning, of text and of calls,
 * one after the other. What a stream has said is said once more where an item and where the
 * response is complete. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/responses_call.h"

/* ---- events of a stream ---- */

static void begin_event(kt_responses_call *c, kt_json_writer *w, const char *type) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", type);
    kt_json_add_int(w, "sequence_number", c->n_events++);
}

static void send_response(kt_responses_call *c, const char *type, bool is_over, const char *output,
                          size_t size) {
    kt_json_writer w = {0};

    begin_event(c, &w, type);
    kt_json_key(&w, "response");
    kt_responses_put(c, &w, is_over, output, size);
    if (is_over) kt_api_put_timings(&c->chat.call, &w);
    kt_json_end_object(&w);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_start(kt_responses_call *c) {
    if (c->n_events) return;
    send_response(c, "response.created", false, "[]", 2);
    send_response(c, "response.in_progress", false, "[]", 2);
}

static void send_item(kt_responses_call *c, const char *type, bool is_begun, const char *status) {
    kt_json_writer w = {0};

    begin_event(c, &w, type);
    kt_json_add_int(&w, "output_index", c->n_items - 1);
    kt_json_key(&w, "item");
    kt_responses_put_item(c, &w, is_begun, status);
    kt_api_send_named(&c->chat.call, &w, type);
}

/* An open object of an event about the open item's content. */
static void begin_content(kt_responses_call *c, kt_json_writer *w, const char *type) {
    begin_event(c, w, type);
    kt_responses_add_id(c, w, "item_id");
    kt_json_add_int(w, "output_index", c->n_items - 1);
    if (c->open != KT_ITEM_CALL) kt_json_add_int(w, "content_index", 0);
}

static void send_part(kt_responses_call *c, const char *type, bool is_begun) {
    kt_json_writer w = {0};

    begin_content(c, &w, type);
    kt_json_key(&w, "part");
    kt_responses_put_part(c, &w, is_begun);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_delta(kt_responses_call *c, const char *text, size_t size, const char *logprobs,
                       size_t logprobs_size) {
    static const char *const types[] = {"", "response.output_text.delta",
                                        "response.reasoning_text.delta",
                                        "response.function_call_arguments.delta"};
    const char *type =
        c->called.is_custom ? "response.custom_tool_call_input.delta" : types[c->open];
    kt_json_writer w = {0};

    begin_content(c, &w, type);
    kt_json_key(&w, "delta");
    kt_json_put_string_n(&w, text, size);
    if (c->open == KT_ITEM_MESSAGE) kt_responses_add_logprobs(&w, logprobs, logprobs_size);
    kt_api_send_named(&c->chat.call, &w, type);
}

/* All that deltas said, in one. */
static void send_done(kt_responses_call *c) {
    static const char *const types[] = {"", "response.output_text.done",
                                        "response.reasoning_text.done",
                                        "response.function_call_arguments.done"};
    static const char *const members[] = {"", "text", "text", "arguments"};
    const bool is_custom = c->called.is_custom;
    const char *type = is_custom ? "response.custom_tool_call_input.done" : types[c->open];
    kt_json_writer w = {0};

    begin_content(c, &w, type);
    if (c->open == KT_ITEM_CALL) kt_responses_add_name(c, &w);
    kt_api_add_text(&w, is_custom ? "input" : members[c->open], &c->text);
    if (c->open == KT_ITEM_MESSAGE)
        kt_responses_add_logprobs(&w, c->logprobs.data, c->logprobs.size);
    kt_api_send_named(&c->chat.call, &w, type);
}

/* ---- items ---- */

/* A custom tool's only argument is what it is told: it is known when the arguments are whole. */
static void unwrap_input(kt_responses_call *c) {
    kt_json_doc *doc = NULL;
    const kt_status st =
        kt_json_parse(c->text.data ? c->text.data : "", c->text.size, NULL, &doc, NULL);
    size_t size = 0;
    const char *input = kt_json_string(kt_json_get(kt_json_root(doc), "input"), &size);

    if (st == KT_E_NOMEM) kt_api_lose(&c->chat.call);
    if (input) {
        c->text.size = 0;
        kt_api_append(&c->chat.call, &c->text, input, size);
    }
    kt_json_destroy(doc);
    if (c->chat.call.stream) send_delta(c, c->text.data ? c->text.data : "", c->text.size, "", 0);
}

static void close_item(kt_responses_call *c, const char *status) {
    if (c->open == KT_ITEM_NONE) return;
    if (c->called.is_custom) unwrap_input(c);
    if (c->chat.call.stream) {
        send_done(c);
        if (c->open != KT_ITEM_CALL) send_part(c, "response.content_part.done", false);
        send_item(c, "response.output_item.done", false, status);
    }
    kt_responses_put_item(c, &c->output, false, status);
    c->text.size = c->logprobs.size = c->tool.size = c->tool_id.size = 0;
    c->called = (kt_tool_place){0};
    c->open = KT_ITEM_NONE;
}

static void open_item(kt_responses_call *c, kt_item_kind kind, const kt_event *event) {
    close_item(c, "completed");
    c->open = kind;
    c->n_items++;
    if (kind == KT_ITEM_CALL) {
        kt_api_append(&c->chat.call, &c->tool, event->text, event->size);
        kt_api_append(&c->chat.call, &c->tool_id, event->as.call.id, strlen(event->as.call.id));
        c->called = kt_responses_find_tool(kt_json_root(c->chat.call.body), &c->tool);
    }
    if (!c->chat.call.stream) return;
    send_item(c, "response.output_item.added", true, "in_progress");
    if (kind != KT_ITEM_CALL) send_part(c, "response.content_part.added", true);
}

/* Those of the tokens that this piece of the message is made of. */
static void take_logprobs(kt_responses_call *c, const char **members, size_t *size) {
    kt_chat_choice *ch = &c->chat.choices[0];
    const char *list = kt_chat_logprobs(&c->chat, ch, size);

    *members = "";
    if (!list) {
        *size = 0;
        return;
    }
    *members = list + 1; /* without its brackets */
    *size -= 2;
    if (c->logprobs.size) kt_api_append(&c->chat.call, &c->logprobs, ",", 1);
    kt_api_append(&c->chat.call, &c->logprobs, *members, *size);
}

/* A piece of text, reasoning or arguments. */
static void add_piece(kt_responses_call *c, kt_item_kind kind, const kt_event *event) {
    const char *logprobs = "";
    size_t size = 0;

    if (c->open != kind) open_item(c, kind, event);
    if (kind == KT_ITEM_MESSAGE) take_logprobs(c, &logprobs, &size);
    kt_api_append(&c->chat.call, &c->text, event->text, event->size);
    if (c->chat.call.stream && !c->called.is_custom)
        send_delta(c, event->text, event->size, logprobs, size);
    kt_chat_drop_logprobs(&c->chat.choices[0]); /* of reasoning and calls none are told */
}

/* Of the tokens that end reasoning none is told: only the last that waits can be of the text. */
static void keep_logprob(kt_responses_call *c, const kt_event_logprob *p) {
    kt_chat_choice *ch = &c->chat.choices[0];

    if (p->is_prompt) return;
    if (c->open == KT_ITEM_REASONING) kt_chat_drop_logprobs(ch);
    kt_chat_keep_logprob(&c->chat, ch, p);
}

static void note_finish(kt_responses_call *c, const kt_event_finish *f) {
    c->finish = f->reason;
    close_item(c, f->reason == KT_FINISH_LENGTH ? "incomplete" : "completed");
}

void kt_responses_on_event(kt_api_call *call, const kt_event *event) {
    kt_responses_call *c = (kt_responses_call *)(void *)call;

    if (call->stream) send_start(c);
    if (!kt_chat_takes(&c->chat, event)) return;
    switch (event->kind) {
    case KT_EVENT_TEXT: add_piece(c, KT_ITEM_MESSAGE, event); break;
    case KT_EVENT_REASONING: add_piece(c, KT_ITEM_REASONING, event); break;
    case KT_EVENT_TOOL_BEGIN: open_item(c, KT_ITEM_CALL, event); break;
    case KT_EVENT_TOOL_ARGUMENTS:
        if (c->open == KT_ITEM_CALL) add_piece(c, KT_ITEM_CALL, event);
        break;
    case KT_EVENT_TOOL_END:
        close_item(c, event->as.call.is_cut ? "incomplete" : "completed");
        break;
    case KT_EVENT_FINISH: note_finish(c, &event->as.finish); break;
    case KT_EVENT_LOGPROB: keep_logprob(c, &event->as.logprob); break;
    case KT_EVENT_PROGRESS: break;
    }
}

/* ---- the end ---- */

void kt_responses_finish(kt_api_call *call) {
    kt_responses_call *c = (kt_responses_call *)(void *)call;
    kt_json_writer w = {0};
    const char *output;
    size_t size;

    kt_json_end_array(&c->output);
    output = kt_json_writer_text(&c->output, &size);
    if (!output) {
        kt_api_lose(call);
    } else if (call->stream) {
        send_response(c,
                      c->finish == KT_FINISH_LENGTH ? "response.incomplete" : "response.completed",
                      true, output, size);
        if (!atomic_load(&call->failed)) kt_http_stream_end(call->x);
    } else {
        kt_responses_put(c, &w, true, output, size);
        kt_api_put_timings(call, &w);
        kt_json_end_object(&w);
        kt_api_reply(call, &w);
    }
}

/* ---- the kind ---- */

static bool prepare(kt_api_call *call, const kt_json *body, kt_api_error *e) {
    kt_responses_call *c = (kt_responses_call *)(void *)call;

    kt_json_begin_array(&c->output);
    if (!kt_responses_translate(body, &c->as_chat, e)) return false;
    if (kt_chat_parse(&c->chat, kt_json_root(c->as_chat), "stop", e) &&
        kt_chat_make_run(&c->chat, e))
        return true;
    kt_responses_rename(e);
    return false;
}

static void release(kt_api_call *call) {
    kt_responses_call *c = (kt_responses_call *)(void *)call;

    kt_chat_release(call);
    kt_json_destroy(c->as_chat);
    kt_json_writer_deinit(&c->output);
    free(c->text.data);
    free(c->logprobs.data);
    free(c->tool.data);
    free(c->tool_id.data);
}

const kt_api_kind kt_api_kind_responses = {.name = "responses",
                                           .id_prefix = "resp_",
                                           .call_bytes = sizeof(kt_responses_call),
                                           .keeps_body = true,
                                           .prepare = prepare,
                                           .event = kt_responses_on_event,
                                           .finish = kt_responses_finish,
                                           .is_free = kt_chat_is_free,
                                           .release = release};
