/* A chat's way through the queues. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/clock.h"
#include "runtime/http/api/answer_bound.h"
#include "runtime/http/api/body_job.h"
#include "runtime/http/api/chat.h"

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

void kt_chat_destroy(kt_chat_call *c) {
    const int n = c->run.n;

    kt_stats_end(&c->app->stats, &c->activity, c->ending);
    kt_http_release(c->x);
    kt_request_deinit(&c->run); /* ends parsers, which the choices hold */
    for (int i = 0; c->choices && i < n; i++) free_choice(&c->choices[i]);
    free(c->choices);
    kt_grammar_destroy(c->grammar);
    kt_model_prompt_deinit(&c->prompt);
    kt_json_destroy(c->body);
    free(c);
}

static bool abandoned(const kt_job *job) {
    return kt_http_gone(((const kt_chat_call *)(const void *)job)->x);
}

/* The client left, or the server is going down. */
static void drop(kt_job *job) {
    kt_chat_call *c = (kt_chat_call *)(void *)job;

    atomic_fetch_add(&c->app->n_cancelled, 1);
    c->ending = KT_ENDING_ABORT;
    kt_http_fail(c->x, 503, "server_error", NULL, "shutting_down", "the server is shutting down");
    kt_chat_destroy(c);
}

static void fail_full(kt_http_exchange *x, kt_job_queue *q) {
    kt_http_fail(x, 429, "rate_limit_error", NULL, "queue_full",
                 "the queue is full: %d requests are waiting", kt_job_queue_count(q).capacity);
}

/* The prompt, and whether it and its answer fit. */
static bool make_prompt(kt_chat_call *c, kt_api_error *e) {
    const kt_chat_model *m = c->app->chat;
    int64_t context = c->app->backend->max_context, room;
    kt_err err = {0};
    kt_status st = m->make_prompt(m->self, &c->request, true, &c->prompt, &err);

    if (st == KT_E_NOMEM) return kt_api_no_memory(e);
    if (st != KT_OK) return kt_api_refuse(e, 400, "messages", "invalid_value", "%s", err.message);
    if (c->prompt.n_ids == 0)
        return kt_api_refuse(e, 400, "messages", "invalid_value",
                             "the template makes no tokens of 'messages'");
    room = context - (int64_t)c->prompt.n_ids;
    if (room <= 0)
        return kt_api_refuse(e, 400, "messages", "context_length_exceeded",
                             "this model's context is %lld tokens, but the conversation has %zu "
                             "tokens and at least one more is needed for the answer",
                             (long long)context, c->prompt.n_ids);
    if (c->run.max_tokens < 0 || c->run.max_tokens > room) c->run.max_tokens = room;
    return c->stream || kt_answer_check(c->run.n, c->run.max_tokens, c->run.logprobs, e);
}

static bool prepare(kt_chat_call *c, kt_api_error *e) {
    if (!c->app->chat)
        return kt_api_refuse(e, 400, NULL, "no_chat_template",
                             "this model has no chat template; give one with --chat-template, or "
                             "use /v1/completions");
    c->body = kt_api_parse_body(c->x, e);
    if (!c->body || !kt_chat_parse(c, kt_json_root(c->body), e) || !make_prompt(c, e) ||
        !kt_chat_make_grammar(c, e))
        return false;
    c->choices = calloc((size_t)c->run.n, sizeof *c->choices);
    c->run.prompts = calloc(1, sizeof *c->run.prompts);
    if (!c->choices || !c->run.prompts) return kt_api_no_memory(e);
    c->run.n_prompts = 1;
    c->run.prompts[0] = (kt_prompt){c->prompt.ids, c->prompt.n_ids};
    c->prompt.ids = NULL; /* the request's now */
    return true;
}

static void run_prepare(kt_job *job) {
    kt_chat_call *c = (kt_chat_call *)(void *)job;
    kt_api_error e = {0};

    if (prepare(c, &e)) {
        kt_http_drop_body(c->x);
        if (!kt_chat_submit(c)) kt_chat_destroy(c);
        return;
    }
    kt_api_fail(c->x, &e);
    kt_chat_destroy(c);
}

void kt_chat_start(kt_app *app, kt_http_exchange *x) {
    kt_chat_call *c = calloc(1, sizeof *c);

    if (!c) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the request");
        return;
    }
    kt_http_keep(x);
    c->app = app;
    c->x = x;
    kt_request_init(&c->run);
    c->ending = KT_ENDING_ERROR;
    c->created_s = kt_clock_unix_ms() / 1000;
    kt_stats_begin(&app->stats, &c->activity, "chat", kt_http_request_id(x));
    c->job = (kt_job){.run = run_prepare, .drop = drop, .abandoned = abandoned};
    if (kt_job_queue_push(app->prepare, &c->job)) return;
    fail_full(x, app->prepare);
    kt_chat_destroy(c);
}
