/* The scheduler: many requests, one engine. It owns the loop queue -> running set -> batch -> step
 * -> tokens -> events.
 *
 * A step takes a row of every choice that is generating, then rows of prompts: as many as the
 * measured time of steps allows within the inter-token latency that was asked for, but at least 32.
 * The oldest prompt gets half of them, the shortest the rest, so that a short prompt waits for one
 * step at most and the oldest always goes on. Within a priority first come is first served. A
 * choice starts when pages for its prompt and 256 tokens (or max_tokens) are there; if they run out
 * later the latest one gives up its pages and is computed again. A request whose client does not
 * read rests until it does, and for a tenth of a second keeps its place from those that wait.
 *
 * Threads: functions may be called from any thread unless they say otherwise. The scheduler's own
 * thread calls the engine and most of a client's functions; it is the pool's thread 0 if the engine
 * was made on it (kt_scheduler_call). A second one sleeps but for steps, and looks for clients that
 * leave. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SCHEDULER_H
#define KT_RUNTIME_SCHEDULER_H

#include "runtime/draft/draft_rate.h"
#include "runtime/sched/backend.h"
#include "runtime/sched/job_queue.h"
#include "runtime/serve/request.h"

typedef struct kt_scheduler kt_scheduler;

/* Drafts: tokens that may come next are computed together with the last one and kept as far as they
 * come true, so that a step makes several tokens of a sequence. What comes out is what would come
 * out without them: a token is chosen from each row as ever, and the first that is not the drafted
 * one is the last of the step. That is sampling by rejection for drafts that are certain of their
 * tokens, so distributions are kept, and with equal logits the very tokens of a seed. */
typedef enum kt_speculation {
    KT_SPECULATE_OFF = 0,
    /* What followed the same tokens earlier in the text (runtime/draft/ngram.h). */
    KT_SPECULATE_NGRAM,
    /* What the model's draft head (MTP) says, where the backend has one; else NGRAM. */
    KT_SPECULATE_HEAD
} kt_speculation;

typedef struct kt_scheduler_options {
    const kt_backend *backend; /* borrowed; NULL = later, kt_scheduler_ready */
    int queue;                 /* requests that may wait; 0 = 32 */
    int max_running;           /* choices computed side by side; 0 = 64 */
    int64_t itl_ns;            /* longest step beside a choice that is generating; 0 = 200 ms */
    kt_speculation speculate; /* computed only where the measured cost of steps says that it pays */
    int draft;                /* tokens of a draft, at most KT_DRAFT_MOST; 0 = 8, of a head 3 */
    bool always_drafts;       /* whatever they cost: tests and comparisons */
    bool is_manual;           /* no thread of its own: the caller calls kt_scheduler_step */
} kt_scheduler_options;

/* Rows of logits that a scheduler keeps, each of the vocabulary in f32, for so many choices side by
 * side (0 = the default). */
int64_t kt_scheduler_logit_rows(int max_running);

kt_status kt_scheduler_create(const kt_scheduler_options *options, kt_scheduler **out, kt_err *err);
/* End: what waits or runs is done with KT_E_CANCELLED. Accepts NULL. */
void kt_scheduler_destroy(kt_scheduler *s);

/* Run a job on the scheduler's thread, between steps: to load the model there. Once; false when the
 * scheduler ends, then drop was not called. */
bool kt_scheduler_call(kt_scheduler *s, kt_job *job);
/* From now on there is a backend. Once, on the scheduler's thread (or before anything else). */
kt_status kt_scheduler_ready(kt_scheduler *s, const kt_backend *backend, kt_err *err);

typedef enum kt_submission {
    KT_SUBMIT_TAKEN, /* done will be called */
    KT_SUBMIT_FULL,  /* the queue is full of requests that somebody waits for */
    KT_SUBMIT_NOMEM,
    KT_SUBMIT_ENDING /* there is no model yet, or no more */
} kt_submission;

/* Hand over a request, which must stay where it is until done is called. Anything but TAKEN leaves
 * it with the caller, and done is not called. */
kt_submission kt_scheduler_submit(kt_scheduler *s, kt_request *r);

/* Manual mode only, one thread: one step. False when there was nothing to do. */
bool kt_scheduler_step(kt_scheduler *s);

typedef struct kt_scheduler_counts {
    int running, waiting, capacity; /* requests; those that nobody waits for are not waiting */
    int places;                     /* choices that may be computed side by side */
    int choices;                    /* being computed */
    int resting;    /* not read: some of these, and those that gave up their places meanwhile */
    bool is_called; /* a job of kt_scheduler_call waits or runs */
    int64_t steps, stopped_steps, prompt_rows, decode_rows, cached_tokens, preemptions;
    int64_t step_choices; /* answers that steps had rows of, all steps together */
    /* Drafts, their tokens, those that came true, steps with drafts and their time; and how much
     * longer the same tokens would have taken without, as far as the cost of steps is known. */
    int64_t drafts, draft_rows, draft_hits, draft_steps, draft_ns, draft_saved_ns;
    int64_t draft_hits_at[KT_DRAFT_MOST]; /* that came true as the first of a draft, the second.. */
    int draft_positions;         /* tokens that a draft may have; 0 = there are no drafts */
    int64_t finished, cancelled; /* requests */
    int64_t last_rows, last_step_ns;
    int64_t step_ns; /* of all steps together: what the engine computed, and nothing beside it */
    kt_kv_usage kv;  /* after the last step */
} kt_scheduler_counts;

/* Counted after the last step, but for waiting. Never waits for a step. */
kt_scheduler_counts kt_scheduler_count(kt_scheduler *s);

#endif
