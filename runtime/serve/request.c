/* Requests: what they own, and choosing tokens. answer.c takes the tokens over.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/answer.h"

void kt_request_init(kt_request *r) {
    *r = (kt_request){.n = 1, .max_tokens = 16, .sampling = KT_SAMPLING_GREEDY, .logprobs = -1};
}

static void close_choice(kt_answer *ch) {
    const kt_request *r = ch->request;

    if (!r) return;
    if (r->constraint) r->constraint->close(ch->constraint);
    if (r->output) r->output->close(ch->output);
    kt_sampler_deinit(&ch->sampler);
    free(ch->mask);
    free(ch->tokens.data);
    free(ch->piece.data);
    free(ch->held.data);
    free(ch->shown.data);
}

static void close_choices(kt_request *r) {
    for (size_t i = 0; r->choices && i < kt_request_choices(r); i++) close_choice(&r->choices[i]);
    free(r->choices);
    free(r->lanes);
    r->choices = NULL;
    r->lanes = NULL;
}

void kt_request_deinit(kt_request *r) {
    close_choices(r);
    for (size_t i = 0; i < r->n_prompts; i++) free(r->prompts[i].ids);
    free(r->prompts);
    free(r->stop_ids);
    free(r->bias);
    kt_stops_deinit(&r->stops);
    memset(r, 0, sizeof *r);
}

size_t kt_request_choices(const kt_request *r) {
    return r->n_prompts * (size_t)r->n;
}

int64_t kt_request_limit(const kt_request *r, const kt_prompt *p) {
    const int64_t room = r->choices[0].model->max_context - (int64_t)p->n_ids;
    return r->max_tokens < room ? r->max_tokens : room;
}

const int32_t *kt_request_tokens(const kt_request *r, size_t i, size_t *n) {
    *n = r->choices ? r->choices[i].tokens.size : 0;
    return r->choices ? r->choices[i].tokens.data : NULL;
}

bool kt_request_gone(const kt_request *r) {
    return r->client.is_gone && r->client.is_gone(r->client.arg);
}

/* ---- making the choices ---- */

static kt_status open_choice(kt_request *r, kt_answer *ch, const kt_request_model *model,
                             kt_err *err) {
    kt_sampling sampling = r->sampling;

    sampling.seed += (uint64_t)ch->index; /* choices of one request differ */
    ch->request = r;
    ch->model = model;
    ch->prompt = &r->prompts[ch->index / r->n];
    ch->stop_token = -1;
    if (kt_sampler_init(&ch->sampler, &sampling, r->bias, r->n_bias, model->vocab) != 0 ||
        kt_sampler_accept_prompt(&ch->sampler, ch->prompt->ids, ch->prompt->n_ids) != 0)
        return kt_fail(err, KT_E_NOMEM, "no memory to sample from %lld tokens",
                       (long long)model->vocab);
    if (r->constraint || r->min_tokens > 0) {
        /* cleared: a tokenizer may have fewer tokens than the model has logits */
        ch->mask = calloc((size_t)(model->vocab + 63) / 64, sizeof *ch->mask);
        if (!ch->mask) return kt_fail(err, KT_E_NOMEM, "no memory for a mask of tokens");
    }
    if (r->constraint) KT_TRY(r->constraint->open(r->constraint->arg, &ch->constraint, err));
    return r->output ? r->output->open(r->output->arg, ch->index, &ch->output, err) : KT_OK;
}

kt_status kt_request_open(kt_request *r, const kt_request_model *model, kt_err *err) {
    const size_t n = kt_request_choices(r);
    kt_status st = KT_OK;

    r->choices = calloc(n, sizeof *r->choices);
    if (!r->choices) return kt_fail(err, KT_E_NOMEM, "no memory for %zu choices", n);
    for (size_t i = 0; st == KT_OK && i < n; i++) {
        r->choices[i].index = (int)i;
        st = open_choice(r, &r->choices[i], model, err);
    }
    if (st != KT_OK) {
        close_choices(r);
        return st;
    }
    for (size_t i = 0; i < r->n_prompts; i++) r->prompt_tokens += (int64_t)r->prompts[i].n_ids;
    r->n_open = (int)n;
    return KT_OK;
}

/* ---- choosing ---- */

static void forbid(kt_answer *ch, int64_t id) {
    if (id >= 0 && id < ch->model->vocab) ch->mask[id / 64] &= ~(UINT64_C(1) << (id % 64));
}

/* What may come next, into *mask; NULL = everything. */
static kt_status make_mask(kt_answer *ch, const uint64_t **mask, kt_err *err) {
    const kt_request *r = ch->request;
    const bool is_short = (int64_t)ch->tokens.size < r->min_tokens;

    *mask = NULL;
    if (!r->constraint && !is_short) return KT_OK;
    if (r->constraint)
        KT_TRY(r->constraint->mask(ch->constraint, ch->mask, err));
    else
        memset(ch->mask, 0xff, (size_t)(ch->model->vocab + 63) / 64 * sizeof *ch->mask);
    for (int i = 0; is_short && i < ch->model->n_eos; i++) forbid(ch, ch->model->eos[i]);
    for (size_t i = 0; is_short && i < r->n_stop_ids; i++) forbid(ch, r->stop_ids[i]);
    *mask = ch->mask;
    return KT_OK;
}

/* min_tokens and a grammar that is at its end contradict each other: the grammar wins. */
static kt_status pick_token(kt_answer *ch, const float *logits, kt_sampler_scratch *w,
                            kt_err *err) {
    const kt_request *r = ch->request;
    kt_pick *p = &ch->pick;
    const uint64_t *mask;

    KT_TRY(make_mask(ch, &mask, err));
    p->id = kt_sampler_pick(&ch->sampler, logits, mask, w);
    if (p->id == -1 && r->constraint) {
        KT_TRY(r->constraint->mask(ch->constraint, ch->mask, err));
        p->id = kt_sampler_pick(&ch->sampler, logits, ch->mask, w);
    }
    if (p->id == -1)
        return kt_fail(err, KT_E_UNSUPPORTED, "no token is allowed after %zu tokens",
                       ch->tokens.size);
    if (p->id >= 0 && r->logprobs >= 0)
        p->n_top = kt_sampler_logprobs(logits, ch->model->vocab, p->id, r->logprobs, &p->logprob,
                                       p->top_ids, p->top, w);
    if (p->id >= 0 && p->n_top >= 0) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory to sample from %lld tokens",
                   (long long)ch->model->vocab);
}

void kt_request_pick(kt_request *r, size_t i, const float *logits, kt_sampler_scratch *w) {
    kt_answer *ch = &r->choices[i];

    ch->pick.n_top = 0;
    ch->pick.status = pick_token(ch, logits, w, &ch->pick.why);
}

kt_status kt_request_prompt_logprob(kt_request *r, size_t i, size_t at, const float *logits,
                                    kt_sampler_scratch *w, kt_err *err) {
    const kt_answer *ch = &r->choices[i];
    int32_t top_ids[KT_MAX_TOP_LOGPROBS];
    float top[KT_MAX_TOP_LOGPROBS];
    kt_event e = {.kind = KT_EVENT_LOGPROB, .choice = (int)i, .tool = -1};

    e.as.logprob = (kt_event_logprob){
        .token = ch->prompt->ids[at], .is_prompt = true, .top_token = top_ids, .top_value = top};
    e.as.logprob.n_top = kt_sampler_logprobs(logits, ch->model->vocab, ch->prompt->ids[at],
                                             r->logprobs > 0 ? r->logprobs : 0, &e.as.logprob.value,
                                             top_ids, top, w);
    if (e.as.logprob.n_top < 0)
        return kt_fail(err, KT_E_NOMEM, "no memory for log probabilities of the prompt");
    r->client.event(r->client.arg, &e);
    return KT_OK;
}
