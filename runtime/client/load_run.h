/* Many requests to a server, timed: in an open loop (arrivals at random, whatever the server does)
 * or a closed one (each answer makes room for the next request).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOAD_RUN_H
#define KT_RUNTIME_LOAD_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "runtime/client/load_data.h"
#include "runtime/client/sse_client.h"

typedef struct kt_load_options {
    const char *model;       /* field of each request; NULL = left out */
    const char *api_key;     /* or NULL */
    bool chat;               /* /v1/chat/completions instead of /v1/completions */
    bool stop_early;         /* let the model end its answer; else ignore_eos */
    const char *temperature; /* a JSON number, or NULL: the server's default */
    double rate;             /* requests per second of an open loop, Poisson; 0 = closed loop */
    int concurrency;         /* requests under way at once; 0 = no limit (open loop only) */
    double timeout_s;        /* per answer */
    uint64_t seed;           /* of the arrivals */
    bool (*cancelled)(void *arg); /* asked often; or NULL */
    void *cancelled_arg;
    void (*progress)(void *arg, size_t done, size_t failed); /* after each answer; or NULL */
    void *progress_arg;
} kt_load_options;

/* What was measured of an answer. Times are of kt_clock_ns(); one without an error has all of them.
 */
typedef struct kt_load_answer {
    char error[200];                             /* "" = the answer came whole */
    int status;                                  /* of HTTP; 0 = none came */
    int64_t start_ns, first_ns, last_ns, end_ns; /* request, first and last piece of text, end */
    int64_t prompt_tokens, cached_tokens; /* as the server counts them; -1 = it does not say */
    int64_t output_tokens;                /* likewise, else the number of pieces */
    int64_t n_pieces;
    float *gap_ms; /* owned: time between pieces, n_pieces - 1 of them */
    size_t gap_capacity;
} kt_load_answer;
void kt_load_answer_deinit(kt_load_answer *a);

/* load_answer.c: from the start of a request to its end; take is a kt_sse_sink with the answer. */
void kt_load_answer_begin(kt_load_answer *a);
void kt_load_answer_take(void *answer, const kt_json *event, int64_t now_ns);
void kt_load_answer_end(kt_load_answer *a, const kt_sse_stream *s);

typedef struct kt_load_result {
    kt_load_answer *answers; /* owned; [n], in the order of the prompts */
    size_t n;
    double duration_s; /* first request to last end */
} kt_load_result;
void kt_load_result_deinit(kt_load_result *r);

/* Send data->prompts[from .. from + n) and wait for all answers. Answers that failed say why; only
 * memory (KT_E_NOMEM) and cancelling (KT_E_CANCELLED) are errors of the run. One thread. */
kt_status kt_load_run(const kt_target *target, const kt_load_options *options,
                      const kt_load_data *data, size_t from, size_t n, kt_load_result *out,
                      kt_err *err);

#endif
