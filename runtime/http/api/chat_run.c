/* A chat as a request of the scheduler: its parser, its grammar, its events, its end. Most of this
 * runs on the scheduler's thread. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/http/api/chat.h"

/* Unread bytes at which a stream's request rests until its client has read some. */
enum { BEHIND_BYTES = 256 * 1024 };

/* ---- the output parser, one for each choice ---- */

static kt_status open_parser(void *arg, int choice, void **state, kt_err *err) {
    kt_chat_call *c = arg;
    const kt_chat_model *m = c->app->chat;
    const kt_parser_options options = {
        .choice = {c->request.tools ? m->parsers.calls : NULL, m->parsers.reasoning},
        .tools = c->request.tools,
        .starts_in_reasoning = c->prompt.starts_in_reasoning,
        .first_call = c->first_call,
        .seed = strtoull(kt_http_request_id(c->x) + 8, NULL, 16) + (uint64_t)choice,
        .special_token = kt_chat_special_token,
        .special_arg = c->app->backend->tokenizer};
    kt_chat_choice *ch = &c->choices[choice];

    *state = NULL;
    KT_TRY(kt_parser_create(&options, &ch->parser, err));
    *state = ch;
    return KT_OK;
}

static kt_parser *parser_of(const void *state) {
    return ((const kt_chat_choice *)state)->parser;
}

static void close_parser(void *state) {
    kt_chat_choice *ch = state;

    if (!ch) return;
    kt_parser_destroy(ch->parser);
    ch->parser = NULL;
}

static bool parser_wants(void *state, int32_t id) {
    return kt_parser_wants(parser_of(state), id);
}

static kt_status push_parser(void *state, int32_t id, const char *bytes, size_t size,
                             kt_event_sink *sink, void *sink_arg, kt_err *err) {
    return kt_parser_push(parser_of(state), id, bytes, size, sink, sink_arg, err);
}

static kt_status finish_parser(void *state, kt_event_sink *sink, void *sink_arg, kt_err *err) {
    return kt_parser_finish(parser_of(state), sink, sink_arg, err);
}

static bool is_in_reasoning(void *state) {
    return kt_parser_in_reasoning(parser_of(state));
}

static int whole_calls(void *state) {
    int n = 0;

    kt_parser_calls(parser_of(state), &n);
    return n;
}

/* One call was wanted, and it is complete. */
static bool is_output_done(void *state) {
    return ((const kt_chat_choice *)state)->is_cut;
}

/* ---- the grammar, one state for each choice ---- */

/* Reasoning comes before the form that was asked for and is free; a grammar of tool calls describes
 * it itself. */
typedef struct chat_gate {
    kt_chat_call *call;
    int choice;
    kt_grammar_state state;
} chat_gate;

static bool is_held(const chat_gate *g) {
    const kt_chat_call *c = g->call;

    return c->tool_choice >= KT_TOOL_CHOICE_REQUIRED ||
           !kt_parser_in_reasoning(c->choices[g->choice].parser);
}

/* Choices are opened in their order. */
static kt_status open_gate(void *arg, void **state, kt_err *err) {
    kt_chat_call *c = arg;
    chat_gate *g = calloc(1, sizeof *g);
    kt_status st;

    *state = NULL;
    if (!g) return kt_fail(err, KT_E_NOMEM, "no memory for a grammar");
    g->call = c;
    g->choice = c->n_gates++;
    st = kt_grammar_state_init(&g->state, c->grammar, err);
    if (st != KT_OK) {
        free(g);
        return st;
    }
    *state = g;
    return KT_OK;
}

static void close_gate(void *state) {
    chat_gate *g = state;

    if (g) kt_grammar_state_deinit(&g->state);
    free(g);
}

static kt_status mask_gate(void *state, uint64_t *bits, kt_err *err) {
    chat_gate *g = state;

    if (is_held(g)) return kt_grammar_state_mask(&g->state, bits, err);
    memset(bits, 0xff, kt_vocabulary_words(g->call->app->chat->vocabulary) * sizeof *bits);
    return KT_OK;
}

static kt_status accept_gate(void *state, int32_t id, kt_err *err) {
    chat_gate *g = state;
    return is_held(g) ? kt_grammar_state_accept_token(&g->state, id, err) : KT_OK;
}

/* ---- events ---- */

static void begin_stream(kt_chat_call *c) {
    if (!c->stream || c->is_streaming) return;
    kt_http_stream_begin(c->x);
    c->is_streaming = true;
}

static void take_start(kt_chat_call *c) {
    if (c->has_started) return;
    c->has_started = true;
    kt_stats_start(&c->app->stats, &c->activity, c->run.prompt_tokens, c->run.cached_tokens,
                   c->run.max_tokens, c->stream);
    begin_stream(c);
}

static void count_tokens(kt_chat_call *c) {
    int64_t n = c->run.completion_tokens - c->n_counted;

    if (n <= 0) return;
    kt_stats_tokens(&c->app->stats, &c->activity, n);
    c->n_counted += n;
}

static void take_event(void *arg, const kt_event *event) {
    kt_chat_call *c = arg;
    kt_chat_choice *ch = &c->choices[event->choice];

    take_start(c);
    count_tokens(c);
    if (ch->is_cut && event->kind != KT_EVENT_FINISH) return;
    kt_chat_on_event(c, event);
    if (event->kind == KT_EVENT_TOOL_END && !c->parallel_tools) ch->is_cut = true;
}

/* ---- the end ---- */

/* Whoever is gone already is told nothing by this. */
static void answer_error(kt_chat_call *c, kt_status st, const char *message) {
    const bool is_ending = st == KT_E_CANCELLED;

    if (!is_ending)
        kt_log_write(c->app->log, KT_LOG_ERROR, "http", "id=%s: %s", kt_http_request_id(c->x),
                     message);
    if (c->is_streaming)
        kt_http_stream_fail(c->x, message);
    else
        kt_http_fail(c->x, is_ending || st == KT_E_NOMEM ? 503 : 500, "server_error", NULL,
                     is_ending          ? "shutting_down"
                     : st == KT_E_NOMEM ? "out_of_memory"
                                        : NULL,
                     "%s", message);
}

static kt_ending ending_of(const kt_chat_call *c, kt_status st) {
    if (st != KT_OK) return st == KT_E_CANCELLED ? KT_ENDING_ABORT : KT_ENDING_ERROR;
    switch (c->choices[0].finish) {
    case KT_FINISH_LENGTH: return KT_ENDING_LENGTH;
    case KT_FINISH_TOOL_CALLS: return KT_ENDING_TOOL_CALLS;
    default: return KT_ENDING_STOP;
    }
}

static double per_second(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void log_end(const kt_chat_call *c, kt_status st) {
    const kt_request *r = &c->run;

    kt_log_write(c->app->log, KT_LOG_INFO, "engine",
                 "id=%s prompt %lld tokens, %lld cached, %.1f/s, generated %lld tokens %.1f/s%s",
                 kt_http_request_id(c->x), (long long)r->prompt_tokens, (long long)r->cached_tokens,
                 per_second(r->prompt_tokens - r->cached_tokens, r->prompt_ns - r->start_ns),
                 (long long)r->completion_tokens,
                 per_second(r->completion_tokens, r->end_ns - r->prompt_ns),
                 st == KT_E_CANCELLED ? ", left by its client" : "");
}

static void take_end(void *arg, kt_status st, const kt_err *why) {
    kt_chat_call *c = arg;
    const char *message = why ? why->message : "";

    if (st == KT_OK) {
        take_start(c);
        count_tokens(c);
        if (!kt_chat_finish(c)) st = KT_E_NOMEM;
    }
    if (c->failed && st != KT_OK) {
        st = KT_E_NOMEM;
        message = "no memory for the answer, or it is too large";
    }
    if (st != KT_OK) answer_error(c, st, message);
    c->ending = ending_of(c, st);
    atomic_fetch_add(st == KT_E_CANCELLED ? &c->app->n_cancelled : &c->app->n_finished, 1);
    log_end(c, st);
    kt_chat_destroy(c);
}

/* ---- the beginning ---- */

static bool is_gone(void *arg) {
    const kt_chat_call *c = arg;
    return kt_http_gone(c->x) || c->failed;
}

static bool is_behind(void *arg) {
    const kt_chat_call *c = arg;
    return c->stream && kt_http_unsent(c->x) > BEHIND_BYTES;
}

static void fail_submit(kt_chat_call *c, kt_submission why, int capacity) {
    char message[100];

    snprintf(message, sizeof message, "the queue is full: %d requests are waiting", capacity);
    if (why == KT_SUBMIT_NOMEM) snprintf(message, sizeof message, "no memory for the request");
    if (why == KT_SUBMIT_ENDING) snprintf(message, sizeof message, "the server is shutting down");
    if (c->is_streaming)
        kt_http_stream_fail(c->x, message);
    else if (why == KT_SUBMIT_FULL)
        kt_http_fail(c->x, 429, "rate_limit_error", NULL, "queue_full", "%s", message);
    else
        kt_http_fail(c->x, 503, "server_error", NULL,
                     why == KT_SUBMIT_NOMEM ? "out_of_memory" : "shutting_down", "%s", message);
}

/* A stream that may have to wait begins at once, so that its client hears pings; one that starts
 * right away begins when it has its pages, since it can still be refused until then. */
bool kt_chat_submit(kt_chat_call *c) {
    const kt_scheduler_counts counts = kt_scheduler_count(c->app->scheduler);
    kt_submission result;

    c->output = (kt_output){.arg = c,
                            .open = open_parser,
                            .close = close_parser,
                            .wants = parser_wants,
                            .push = push_parser,
                            .finish = finish_parser,
                            .in_reasoning = is_in_reasoning,
                            .whole_calls = whole_calls,
                            .is_done = is_output_done};
    c->constraint = (kt_constraint){
        .arg = c, .open = open_gate, .close = close_gate, .mask = mask_gate, .accept = accept_gate};
    c->run.output = &c->output;
    c->run.constraint = c->grammar ? &c->constraint : NULL;
    c->run.progress = true;
    c->run.client = (kt_request_client){.arg = c,
                                        .event = take_event,
                                        .is_gone = is_gone,
                                        .is_behind = is_behind,
                                        .done = take_end};
    if (counts.running > 0 && counts.waiting < counts.capacity) begin_stream(c);
    result = kt_scheduler_submit(c->app->scheduler, &c->run);
    if (result == KT_SUBMIT_TAKEN) return true;
    fail_submit(c, result, counts.capacity);
    return false;
}
