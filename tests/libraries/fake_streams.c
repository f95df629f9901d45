/* A CUDA driver's streams on one thread each: what they are given is done in order, functions of
 * the host among it, and can be captured to be replayed. SPDX-License-Identifier: Apache-2.0 */
#include "fake_streams.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1024, INVALID_HANDLE = 400 };

typedef struct work {
    void (*f)(void *arg);
    void *arg, *to;
    const void *from;
    size_t bytes;
} work;

struct fake_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work queue[MOST], graph[MOST];
    int n, done, n_graph;
    bool is_held, is_capturing, is_ending;
};

static fake_stream *known[16];

static void *run(void *arg) {
    fake_stream *s = arg;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        work w;
        while ((s->is_held || s->done == s->n) && !s->is_ending)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->done == s->n) break;
        w = s->queue[s->done % MOST];
        pthread_mutex_unlock(&s->lock);
        if (w.f)
            w.f(w.arg);
        else
            memcpy(w.to, w.from, w.bytes);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

fake_stream *fake_stream_make(void) {
    fake_stream *s = calloc(1, sizeof *s);

    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pthread_create(&s->thread, NULL, run, s);
    for (int i = 0; i < 16; i++)
        if (!known[i]) {
            known[i] = s;
            break;
        }
    return s;
}

static bool is_known(const void *stream) {
    for (int i = 0; i < 16; i++)
        if (stream && known[i] == stream) return true;
    return false;
}

static void put(fake_stream *s, const work *w) {
    pthread_mutex_lock(&s->lock);
    if (s->is_capturing) {
        s->graph[s->n_graph++] = *w;
    } else {
        while (s->n - s->done == MOST) pthread_cond_wait(&s->changed, &s->lock);
        s->queue[s->n++ % MOST] = *w;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_copy(fake_stream *s, void *to, const void *from, size_t bytes) {
    put(s, &(work){.to = to, .from = from, .bytes = bytes});
}

void fake_stream_hold(fake_stream *s, int is_held) {
    pthread_mutex_lock(&s->lock);
    s->is_held = is_held;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_capture(fake_stream *s, int is_on) {
    pthread_mutex_lock(&s->lock);
    if (is_on) s->n_graph = 0;
    s->is_capturing = is_on;
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_replay(fake_stream *s) {
    for (int i = 0; i < s->n_graph; i++) put(s, &s->graph[i]);
}

void fake_stream_sync(fake_stream *s) {
    pthread_mutex_lock(&s->lock);
    while (s->done < s->n) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void fake_stream_end(fake_stream *s) {
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < 16; i++)
        if (known[i] == s) known[i] = NULL;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg);
int cuLaunchHostFunc(void *stream, void (*f)(void *arg), void *arg) {
    if (!is_known(stream)) return INVALID_HANDLE;
    put(stream, &(work){.f = f, .arg = arg});
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status);
int cuStreamIsCapturing(void *stream, int *status) {
    if (!is_known(stream)) return INVALID_HANDLE;
    *status = ((fake_stream *)stream)->is_capturing;
    return 0;
}
