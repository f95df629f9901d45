/* A ring of bytes under a mutex that is held while bytes are copied and never while they are
 * written. A write takes at most what a pipe takes without waiting once poll says that it is
 * writable (PIPE_BUF). SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/log_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

enum { RING_BYTES = 256 * 1024, POLL_MS = 50 };

static const int64_t patience_ns = 500 * 1000000;

struct kt_log_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int fd;
    size_t first, n; /* the bytes that wait */
    long lost;       /* lines since the last that was told */
    bool is_stopping, is_broken;
    int64_t deadline_ns; /* once it is stopping */
    char ring[RING_BYTES];
};

/* With the lock held. False when there is no room. */
static bool put(kt_log_writer *w, const char *text, size_t size) {
    size_t at = (w->first + w->n) % RING_BYTES, part = RING_BYTES - at;

    if (size > RING_BYTES - w->n) return false;
    if (part > size) part = size;
    memcpy(w->ring + at, text, part);
    memcpy(w->ring, text + part, size - part);
    w->n += size;
    return true;
}

static void tell_lost(kt_log_writer *w) {
    char line[96];
    int n =
        snprintf(line, sizeof line, "(%ld lines of the log were lost: nobody read it)\n", w->lost);

    if (put(w, line, (size_t)n)) w->lost = 0;
}

void kt_log_writer_put(kt_log_writer *w, const char *lines, size_t size) {
    pthread_mutex_lock(&w->lock);
    if (w->lost) tell_lost(w);
    if (w->is_broken || w->lost || !put(w, lines, size))
        w->lost++;
    else
        pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

/* Write n bytes at most, when that does not wait. The bytes written; -1 when nobody will ever read.
 */
static ssize_t write_some(int fd, const char *text, size_t n) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    ssize_t done;

    if (poll(&p, 1, POLL_MS) <= 0) return 0;
    if (!(p.revents & POLLOUT)) return -1;
    done = write(fd, text, n < PIPE_BUF ? n : PIPE_BUF);
    if (done >= 0) return done;
    return errno == EINTR || errno == EAGAIN ? 0 : -1;
}

/* Take what waits, one part at a time. True when the thread should go on. */
static bool flush(kt_log_writer *w) {
    char part[PIPE_BUF];
    size_t n = w->n;
    ssize_t done;

    if (w->is_stopping && kt_clock_ns() > w->deadline_ns) return false;
    if (n > RING_BYTES - w->first) n = RING_BYTES - w->first;
    if (n > sizeof part) n = sizeof part;
    memcpy(part, w->ring + w->first, n);
    pthread_mutex_unlock(&w->lock);
    done = write_some(w->fd, part, n);
    pthread_mutex_lock(&w->lock);
    if (done < 0) {
        w->is_broken = true;
        w->n = 0;
        return !w->is_stopping;
    }
    w->first = (w->first + (size_t)done) % RING_BYTES;
    w->n -= (size_t)done;
    return true;
}

static void *work(void *arg) {
    kt_log_writer *w = arg;
    bool go_on = true;

    pthread_mutex_lock(&w->lock);
    while (go_on) {
        if (w->n == 0 && w->is_stopping) break;
        if (w->n == 0)
            pthread_cond_wait(&w->wake, &w->lock);
        else
            go_on = flush(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* No signal is this thread's: SIGPIPE of a closed reader stays pending on it and ends with it. */
static int start(kt_log_writer *w) {
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

kt_status kt_log_writer_create(int fd, kt_log_writer **out, kt_err *err) {
    kt_log_writer *w = calloc(1, sizeof *w);

    *out = NULL;
    if (!w) return kt_fail(err, KT_E_NOMEM, "no memory for the log");
    w->fd = fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    if (start(w) != 0) {
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->wake);
        free(w);
        return kt_fail(err, KT_E_NOMEM, "log: cannot start its thread");
    }
    *out = w;
    return KT_OK;
}

void kt_log_writer_destroy(kt_log_writer *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->is_stopping = true;
    w->deadline_ns = kt_clock_ns() + patience_ns;
    if (w->lost) tell_lost(w);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
