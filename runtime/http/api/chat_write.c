/* Events to JSON. A stream's chunks have the form that llama-server's tests and OpenAI's own client
 * check: first a role with content null, never an empty delta, one chunk with the reason of the
 * end, at last the usage. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/http/api/chat.h"
#include "runtime/token/utf8_scan.h"

/* ---- parts of both forms ---- */

static void put_finish(const kt_chat_choice *ch, kt_json_writer *w) {
    static const char *const reasons[] = {"stop", "length", "tool_calls", "stop", "stop"};

    kt_json_key(w, "finish_reason");
    if (!ch->is_finished) {
        kt_json_put_null(w);
        return;
    }
    kt_json_put_string(w, reasons[ch->finish]);
    kt_json_key(w, "stop_reason"); /* vLLM's: what matched */
    if (ch->matched.size)
        kt_json_put_string_n(w, ch->matched.data, ch->matched.size);
    else if (ch->stop_token >= 0)
        kt_json_put_int(w, ch->stop_token);
    else
        kt_json_put_null(w);
}

/* Both names that clients know. */
static void put_reasoning(kt_json_writer *w, const char *text, size_t size) {
    kt_json_key(w, "reasoning_content");
    kt_json_put_string_n(w, text, size);
    kt_json_key(w, "reasoning");
    kt_json_put_string_n(w, text, size);
}

/* ---- logprobs ---- */

/* {"token","logprob","bytes"}, left open: the first of them has top_logprobs too. */
static void begin_token(const kt_chat_call *c, kt_json_writer *w, int32_t id, float logprob) {
    size_t size = 0;
    const char *bytes = kt_tokenizer_bytes(c->call.app->backend->tokenizer, id, &size, NULL);

    if (!bytes) bytes = "";
    kt_json_begin_object(w);
    kt_json_key(w, "token");
    kt_json_put_string_n(w, bytes, size); /* parts of characters become U+FFFD; bytes are exact */
    kt_json_key(w, "logprob");
    kt_api_put_logprob(w, logprob);
    kt_json_key(w, "bytes");
    kt_json_begin_array(w);
    for (size_t i = 0; i < size; i++) kt_json_put_int(w, (unsigned char)bytes[i]);
    kt_json_end_array(w);
}

/* Gathered as the inside of an array: the writer begins one that is never ended, its '[' is left
 * out. */
void kt_chat_keep_logprob(kt_chat_call *c, kt_chat_choice *ch, const kt_event_logprob *p) {
    kt_json_writer *w = &ch->logprobs;

    if (w->depth == 0) kt_json_begin_array(w);
    begin_token(c, w, p->token, p->value);
    kt_json_key(w, "top_logprobs");
    kt_json_begin_array(w);
    for (int i = 0; i < p->n_top && i < c->call.run.logprobs; i++) {
        begin_token(c, w, p->top_token[i], p->top_value[i]);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
    ch->n_logprobs++;
}

const char *kt_chat_logprobs(kt_chat_call *c, kt_chat_choice *ch, size_t *size) {
    const char *text;

    if (ch->n_logprobs == 0) return NULL;
    kt_json_end_array(&ch->logprobs);
    text = kt_json_writer_text(&ch->logprobs, size);
    if (!text) kt_api_lose(&c->call);
    return text;
}

void kt_chat_drop_logprobs(kt_chat_choice *ch) {
    kt_json_writer_deinit(&ch->logprobs);
    memset(&ch->logprobs, 0, sizeof ch->logprobs);
    ch->n_logprobs = 0;
}

static void put_logprobs(kt_chat_call *c, kt_chat_choice *ch, kt_json_writer *w) {
    size_t size;
    const char *text = kt_chat_logprobs(c, ch, &size);

    kt_json_key(w, "logprobs");
    if (!text) {
        kt_json_put_null(w);
        return;
    }
    kt_json_begin_object(w);
    kt_json_key(w, "content");
    kt_json_put_raw(w, text, size);
    kt_json_add_null(w, "refusal");
    kt_json_end_object(w);
    kt_chat_drop_logprobs(ch);
}

/* ---- a stream ---- */

/* A chunk up to the inside of delta. */
static void begin_chunk(const kt_chat_call *c, kt_json_writer *w, int choice) {
    kt_api_put_head(&c->call, w, c->call.kind->chunk);
    kt_json_key(w, "choices");
    kt_json_begin_array(w);
    kt_json_begin_object(w);
    kt_json_add_int(w, "index", choice);
    kt_json_key(w, "delta");
    kt_json_begin_object(w);
}

static void end_chunk(kt_chat_call *c, kt_json_writer *w, int choice) {
    kt_chat_choice *ch = &c->choices[choice];

    kt_json_end_object(w);
    put_logprobs(c, ch, w);
    put_finish(ch, w);
    kt_json_end_object(w);
    kt_json_end_array(w);
    kt_api_end_chunk(&c->call, w);
}

static void send_role(kt_chat_call *c, int choice) {
    kt_json_writer w = {0};
    kt_chat_choice *ch = &c->choices[choice];
    const bool timings = c->call.timings_per_token;
    const size_t waiting = ch->n_logprobs;

    if (ch->has_role) return;
    ch->has_role = true;
    ch->n_logprobs = 0; /* they and timings belong to the text behind */
    c->call.timings_per_token = false;
    begin_chunk(c, &w, choice);
    kt_json_add_string(&w, "role", "assistant");
    kt_json_add_null(&w, "content");
    end_chunk(c, &w, choice);
    ch->n_logprobs = waiting;
    c->call.timings_per_token = timings;
}

static void put_delta(const kt_event *event, kt_json_writer *w) {
    bool begins = event->kind == KT_EVENT_TOOL_BEGIN;

    if (event->kind == KT_EVENT_REASONING) {
        put_reasoning(w, event->text, event->size);
        return;
    }
    if (event->kind == KT_EVENT_TEXT) {
        kt_json_key(w, "content");
        kt_json_put_string_n(w, event->text, event->size);
        return;
    }
    kt_json_key(w, "tool_calls");
    kt_json_begin_array(w);
    kt_json_begin_object(w);
    kt_json_add_int(w, "index", event->tool);
    if (begins) {
        kt_json_add_string(w, "id", event->as.call.id);
        kt_json_add_string(w, "type", "function");
    }
    kt_json_key(w, "function");
    kt_json_begin_object(w);
    if (begins) {
        kt_json_key(w, "name");
        kt_json_put_string_n(w, event->text, event->size);
    }
    kt_json_key(w, "arguments");
    kt_json_put_string_n(w, begins ? "" : event->text, begins ? 0 : event->size);
    kt_json_end_object(w);
    kt_json_end_object(w);
    kt_json_end_array(w);
}

static void send_delta(kt_chat_call *c, const kt_event *event) {
    kt_json_writer w = {0};

    send_role(c, event->choice);
    begin_chunk(c, &w, event->choice);
    put_delta(event, &w);
    end_chunk(c, &w, event->choice);
}

static void send_progress(kt_chat_call *c, const kt_event_progress *p) {
    kt_json_writer w = {0};

    send_role(c, 0);
    kt_api_begin_chunk(&c->call, &w);
    kt_json_key(&w, "prompt_progress");
    kt_json_begin_object(&w);
    kt_json_add_int(&w, "total", p->total);
    kt_json_add_int(&w, "cache", p->cached);
    kt_json_add_int(&w, "processed", p->done);
    kt_json_add_int(&w, "time_ms", (kt_clock_ns() - c->call.activity.begin_ns) / 1000000);
    kt_json_end_object(&w);
    kt_api_end_chunk(&c->call, &w);
}

static void send_finish(kt_chat_call *c, int choice) {
    kt_json_writer w = {0};

    begin_chunk(c, &w, choice);
    end_chunk(c, &w, choice);
}

/* ---- gathering ---- */

static kt_chat_tool *tool_at(kt_chat_call *c, const kt_event *event) {
    kt_chat_choice *ch = &c->choices[event->choice];
    size_t wanted = (size_t)event->tool + 1, before = ch->n_tools;
    void *data = ch->tools;

    if (wanted > before) {
        if (kt_grow(&data, before, &ch->tool_capacity, wanted - before, sizeof *ch->tools, NULL) !=
            KT_OK) {
            kt_api_lose(&c->call);
            return NULL;
        }
        ch->tools = data;
        memset(ch->tools + before, 0, (wanted - before) * sizeof *ch->tools);
        ch->n_tools = wanted;
    }
    return &ch->tools[event->tool];
}

static void gather(kt_chat_call *c, const kt_event *event) {
    kt_chat_choice *ch = &c->choices[event->choice];
    kt_chat_tool *tool =
        event->tool >= 0 && event->kind >= KT_EVENT_TOOL_BEGIN && event->kind <= KT_EVENT_TOOL_END
            ? tool_at(c, event)
            : NULL;

    if (event->kind == KT_EVENT_TEXT)
        kt_api_append(&c->call, &ch->content, event->text, event->size);
    if (event->kind == KT_EVENT_REASONING)
        kt_api_append(&c->call, &ch->reasoning, event->text, event->size);
    if (event->kind == KT_EVENT_TOOL_BEGIN && tool) {
        kt_api_append(&c->call, &tool->name, event->text, event->size);
        kt_api_append(&c->call, &tool->id, event->as.call.id, strlen(event->as.call.id));
    }
    if (event->kind == KT_EVENT_TOOL_ARGUMENTS && tool)
        kt_api_append(&c->call, &tool->arguments, event->text, event->size);
}

/* ---- the sink ---- */

/* End tokens end every answer; only what the request named is worth telling. */
static bool is_stop_id(const kt_chat_call *c, int32_t id) {
    for (size_t i = 0; i < c->call.run.n_stop_ids; i++)
        if (c->call.run.stop_ids[i] == id) return true;
    return false;
}

static void note_finish(kt_chat_call *c, const kt_event *event) {
    kt_chat_choice *ch = &c->choices[event->choice];
    const kt_event_finish *f = &event->as.finish;

    if (c->call.stream)
        send_role(c, event->choice); /* an empty answer has only the end behind it */
    ch->is_finished = true;
    ch->finish = f->reason;
    ch->stop_token = is_stop_id(c, f->stop_token) ? f->stop_token : -1;
    if (f->matched) kt_api_append(&c->call, &ch->matched, f->matched, strlen(f->matched));
    if (c->call.stream) send_finish(c, event->choice);
}

void kt_chat_on_event(kt_api_call *call, const kt_event *event) {
    kt_chat_call *c = (kt_chat_call *)(void *)call;

    if (!kt_chat_takes(c, event)) return;
    switch (event->kind) {
    case KT_EVENT_LOGPROB:
        if (!event->as.logprob.is_prompt)
            kt_chat_keep_logprob(c, &c->choices[event->choice], &event->as.logprob);
        return;
    case KT_EVENT_PROGRESS:
        if (call->stream && c->progress) send_progress(c, &event->as.progress);
        return;
    case KT_EVENT_FINISH: note_finish(c, event); return;
    case KT_EVENT_TOOL_END: return;
    default: break;
    }
    if (call->stream)
        send_delta(c, event);
    else
        gather(c, event);
}

/* ---- the whole answer ---- */

static void put_tools(const kt_chat_choice *ch, kt_json_writer *w) {
    if (ch->n_tools == 0) return;
    kt_json_key(w, "tool_calls");
    kt_json_begin_array(w);
    for (size_t i = 0; i < ch->n_tools; i++) {
        kt_json_begin_object(w);
        kt_api_add_text(w, "id", &ch->tools[i].id);
        kt_json_add_string(w, "type", "function");
        kt_json_key(w, "function");
        kt_json_begin_object(w);
        kt_api_add_text(w, "name", &ch->tools[i].name);
        kt_api_add_text(w, "arguments", &ch->tools[i].arguments);
        kt_json_end_object(w);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

static void put_choice(kt_chat_call *c, kt_json_writer *w, int i) {
    kt_chat_choice *ch = &c->choices[i];

    kt_json_begin_object(w);
    kt_json_add_int(w, "index", i);
    kt_json_key(w, "message");
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", "assistant");
    if (ch->n_tools > 0 && ch->content.size == 0)
        kt_json_add_null(w, "content");
    else
        kt_api_add_text(w, "content", &ch->content);
    kt_json_add_null(w, "refusal");
    if (ch->reasoning.size) put_reasoning(w, ch->reasoning.data, ch->reasoning.size);
    put_tools(ch, w);
    kt_json_end_object(w);
    put_logprobs(c, ch, w);
    put_finish(ch, w);
    kt_json_end_object(w);
}

static void reply_whole(kt_chat_call *c) {
    kt_json_writer w = {0};

    kt_api_put_head(&c->call, &w, "chat.completion");
    kt_json_key(&w, "choices");
    kt_json_begin_array(&w);
    for (int i = 0; i < c->call.run.n; i++) put_choice(c, &w, i);
    kt_json_end_array(&w);
    kt_api_put_usage(&c->call, &w);
    kt_api_put_timings(&c->call, &w);
    kt_json_end_object(&w);
    kt_api_reply(&c->call, &w);
}

void kt_chat_finish(kt_api_call *call) {
    if (call->stream)
        kt_api_end_stream(call);
    else
        reply_whole((kt_chat_call *)(void *)call);
}
