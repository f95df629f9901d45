/* A request: prompts and wishes in, events out (runtime/chat/events.h). A state machine that is
 * given logits and knows no HTTP, no JSON and no engine; the scheduler (runtime/sched/scheduler.h)
 * drives it. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_REQUEST_H
#define KT_RUNTIME_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "runtime/chat/events.h"
#include "runtime/sample/sampler.h"
#include "runtime/serve/stop_match.h"
#include "runtime/token/text.h"
#include "runtime/token/tokenizer.h"

enum { KT_MAX_TOP_LOGPROBS = 20, KT_PROMPT_MARKS = 2 };

typedef struct kt_prompt {
    int32_t *ids; /* owned */
    size_t n_ids; /* at least 1, fewer than the context */
    /* Ascending: ids in front of where prompts that begin alike may part, such as a conversation's
     * turns. The states of recurrent layers are kept there, for those others; 0 = none. */
    size_t mark[KT_PROMPT_MARKS];
} kt_prompt;

/* What limits the next token: a grammar (http/api/call_form.c). One state a choice. Functions may
 * be called from several threads, for one state by one at a time. */
typedef struct kt_constraint {
    void *arg; /* borrowed */
    kt_status (*open)(void *arg, void **state, kt_err *err);
    void (*close)(void *state); /* accepts NULL */
    /* bits[(vocab + 63) / 64] as in kt_sampler_pick. */
    kt_status (*mask)(void *state, uint64_t *bits, kt_err *err);
    kt_status (*accept)(void *state, int32_t id, kt_err *err);
} kt_constraint;

/* What takes an answer apart: a parser (of chats: http/api/chat_output.c). One state a choice. */
typedef struct kt_output {
    void *arg; /* borrowed */
    kt_status (*open)(void *arg, int choice, void **state, kt_err *err);
    void (*close)(void *state);             /* accepts NULL */
    bool (*wants)(void *state, int32_t id); /* should this special token be pushed? */
    kt_status (*push)(void *state, int32_t id, const char *bytes, size_t size, kt_event_sink *sink,
                      void *sink_arg, kt_err *err);
    kt_status (*finish)(void *state, kt_event_sink *sink, void *sink_arg, kt_err *err);
    bool (*in_reasoning)(void *state);
    int (*whole_calls)(void *state);
    bool (*is_done)(void *state); /* the answer is complete and needs no end token; NULL = never */
} kt_output;

/* Who asked. event and done are called on the scheduler's thread (done also on one that submits or
 * destroys); is_gone and is_behind on any thread, and must not wait. */
typedef struct kt_request_client {
    void *arg;
    kt_event_sink *event;
    bool (*is_gone)(void *arg); /* nobody waits for the answer any more; NULL = never */
    bool (*is_behind)(
        void *arg); /* what was sent is not read: make no more for now; NULL = never */
    /* Exactly once, the last call: KT_OK after a FINISH event of every choice; KT_E_CANCELLED when
     * the client is gone or the scheduler ends, else what went wrong. The request is the client's
     * again. */
    void (*done)(void *arg, kt_status status, const kt_err *why);
} kt_request_client;

typedef struct kt_answer kt_answer; /* one answer: runtime/serve/answer.h */
struct kt_lane;                     /* the scheduler's */

typedef struct kt_request {
    /* What is asked for; read-only once submitted. kt_request_init sets what is not 0 by default.
     */
    kt_prompt *prompts; /* owned */
    size_t n_prompts;
    int n; /* choices of each prompt; choice i belongs to prompt i / n */
    int64_t max_tokens,
        min_tokens;       /* of each choice; max_tokens is cut to what the context holds */
    kt_sampling sampling; /* choice i draws with seed + i */
    kt_stops stops;       /* owned */
    int32_t *stop_ids;    /* owned: end the text like end tokens, even with ignore_eos */
    size_t n_stop_ids;
    kt_token_bias *bias; /* owned */
    size_t n_bias;
    int logprobs; /* alternatives of each token, at most KT_MAX_TOP_LOGPROBS; -1 = no logprobs */
    bool prompt_logprobs; /* LOGPROB events of the prompt's tokens from the second on, too */
    bool ignore_eos, show_special;
    bool progress; /* PROGRESS events while prompts are computed */
    int priority;  /* lower goes first; first come within one */
    bool
        is_promised; /* its client was told that it waits: it is taken though the queue filled up */
    const kt_constraint *constraint; /* borrowed; NULL = none */
    const kt_output *output;         /* borrowed; NULL = all is text */
    kt_request_client client;

    /* What became of it; complete when done is called. */
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* prompts once, whatever n */
    int64_t draft_tokens, draft_hits; /* computed as drafts; of them, those that came true */
    int64_t queued_ns, start_ns, prompt_ns, end_ns; /* times of kt_clock_ns; 0 = did not happen */
    kt_answer *choices;                             /* owned: [n_prompts * n] */

    /* The scheduler's. */
    struct kt_request *next;
    struct kt_lane *lanes; /* owned */
    int64_t number;
    int n_open;       /* choices that are not finished */
    kt_status failed; /* why it will end, else KT_OK */
    kt_err why;
} kt_request;

/* What a model says about its tokens. */
typedef struct kt_request_model {
    const kt_tokenizer *tokenizer; /* borrowed */
    int64_t vocab, max_context;
    const int64_t *eos; /* borrowed */
    int n_eos;
} kt_request_model;

/* Defaults: one choice, 16 tokens, greedy, no logprobs. */
void kt_request_init(kt_request *r);
/* Free what the request owns; r itself is the caller's. */
void kt_request_deinit(kt_request *r);

/* Make the choices. Once, before anything below. The model outlives the request. */
kt_status kt_request_open(kt_request *r, const kt_request_model *model, kt_err *err);
size_t kt_request_choices(const kt_request *r); /* n_prompts * n */
/* Tokens that a choice of this prompt may have: max_tokens, or what the context leaves. */
int64_t kt_request_limit(const kt_request *r, const kt_prompt *p);

/* The tokens that choice i has made, end token included; borrowed. */
const int32_t *kt_request_tokens(const kt_request *r, size_t i, size_t *n);

/* ---- for the scheduler ---- */

/* Choose the next token of choice i from logits f32 [vocab]. Touches nothing but the choice, so
 * that many choices are picked side by side; w belongs to the thread. Errors are kept for accept.
 */
void kt_request_pick(kt_request *r, size_t i, const float *logits, kt_sampler_scratch *w);
/* Take the token over: events, and whether choice i is at its end now (*is_over, after its FINISH
 * event). */
kt_status kt_request_accept(kt_request *r, size_t i, bool *is_over, kt_err *err);
/* End choice i without a token, for the reason `finish`: its last events. */
kt_status kt_request_finish(kt_request *r, size_t i, kt_finish finish, kt_err *err);
/* Report token `at` >= 1 of the prompt of choice i, given the logits after the one before it. */
kt_status kt_request_prompt_logprob(kt_request *r, size_t i, size_t at, const float *logits,
                                    kt_sampler_scratch *w, kt_err *err);
bool kt_request_gone(const kt_request *r);

#endif
