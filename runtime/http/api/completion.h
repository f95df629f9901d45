/* One /v1/completions request: from the JSON body to what is asked for, and from events to JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_COMPLETION_H
#define KT_RUNTIME_COMPLETION_H

#include "runtime/http/api/call.h"

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
    kt_api_call call; /* first */
    kt_text *echoed;  /* [n_prompts]: text of each prompt, with echo */
    size_t n_prompts;
    bool echo;
    bool begins; /* text begins with what the model's tokenizer puts in front of it */
    kt_completion_choice *choices; /* [n_choices] */
    size_t n_choices;              /* n_prompts * n */
} kt_completion;

/* POST /v1/completions: a kt_completion. */
extern const kt_api_kind kt_api_kind_completion;

/* completion_parse.c: kt_api_kind.prepare. */
bool kt_completion_prepare(kt_api_call *call, const kt_json *body, kt_api_error *e);
/* completion_write.c: kt_api_kind.event and finish. */
void kt_completion_on_event(kt_api_call *call, const kt_event *event);
void kt_completion_finish(kt_api_call *call);

#endif
