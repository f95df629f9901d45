/* A request's way through the queues, and what becomes of it. SPDX-License-Identifier: Apache-2.0
 */
#include "runtime/http/api/call.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "runtime/http/api/answer_bound.h"
#include "runtime/http/api/body_job.h"

/* Unread bytes at which a stream's request rests until its client has read some. Under what makes
 * the server drop the client (kt_http_options.max_unsent_bytes). */
enum { BEHIND_BYTES = 256 * 1024 };

static void destroy(kt_api_call *c) {
    kt_stats_end(&c->app->stats, &c->activity, c->ending);
    kt_http_release(c->x);
    kt_request_deinit(&c->run); /* ends grammars and parsers, which the rest holds */
    c->kind->release(c);
    kt_grammar_destroy(c->grammar);
    kt_json_destroy(c->body);
    free(c);
}

void kt_api_lose(kt_api_call *c) {
    atomic_store(&c->failed, true);
}

void kt_api_append(kt_api_call *c, kt_text *t, const char *text, size_t size) {
    c->gathered_bytes += size;
    if (c->gathered_bytes > (size_t)KT_MAX_ANSWER_BYTES ||
        kt_text_append(t, text, size, NULL) != KT_OK)
        kt_api_lose(c);
}

/* ---- events ---- */

static void begin_stream(kt_api_call *c) {
    if (!c->stream || c->is_streaming) return;
    kt_http_stream_begin(c->x);
    c->is_streaming = true;
}

static void take_start(kt_api_call *c) {
    if (c->has_started) return;
    c->has_started = true;
    kt_stats_start(&c->app->stats, &c->activity, c->run.prompt_tokens, c->run.cached_tokens,
                   c->run.max_tokens, c->stream);
    begin_stream(c);
}

static void count_tokens(kt_api_call *c) {
    const int64_t n = c->run.completion_tokens - c->n_counted;

    if (n <= 0) return;
    kt_stats_tokens(&c->app->stats, &c->activity, n);
    if (c->run.draft_tokens > 0)
        kt_stats_drafts(&c->app->stats, &c->activity, c->run.draft_tokens, c->run.draft_hits);
    c->n_counted += n;
}

static kt_ending ending_of(kt_finish finish) {
    switch (finish) {
    case KT_FINISH_LENGTH: return KT_ENDING_LENGTH;
    case KT_FINISH_TOOL_CALLS: return KT_ENDING_TOOL_CALLS;
    default: return KT_ENDING_STOP;
    }
}

static void take_event(void *arg, const kt_event *event) {
    kt_api_call *c = arg;

    take_start(c);
    count_tokens(c);
    if (event->kind == KT_EVENT_FINISH) {
        c->reasoning_tokens += event->as.finish.reasoning_tokens;
        if (event->choice == 0) c->ending = ending_of(event->as.finish.reason);
    }
    if (!atomic_load(&c->failed)) c->kind->event(c, event);
}

/* ---- the end ---- */

/* Whoever is gone already is told nothing by this. */
static void answer_error(kt_api_call *c, kt_status st, const char *message) {
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

static double per_second(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void log_end(const kt_api_call *c, kt_status st) {
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
    kt_api_call *c = arg;
    const char *message = why ? why->message : "";

    if (st == KT_OK) {
        take_start(c);
        count_tokens(c);
        if (!atomic_load(&c->failed)) c->kind->finish(c);
        if (atomic_load(&c->failed)) st = KT_E_NOMEM;
    }
    if (st != KT_OK && atomic_load(&c->failed)) {
        st = KT_E_NOMEM;
        message = "no memory for the answer, or it is too large";
    }
    if (st != KT_OK) {
        answer_error(c, st, message);
        c->ending = st == KT_E_CANCELLED ? KT_ENDING_ABORT : KT_ENDING_ERROR;
    }
    atomic_fetch_add(st == KT_E_CANCELLED ? &c->app->n_cancelled : &c->app->n_finished, 1);
    log_end(c, st);
    destroy(c);
}

/* ---- to the scheduler ---- */

static bool is_gone(void *arg) {
    const kt_api_call *c = arg;
    return kt_http_gone(c->x) || atomic_load(&c->failed);
}

static bool is_behind(void *arg) {
    const kt_api_call *c = arg;
    return c->stream && kt_http_unsent(c->x) > BEHIND_BYTES;
}

static void fail_full(kt_http_exchange *x, int capacity) {
    kt_http_fail(x, 429, "rate_limit_error", NULL, "queue_full",
                 "the queue is full: %d requests are waiting", capacity);
}

static void fail_submit(kt_api_call *c, kt_submission why, int capacity) {
    char message[100];

    snprintf(message, sizeof message, "the queue is full: %d requests are waiting", capacity);
    if (why == KT_SUBMIT_NOMEM) snprintf(message, sizeof message, "no memory for the request");
    if (why == KT_SUBMIT_ENDING) snprintf(message, sizeof message, "the server is shutting down");
    if (c->is_streaming)
        kt_http_stream_fail(c->x, message);
    else if (why == KT_SUBMIT_FULL)
        fail_full(c->x, capacity);
    else
        kt_http_fail(c->x, 503, "server_error", NULL,
                     why == KT_SUBMIT_NOMEM ? "out_of_memory" : "shutting_down", "%s", message);
}

/* A stream that may have to wait begins at once, so that its client hears pings; one that starts
 * right away begins when it has its pages, since it can still be refused until then. What has begun
 * is not refused any more: the scheduler may put a request back, for which it found no pages, while
 * this one is on its way into the last place. */
static bool submit(kt_api_call *c) {
    const kt_scheduler_counts counts = kt_scheduler_count(c->app->scheduler);
    kt_submission result;

    c->run.progress = true;
    c->run.client = (kt_request_client){.arg = c,
                                        .event = take_event,
                                        .is_gone = is_gone,
                                        .is_behind = is_behind,
                                        .done = take_end};
    if (counts.running > 0 && counts.waiting < counts.capacity) begin_stream(c);
    c->run.is_promised = c->is_streaming;
    result = kt_scheduler_submit(c->app->scheduler, &c->run);
    if (result == KT_SUBMIT_TAKEN) return true;
    fail_submit(c, result, counts.capacity);
    return false;
}

/* ---- the prepare queue ---- */

static bool abandoned(const kt_job *job) {
    return kt_http_gone(((const kt_api_call *)(const void *)job)->x);
}

/* The client left, or the server is going down. */
static void drop(kt_job *job) {
    kt_api_call *c = (kt_api_call *)(void *)job;

    atomic_fetch_add(&c->app->n_cancelled, 1);
    c->ending = KT_ENDING_ABORT;
    kt_http_fail(c->x, 503, "server_error", NULL, "shutting_down", "the server is shutting down");
    destroy(c);
}

static void run_prepare(kt_job *job) {
    kt_api_call *c = (kt_api_call *)(void *)job;
    kt_api_error e = {0};

    c->body = kt_api_parse_body(c->x, &e);
    if (!c->body || !c->kind->prepare(c, kt_json_root(c->body), &e)) {
        kt_api_fail(c->x, &e);
        destroy(c);
        return;
    }
    kt_http_drop_body(c->x);
    if (!c->kind->keeps_body) {
        kt_json_destroy(c->body);
        c->body = NULL;
        c->form = (kt_answer_form){0};
    }
    if (!submit(c)) destroy(c);
}

void kt_api_start(const kt_api_kind *kind, kt_app *app, kt_http_exchange *x) {
    kt_api_call *c = calloc(1, kind->call_bytes);

    if (!c) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the request");
        return;
    }
    kt_http_keep(x);
    c->kind = kind;
    c->app = app;
    c->x = x;
    kt_request_init(&c->run);
    c->ending = KT_ENDING_ERROR;
    c->created_s = kt_clock_unix_ms() / 1000;
    kt_stats_begin(&app->stats, &c->activity, kind->name, kt_http_request_id(x));
    c->job = (kt_job){.run = run_prepare, .drop = drop, .abandoned = abandoned};
    if (kt_job_queue_push(app->prepare, &c->job)) return;
    fail_full(x, kt_job_queue_count(app->prepare).capacity);
    destroy(c);
}
