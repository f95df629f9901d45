/* From the events of a request to the answer's text. On the scheduler's thread.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/http/completion.h"

/* Unread bytes at which a stream's request rests until its client has read some. Under what makes
 * the server drop the client (kt_http_options.max_unsent_bytes). */
enum { BEHIND_BYTES = 256 * 1024 };

static void lose(kt_completion *c, kt_status st) {
    if (st != KT_OK) atomic_store(&c->has_failed, true);
}

/* ---- logprobs ---- */

static size_t count_chars(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* A place for one more token's probability; NULL without memory. */
static kt_logprob *add_logprob(kt_completion *c, kt_completion_choice *ch, int32_t id) {
    void *data = ch->logprobs;
    size_t size;
    const char *bytes = kt_tokenizer_bytes(c->app->backend->tokenizer, id, &size, NULL);
    kt_logprob *p;
    kt_status st =
        kt_grow(&data, ch->n_logprobs, &ch->logprob_capacity, 1, sizeof *ch->logprobs, NULL);

    ch->logprobs = data;
    lose(c, st);
    if (st != KT_OK) return NULL;
    p = &ch->logprobs[ch->n_logprobs++];
    memset(p, 0, sizeof *p);
    p->id = id;
    p->offset = ch->n_chars;
    if (bytes) ch->n_chars += count_chars(bytes, size);
    return p;
}

static void take_logprob(kt_completion *c, kt_completion_choice *ch, const kt_event_logprob *e) {
    kt_logprob *p = add_logprob(c, ch, e->token);

    if (!p) return;
    p->is_known = true;
    p->logprob = e->value;
    p->n_top = e->n_top;
    if (e->n_top == 0) return;
    memcpy(p->top_ids, e->top_token, (size_t)e->n_top * sizeof *p->top_ids);
    memcpy(p->top, e->top_value, (size_t)e->n_top * sizeof *p->top);
}

/* ---- events ---- */

/* The prompt itself comes first where it is to be echoed. */
static void begin_choice(kt_completion *c, kt_completion_choice *ch, int index) {
    const size_t at = (size_t)index / (size_t)c->request.n;

    ch->has_begun = true;
    if (!c->echo) return;
    lose(c, kt_text_append(&ch->text, c->echoed[at].data, c->echoed[at].size, NULL));
    if (c->request.prompt_logprobs) add_logprob(c, ch, c->request.prompts[at].ids[0]);
}

static void begin_stream(kt_completion *c) {
    if (!c->stream || c->is_streaming) return;
    kt_http_stream_begin(c->x);
    c->is_streaming = true;
}

static void take_start(kt_completion *c) {
    if (c->has_started) return;
    c->has_started = true;
    kt_stats_start(&c->app->stats, &c->activity, c->request.prompt_tokens, c->request.cached_tokens,
                   c->request.max_tokens, c->stream);
    begin_stream(c);
}

static void count_tokens(kt_completion *c) {
    const int64_t n = c->request.completion_tokens - c->n_counted;

    if (n <= 0) return;
    kt_stats_tokens(&c->app->stats, &c->activity, n);
    c->n_counted += n;
}

static void take_event(void *arg, const kt_event *e) {
    kt_completion *c = arg;
    kt_completion_choice *ch = &c->choices[e->choice];
    bool is_ready = false;

    take_start(c);
    count_tokens(c);
    if (e->kind == KT_EVENT_PROGRESS) return;
    if (!ch->has_begun) begin_choice(c, ch, e->choice);
    switch (e->kind) {
    case KT_EVENT_TEXT:
        lose(c, kt_text_append(&ch->text, e->text, e->size, NULL));
        is_ready = true;
        break;
    case KT_EVENT_LOGPROB: take_logprob(c, ch, &e->as.logprob); break;
    case KT_EVENT_FINISH:
        ch->finish = e->as.finish.reason == KT_FINISH_STOP ? "stop" : "length";
        is_ready = true;
        break;
    default: break; /* without a parser there are no others */
    }
    if (is_ready && c->stream) lose(c, kt_completion_send_chunk(c, (size_t)e->choice, NULL));
}

/* ---- the end ---- */

static kt_status answer(kt_completion *c, kt_err *err) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;

    if (atomic_load(&c->has_failed)) return kt_fail(err, KT_E_NOMEM, "no memory for the answer");
    if (c->stream) return kt_completion_send_end(c, err);
    kt_completion_write(c, &w);
    text = kt_json_writer_text(&w, &size);
    if (text) kt_http_reply_json(c->x, 200, text, size);
    kt_json_writer_deinit(&w);
    return text ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the answer");
}

/* Whoever is gone already is told nothing by this. */
static void answer_error(kt_completion *c, kt_status st, const char *message) {
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

static kt_ending outcome_of(const kt_completion *c, kt_status st) {
    if (st != KT_OK) return st == KT_E_CANCELLED ? KT_ENDING_ABORT : KT_ENDING_ERROR;
    return strcmp(c->choices[0].finish, "stop") == 0 ? KT_ENDING_STOP : KT_ENDING_LENGTH;
}

static double per_second(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void take_end(void *arg, kt_status st, const kt_err *why) {
    kt_completion *c = arg;
    const kt_request *r = &c->request;
    kt_err err = {KT_OK, ""};

    if (st == KT_E_CANCELLED && atomic_load(&c->has_failed)) {
        st = kt_fail(&err, KT_E_NOMEM, "no memory for the answer");
        why = &err;
    }
    if (st == KT_OK) {
        count_tokens(c);
        st = answer(c, &err);
        why = &err;
    }
    if (st != KT_OK) answer_error(c, st, why->message);
    c->outcome = outcome_of(c, st);
    atomic_fetch_add(st == KT_E_CANCELLED ? &c->app->n_cancelled : &c->app->n_finished, 1);
    kt_log_write(c->app->log, KT_LOG_INFO, "engine",
                 "id=%s prompt %lld tokens, %lld cached, %.1f/s, generated %lld tokens %.1f/s%s",
                 kt_http_request_id(c->x), (long long)r->prompt_tokens, (long long)r->cached_tokens,
                 per_second(r->prompt_tokens - r->cached_tokens, r->prompt_ns - r->start_ns),
                 (long long)r->completion_tokens,
                 per_second(r->completion_tokens, r->end_ns - r->prompt_ns),
                 st == KT_E_CANCELLED ? ", left by its client" : "");
    kt_completion_destroy(c);
}

/* ---- the beginning ---- */

static bool is_gone(void *arg) {
    const kt_completion *c = arg;
    return kt_http_gone(c->x) || atomic_load(&c->has_failed);
}

static bool is_behind(void *arg) {
    const kt_completion *c = arg;
    return c->stream && kt_http_unsent(c->x) > BEHIND_BYTES;
}

static void fail_submit(kt_completion *c, kt_submission why, int capacity) {
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
bool kt_completion_submit(kt_completion *c) {
    const kt_scheduler_counts counts = kt_scheduler_count(c->app->scheduler);
    kt_submission result;

    c->request.progress = true;
    c->request.client = (kt_request_client){.arg = c,
                                            .event = take_event,
                                            .is_gone = is_gone,
                                            .is_behind = is_behind,
                                            .done = take_end};
    if (counts.running > 0 && counts.waiting < counts.capacity) begin_stream(c);
    result = kt_scheduler_submit(c->app->scheduler, &c->request);
    if (result == KT_SUBMIT_TAKEN) return true;
    fail_submit(c, result, counts.capacity);
    return false;
}
