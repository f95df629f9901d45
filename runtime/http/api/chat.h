/* One /v1/chat/completions request: from the JSON body to what is asked for, and from events to
 * JSON. What generates lies between and knows neither. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_H
#define KT_RUNTIME_CHAT_H

#include "base/json.h"
#include "runtime/chat/events.h"
#include "runtime/http/api/chat_model.h"
#include "runtime/http/api/fields.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"
#include "runtime/serve/grammar/grammar.h"
#include "runtime/serve/request.h"
#include "runtime/token/text.h"

enum { KT_CHAT_MAX_CHOICES = 128 };

typedef enum kt_tool_choice {
    KT_TOOL_CHOICE_NONE, /* no tools, or they are not to be used: the template does not see them */
    KT_TOOL_CHOICE_AUTO,
    KT_TOOL_CHOICE_REQUIRED,
    KT_TOOL_CHOICE_NAMED
} kt_tool_choice;

/* A tool call as gathered for a whole answer. */
typedef struct kt_chat_tool {
    kt_text id, name, arguments;
} kt_chat_tool;

/* What was gathered of a choice. For a stream only what waits for the next chunk. */
typedef struct kt_chat_choice {
    kt_text content, reasoning;
    kt_chat_tool *tools;
    size_t n_tools, tool_capacity;
    kt_json_writer logprobs; /* members of logprobs.content, with commas between them */
    size_t n_logprobs;
    bool has_role;     /* stream: the first chunk was sent */
    kt_parser *parser; /* owned by the request's output */
    bool is_cut;       /* a tool call is complete, and no more are wanted */
    bool is_finished;
    kt_finish finish;
    kt_text matched;    /* stop string */
    int32_t stop_token; /* -1 = none */
} kt_chat_choice;

/* What is asked for, and how far it is. Zero-initialised by kt_chat_start; all is owned unless
 * said. */
typedef struct kt_chat_call {
    kt_job job; /* first: the queues hand back this pointer */
    kt_app *app;
    kt_http_exchange *x; /* kept */
    kt_activity activity;
    kt_ending ending;
    int64_t created_s;
    kt_json_doc *body;

    kt_chat_request request; /* borrows from body */
    kt_model_prompt prompt;
    kt_tool_choice tool_choice;
    const char *tool_name; /* NAMED; borrowed from body */
    bool parallel_tools;
    int first_call;        /* calls made earlier in the conversation */
    const kt_json *schema; /* of response_format; borrowed */
    bool json_object;
    const char *gbnf; /* borrowed */
    size_t gbnf_size;
    kt_grammar *grammar; /* or NULL */

    kt_request run; /* what the scheduler gets; max_tokens -1 until the prompt is known */
    kt_output output;
    kt_constraint constraint;
    int n_gates; /* choices whose grammar is open */
    bool stream, include_usage, continuous_usage, progress, hide_reasoning;

    kt_chat_choice *choices;             /* [n] */
    int64_t reasoning_tokens, n_counted; /* n_counted: tokens that the stats know */
    bool has_started, is_streaming;
    size_t gathered_bytes; /* of a whole answer */
    atomic_bool failed;    /* out of memory while writing, or the answer is too large */
} kt_chat_call;

/* Called by the route: queue the request, or refuse it. */
void kt_chat_start(kt_app *app, kt_http_exchange *x);

/* chat_parse.c: fill c from its body. False with *e. */
bool kt_chat_parse(kt_chat_call *c, const kt_json *body, kt_api_error *e);
/* The part of it that makes the prompt. */
bool kt_chat_parse_conversation(kt_chat_call *c, const kt_json *body, kt_api_error *e);
/* chat_grammar.c: grammars of response_format, grammar and tool_choice; after the prompt was made.
 */
bool kt_chat_make_grammar(kt_chat_call *c, kt_api_error *e);
/* chat_tools.c */
bool kt_chat_parse_tools(kt_chat_call *c, const kt_json *body, kt_api_error *e);
/* refused.c: known elsewhere and not built here. */
bool kt_chat_check_refused(const kt_json *body, kt_api_error *e);

/* chat_run.c: give the request to the scheduler; false when it was not taken, which is answered. */
bool kt_chat_submit(kt_chat_call *c);
/* chat_call.c: when everything is answered. */
void kt_chat_destroy(kt_chat_call *c);

/* chat_write.c: a kt_event_sink whose arg is the call. Streams a chunk or gathers. */
void kt_chat_on_event(void *call, const kt_event *event);
/* The whole answer, or the last chunks. False without memory. */
bool kt_chat_finish(kt_chat_call *c);

#endif
