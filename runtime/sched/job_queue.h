/* One worker thread behind a bounded first-in-first-out queue. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JOB_QUEUE_H
#define KT_RUNTIME_JOB_QUEUE_H

#include <stdbool.h>

#include "kt/status.h"

/* A unit of work, embedded in the caller's structure. Exactly one of run and drop is called, on some
 * thread, and ends the queue's interest in it. */
typedef struct kt_job {
    struct kt_job *next; /* the queue's */
    void (*run)(struct kt_job *job);
    void (*drop)(struct kt_job *job);            /* abandoned, or the queue is being destroyed */
    bool (*abandoned)(const struct kt_job *job); /* nobody wants it any more */
} kt_job;

typedef struct kt_job_queue kt_job_queue;

/* At most `capacity` jobs wait; one more runs. */
kt_status kt_job_queue_create(int capacity, kt_job_queue **out, kt_err *err);
/* Drop what waits, wait for what runs (tell it to stop first), end the thread. Accepts NULL. */
void kt_job_queue_destroy(kt_job_queue *q);

/* False when the queue is full, counting only jobs that somebody still wants; the job is then untouched.
 * Any thread. */
bool kt_job_queue_push(kt_job_queue *q, kt_job *job);

typedef struct kt_job_counts {
    int running, waiting, capacity; /* abandoned jobs are not counted as waiting */
} kt_job_counts;

kt_job_counts kt_job_queue_count(kt_job_queue *q);

#endif
