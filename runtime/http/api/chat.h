/* One /v1/chat/completions request: from the JSON body to what is asked for, and from events to
 * JSON. What generates lies between and knows neither. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_H
#define KT_RUNTIME_CHAT_H

#include "runtime/chat/events.h"
#include "runtime/http/api/call.h"
#include "runtime/http/api/chat_model.h"

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

/* What is asked for, and how far it is. All is owned unless said. */
typedef struct kt_chat_call {
    kt_api_call call; /* first; its body is borrowed from */

    kt_chat_request request; /* borrows from the body */
    kt_model_prompt prompt;  /* its ids are the request's once it is prepared */
    kt_tool_choice tool_choice;
    const char *tool_name; /* NAMED; borrowed from the body */
    bool parallel_tools;
    int first_call; /* calls made earlier in the conversation */
    kt_output output;
    bool progress, hide_reasoning;

    kt_chat_choice *choices; /* [n_choices] */
    size_t n_choices;
} kt_chat_call;

/* POST /v1/chat/completions: a kt_chat_call. */
extern const kt_api_kind kt_api_kind_chat;

/* chat_parse.c: fill c from its body. False with *e. stop: the name of the stop strings. */
bool kt_chat_parse(kt_chat_call *c, const kt_json *body, const char *stop, kt_api_error *e);
/* The part of it that makes the prompt. */
bool kt_chat_parse_conversation(kt_chat_call *c, const kt_json *body, kt_api_error *e);
/* chat_tools.c */
bool kt_chat_parse_tools(kt_chat_call *c, const kt_json *body, kt_api_error *e);

/* chat_prompt.c: the prompt of the conversation, and for all but its text (is_text) its ids.
 * False with *e, also when there is no template. */
bool kt_chat_make_prompt(const kt_app *app, const kt_chat_request *request, bool is_text,
                         kt_model_prompt *out, kt_api_error *e);
/* The tokens of the prompt of a chat's body. */
bool kt_chat_count(kt_app *app, const kt_json *chat, int64_t *tokens, kt_api_error *e);
/* What is asked for, made ready for the scheduler: prompt, lengths, grammar, choices. After parse.
 */
bool kt_chat_make_run(kt_chat_call *c, kt_api_error *e);

/* chat_output.c: the model's output is parsed, choice by choice. */
void kt_chat_set_output(kt_chat_call *c);
/* kt_api_kind.is_free: reasoning comes before the form that was asked for. */
bool kt_chat_is_free(const kt_api_call *call, size_t choice);
/* Does this event belong to the answer? After a call that was to be the only one, no more does. */
bool kt_chat_takes(kt_chat_call *c, const kt_event *event);
/* kt_api_kind.release. */
void kt_chat_release(kt_api_call *call);

/* chat_write.c: log probabilities of tokens wait in their choice for the piece of text that they
 * belong to. */
void kt_chat_keep_logprob(kt_chat_call *c, kt_chat_choice *ch, const kt_event_logprob *p);
/* Those that wait: an array of OpenAI's objects, borrowed until they are dropped. NULL when there
 * are none, or no memory for them (kt_api_lose). */
const char *kt_chat_logprobs(kt_chat_call *c, kt_chat_choice *ch, size_t *size);
void kt_chat_drop_logprobs(kt_chat_choice *ch);

/* kt_api_kind.event and finish. Stream a chunk or gather. */
void kt_chat_on_event(kt_api_call *call, const kt_event *event);
void kt_chat_finish(kt_api_call *call);

#endif
