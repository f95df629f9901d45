/* From the events of a completion to its answer: whole, or in chunks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/completion.h"
#include "runtime/token/utf8_scan.h"

/* ---- JSON ---- */

/* Text of a token; one that is part of a character is written "bytes:\xe6\x88", as OpenAI does. */
static void put_token_text(const kt_completion *c, kt_json_writer *w, int32_t id, bool as_key) {
    size_t size, at = 6;
    const char *bytes = kt_tokenizer_bytes(c->call.app->backend->tokenizer, id, &size, NULL);
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
    const char *x = kt_tokenizer_bytes(c->call.app->backend->tokenizer, a, &n, NULL);
    const char *y = kt_tokenizer_bytes(c->call.app->backend->tokenizer, b, &m, NULL);

    return n == m && (n == 0 || memcmp(x, y, n) == 0);
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
        kt_api_put_logprob(w, p->top[k]);
    }
    kt_json_end_object(w);
}

static void write_logprobs(const kt_completion *c, kt_json_writer *w,
                           const kt_completion_choice *ch) {
    kt_json_key(w, "logprobs");
    if (c->call.run.logprobs < 0) {
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
            kt_api_put_logprob(w, ch->logprobs[i].logprob);
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
    kt_api_add_text(w, "text", &ch->text);
    write_logprobs(c, w, ch);
    kt_json_key(w, "finish_reason");
    if (ch->finish)
        kt_json_put_string(w, ch->finish);
    else
        kt_json_put_null(w);
    kt_json_end_object(w);
}

/* A chunk with what choice i has gathered, which is cleared. */
static void send_chunk(kt_completion *c, size_t i) {
    kt_completion_choice *ch = &c->choices[i];
    kt_json_writer w = {0};

    kt_api_put_head(&c->call, &w, c->call.kind->chunk);
    kt_json_key(&w, "choices");
    kt_json_begin_array(&w);
    write_choice(c, &w, i);
    kt_json_end_array(&w);
    kt_api_end_chunk(&c->call, &w);
    ch->text.size = 0;
    ch->n_logprobs = 0;
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
    const char *bytes = kt_tokenizer_bytes(c->call.app->backend->tokenizer, id, &size, NULL);
    kt_logprob *p;
    kt_status st =
        kt_grow(&data, ch->n_logprobs, &ch->logprob_capacity, 1, sizeof *ch->logprobs, NULL);

    ch->logprobs = data;
    if (st != KT_OK) {
        kt_api_lose(&c->call);
        return NULL;
    }
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
    const size_t at = (size_t)index / (size_t)c->call.run.n;

    ch->has_begun = true;
    if (!c->echo) return;
    kt_api_append(&c->call, &ch->text, c->echoed[at].data, c->echoed[at].size);
    if (c->call.run.prompt_logprobs) add_logprob(c, ch, c->call.run.prompts[at].ids[0]);
}

void kt_completion_on_event(kt_api_call *call, const kt_event *e) {
    kt_completion *c = (kt_completion *)(void *)call;
    kt_completion_choice *ch = &c->choices[e->choice];
    bool is_ready = false;

    if (e->kind == KT_EVENT_PROGRESS) return;
    if (!ch->has_begun) begin_choice(c, ch, e->choice);
    switch (e->kind) {
    case KT_EVENT_TEXT:
        kt_api_append(call, &ch->text, e->text, e->size);
        is_ready = true;
        break;
    case KT_EVENT_LOGPROB: take_logprob(c, ch, &e->as.logprob); break;
    case KT_EVENT_FINISH:
        ch->finish = e->as.finish.reason == KT_FINISH_STOP ? "stop" : "length";
        is_ready = true;
        break;
    default: break; /* without a parser there are no others */
    }
    if (is_ready && call->stream) send_chunk(c, (size_t)e->choice);
}

void kt_completion_finish(kt_api_call *call) {
    const kt_completion *c = (const kt_completion *)(const void *)call;
    kt_json_writer w = {0};

    if (call->stream) {
        kt_api_end_stream(call);
        return;
    }
    kt_api_put_head(call, &w, call->kind->chunk);
    kt_json_key(&w, "choices");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < c->n_choices; i++) write_choice(c, &w, i);
    kt_json_end_array(&w);
    kt_api_put_usage(call, &w);
    kt_api_put_timings(call, &w);
    kt_json_end_object(&w);
    kt_api_reply(call, &w);
}

static void release(kt_api_call *call) {
    kt_completion *c = (kt_completion *)(void *)call;

    for (size_t i = 0; i < c->n_prompts; i++) free(c->echoed[i].data);
    for (size_t i = 0; i < c->n_choices; i++) {
        free(c->choices[i].text.data);
        free(c->choices[i].logprobs);
    }
    free(c->echoed);
    free(c->choices);
}

const kt_api_kind kt_api_kind_completion = {.name = "completions",
                                            .id_prefix = "cmpl-",
                                            .chunk = "text_completion",
                                            .call_bytes = sizeof(kt_completion),
                                            .prepare = kt_completion_prepare,
                                            .event = kt_completion_on_event,
                                            .finish = kt_completion_finish,
                                            .release = release};
