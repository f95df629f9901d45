/* From what a chat asks for to a request of the scheduler: the prompt, lengths, the grammar of
 * calls that are forced. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "runtime/chat/tool_grammar.h"
#include "runtime/http/api/answer_bound.h"
#include "runtime/http/api/chat.h"
#include "runtime/http/api/refused.h"

/* ---- the prompt ---- */

bool kt_chat_make_prompt(const kt_app *app, const kt_chat_request *request, bool is_text,
                         kt_model_prompt *out, kt_api_error *e) {
    const kt_chat_model *m = app->chat;
    kt_err err = {0};
    kt_status st;

    if (!m || !m->make_prompt)
        return kt_api_refuse(e, 400, NULL, "no_chat_template",
                             "this model has no chat template; give one with --chat-template, or "
                             "use /v1/completions");
    st = m->make_prompt(m->self, request, !is_text, out, &err);
    if (st == KT_E_NOMEM) return kt_api_no_memory(e);
    if (st != KT_OK) return kt_api_refuse(e, 400, "messages", "invalid_value", "%s", err.message);
    return true;
}

bool kt_chat_count(kt_app *app, const kt_json *chat, int64_t *tokens, kt_api_error *e) {
    kt_chat_call c = {.call.app = app};
    kt_model_prompt prompt = {0};
    const bool ok = kt_api_parse_model(app, chat, e) && kt_chat_parse_conversation(&c, chat, e) &&
                    kt_chat_parse_tools(&c, chat, e) &&
                    kt_chat_make_prompt(app, &c.request, false, &prompt, e);

    *tokens = (int64_t)prompt.n_ids;
    kt_model_prompt_deinit(&prompt);
    return ok;
}

/* Whether the prompt and its answer fit. */
static bool check_prompt(kt_chat_call *c, kt_api_error *e) {
    const kt_model_prompt *p = &c->prompt;
    const int64_t context = c->call.app->backend->max_context, room = context - (int64_t)p->n_ids;
    kt_request *r = &c->call.run;

    if (p->n_ids == 0)
        return kt_api_refuse(e, 400, "messages", "invalid_value",
                             "the template makes no tokens of 'messages'");
    if (!kt_api_check_ids(&c->call, p->ids, p->n_ids, "messages", e)) return false;
    if (room <= 0)
        return kt_api_refuse(e, 400, "messages", "context_length_exceeded",
                             "this model's context is %lld tokens, but the conversation has %zu "
                             "tokens and at least one more is needed for the answer",
                             (long long)context, p->n_ids);
    if (r->max_tokens < 0 || r->max_tokens > room) r->max_tokens = room;
    return c->call.stream || kt_answer_check(r->n, r->max_tokens, r->logprobs, e);
}

/* ---- the grammar of calls ---- */

static bool make_tool_grammar(kt_chat_call *c, kt_api_error *e) {
    const kt_chat_model *m = c->call.app->chat;
    const kt_tool_grammar_options options = {
        .choice = m->parsers,
        .tools = c->request.tools,
        .named = c->tool_choice == KT_TOOL_CHOICE_NAMED ? c->tool_name : NULL,
        .parallel = c->parallel_tools,
        .starts_in_reasoning = c->prompt.starts_in_reasoning,
        .special_token = kt_chat_special_token,
        .special_arg = c->call.app->backend->tokenizer};
    kt_tool_grammar g;
    kt_err err = {0};
    kt_status st;

    if (!m->vocabulary)
        return kt_api_refuse(e, 400, "tool_choice", "unsupported_value",
                             "'tool_choice' needs a vocabulary, which this model lacks");
    st = kt_tool_grammar_create(&options, &g, &err);
    if (st == KT_OK) {
        st = kt_grammar_from_gbnf(m->vocabulary, g.text, g.size, g.symbols, g.n_symbols,
                                  &c->call.grammar, &err);
        kt_tool_grammar_destroy(&g);
    }
    return kt_api_check_grammar(st, "tool_choice", &err, e);
}

/* ---- the request ---- */

bool kt_chat_make_run(kt_chat_call *c, kt_api_error *e) {
    const bool is_forced = c->tool_choice >= KT_TOOL_CHOICE_REQUIRED;
    kt_request *r = &c->call.run;

    if (!kt_chat_make_prompt(c->call.app, &c->request, false, &c->prompt, e) ||
        !check_prompt(c, e) ||
        !(is_forced ? make_tool_grammar(c, e) : kt_api_make_grammar(&c->call, e)))
        return false;
    kt_api_hold(&c->call);
    kt_chat_set_output(c);
    c->choices = calloc((size_t)r->n, sizeof *c->choices);
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!c->choices || !r->prompts) return kt_api_no_memory(e);
    c->n_choices = (size_t)r->n;
    r->n_prompts = 1;
    r->prompts[0] = (kt_prompt){.ids = c->prompt.ids,
                                .n_ids = c->prompt.n_ids,
                                .mark = {c->prompt.first_turn, c->prompt.last_turn}};
    c->prompt.ids = NULL; /* the request's now */
    return true;
}

static bool prepare(kt_api_call *call, const kt_json *body, kt_api_error *e) {
    kt_chat_call *c = (kt_chat_call *)(void *)call;

    return kt_api_check_refused(body, KT_ON_CHAT, e) && kt_chat_parse(c, body, "stop", e) &&
           kt_chat_make_run(c, e);
}

const kt_api_kind kt_api_kind_chat = {.name = "chat",
                                      .id_prefix = "chatcmpl-",
                                      .chunk = "chat.completion.chunk",
                                      .call_bytes = sizeof(kt_chat_call),
                                      .keeps_body = true,
                                      .prepare = prepare,
                                      .event = kt_chat_on_event,
                                      .finish = kt_chat_finish,
                                      .is_free = kt_chat_is_free,
                                      .release = kt_chat_release};
