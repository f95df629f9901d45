/* Clients that leave while a step runs. A thread looks at the step's requests every few
 * milliseconds: a flag that somebody sets would have to know the step that it is about. It stops
 * the step when somebody left and most of it is still to come, but never two in a row for some of
 * its requests, so that those who stay get on however often others come and go.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/sched/sched_impl.h"

/* A look wakes a thread on what may be a core of the pool: in steps that are over before their rows
 * could be missed nobody looks. */
enum { LOOK_MS = 8, WORTH_MS = 30, SHORT_MS = 20 };

/* With the lock. */
static bool should_stop(const kt_watch *w) {
    int n_gone = 0;

    for (int i = 0; i < w->n; i++) n_gone += kt_request_gone(w->request[i]);
    if (n_gone == 0) return false;
    if (n_gone == w->n) return true;
    return !w->is_protected && (!w->end_ns || w->end_ns - kt_clock_ns() > WORTH_MS * 1000000LL);
}

static void *look(void *arg) {
    kt_scheduler *s = arg;
    kt_watch *w = &s->watch;

    pthread_mutex_lock(&w->lock);
    while (!w->is_ending) {
        struct timespec until;
        if (!w->is_on) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        if (should_stop(w)) kt_stop_set(&s->stop, true);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

kt_status kt_watch_start(kt_scheduler *s, kt_err *err) {
    kt_watch *w = &s->watch;

    w->request = calloc((size_t)s->options.max_running, sizeof *w->request);
    if (!w->request) return kt_fail(err, KT_E_NOMEM, "scheduler: no memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    if (pthread_create(&s->watcher, NULL, look, s) == 0) return KT_OK;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w->request);
    w->request = NULL;
    return kt_fail(err, KT_E_NOMEM, "scheduler: cannot start its thread");
}

void kt_watch_end(kt_scheduler *s) {
    kt_watch *w = &s->watch;

    if (!w->request) return;
    pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(s->watcher, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w->request);
}

void kt_watch_on(kt_scheduler *s, int n_lanes, int64_t rows) {
    const double ns = kt_step_cost_ns(&s->cost, rows);
    kt_watch *w = &s->watch;

    if (ns > 0 && ns < SHORT_MS * 1e6) return;
    pthread_mutex_lock(&w->lock);
    w->n = 0;
    for (int i = 0; i < n_lanes; i++)
        if (w->n == 0 || w->request[w->n - 1] != s->in_step[i]->request)
            w->request[w->n++] = s->in_step[i]->request;
    w->end_ns = ns > 0 ? kt_clock_ns() + (int64_t)ns : 0;
    w->is_protected = s->was_stopped;
    w->is_on = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void kt_watch_off(kt_scheduler *s) {
    kt_watch *w = &s->watch;

    pthread_mutex_lock(&w->lock);
    w->is_on = false;
    pthread_mutex_unlock(&w->lock);
}
