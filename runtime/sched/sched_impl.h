/* Inside of the scheduler: what its files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SCHED_IMPL_H
#define KT_RUNTIME_SCHED_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/draft/draft_plan.h"
#include "runtime/draft/ngram.h"
#include "runtime/sched/scheduler.h"
#include "runtime/sched/step_cost.h"

enum {
    KT_LEAST_PROMPT_ROWS = 32, /* of a step, so that no prompt starves */
    KT_ADMITTED_TOKENS = 256,  /* beyond the prompt that must fit when a choice starts */
    KT_GROWTH_TOKENS = 64,     /* pages taken at a time later */
    KT_MARKED_TOKENS = 256,    /* least that a state at a prompt's mark must spare others */
    KT_REST_MS = 100,          /* so long a choice keeps its place though nobody reads it */
    KT_LEAST_LOGIT_ROWS = 64,
    KT_DRAFT_ROWS = KT_LEAST_LOGIT_ROWS / 2 /* of a step, at most; the rest is of prompts */
};

typedef enum kt_lane_state {
    KT_LANE_SIBLING, /* waits for the first choice to compute their prompt */
    KT_LANE_WAITING, /* waits for pages */
    KT_LANE_RUNNING,
    KT_LANE_OVER
} kt_lane_state;

/* What a lane knows for its drafts; made with its first one, kept until it is over. */
typedef struct kt_lane_draft {
    kt_ngram text;
    kt_draft_rate rate;
    int32_t token[KT_DRAFT_MOST]; /* what may come next */
    int64_t n, matched;           /* of it; 0 = nothing is known. The match that it continues */
    int64_t seen;                 /* of it, tokens that came true */
    bool is_of_head;              /* by the draft head: how deep a token is says how sure it is */
    kt_draft_offer *offer;        /* of the step being planned, or NULL; the scheduler's */
} kt_lane_draft;

/* One choice being computed: a sequence that follows prompt and tokens of the choice. */
typedef struct kt_lane {
    kt_request *request;
    size_t index; /* of the choice */
    const kt_prompt *prompt;
    kt_lane_state state;
    kt_sequence *seq;         /* owned while running */
    int64_t length;           /* tokens in it */
    int64_t start;            /* of them, those that it began with */
    int64_t reserved;         /* tokens that it has pages for */
    int64_t n_reported;       /* log probabilities of the prompt that were reported */
    int64_t rests_since_ns;   /* when it was first seen unread, or 0 */
    int64_t rows;             /* of the step being made */
    int64_t n_out, first_out; /* rows with logits in it, from which row of logits */
    int64_t from;             /* length before the step */
    int64_t n_draft;          /* rows of it, the last ones, whose tokens are drafted */
    int64_t n_hit;            /* of them, those that came true */
    int64_t again;        /* tokens to compute again beside the last: states went back further */
    kt_lane_draft *draft; /* owned; NULL = none yet */
    bool is_mark;
} kt_lane;

/* The requests that a step is about, for whoever looks for clients that leave. */
typedef struct kt_watch {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_on, is_ending;
    int64_t end_ns;             /* when the step should be over; 0 = nobody knows */
    bool is_protected;          /* the step before was stopped: only if nobody wants this one */
    const kt_request **request; /* [n] */
    int n;
} kt_watch;

struct kt_scheduler {
    kt_scheduler_options options;
    const kt_backend *backend;
    kt_request_model model;
    pthread_t thread, watcher;
    bool has_thread;

    pthread_mutex_t lock; /* guards the queue, the job and the counts */
    pthread_cond_t wake;
    kt_request *first; /* waiting, in the order in which they start */
    int n_waiting;
    kt_job *job;
    bool is_ready, is_ending;
    int64_t n_submitted;
    kt_scheduler_counts counts;

    /* The scheduler's thread alone. */
    kt_request *active; /* oldest first */
    int n_running;      /* lanes */
    kt_step_cost cost;
    bool was_stopped;         /* the last step */
    bool has_bad_rows;        /* logits of it that are not finite */
    kt_draft_rate draft_rate; /* of all texts */
    bool is_drafting;         /* drafts were worth their cost in the last plan */
    int64_t draft_wait,
        draft_pause; /* steps since they were tried in vain, and until the next trial */
    int64_t n_cached, n_preempted; /* published after each step */
    kt_stop stop;
    kt_watch watch;

    /* Made when there is a backend. */
    int64_t max_out;
    int32_t *token, *out_row;    /* [max_rows], [max_out] */
    kt_span *spans;              /* [max_running] */
    kt_lane **in_step;           /* [max_running], of the spans */
    kt_lane **picked;            /* [max_running] */
    int64_t *picked_row;         /* [max_running] rows of logits */
    float *logits;               /* [max_out, vocab] */
    kt_draft_offer *offers;      /* [max_running]; NULL without drafts */
    kt_draft_span *head_spans;   /* [max_running]; NULL without a draft head */
    int32_t *head_next;          /* [max_rows] */
    double head_ns;              /* time of the head's drafts, old ones fading */
    int64_t head_age;            /* steps since it drafted */
    kt_sampler_scratch *scratch; /* [n_scratch], by thread */
    int n_scratch;
};

/* lanes.c: starting, growing and giving up sequences. */
/* Tokens that a lane knows: its prompt and what was made. */
int64_t kt_lane_known(const kt_lane *l);
int64_t kt_lane_left(const kt_lane *l); /* of them that are not computed */
int32_t kt_lane_token(const kt_lane *l, int64_t at);
/* Make the lanes of a request whose choices are open. */
kt_status kt_lanes_create(kt_request *r, kt_err *err);
/* Start a waiting lane; KT_E_NOMEM when there are no pages. */
kt_status kt_lane_start(kt_scheduler *s, kt_lane *l, kt_err *err);
/* A PROGRESS event of a lane's prompt, if they are wanted. */
void kt_lane_report(const kt_lane *l);
void kt_lane_stop(kt_scheduler *s, kt_lane *l, kt_lane_state state);
/* A sibling takes over the prompt that `from` has computed, if there is room. */
bool kt_lane_fork(kt_scheduler *s, kt_lane *l, const kt_lane *from);
/* Pages for the rows that generating lanes need, taken from the latest if there are none. */
void kt_lanes_grow(kt_scheduler *s);
/* Does its client leave unread what was sent? */
bool kt_lane_rests(const kt_lane *l);
/* The same, and *l remembers since when. Before each step. */
bool kt_lane_note_rest(kt_lane *l);
/* The latest choice that has rested for KT_REST_MS gives up its place and its pages to a request
 * that waits, and starts again when it is read. False when there is none but those of `r`, or when
 * as many as there are places have done so: what nobody reads is bounded. */
bool kt_lanes_displace(kt_scheduler *s, const kt_request *r);

/* batch_plan.c: which lanes take how many rows; sets kt_lane.rows of all running ones. */
void kt_batch_plan(kt_scheduler *s);

/* drafts.c: tokens that may come next, computed together with the last one. */
/* Add drafted tokens to the step whose lanes have their rows; n_prompt of them are of prompts. */
void kt_drafts_plan(kt_scheduler *s, int64_t n_prompt);
/* Is the token that a lane has just been given the one that was drafted? Counts it in any case. */
bool kt_draft_check(kt_scheduler *s, kt_lane *l);
/* Take back what was drafted and did not come true, of the lanes of the last step. */
void kt_drafts_settle(kt_scheduler *s, int n_spans);
void kt_draft_release(kt_lane *l);
/* Let the draft head see the rows that the last step, with `spans`, kept; and draft, while that
 * pays or to see whether it would. */
void kt_drafts_ask_head(kt_scheduler *s, const kt_span *spans, int n_spans);

/* step_run.c */
/* One step; false when there was nothing to compute. */
bool kt_scheduler_run_step(kt_scheduler *s);

/* watch.c */
kt_status kt_watch_start(kt_scheduler *s, kt_err *err);
void kt_watch_end(kt_scheduler *s);
void kt_watch_on(kt_scheduler *s, int n_lanes, int64_t rows);
void kt_watch_off(kt_scheduler *s);

#endif
