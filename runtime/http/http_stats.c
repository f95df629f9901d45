/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/http_stats.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* Seconds, and tokens: the bounds that vLLM's dashboards expect. */
static const double first_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06,  0.08, 0.1,
                                      0.25,  0.5,   0.75, 1.0,  2.5,  5.0,   7.5,  10.0,
                                      20.0,  40.0,  80.0, 160., 640., 2560.0};
static const double between_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                        0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
static const double whole_bounds[] = {0.3,  0.5,   0.8,   1.0,   1.5,  2.0,  2.5,
                                      5.0,  10.0,  15.0,  20.0,  30.0, 40.0, 50.0,
                                      60.0, 120.0, 240.0, 480.0, 960., 1920, 7680};
static const double token_bounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                      1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

#define BOUNDS(list) ((kt_histogram){.bound = (list), .n_bounds = sizeof(list) / sizeof *(list)})

const char *kt_ending_name(kt_ending o) {
    static const char *const names[] = {"stop", "length", "tool_calls", "abort", "error"};
    return names[o];
}

static void observe(kt_histogram *h, double value) {
    int i = 0;

    while (i < h->n_bounds && value > h->bound[i]) i++;
    h->count[i]++;
    h->sum += value;
}

void kt_stats_init(kt_stats *s) {
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->to_first_token = BOUNDS(first_bounds);
    s->between_tokens = BOUNDS(between_bounds);
    s->whole = s->in_queue = s->prompt_s_each = s->generated_s_each = s->running_s_each =
        BOUNDS(whole_bounds);
    s->prompt_tokens_each = s->generated_tokens_each = s->max_tokens_each = BOUNDS(token_bounds);
}

void kt_stats_deinit(kt_stats *s) {
    pthread_mutex_destroy(&s->lock);
}

void kt_stats_begin(kt_stats *s, kt_activity *a, const char *route, const char *id) {
    memset(a, 0, sizeof *a);
    a->route = route;
    snprintf(a->id, sizeof a->id, "%s", id);
    a->begin_ns = kt_clock_ns();
    pthread_mutex_lock(&s->lock);
    a->number = ++s->n_begun;
    a->next = s->first;
    if (s->first) s->first->prev = a;
    s->first = a;
    pthread_mutex_unlock(&s->lock);
}

void kt_stats_start(kt_stats *s, kt_activity *a, int64_t prompt_tokens, int64_t cached_tokens,
                    int64_t max_tokens, bool is_stream) {
    pthread_mutex_lock(&s->lock);
    a->start_ns = kt_clock_ns();
    a->prompt_tokens = prompt_tokens;
    a->cached_tokens = cached_tokens;
    a->max_tokens = max_tokens;
    a->is_stream = is_stream;
    observe(&s->in_queue, (double)(a->start_ns - a->begin_ns) * 1e-9);
    pthread_mutex_unlock(&s->lock);
}

void kt_stats_tokens(kt_stats *s, kt_activity *a, int64_t n) {
    int64_t now = kt_clock_ns(), gaps = n;

    if (n <= 0) return;
    pthread_mutex_lock(&s->lock);
    if (!a->first_ns) {
        a->first_ns = a->last_ns = now;
        observe(&s->to_first_token, (double)(now - a->begin_ns) * 1e-9);
        gaps--;
    }
    for (int64_t i = 0; i < gaps; i++) /* tokens that came at once share the time since the last */
        observe(&s->between_tokens, (double)(now - a->last_ns) * 1e-9 / (double)gaps);
    a->last_ns = now;
    a->generated_tokens += n;
    pthread_mutex_unlock(&s->lock);
}

void kt_stats_drafts(kt_stats *s, kt_activity *a, int64_t drafted, int64_t hits) {
    pthread_mutex_lock(&s->lock);
    a->draft_tokens = drafted;
    a->draft_hits = hits;
    pthread_mutex_unlock(&s->lock);
}

/* Requests that were answered; others would bend the distributions. */
static void add_up(kt_stats *s, const kt_activity *a, int64_t now) {
    double prompt_s = (double)(a->first_ns - a->start_ns) * 1e-9;
    double generated_s = (double)(a->last_ns - a->first_ns) * 1e-9;

    observe(&s->whole, (double)(now - a->begin_ns) * 1e-9);
    observe(&s->prompt_tokens_each, (double)a->prompt_tokens);
    observe(&s->generated_tokens_each, (double)a->generated_tokens);
    observe(&s->max_tokens_each, (double)a->max_tokens);
    if (!a->first_ns) return;
    observe(&s->running_s_each, prompt_s + generated_s);
    observe(&s->prompt_s_each, prompt_s);
    observe(&s->generated_s_each, generated_s);
}

/* What one request has brought so far. */
static void add_totals(kt_stats *s, const kt_activity *a) {
    const int64_t tokens = a->prompt_tokens + a->generated_tokens;

    s->prompt_tokens += a->prompt_tokens;
    s->cached_tokens += a->cached_tokens;
    s->generated_tokens += a->generated_tokens;
    if (tokens > s->most_tokens) s->most_tokens = tokens;
}

void kt_stats_end(kt_stats *s, kt_activity *a, kt_ending outcome) {
    int64_t now = kt_clock_ns();

    pthread_mutex_lock(&s->lock);
    if (a->prev)
        a->prev->next = a->next;
    else
        s->first = a->next;
    if (a->next) a->next->prev = a->prev;
    s->finished[outcome]++;
    add_totals(s, a);
    if (a->first_ns) {
        s->prompt_s += (double)(a->first_ns - a->start_ns) * 1e-9;
        s->generated_s += (double)(a->last_ns - a->first_ns) * 1e-9;
    }
    if (outcome < KT_ENDING_ABORT) add_up(s, a, now);
    pthread_mutex_unlock(&s->lock);
}

kt_stats kt_stats_read(kt_stats *s) {
    kt_stats copy;

    pthread_mutex_lock(&s->lock);
    copy = *s;
    for (const kt_activity *a = s->first; a; a = a->next) add_totals(&copy, a);
    pthread_mutex_unlock(&s->lock);
    copy.first = NULL; /* they may end at any time */
    return copy;
}
