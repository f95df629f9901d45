/* Generation, on the engine thread. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/http/completion.h"
#include "runtime/token/utf8_scan.h"

/* State of the choice being generated. */
typedef struct generation {
    kt_completion *c;
    const kt_backend *b;
    void *sequence;
    size_t index; /* of the choice */
    kt_sampler sampler;
    kt_detokenizer detokenizer;
    kt_text held;         /* may become a stop string */
    float *logits;        /* [vocab], of the last token */
    float *prompt_logits; /* [vocab], of the prompt's end; for the second and later choices */
    bool stopped;
} generation;

static int gone(void *x) {
    return kt_http_gone(x);
}

static bool is_end(const kt_completion *c, int32_t id) {
    const kt_backend *b = c->app->backend;

    for (int i = 0; i < b->n_eos && !c->ignore_eos; i++) {
        if (b->eos[i] == id) return true;
    }
    return false;
}

static size_t count_chars(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* ---- logprobs ---- */

/* Natural log of the sum of exp over logits. */
static double log_sum_exp(const float *logits, int64_t n) {
    double max = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return max + log(sum);
}

static void find_top(const float *logits, int64_t vocab, int n_top, double lse, kt_logprob *p) {
    for (int64_t i = 0; i < vocab; i++) {
        int at = p->n_top;
        if (at == n_top && (n_top == 0 || !(logits[i] > p->top[at - 1]))) continue;
        if (at == n_top) at--;
        for (; at > 0 && logits[i] > p->top[at - 1]; at--) {
            p->top[at] = p->top[at - 1];
            p->top_ids[at] = p->top_ids[at - 1];
        }
        p->top[at] = logits[i];
        p->top_ids[at] = (int32_t)i;
        if (p->n_top < n_top) p->n_top++;
    }
    for (int i = 0; i < p->n_top; i++) p->top[i] = (float)(p->top[i] - lse);
}

static kt_status record_logprob(generation *g, int32_t id, kt_err *err) {
    kt_completion_choice *ch = &g->c->choices[g->index];
    void *data = ch->logprobs;
    double lse = log_sum_exp(g->logits, g->b->vocab);
    size_t size;
    const char *bytes;
    kt_logprob *p;
    kt_status st =
        kt_grow(&data, ch->n_logprobs, &ch->logprob_capacity, 1, sizeof *ch->logprobs, err);

    ch->logprobs = data;
    if (st != KT_OK) return st;
    p = &ch->logprobs[ch->n_logprobs++];
    memset(p, 0, sizeof *p);
    p->id = id;
    p->logprob = (float)(g->logits[id] - lse);
    p->offset = ch->n_chars;
    bytes = kt_tokenizer_bytes(g->b->tokenizer, id, &size, NULL);
    if (bytes) ch->n_chars += count_chars(bytes, size);
    find_top(g->logits, g->b->vocab, g->c->logprobs, lse, p);
    return KT_OK;
}

/* ---- one choice ---- */

/* Text of the model on its way to the client. */
static kt_status put_text(generation *g, const char *text, size_t n, kt_err *err) {
    kt_completion_choice *ch = &g->c->choices[g->index];

    KT_TRY(kt_stops_push(&g->c->stops, &g->held, text, n, &ch->text, &g->stopped, err));
    if (g->c->stream && ch->text.size > 0 && !g->stopped)
        return kt_completion_send_chunk(g->c, g->index, err);
    return KT_OK;
}

/* What is left at the end: half a character, text that did not become a stop string. */
static kt_status put_rest(generation *g, kt_err *err) {
    kt_completion_choice *ch = &g->c->choices[g->index];
    char tail[8];
    size_t n = kt_detokenizer_flush(&g->detokenizer, tail, sizeof tail);

    if (g->stopped) return KT_OK;
    if (n) KT_TRY(kt_stops_push(&g->c->stops, &g->held, tail, n, &ch->text, &g->stopped, err));
    if (g->stopped) return KT_OK;
    KT_TRY(kt_text_append(&ch->text, g->held.data, g->held.size, err));
    g->held.size = 0;
    return KT_OK;
}

static kt_status put_token(generation *g, int32_t id, kt_err *err) {
    char text[8192];
    size_t n;

    if (g->c->logprobs >= 0) KT_TRY(record_logprob(g, id, err));
    if (kt_detokenizer_push(g->b->tokenizer, &g->detokenizer, id, true, text, sizeof text, &n) !=
        KT_OK) {
        return kt_fail(err, KT_E_UNSUPPORTED, "token %d is too long", id);
    }
    return n ? put_text(g, text, n, err) : KT_OK;
}

static kt_status decode(generation *g, int64_t room, kt_err *err) {
    kt_completion *c = g->c;
    kt_completion_choice *ch = &c->choices[g->index];
    int64_t limit = c->max_tokens < room ? c->max_tokens : room;
    const char *finish = "length";

    for (int64_t i = 0; i < limit; i++) {
        int32_t id;
        if (kt_http_gone(c->x)) return kt_fail(err, KT_E_CANCELLED, "the client left");
        id = kt_sampler_pick(&g->sampler, g->logits, NULL);
        kt_sampler_accept(&g->sampler, id);
        c->completion_tokens++;
        kt_stats_tokens(&c->app->stats, &c->activity, 1);
        if (is_end(c, id)) {
            finish = "stop";
            break;
        }
        KT_TRY(put_token(g, id, err));
        if (g->stopped) {
            finish = "stop";
            break;
        }
        if (i + 1 < limit) {
            KT_TRY(g->b->forward(g->b->self, g->sequence, &id, 1, g->logits, gone, c->x, err));
        }
    }
    KT_TRY(put_rest(g, err));
    ch->finish = g->stopped ? "stop" : finish;
    return KT_OK;
}

static kt_status run_choice(generation *g, const kt_prompt *p, kt_err *err) {
    kt_completion *c = g->c;
    kt_completion_choice *ch = &c->choices[g->index];
    kt_sampling sampling = c->sampling;
    int64_t start = kt_clock_ns();
    kt_status st;

    sampling.seed += g->index; /* choices of one request differ */
    if (kt_sampler_init(&g->sampler, &sampling, g->b->vocab) != 0) {
        return kt_fail(err, KT_E_NOMEM, "no memory to sample from %lld tokens",
                       (long long)g->b->vocab);
    }
    memset(&g->detokenizer, 0, sizeof g->detokenizer);
    g->held.size = 0;
    g->stopped = false;
    st = kt_text_append(&ch->text, p->text.data, p->text.size, err); /* empty without echo */
    if (st == KT_OK && c->stream && ch->text.size) st = kt_completion_send_chunk(c, g->index, err);
    if (st == KT_OK) st = decode(g, g->b->max_context - (int64_t)p->n_ids, err);
    kt_sampler_deinit(&g->sampler);
    c->decode_ns += kt_clock_ns() - start;
    if (st == KT_OK && c->stream) st = kt_completion_send_chunk(c, g->index, err);
    return st;
}

/* ---- a prompt and its choices ---- */

static kt_status run_prompt(generation *g, size_t prompt, kt_err *err) {
    kt_completion *c = g->c;
    const kt_prompt *p = &c->prompts[prompt];
    const size_t logits_bytes = (size_t)g->b->vocab * sizeof *g->logits;
    int64_t room = g->b->max_context - (int64_t)p->n_ids, start = kt_clock_ns();
    int64_t capacity = (int64_t)p->n_ids + (c->max_tokens < room ? c->max_tokens : room);
    kt_status st;

    KT_TRY(g->b->open(g->b->self, capacity, &g->sequence, err));
    if (c->stream && !c->streaming) {
        kt_http_stream_begin(c->x);
        c->streaming = true;
    }
    st = g->b->forward(g->b->self, g->sequence, p->ids, (int64_t)p->n_ids, g->prompt_logits, gone,
                       c->x, err);
    c->prompt_tokens += (int64_t)p->n_ids;
    c->prefill_ns += kt_clock_ns() - start;
    for (int k = 0; st == KT_OK && k < c->n; k++) {
        g->index = prompt * (size_t)c->n + (size_t)k;
        if (k > 0) g->b->truncate(g->b->self, g->sequence, (int64_t)p->n_ids);
        memcpy(g->logits, g->prompt_logits, logits_bytes);
        st = run_choice(g, p, err);
    }
    g->b->close(g->b->self, g->sequence);
    return st;
}

static void answer_error(kt_completion *c, kt_status st, const kt_err *err) {
    if (st == KT_E_CANCELLED) return; /* nobody listens */
    kt_log_write(c->app->log, KT_LOG_ERROR, "http", "id=%s: %s", kt_http_request_id(c->x),
                 err->message);
    if (c->streaming)
        kt_completion_send_error(c, err->message);
    else
        kt_http_fail(c->x, st == KT_E_NOMEM ? 503 : 500, "server_error", NULL,
                     st == KT_E_NOMEM ? "out_of_memory" : NULL, "%s", err->message);
}

static kt_status answer(kt_completion *c, kt_err *err) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;

    if (c->stream) return kt_completion_send_end(c, err);
    kt_completion_write(c, &w);
    text = kt_json_writer_text(&w, &size);
    if (text) kt_http_reply_json(c->x, 200, text, size);
    kt_json_writer_deinit(&w);
    return text ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the answer");
}

static double per_second(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static kt_ending outcome_of(const kt_completion *c, kt_status st) {
    if (st != KT_OK) return st == KT_E_CANCELLED ? KT_ENDING_ABORT : KT_ENDING_ERROR;
    return strcmp(c->choices[0].finish, "stop") == 0 ? KT_ENDING_STOP : KT_ENDING_LENGTH;
}

static int64_t count_prompts(const kt_completion *c) {
    int64_t n = 0;

    for (size_t i = 0; i < c->n_prompts; i++) n += (int64_t)c->prompts[i].n_ids;
    return n;
}

void kt_completion_run(kt_completion *c) {
    generation g = {.c = c, .b = c->app->backend};
    kt_err err = {0};
    kt_status st = KT_OK;

    kt_stats_start(&c->app->stats, &c->activity, count_prompts(c), 0, c->max_tokens);

    g.logits = malloc((size_t)g.b->vocab * sizeof *g.logits);
    g.prompt_logits = malloc((size_t)g.b->vocab * sizeof *g.prompt_logits);
    if (!g.logits || !g.prompt_logits) st = kt_fail(&err, KT_E_NOMEM, "no memory for logits");
    for (size_t i = 0; st == KT_OK && i < c->n_prompts; i++) st = run_prompt(&g, i, &err);
    free(g.logits);
    free(g.prompt_logits);
    free(g.held.data);
    if (st == KT_OK) st = answer(c, &err);
    if (st != KT_OK) answer_error(c, st, &err);
    c->outcome = outcome_of(c, st);
    atomic_fetch_add(st == KT_E_CANCELLED ? &c->app->n_cancelled : &c->app->n_finished, 1);
    kt_log_write(c->app->log, KT_LOG_INFO, "engine",
                 "id=%s prompt %lld tokens %.1f/s, generated %lld tokens %.1f/s%s",
                 kt_http_request_id(c->x), (long long)c->prompt_tokens,
                 per_second(c->prompt_tokens, c->prefill_ns), (long long)c->completion_tokens,
                 per_second(c->completion_tokens, c->decode_ns),
                 st == KT_E_CANCELLED ? ", left by its client" : "");
}
