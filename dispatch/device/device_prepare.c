/* Compiling ahead: a few threads that take one request after the other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "dispatch/device/device_class.h"

enum { MOST_THREADS = 64 };

typedef struct queue {
    const kt_device *d;
    const kt_code_request *request;
    int n;
    atomic_int next;
} queue;

static void *work(void *arg) {
    queue *q = arg;
    int i;

    while ((i = atomic_fetch_add(&q->next, 1)) < q->n) q->d->class->prepare(q->d, &q->request[i]);
    return NULL;
}

/* The caller works, too: a thread that cannot be had is only missing. */
void kt_device_prepare(kt_device *d, const kt_code_request *request, int n, int threads) {
    queue q = {.d = d, .request = request, .n = n};
    pthread_t helper[MOST_THREADS];
    int started = 0;

    if (!d->class->prepare || d->fault.status != KT_OK) return;
    if (threads > n) threads = n;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    while (started < threads - 1 && pthread_create(&helper[started], NULL, work, &q) == 0)
        started++;
    work(&q);
    while (started > 0) pthread_join(helper[--started], NULL);
}
