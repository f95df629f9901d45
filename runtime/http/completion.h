/* One /v1/completions request on its way through the threads. SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_RUNTIME_COMPLETION_H
#define KT_RUNTIME_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "runtime/http/api/fields.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"
#include "runtime/serve/request.h"
#include "runtime/token/text.h"

enum { KT_MAX_CHOICES = 128 }; /* prompts * n of one request */

/* A token with its alternatives. */
typedef struct kt_logprob {
    int32_t id;
    bool is_known; /* the first token of a prompt has no probability */
    float logprob;
    size_t offset; /* of its text, in characters */
    int32_t top_ids[KT_MAX_TOP_LOGPROBS];
    float top[KT_MAX_TOP_LOGPROBS];
    int n_top;
} kt_logprob;

typedef struct kt_completion_choice {
    kt_text text;         /* not yet sent */
    size_t n_chars;       /* offset of the next token's text */
    kt_logprob *logprobs; /* not yet sent */
    size_t n_logprobs, logprob_capacity;
    const char *finish; /* "stop", "length" or NULL while running */
    bool has_begun;
} kt_completion_choice;

typedef struct kt_completion {
    kt_job job; /* first: the prepare queue hands back this pointer */
    kt_app *app;
    kt_http_exchange *x; /* kept */
    kt_activity activity;
    kt_ending outcome;
    int64_t created_s;
    kt_request request;
    kt_text *echoed; /* [n_prompts]: text of each prompt, with echo */
    bool stream, include_usage, echo;
    kt_completion_choice *choices; /* [n_prompts * n] */
    bool has_started;              /* its prompts are being computed */
    bool is_streaming;             /* the stream has begun */
    atomic_bool has_failed;        /* there was no memory for a part of the answer */
    int64_t n_counted;             /* tokens that the stats know */
} kt_completion;

/* Called by the route: queue the request, or refuse it. */
void kt_completion_start(kt_app *app, kt_http_exchange *x);

/* completion_parse.c: fill c from the body. False with *error. */
bool kt_completion_parse(kt_completion *c, const char *body, size_t size, kt_api_error *error);

/* completion_fields.c: refuse parameters that are not built, and unknown ones, by name. */
bool kt_completion_check_fields(const kt_json *body, kt_api_error *error);

/* completion_events.c: give the parsed request to the scheduler; false when it was not taken, which
 * is answered. */
bool kt_completion_submit(kt_completion *c);
/* completion.c: when everything is answered. */
void kt_completion_destroy(kt_completion *c);

/* completion_write.c */
/* The whole answer. */
void kt_completion_write(const kt_completion *c, kt_json_writer *w);
/* A stream's chunk with what choice i has gathered, which is cleared. */
kt_status kt_completion_send_chunk(kt_completion *c, size_t i, kt_err *err);
/* The last chunks: usage if wanted, [DONE]. */
kt_status kt_completion_send_end(kt_completion *c, kt_err *err);

#endif
