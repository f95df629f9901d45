/* A list under a mutex: jobs take milliseconds to minutes, so nothing finer is of use.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sched/job_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"

struct kt_job_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    kt_job *first, *last;
    int waiting, capacity, running;
    bool stopping;
};

/* Take abandoned jobs out of the list; the caller drops them without the lock. */
static kt_job *take_abandoned(kt_job_queue *q) {
    kt_job *gone = NULL, **at = &q->first;

    q->last = NULL;
    while (*at) {
        kt_job *job = *at;
        if (job->abandoned(job)) {
            *at = job->next;
            job->next = gone;
            gone = job;
            q->waiting--;
            continue;
        }
        q->last = job;
        at = &job->next;
    }
    return gone;
}

static void drop_all(kt_job *list) {
    while (list) {
        kt_job *next = list->next;
        list->drop(list);
        list = next;
    }
}

static kt_job *take_first(kt_job_queue *q) {
    kt_job *job = q->first;

    q->first = job->next;
    if (!q->first) q->last = NULL;
    q->waiting--;
    return job;
}

static void *work(void *arg) {
    kt_job_queue *q = arg;

    pthread_mutex_lock(&q->lock);
    while (!q->stopping) {
        kt_job *job;
        if (!q->first) {
            pthread_cond_wait(&q->wake, &q->lock);
            continue;
        }
        job = take_first(q);
        q->running = 1;
        pthread_mutex_unlock(&q->lock);
        if (job->abandoned(job))
            job->drop(job);
        else
            job->run(job);
        pthread_mutex_lock(&q->lock);
        q->running = 0;
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

kt_status kt_job_queue_create(int capacity, kt_job_queue **out, kt_err *err) {
    kt_job_queue *q = calloc(1, sizeof *q);

    *out = NULL;
    if (!q) return kt_fail(err, KT_E_NOMEM, "no memory for a queue");
    q->capacity = capacity;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    if (pthread_create(&q->thread, NULL, work, q) != 0) {
        pthread_mutex_destroy(&q->lock);
        pthread_cond_destroy(&q->wake);
        free(q);
        return kt_fail(err, KT_E_NOMEM, "queue: cannot start its thread");
    }
    *out = q;
    return KT_OK;
}

void kt_job_queue_destroy(kt_job_queue *q) {
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    drop_all(q->first);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->wake);
    free(q);
}

bool kt_job_queue_push(kt_job_queue *q, kt_job *job) {
    kt_job *gone = NULL;
    bool accepted;

    pthread_mutex_lock(&q->lock);
    if (q->waiting >= q->capacity) gone = take_abandoned(q);
    accepted = !q->stopping && q->waiting < q->capacity;
    if (accepted) {
        job->next = NULL;
        if (q->last)
            q->last->next = job;
        else
            q->first = job;
        q->last = job;
        q->waiting++;
        pthread_cond_signal(&q->wake);
    }
    pthread_mutex_unlock(&q->lock);
    drop_all(gone);
    return accepted;
}

kt_job_counts kt_job_queue_count(kt_job_queue *q) {
    kt_job_counts c;

    pthread_mutex_lock(&q->lock);
    c = (kt_job_counts){q->running, 0, q->capacity};
    for (const kt_job *job = q->first; job; job = job->next) c.waiting += !job->abandoned(job);
    pthread_mutex_unlock(&q->lock);
    return c;
}
