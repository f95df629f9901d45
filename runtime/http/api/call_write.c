/* JSON that routes share. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/clock.h"
#include "runtime/http/api/call.h"

void kt_api_put_head(const kt_api_call *c, kt_json_writer *w, const char *object) {
    char id[48];

    snprintf(id, sizeof id, "%s%s", c->kind->id_prefix, kt_http_request_id(c->x));
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", id);
    kt_json_add_string(w, "object", object);
    kt_json_add_int(w, "created", c->created_s);
    kt_json_add_string(w, "model", c->app->model_name);
    kt_json_add_string(w, "system_fingerprint", c->app->backend->fingerprint);
}

void kt_api_put_usage(const kt_api_call *c, kt_json_writer *w) {
    const kt_request *r = &c->run;

    kt_json_key(w, "usage");
    kt_json_begin_object(w);
    kt_json_add_int(w, "prompt_tokens", r->prompt_tokens);
    kt_json_add_int(w, "completion_tokens", r->completion_tokens);
    kt_json_add_int(w, "total_tokens", r->prompt_tokens + r->completion_tokens);
    kt_json_key(w, "prompt_tokens_details");
    kt_json_begin_object(w);
    kt_json_add_int(w, "cached_tokens", r->cached_tokens);
    kt_json_end_object(w);
    kt_json_key(w, "completion_tokens_details");
    kt_json_begin_object(w);
    kt_json_add_int(w, "reasoning_tokens", c->reasoning_tokens);
    kt_json_end_object(w);
    kt_json_end_object(w);
}

static void put_rate(kt_json_writer *w, const char *prefix, int64_t n, int64_t ns) {
    char key[40];
    double ms = (double)ns * 1e-6;

    snprintf(key, sizeof key, "%s_n", prefix);
    kt_json_add_int(w, key, n);
    snprintf(key, sizeof key, "%s_ms", prefix);
    kt_json_add_fixed(w, key, ms, 3);
    snprintf(key, sizeof key, "%s_per_token_ms", prefix);
    kt_json_add_fixed(w, key, n > 0 ? ms / (double)n : 0, 3);
    snprintf(key, sizeof key, "%s_per_second", prefix);
    kt_json_add_fixed(w, key, ns > 0 ? (double)n * 1e9 / (double)ns : 0, 2);
}

/* What was taken from the cache was not computed. While the answer is made, up to now. */
void kt_api_put_timings(const kt_api_call *c, kt_json_writer *w) {
    const kt_request *r = &c->run;
    const int64_t end = r->end_ns ? r->end_ns : kt_clock_ns();

    kt_json_key(w, "timings");
    kt_json_begin_object(w);
    kt_json_add_int(w, "cache_n", r->cached_tokens);
    put_rate(w, "prompt", r->prompt_tokens - r->cached_tokens, r->prompt_ns - r->start_ns);
    put_rate(w, "predicted", r->completion_tokens, end - r->prompt_ns);
    if (r->draft_tokens > 0) {
        kt_json_add_int(w, "draft_n", r->draft_tokens);
        kt_json_add_int(w, "draft_n_accepted", r->draft_hits);
    }
    kt_json_add_fixed(w, "queue_ms", (double)(r->start_ns - r->queued_ns) * 1e-6, 3);
    kt_json_end_object(w);
}

void kt_api_add_text(kt_json_writer *w, const char *key, const kt_text *t) {
    kt_json_key(w, key);
    kt_json_put_string_n(w, t->data ? t->data : "", t->size);
}

void kt_api_put_logprob(kt_json_writer *w, float logprob) {
    kt_json_put_double(w, logprob >= -9999.0f ? (double)logprob : -9999.0);
}

/* ---- a stream ---- */

void kt_api_begin_chunk(const kt_api_call *c, kt_json_writer *w) {
    kt_api_put_head(c, w, c->kind->chunk);
    kt_json_key(w, "choices");
    kt_json_begin_array(w);
    kt_json_end_array(w);
}

void kt_api_end_chunk(kt_api_call *c, kt_json_writer *w) {
    if (c->continuous_usage)
        kt_api_put_usage(c, w);
    else if (c->include_usage)
        kt_json_add_null(w, "usage");
    if (c->timings_per_token && c->run.completion_tokens > 0) kt_api_put_timings(c, w);
    kt_json_end_object(w);
    kt_api_send(c, w);
}

/* name may be NULL. */
static void send(kt_api_call *c, kt_json_writer *w, const char *name) {
    size_t size;
    const char *text = kt_json_writer_text(w, &size);

    if (!text) kt_api_lose(c);
    if (!atomic_load(&c->failed)) { /* else one before it is missing */
        if (name)
            kt_http_stream_named_event(c->x, name, text, size);
        else
            kt_http_stream_event(c->x, text, size);
    }
    kt_json_writer_deinit(w);
}

void kt_api_send(kt_api_call *c, kt_json_writer *w) {
    send(c, w, NULL);
}

void kt_api_send_named(kt_api_call *c, kt_json_writer *w, const char *name) {
    kt_json_end_object(w);
    send(c, w, name);
}

void kt_api_end_stream(kt_api_call *c) {
    kt_json_writer w = {0};

    if (c->include_usage) {
        kt_api_begin_chunk(c, &w);
        kt_api_put_usage(c, &w);
        kt_api_put_timings(c, &w);
        kt_json_end_object(&w);
        kt_api_send(c, &w);
    }
    if (atomic_load(&c->failed)) return;
    kt_http_stream_event(c->x, "[DONE]", 6);
    kt_http_stream_end(c->x);
}

/* ---- the whole answer ---- */

void kt_api_reply(kt_api_call *c, kt_json_writer *w) {
    size_t size;
    const char *text = kt_json_writer_text(w, &size);

    if (!text) kt_api_lose(c);
    if (!atomic_load(&c->failed)) kt_http_reply_json(c->x, 200, text, size);
    kt_json_writer_deinit(w);
}
