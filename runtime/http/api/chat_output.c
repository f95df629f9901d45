/* The output of a chat: its parser, one for each choice. On the scheduler's thread.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "runtime/http/api/chat.h"

/* ---- the parser ---- */

static kt_status open_parser(void *arg, int choice, void **state, kt_err *err) {
    kt_chat_call *c = arg;
    const kt_chat_model *m = c->call.app->chat;
    const kt_parser_options options = {
        .choice = {c->request.tools ? m->parsers.calls : NULL, m->parsers.reasoning},
        .tools = c->request.tools,
        .starts_in_reasoning = c->prompt.starts_in_reasoning,
        .first_call = c->first_call,
        .seed = strtoull(kt_http_request_id(c->call.x) + 8, NULL, 16) + (uint64_t)choice,
        .special_token = kt_chat_special_token,
        .special_arg = c->call.app->backend->tokenizer};
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

void kt_chat_set_output(kt_chat_call *c) {
    c->output = (kt_output){.arg = c,
                            .open = open_parser,
                            .close = close_parser,
                            .wants = parser_wants,
                            .push = push_parser,
                            .finish = finish_parser,
                            .in_reasoning = is_in_reasoning,
                            .whole_calls = whole_calls,
                            .is_done = is_output_done};
    c->call.run.output = &c->output;
}

/* ---- what the parser decides ---- */

/* Reasoning is free, and headers of messages are; a grammar of tool calls describes it itself. */
bool kt_chat_is_free(const kt_api_call *call, size_t choice) {
    const kt_chat_call *c = (const kt_chat_call *)(const void *)call;
    const kt_parser *p = c->choices[choice].parser;

    return c->tool_choice < KT_TOOL_CHOICE_REQUIRED &&
           (kt_parser_in_reasoning(p) || kt_parser_in_header(p));
}

bool kt_chat_takes(kt_chat_call *c, const kt_event *event) {
    kt_chat_choice *ch = &c->choices[event->choice];

    if (ch->is_cut && event->kind != KT_EVENT_FINISH) return false;
    if (event->kind == KT_EVENT_TOOL_END && !c->parallel_tools) ch->is_cut = true;
    return event->kind != KT_EVENT_REASONING || !c->hide_reasoning;
}

/* ---- the end ---- */

static void free_choice(kt_chat_choice *ch) {
    for (size_t i = 0; i < ch->n_tools; i++) {
        free(ch->tools[i].id.data);
        free(ch->tools[i].name.data);
        free(ch->tools[i].arguments.data);
    }
    free(ch->tools);
    free(ch->content.data);
    free(ch->reasoning.data);
    free(ch->matched.data);
    kt_json_writer_deinit(&ch->logprobs);
}

void kt_chat_release(kt_api_call *call) {
    kt_chat_call *c = (kt_chat_call *)(void *)call;

    for (size_t i = 0; i < c->n_choices; i++) free_choice(&c->choices[i]);
    free(c->choices);
    kt_model_prompt_deinit(&c->prompt);
}
