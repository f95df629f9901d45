/* What the server counts about its requests: for /metrics, /slots and /health. Routes report; a
 * mutex guards, held for some ten nanoseconds a token. All functions may be called from any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_HTTP_STATS_H
#define KT_RUNTIME_HTTP_STATS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KT_STATS_BUCKETS 23 /* the most bounds of a histogram, and one for what lies above */

typedef struct kt_histogram {
    const double *bound; /* static, ascending: upper bounds, inclusive */
    int n_bounds;
    int64_t count[KT_STATS_BUCKETS]; /* by bucket, the last of those in use: above all bounds */
    double sum;
} kt_histogram;

/* One request in work: a member of the request's own structure; the stats own it from begin to end.
 */
typedef struct kt_activity {
    struct kt_activity *next, *prev;
    const char *route; /* static */
    char id[25];
    bool is_stream;
    int64_t number; /* counted from 1 in order of arrival */
    int64_t begin_ns, start_ns, first_ns,
        last_ns; /* arrived, left the queue, tokens; 0 = not yet */
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t draft_tokens, draft_hits; /* computed as drafts; of them, those that came true */
    int64_t max_tokens;
} kt_activity;

typedef enum kt_ending {
    KT_ENDING_STOP,
    KT_ENDING_LENGTH,
    KT_ENDING_TOOL_CALLS,
    KT_ENDING_ABORT, /* its client left, or the server ended */
    KT_ENDING_ERROR,
    KT_N_ENDINGS
} kt_ending;

const char *kt_ending_name(kt_ending o);

typedef struct kt_stats {
    pthread_mutex_t lock;
    kt_activity *first; /* newest */
    int64_t n_begun;
    int64_t finished[KT_N_ENDINGS];
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    double prompt_s, generated_s; /* spent on them, requests added up */
    int64_t most_tokens;          /* of one request, its prompt included */
    kt_histogram to_first_token, between_tokens, whole, in_queue, prompt_s_each, generated_s_each,
        running_s_each, prompt_tokens_each, generated_tokens_each, max_tokens_each;
} kt_stats;

void kt_stats_init(kt_stats *s);
void kt_stats_deinit(kt_stats *s);

/* A request was accepted. id and route as in kt_activity; max_tokens 0 = unknown. */
void kt_stats_begin(kt_stats *s, kt_activity *a, const char *route, const char *id);
/* It left the queue; its prompt has so many tokens, of which cached need no computing. */
void kt_stats_start(kt_stats *s, kt_activity *a, int64_t prompt_tokens, int64_t cached_tokens,
                    int64_t max_tokens, bool is_stream);
/* n more tokens came at once. */
void kt_stats_tokens(kt_stats *s, kt_activity *a, int64_t n);
/* So many tokens were drafted for it until now, and came true. */
void kt_stats_drafts(kt_stats *s, kt_activity *a, int64_t drafted, int64_t hits);
/* A copy; tokens of requests in work are added to the totals, which so go on while requests run. */
kt_stats kt_stats_read(kt_stats *s);
/* It is over; a may be released. */
void kt_stats_end(kt_stats *s, kt_activity *a, kt_ending outcome);

#endif
