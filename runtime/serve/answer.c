/* From tokens to events: end tokens, characters, stop strings. SPDX-License-Identifier: Apache-2.0
 */
#include "runtime/serve/answer.h"

#include <string.h>

#include "base/err.h"

/* ---- events ---- */

static void emit(kt_answer *ch, kt_event *e) {
    e->choice = ch->index;
    ch->request->client.event(ch->request->client.arg, e);
}

/* What is ready to be shown. Text of an event ends with a NUL behind it. */
static kt_status emit_shown(kt_answer *ch, kt_err *err) {
    kt_event e = {.kind = KT_EVENT_TEXT, .tool = -1};

    if (ch->shown.size == 0) return KT_OK;
    KT_TRY(kt_text_append(&ch->shown, "", 1, err));
    e.text = ch->shown.data;
    e.size = ch->shown.size - 1;
    emit(ch, &e);
    ch->shown.size = 0;
    return KT_OK;
}

static void emit_logprob(kt_answer *ch) {
    const kt_pick *p = &ch->pick;
    kt_event e = {.kind = KT_EVENT_LOGPROB, .tool = -1};

    e.as.logprob = (kt_event_logprob){.token = p->id,
                                      .value = p->logprob,
                                      .n_top = p->n_top,
                                      .top_token = p->top_ids,
                                      .top_value = p->top};
    emit(ch, &e);
}

/* ---- text ---- */

/* Which stop string the held text begins with. */
static const char *find_match(const kt_answer *ch) {
    const kt_stops *s = &ch->request->stops;

    for (int i = 0; i < s->n; i++)
        if (s->size[i] <= ch->held.size && memcmp(ch->held.data, s->text[i], s->size[i]) == 0)
            return s->text[i];
    return "";
}

/* Whole characters of the answer on their way out. */
static kt_status put_text(kt_answer *ch, const char *text, size_t n, kt_err *err) {
    bool stopped = false;

    if (ch->matched || n == 0) return KT_OK;
    KT_TRY(kt_stops_push(&ch->request->stops, &ch->held, text, n, &ch->shown, &stopped, err));
    if (stopped) ch->matched = find_match(ch);
    return emit_shown(ch, err);
}

/* What a parser made of the tokens: its text is searched for stop strings, the rest passes. */
static void take_parsed(void *arg, const kt_event *event) {
    kt_answer *ch = arg;
    kt_event e = *event;

    if (ch->matched || ch->sink_status != KT_OK) return;
    if (e.kind == KT_EVENT_TEXT)
        ch->sink_status = put_text(ch, e.text, e.size, NULL);
    else
        emit(ch, &e);
}

static kt_status parsed(kt_answer *ch, kt_status st, kt_err *err) {
    if (st != KT_OK) return st;
    if (ch->sink_status == KT_OK) return KT_OK;
    return kt_fail(err, ch->sink_status, "no memory for the text");
}

static kt_status put_token(kt_answer *ch, int32_t id, kt_err *err) {
    const kt_request *r = ch->request;
    const kt_tokenizer *t = ch->model->tokenizer;
    bool is_special = false;
    size_t size = 0, made;
    const char *bytes = kt_tokenizer_bytes(t, id, &size, &is_special);

    if (!bytes) return KT_OK; /* padding of the vocabulary: no text */
    if (r->output) {
        if (is_special && !r->show_special && !r->output->wants(ch->output, id)) return KT_OK;
        ch->n_reasoning += r->output->in_reasoning(ch->output);
        return parsed(ch, r->output->push(ch->output, id, bytes, size, take_parsed, ch, err), err);
    }
    /* Each byte may become a U+FFFD of three, and so may those held from before. */
    ch->piece.size = 0;
    KT_TRY(kt_text_reserve(&ch->piece, 3 * (size + sizeof ch->detokenizer.held), err));
    if (kt_detokenizer_push(t, &ch->detokenizer, id, !r->show_special, ch->piece.data,
                            ch->piece.capacity, &made) != KT_OK)
        return kt_fail(err, KT_E_INTERNAL, "token %d of %zu bytes has no text", id, size);
    return put_text(ch, ch->piece.data, made, err);
}

/* ---- the end ---- */

/* Half a character, what a parser holds, text that did not become a stop string. */
static kt_status put_rest(kt_answer *ch, kt_err *err) {
    const kt_request *r = ch->request;
    char tail[64];

    if (r->output)
        KT_TRY(parsed(ch, r->output->finish(ch->output, take_parsed, ch, err), err));
    else
        KT_TRY(put_text(ch, tail, kt_detokenizer_flush(&ch->detokenizer, tail, sizeof tail), err));
    if (ch->matched) return KT_OK;
    KT_TRY(kt_text_append(&ch->shown, ch->held.data, ch->held.size, err));
    ch->held.size = 0;
    return emit_shown(ch, err);
}

kt_status kt_request_finish(kt_request *r, size_t i, kt_finish finish, kt_err *err) {
    kt_answer *ch = &r->choices[i];
    kt_event e = {.kind = KT_EVENT_FINISH, .tool = -1};

    if (ch->is_over) return KT_OK;
    KT_TRY(put_rest(ch, err));
    if (ch->matched) finish = KT_FINISH_STOP;
    if (finish == KT_FINISH_STOP && r->output && r->output->whole_calls(ch->output) > 0)
        finish = KT_FINISH_TOOL_CALLS;
    e.as.finish = (kt_event_finish){.reason = finish,
                                    .matched = ch->matched,
                                    .stop_token = ch->stop_token,
                                    .prompt_tokens = (int64_t)ch->prompt->n_ids,
                                    .cached_tokens = r->cached_tokens,
                                    .completion_tokens = (int64_t)ch->tokens.size,
                                    .reasoning_tokens = ch->n_reasoning};
    ch->is_over = true;
    r->n_open--;
    emit(ch, &e);
    return KT_OK;
}

static bool is_end(const kt_answer *ch, int32_t id) {
    const kt_request *r = ch->request;

    for (int i = 0; i < ch->model->n_eos && !r->ignore_eos; i++)
        if (ch->model->eos[i] == id) return true;
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

kt_status kt_request_accept(kt_request *r, size_t i, bool *is_over, kt_err *err) {
    kt_answer *ch = &r->choices[i];
    const kt_pick *p = &ch->pick;
    bool ends;

    *is_over = false;
    if (p->status != KT_OK) return kt_fail(err, p->status, "%s", p->why.message);
    ends = is_end(ch, p->id);
    KT_TRY(kt_ids_append(&ch->tokens, p->id, err));
    if (kt_sampler_accept(&ch->sampler, p->id) != 0)
        return kt_fail(err, KT_E_NOMEM, "no memory for the tokens that penalties count");
    r->completion_tokens++;
    if (r->constraint && !ends) KT_TRY(r->constraint->accept(ch->constraint, p->id, err));
    if (ends) {
        ch->stop_token = p->id;
    } else {
        if (r->logprobs >= 0) emit_logprob(ch);
        KT_TRY(put_token(ch, p->id, err));
    }
    ends |= r->output && r->output->is_done && r->output->is_done(ch->output);
    *is_over = ends || ch->matched || (int64_t)ch->tokens.size >= kt_request_limit(r, ch->prompt);
    if (!*is_over) return KT_OK;
    return kt_request_finish(r, i, ends || ch->matched ? KT_FINISH_STOP : KT_FINISH_LENGTH, err);
}
