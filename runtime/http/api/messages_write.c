/* Events of a chat as those of Anthropic's Messages API: blocks of text, thinking and tool use, one
 * after the other. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/messages_call.h"

/* ---- parts of both forms ---- */

static void put_usage(const kt_api_call *c, kt_json_writer *w) {
    const kt_request *r = &c->run;

    kt_json_key(w, "usage");
    kt_json_begin_object(w);
    kt_json_add_int(w, "input_tokens", r->prompt_tokens - r->cached_tokens);
    kt_json_add_int(w, "cache_creation_input_tokens", 0);
    kt_json_add_int(w, "cache_read_input_tokens", r->cached_tokens);
    kt_json_add_int(w, "output_tokens", r->completion_tokens);
    kt_json_end_object(w);
}

static void put_stop(const kt_messages_call *c, kt_json_writer *w) {
    static const char *const reasons[] = {"end_turn", "max_tokens", "tool_use", "end_turn",
                                          "end_turn"};

    kt_json_add_string(w, "stop_reason", c->matched.size ? "stop_sequence" : reasons[c->finish]);
    kt_json_key(w, "stop_sequence");
    if (c->matched.size)
        kt_json_put_string_n(w, c->matched.data, c->matched.size);
    else
        kt_json_put_null(w);
}

/* An open object with what comes before the content. */
static void put_head(const kt_api_call *c, kt_json_writer *w) {
    char id[48];

    snprintf(id, sizeof id, "%s%s", c->kind->id_prefix, kt_http_request_id(c->x));
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", id);
    kt_json_add_string(w, "type", "message");
    kt_json_add_string(w, "role", "assistant");
    kt_json_add_string(w, "model", c->app->model_name);
    kt_json_key(w, "content");
}

/* ---- a stream ---- */

/* An open object of an event about the open block. */
static void begin_event(const kt_messages_call *c, kt_json_writer *w, const char *type) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "type", type);
    kt_json_add_int(w, "index", c->n_blocks - 1);
}

static void send_start(kt_messages_call *c) {
    static const char type[] = "message_start";
    kt_json_writer w = {0};

    if (c->has_begun) return;
    c->has_begun = true;
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "type", type);
    kt_json_key(&w, "message");
    put_head(&c->chat.call, &w);
    kt_json_begin_array(&w);
    kt_json_end_array(&w);
    kt_json_add_null(&w, "stop_reason");
    kt_json_add_null(&w, "stop_sequence");
    put_usage(&c->chat.call, &w);
    kt_json_end_object(&w);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_block_start(kt_messages_call *c, const kt_event *event) {
    static const char type[] = "content_block_start";
    kt_json_writer w = {0};

    begin_event(c, &w, type);
    kt_json_key(&w, "content_block");
    kt_json_begin_object(&w);
    switch (c->open) {
    case KT_BLOCK_THINKING:
        kt_json_add_string(&w, "type", "thinking");
        kt_json_add_string(&w, "thinking", "");
        kt_json_add_string(&w, "signature", "");
        break;
    case KT_BLOCK_TOOL:
        kt_json_add_string(&w, "type", "tool_use");
        kt_json_add_string(&w, "id", event->as.call.id);
        kt_json_add_string(&w, "name", event->text);
        kt_json_key(&w, "input");
        kt_json_begin_object(&w);
        kt_json_end_object(&w);
        break;
    default:
        kt_json_add_string(&w, "type", "text");
        kt_json_add_string(&w, "text", "");
        break;
    }
    kt_json_end_object(&w);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_delta(kt_messages_call *c, const char *kind, const char *member, const char *text,
                       size_t size) {
    static const char type[] = "content_block_delta";
    kt_json_writer w = {0};

    begin_event(c, &w, type);
    kt_json_key(&w, "delta");
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "type", kind);
    kt_json_key(&w, member);
    kt_json_put_string_n(&w, text, size);
    kt_json_end_object(&w);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_block_stop(kt_messages_call *c) {
    static const char type[] = "content_block_stop";
    kt_json_writer w = {0};

    if (c->open == KT_BLOCK_THINKING) send_delta(c, "signature_delta", "signature", "", 0);
    begin_event(c, &w, type);
    kt_api_send_named(&c->chat.call, &w, type);
}

static void send_end(kt_messages_call *c) {
    static const char type[] = "message_delta", last[] = "message_stop";
    kt_json_writer w = {0}, end = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "type", type);
    kt_json_key(&w, "delta");
    kt_json_begin_object(&w);
    put_stop(c, &w);
    kt_json_end_object(&w);
    put_usage(&c->chat.call, &w);
    kt_api_send_named(&c->chat.call, &w, type);
    kt_json_begin_object(&end);
    kt_json_add_string(&end, "type", last);
    kt_api_send_named(&c->chat.call, &end, last);
    if (!atomic_load(&c->chat.call.failed)) kt_http_stream_end(c->chat.call.x);
}

/* ---- the whole answer ---- */

/* Arguments are JSON when they are complete; what a client could not read is left out. */
static void put_input(kt_messages_call *c, kt_json_writer *w) {
    kt_json_doc *doc = NULL;
    const kt_status st = kt_json_parse(c->text.data, c->text.size, NULL, &doc, NULL);

    if (st == KT_E_NOMEM) kt_api_lose(&c->chat.call);
    kt_json_key(w, "input");
    if (kt_json_type_of(kt_json_root(doc)) == KT_JSON_OBJECT) {
        kt_json_put_value(w, kt_json_root(doc));
    } else {
        kt_json_begin_object(w);
        kt_json_end_object(w);
    }
    kt_json_destroy(doc);
}

static void keep_block(kt_messages_call *c) {
    kt_json_writer *w = &c->content;

    kt_json_begin_object(w);
    switch (c->open) {
    case KT_BLOCK_THINKING:
        kt_json_add_string(w, "type", "thinking");
        kt_api_add_text(w, "thinking", &c->text);
        kt_json_add_string(w, "signature", "");
        break;
    case KT_BLOCK_TOOL:
        kt_json_add_string(w, "type", "tool_use");
        kt_api_add_text(w, "id", &c->tool_id);
        kt_api_add_text(w, "name", &c->tool);
        put_input(c, w);
        break;
    default:
        kt_json_add_string(w, "type", "text");
        kt_api_add_text(w, "text", &c->text);
        break;
    }
    kt_json_end_object(w);
    c->text.size = c->tool.size = c->tool_id.size = 0;
}

static void reply_whole(kt_messages_call *c) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;

    kt_json_end_array(&c->content);
    text = kt_json_writer_text(&c->content, &size);
    if (!text) {
        kt_api_lose(&c->chat.call);
        return;
    }
    put_head(&c->chat.call, &w);
    kt_json_put_raw(&w, text, size);
    put_stop(c, &w);
    put_usage(&c->chat.call, &w);
    kt_json_end_object(&w);
    kt_api_reply(&c->chat.call, &w);
}

/* ---- blocks ---- */

static void close_block(kt_messages_call *c) {
    if (c->open == KT_BLOCK_NONE) return;
    if (c->chat.call.stream)
        send_block_stop(c);
    else
        keep_block(c);
    c->open = KT_BLOCK_NONE;
}

static void open_block(kt_messages_call *c, kt_block_kind kind, const kt_event *event) {
    close_block(c);
    c->open = kind;
    c->n_blocks++;
    if (c->chat.call.stream) {
        send_block_start(c, event);
    } else if (kind == KT_BLOCK_TOOL) {
        kt_api_append(&c->chat.call, &c->tool, event->text, event->size);
        kt_api_append(&c->chat.call, &c->tool_id, event->as.call.id, strlen(event->as.call.id));
    }
}

/* A piece of text, thinking or arguments. */
static void add_piece(kt_messages_call *c, kt_block_kind kind, const kt_event *event) {
    static const char *const kinds[][2] = {{"", ""},
                                           {"text_delta", "text"},
                                           {"thinking_delta", "thinking"},
                                           {"input_json_delta", "partial_json"}};

    if (c->open != kind) open_block(c, kind, event);
    if (c->chat.call.stream)
        send_delta(c, kinds[kind][0], kinds[kind][1], event->text, event->size);
    else
        kt_api_append(&c->chat.call, &c->text, event->text, event->size);
}

static void note_finish(kt_messages_call *c, const kt_event_finish *f) {
    close_block(c);
    c->finish = f->reason;
    if (f->matched) kt_api_append(&c->chat.call, &c->matched, f->matched, strlen(f->matched));
}

void kt_messages_on_event(kt_api_call *call, const kt_event *event) {
    kt_messages_call *c = (kt_messages_call *)(void *)call;

    if (call->stream) send_start(c);
    if (!kt_chat_takes(&c->chat, event)) return;
    switch (event->kind) {
    case KT_EVENT_TEXT: add_piece(c, KT_BLOCK_TEXT, event); break;
    case KT_EVENT_REASONING: add_piece(c, KT_BLOCK_THINKING, event); break;
    case KT_EVENT_TOOL_BEGIN: open_block(c, KT_BLOCK_TOOL, event); break;
    case KT_EVENT_TOOL_ARGUMENTS:
        if (c->open == KT_BLOCK_TOOL) add_piece(c, KT_BLOCK_TOOL, event);
        break;
    case KT_EVENT_TOOL_END: close_block(c); break;
    case KT_EVENT_FINISH: note_finish(c, &event->as.finish); break;
    case KT_EVENT_LOGPROB:
    case KT_EVENT_PROGRESS: break;
    }
}

void kt_messages_finish(kt_api_call *call) {
    kt_messages_call *c = (kt_messages_call *)(void *)call;

    if (call->stream)
        send_end(c);
    else
        reply_whole(c);
}

/* ---- the kind ---- */

static bool prepare(kt_api_call *call, const kt_json *body, kt_api_error *e) {
    kt_messages_call *c = (kt_messages_call *)(void *)call;

    kt_json_begin_array(&c->content);
    return kt_messages_translate(body, true, &c->as_chat, e) &&
           kt_chat_parse(&c->chat, kt_json_root(c->as_chat), "stop_sequences", e) &&
           kt_chat_make_run(&c->chat, e);
}

static void release(kt_api_call *call) {
    kt_messages_call *c = (kt_messages_call *)(void *)call;

    kt_chat_release(call);
    kt_json_destroy(c->as_chat);
    kt_json_writer_deinit(&c->content);
    free(c->text.data);
    free(c->tool.data);
    free(c->tool_id.data);
    free(c->matched.data);
}

const kt_api_kind kt_api_kind_messages = {.name = "messages",
                                          .id_prefix = "msg_",
                                          .call_bytes = sizeof(kt_messages_call),
                                          .prepare = prepare,
                                          .event = kt_messages_on_event,
                                          .finish = kt_messages_finish,
                                          .is_free = kt_chat_is_free,
                                          .release = release};
