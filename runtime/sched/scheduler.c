/* The scheduler from outside: its thread, its queue, its counts. step_run.c is the work.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/sched/scheduler.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/sched/sched_impl.h"

enum {
    DEFAULT_QUEUE = 32,
    DEFAULT_RUNNING = 64,
    DEFAULT_DRAFT = 8,
    DEFAULT_HEAD_DRAFT = 3,
    REST_MS = 5
};
static const int64_t default_itl_ns = 200 * 1000 * 1000;

/* ---- what a backend needs ---- */

static void free_buffers(kt_scheduler *s) {
    for (int i = 0; s->scratch && i < s->n_scratch; i++) kt_sampler_scratch_deinit(&s->scratch[i]);
    free(s->scratch);
    free(s->token);
    free(s->out_row);
    free(s->spans);
    free(s->in_step);
    free(s->picked);
    free(s->picked_row);
    free(s->offers);
    free(s->head_spans);
    free(s->head_next);
    free(s->logits);
}

int64_t kt_scheduler_logit_rows(int max_running) {
    return (int64_t)(max_running ? max_running : DEFAULT_RUNNING) + KT_LEAST_LOGIT_ROWS;
}

static bool make_buffers(kt_scheduler *s, const kt_backend *b) {
    const size_t lanes = (size_t)s->options.max_running, rows = (size_t)b->max_rows;
    const bool has_drafts = s->options.speculate != KT_SPECULATE_OFF && b->guess && b->go_back;
    const bool has_head = has_drafts && s->options.speculate == KT_SPECULATE_HEAD && b->draft;

    if (s->options.draft < 1) s->options.draft = has_head ? DEFAULT_HEAD_DRAFT : DEFAULT_DRAFT;

    s->max_out = kt_scheduler_logit_rows(s->options.max_running);
    s->n_scratch = b->pool ? kt_pool_threads(b->pool) : 1;
    s->token = calloc(rows, sizeof *s->token);
    s->out_row = calloc((size_t)s->max_out, sizeof *s->out_row);
    s->spans = calloc(lanes, sizeof *s->spans);
    s->in_step = calloc(lanes, sizeof *s->in_step);
    s->picked = calloc(lanes, sizeof *s->picked);
    s->picked_row = calloc(lanes, sizeof *s->picked_row);
    s->scratch = calloc((size_t)s->n_scratch, sizeof *s->scratch);
    if (has_drafts) s->offers = calloc(lanes, sizeof *s->offers);
    if (has_head) s->head_spans = calloc(lanes, sizeof *s->head_spans);
    if (has_head) s->head_next = calloc(rows, sizeof *s->head_next);
    s->logits = malloc((size_t)s->max_out * (size_t)b->vocab * sizeof *s->logits);
    return s->token && s->out_row && s->spans && s->in_step && s->picked && s->picked_row &&
           s->scratch && s->logits && (s->offers || !has_drafts) &&
           ((s->head_spans && s->head_next) || !has_head);
}

/* Every row of a small step may be an answer's, with logits; more are rows of prompts. */
static double expected_ns(void *arg, int64_t rows) {
    const kt_scheduler *s = arg;
    const kt_backend *b = s->backend;
    const int64_t most = s->options.max_running;

    return b->expected_ns ? b->expected_ns(b->self, rows, rows < most ? rows : most) : 0;
}

kt_status kt_scheduler_ready(kt_scheduler *s, const kt_backend *backend, kt_err *err) {
    if (!make_buffers(s, backend))
        return kt_fail(err, KT_E_NOMEM, "scheduler: no memory for steps of %lld rows",
                       (long long)backend->max_rows);
    s->backend = backend;
    s->model = (kt_request_model){.tokenizer = backend->tokenizer,
                                  .vocab = backend->vocab,
                                  .max_context = backend->max_context,
                                  .eos = backend->eos,
                                  .n_eos = backend->n_eos};
    kt_step_cost_expect(&s->cost, expected_ns, s);
    pthread_mutex_lock(&s->lock);
    s->is_ready = true;
    if (s->offers) s->counts.draft_positions = s->options.draft;
    backend->usage(backend->self, &s->counts.kv);
    pthread_mutex_unlock(&s->lock);
    return KT_OK;
}

/* ---- the thread ---- */

static void run_job(kt_scheduler *s) {
    kt_job *job = s->job;

    pthread_mutex_unlock(&s->lock);
    job->run(job);
    pthread_mutex_lock(&s->lock);
    s->job = NULL;
}

/* Nothing to compute, but requests rest until they are read. With the lock. */
static void rest(kt_scheduler *s) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += REST_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
    pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

static void *work(void *arg) {
    kt_scheduler *s = arg;
    bool did_work = true;

    pthread_mutex_lock(&s->lock);
    while (!s->is_ending) {
        if (s->job) {
            run_job(s);
            continue;
        }
        if (!s->is_ready || (!s->first && !s->active)) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        if (!did_work && s->active) rest(s);
        pthread_mutex_unlock(&s->lock);
        did_work = kt_scheduler_run_step(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool kt_scheduler_step(kt_scheduler *s) {
    return s->is_ready && (s->first || s->active) && kt_scheduler_run_step(s);
}

bool kt_scheduler_call(kt_scheduler *s, kt_job *job) {
    bool is_taken;

    pthread_mutex_lock(&s->lock);
    is_taken = !s->is_ending && !s->job;
    if (is_taken) s->job = job;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return is_taken;
}

/* ---- life ---- */

static kt_status start(kt_scheduler *s, kt_err *err) {
    KT_TRY(kt_watch_start(s, err));
    if (s->options.backend) KT_TRY(kt_scheduler_ready(s, s->options.backend, err));
    if (s->options.is_manual) return KT_OK;
    if (pthread_create(&s->thread, NULL, work, s) != 0)
        return kt_fail(err, KT_E_NOMEM, "scheduler: cannot start its thread");
    s->has_thread = true;
    return KT_OK;
}

kt_status kt_scheduler_create(const kt_scheduler_options *options, kt_scheduler **out,
                              kt_err *err) {
    kt_scheduler *s = calloc(1, sizeof *s);
    kt_status st;

    *out = NULL;
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for the scheduler");
    s->options = *options;
    if (!s->options.queue) s->options.queue = DEFAULT_QUEUE;
    if (!s->options.max_running) s->options.max_running = DEFAULT_RUNNING;
    if (!s->options.itl_ns) s->options.itl_ns = default_itl_ns;
    if (s->options.draft > KT_DRAFT_MOST) s->options.draft = KT_DRAFT_MOST;
    s->counts.capacity = s->options.queue;
    s->counts.places = s->options.max_running;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    st = start(s, err);
    if (st != KT_OK) {
        kt_scheduler_destroy(s);
        return st;
    }
    *out = s;
    return KT_OK;
}

/* The scheduler's thread is gone. */
static void end_all(kt_scheduler *s, kt_request *list) {
    kt_err why;

    kt_fail(&why, KT_E_CANCELLED, "the server is shutting down");
    while (list) {
        kt_request *r = list;
        list = r->next;
        for (size_t i = 0; i < kt_request_choices(r); i++)
            kt_lane_stop(s, &r->lanes[i], KT_LANE_OVER);
        r->end_ns = kt_clock_ns();
        r->client.done(r->client.arg, KT_E_CANCELLED, &why);
    }
}

void kt_scheduler_destroy(kt_scheduler *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    kt_stop_set(&s->stop, true);
    if (s->has_thread) pthread_join(s->thread, NULL);
    kt_watch_end(s);
    if (s->job) s->job->drop(s->job);
    end_all(s, s->active);
    end_all(s, s->first);
    free_buffers(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
}

/* ---- the queue ---- */

/* With the lock: requests that nobody waits for leave the queue, as a list. */
static kt_request *take_gone(kt_scheduler *s) {
    kt_request *gone = NULL, **at = &s->first;

    while (*at) {
        kt_request *r = *at;
        if (!kt_request_gone(r)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = gone;
        gone = r;
        s->n_waiting--;
        s->counts.cancelled++;
    }
    return gone;
}

static void end_gone(kt_request *list) {
    kt_err why;

    kt_fail(&why, KT_E_CANCELLED, "the client left");
    while (list) {
        kt_request *r = list;
        list = r->next;
        r->end_ns = kt_clock_ns();
        r->client.done(r->client.arg, KT_E_CANCELLED, &why);
    }
}

/* With the lock: behind all of the same priority. */
static void enqueue(kt_scheduler *s, kt_request *r) {
    kt_request **at = &s->first;

    while (*at && (*at)->priority <= r->priority) at = &(*at)->next;
    r->next = *at;
    *at = r;
    r->number = ++s->n_submitted;
    s->n_waiting++;
    pthread_cond_signal(&s->wake);
}

kt_submission kt_scheduler_submit(kt_scheduler *s, kt_request *r) {
    kt_submission result = KT_SUBMIT_TAKEN;
    kt_request *gone = NULL;

    pthread_mutex_lock(&s->lock);
    if (!s->is_ready || s->is_ending) result = KT_SUBMIT_ENDING;
    pthread_mutex_unlock(&s->lock);
    if (result != KT_SUBMIT_TAKEN) return result;
    if (kt_request_open(r, &s->model, NULL) != KT_OK || kt_lanes_create(r, NULL) != KT_OK)
        return KT_SUBMIT_NOMEM;
    r->queued_ns = kt_clock_ns();
    pthread_mutex_lock(&s->lock);
    if (s->n_waiting >= s->options.queue) gone = take_gone(s);
    if (s->n_waiting >= s->options.queue && !r->is_promised)
        result = KT_SUBMIT_FULL;
    else if (s->is_ending)
        result = KT_SUBMIT_ENDING;
    else
        enqueue(s, r);
    pthread_mutex_unlock(&s->lock);
    end_gone(gone);
    return result;
}

kt_scheduler_counts kt_scheduler_count(kt_scheduler *s) {
    kt_scheduler_counts c;

    pthread_mutex_lock(&s->lock);
    c = s->counts;
    c.is_called = s->job != NULL;
    for (const kt_request *r = s->first; r; r = r->next) c.waiting += !kt_request_gone(r);
    pthread_mutex_unlock(&s->lock);
    return c;
}
