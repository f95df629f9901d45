/* What a request tells its reader, piece by piece: text, reasoning, tool calls, the end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EVENTS_H
#define KT_RUNTIME_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kt_event_kind {
    KT_EVENT_TEXT,           /* text: a piece of the answer */
    KT_EVENT_REASONING,      /* text: a piece of the reasoning */
    KT_EVENT_TOOL_BEGIN,     /* text: the function's name, whole; call.id */
    KT_EVENT_TOOL_ARGUMENTS, /* text: a piece of the arguments, a JSON object */
    KT_EVENT_TOOL_END,       /* call.is_cut */
    KT_EVENT_LOGPROB,        /* logprob */
    KT_EVENT_PROGRESS,       /* progress */
    KT_EVENT_FINISH          /* finish */
} kt_event_kind;

typedef enum kt_finish {
    KT_FINISH_STOP,       /* end token, stop id or stop string */
    KT_FINISH_LENGTH,     /* max_tokens or the context is used up */
    KT_FINISH_TOOL_CALLS, /* stopped after at least one whole call */
    KT_FINISH_CANCELLED,  /* the reader went away or the server ends */
    KT_FINISH_ERROR
} kt_finish;

typedef struct kt_event_call {
    const char *id; /* BEGIN: NUL-terminated, the OpenAI call id */
    bool is_cut; /* END: the model did not finish this call. Its arguments were completed to valid
                       JSON, but nobody should execute them unseen */
} kt_event_call;

typedef struct kt_event_logprob {
    int32_t token;
    float value; /* natural logarithm */
    bool is_prompt;
    int n_top;
    const int32_t *top_token; /* [n_top], most likely first */
    const float *top_value;   /* [n_top] */
} kt_event_logprob;

typedef struct kt_event_progress { /* of the prompt, in tokens */
    int64_t total, cached, done;
} kt_event_progress;

typedef struct kt_event_finish {
    kt_finish reason;
    const char *matched; /* stop string that ended it, NUL-terminated, or NULL */
    int32_t stop_token;  /* id that ended it, or -1 */
    int64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
} kt_event_finish;

/* One event. All pointers are borrowed and valid during the sink's call only. */
typedef struct kt_event {
    kt_event_kind kind;
    int choice; /* of the request; a parser writes 0 */
    int tool;   /* TOOL_*: number of the call within the answer, from 0; else -1 */
    /* TEXT, REASONING, TOOL_BEGIN, TOOL_ARGUMENTS: UTF-8 of whole characters, NUL-terminated
     * behind size bytes, never empty. */
    const char *text;
    size_t size;
    union {
        kt_event_call call;
        kt_event_logprob logprob;
        kt_event_progress progress;
        kt_event_finish finish;
    } as;
} kt_event;

/* Called on the thread that pushes tokens; must not call back into what called it. */
typedef void kt_event_sink(void *arg, const kt_event *event);

#endif
