/* The answer's JSON: whole, or in chunks. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "runtime/http/completion.h"
#include "runtime/token/utf8_scan.h"

/* Text of a token; one that is part of a character is written "bytes:\xe6\x88", as OpenAI does. */
static void put_token_text(const kt_completion *c, kt_json_writer *w, int32_t id, bool as_key) {
    size_t size, at = 6;
    const char *bytes = kt_tokenizer_bytes(c->app->backend->tokenizer, id, &size, NULL);
    char text[512] = "bytes:";

    if (!bytes) bytes = "";
    if (size < sizeof text && !memchr(bytes, '\0', size) &&
        kt_utf8_valid_prefix(bytes, size) == size) {
        memcpy(text, bytes, size);
        text[size] = '\0';
    } else {
        for (size_t i = 0; i < size && at + 5 < sizeof text; i++) {
            at += (size_t)snprintf(text + at, sizeof text - at, "\\x%02x", (unsigned char)bytes[i]);
        }
    }
    if (as_key)
        kt_json_key(w, text);
    else
        kt_json_put_string(w, text);
}

static bool same_text(const kt_completion *c, int32_t a, int32_t b) {
    size_t n, m;
    const char *x = kt_tokenizer_bytes(c->app->backend->tokenizer, a, &n, NULL);
    const char *y = kt_tokenizer_bytes(c->app->backend->tokenizer, b, &m, NULL);

    return n == m && (n == 0 || memcmp(x, y, n) == 0);
}

/* JSON has no infinity; -9999 is what OpenAI writes for a token that cannot be. */
static void put_logprob(kt_json_writer *w, float logprob) {
    kt_json_put_double(w, logprob >= -9999.0f ? (double)logprob : -9999.0);
}

static void write_top(const kt_completion *c, kt_json_writer *w, const kt_logprob *p) {
    if (!p->is_known) {
        kt_json_put_null(w);
        return;
    }
    kt_json_begin_object(w);
    for (int k = 0; k < p->n_top; k++) {
        bool seen = false; /* ids without text, padding of the vocabulary, would repeat a key */
        for (int j = 0; j < k; j++) seen = seen || same_text(c, p->top_ids[j], p->top_ids[k]);
        if (seen) continue;
        put_token_text(c, w, p->top_ids[k], true);
        put_logprob(w, p->top[k]);
    }
    kt_json_end_object(w);
}

static void write_logprobs(const kt_completion *c, kt_json_writer *w,
                           const kt_completion_choice *ch) {
    kt_json_key(w, "logprobs");
    if (c->request.logprobs < 0) {
        kt_json_put_null(w);
        return;
    }
    kt_json_begin_object(w);
    kt_json_key(w, "tokens");
    kt_json_begin_array(w);
    for (size_t i = 0; i < ch->n_logprobs; i++) put_token_text(c, w, ch->logprobs[i].id, false);
    kt_json_end_array(w);
    kt_json_key(w, "token_logprobs");
    kt_json_begin_array(w);
    for (size_t i = 0; i < ch->n_logprobs; i++) {
        if (ch->logprobs[i].is_known)
            put_logprob(w, ch->logprobs[i].logprob);
        else
            kt_json_put_null(w);
    }
    kt_json_end_array(w);
    kt_json_key(w, "top_logprobs");
    kt_json_begin_array(w);
    for (size_t i = 0; i < ch->n_logprobs; i++) write_top(c, w, &ch->logprobs[i]);
    kt_json_end_array(w);
    kt_json_key(w, "text_offset");
    kt_json_begin_array(w);
    for (size_t i = 0; i < ch->n_logprobs; i++) kt_json_put_int(w, (int64_t)ch->logprobs[i].offset);
    kt_json_end_array(w);
    kt_json_end_object(w);
}

static void write_choice(const kt_completion *c, kt_json_writer *w, size_t i) {
    const kt_completion_choice *ch = &c->choices[i];

    kt_json_begin_object(w);
    kt_json_add_int(w, "index", (int64_t)i);
    kt_json_key(w, "text");
    kt_json_put_string_n(w, ch->text.data ? ch->text.data : "", ch->text.size);
    write_logprobs(c, w, ch);
    kt_json_key(w, "finish_reason");
    if (ch->finish)
        kt_json_put_string(w, ch->finish);
    else
        kt_json_put_null(w);
    kt_json_end_object(w);
}

static void begin(const kt_completion *c, kt_json_writer *w) {
    char id[40];

    snprintf(id, sizeof id, "cmpl-%s", kt_http_request_id(c->x));
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", id);
    kt_json_add_string(w, "object", "text_completion");
    kt_json_add_int(w, "created", c->created_s);
    kt_json_add_string(w, "model", c->app->model_name);
    kt_json_add_string(w, "system_fingerprint", c->app->backend->fingerprint);
}

static void write_usage(const kt_completion *c, kt_json_writer *w) {
    const kt_request *r = &c->request;

    kt_json_key(w, "usage");
    kt_json_begin_object(w);
    kt_json_add_int(w, "prompt_tokens", r->prompt_tokens);
    kt_json_add_int(w, "completion_tokens", r->completion_tokens);
    kt_json_add_int(w, "total_tokens", r->prompt_tokens + r->completion_tokens);
    kt_json_key(w, "prompt_tokens_details");
    kt_json_begin_object(w);
    kt_json_add_int(w, "cached_tokens", r->cached_tokens);
    kt_json_end_object(w);
    kt_json_end_object(w);
}

static void write_rate(kt_json_writer *w, const char *n_key, const char *ms_key,
                       const char *rate_key, int64_t n, int64_t ns) {
    kt_json_add_int(w, n_key, n);
    kt_json_add_fixed(w, ms_key, (double)ns * 1e-6, 3);
    kt_json_add_fixed(w, rate_key, ns > 0 ? (double)n * 1e9 / (double)ns : 0, 2);
}

/* Not of OpenAI; names as llama-server has them. What was taken from the cache was not computed. */
static void write_timings(const kt_completion *c, kt_json_writer *w) {
    const kt_request *r = &c->request;

    kt_json_key(w, "timings");
    kt_json_begin_object(w);
    kt_json_add_int(w, "cache_n", r->cached_tokens);
    write_rate(w, "prompt_n", "prompt_ms", "prompt_per_second", r->prompt_tokens - r->cached_tokens,
               r->prompt_ns - r->start_ns);
    write_rate(w, "predicted_n", "predicted_ms", "predicted_per_second", r->completion_tokens,
               r->end_ns - r->prompt_ns);
    kt_json_add_fixed(w, "queue_ms", (double)(r->start_ns - r->queued_ns) * 1e-6, 3);
    kt_json_end_object(w);
}

void kt_completion_write(const kt_completion *c, kt_json_writer *w) {
    begin(c, w);
    kt_json_key(w, "choices");
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_request_choices(&c->request); i++) write_choice(c, w, i);
    kt_json_end_array(w);
    write_usage(c, w);
    write_timings(c, w);
    kt_json_end_object(w);
}

static kt_status send(kt_completion *c, kt_json_writer *w, kt_err *err) {
    size_t size;
    const char *text = kt_json_writer_text(w, &size);

    if (text) kt_http_stream_event(c->x, text, size);
    kt_json_writer_deinit(w);
    return text ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for a part of the answer");
}

kt_status kt_completion_send_chunk(kt_completion *c, size_t i, kt_err *err) {
    kt_completion_choice *ch = &c->choices[i];
    kt_json_writer w = {0};

    begin(c, &w);
    kt_json_key(&w, "choices");
    kt_json_begin_array(&w);
    write_choice(c, &w, i);
    kt_json_end_array(&w);
    if (c->include_usage) kt_json_add_null(&w, "usage");
    kt_json_end_object(&w);
    KT_TRY(send(c, &w, err));
    ch->text.size = 0;
    ch->n_logprobs = 0;
    return KT_OK;
}

kt_status kt_completion_send_end(kt_completion *c, kt_err *err) {
    if (c->include_usage) {
        kt_json_writer w = {0};
        begin(c, &w);
        kt_json_key(&w, "choices");
        kt_json_begin_array(&w);
        kt_json_end_array(&w);
        write_usage(c, &w);
        write_timings(c, &w);
        kt_json_end_object(&w);
        KT_TRY(send(c, &w, err));
    }
    kt_http_stream_event(c->x, "[DONE]", 6);
    kt_http_stream_end(c->x);
    return KT_OK;
}
