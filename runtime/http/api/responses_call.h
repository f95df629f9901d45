/* One request of OpenAI's Responses API: translated to a chat on its way in, and its events to
 * items of an answer on their way out. Nothing is kept behind an answer: a conversation comes whole
 * with each request. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_RESPONSES_CALL_H
#define KT_RUNTIME_RESPONSES_CALL_H

#include "runtime/http/api/chat.h"

typedef enum kt_item_kind {
    KT_ITEM_NONE,
    KT_ITEM_MESSAGE,
    KT_ITEM_REASONING,
    KT_ITEM_CALL
} kt_item_kind;

/* Of a function's or custom tool's name as the model knows it, its end included. */
enum { KT_TOOL_NAME_BYTES = 640 };

/* A tool among those of a request; borrowed from its body. */
typedef struct kt_tool_place {
    const kt_json *tool;  /* NULL: there is none */
    const kt_json *space; /* the namespace it is in, or NULL */
    bool is_custom;       /* it takes a text, not arguments */
} kt_tool_place;

typedef struct kt_responses_call {
    kt_chat_call chat;     /* first */
    kt_json_doc *as_chat;  /* owned: the body of the chat, which it borrows from */
    int64_t n_events;      /* stream: sent */
    kt_item_kind open;     /* the item that events go to */
    int64_t n_items;       /* begun */
    kt_text text;          /* of the open item: what was said, or a call's arguments */
    kt_text logprobs;      /* of the open message: members of a JSON array */
    kt_text tool, tool_id; /* of the open call: the name by which the model knows it */
    kt_tool_place called;  /* of the open call */
    kt_json_writer output; /* an array of complete items, which kt_responses_finish ends */
    kt_finish finish;
} kt_responses_call;

/* POST /v1/responses: a kt_responses_call. */
extern const kt_api_kind kt_api_kind_responses;

/* responses_parse.c: the body of the chat that means the same. The document is the caller's. False
 * with *e, which names the place. */
bool kt_responses_translate(const kt_json *body, kt_json_doc **out, kt_api_error *e);
/* What a chat finds wrong with all its messages is wrong with `input`. */
void kt_responses_rename(kt_api_error *e);

/* responses_tools.c: functions, custom tools and those in namespaces are functions of a chat. Tools
 * that a server runs and that agents offer to every model are left out. */
/* "tools" and "tool_choice" of the chat. */
bool kt_responses_add_tools(kt_json_writer *w, const kt_json *body, kt_api_error *e);
/* "tools" of the response: those that were taken. */
void kt_responses_repeat_tools(kt_json_writer *w, const kt_json *body);
/* The tool that the model knows by this name. */
kt_tool_place kt_responses_find_tool(const kt_json *body, const kt_text *name);
/* out[KT_TOOL_NAME_BYTES]: how the model knows a tool of a namespace, which may be "". */
void kt_responses_tool_name(const char *space, const char *name, char *out);

/* responses_object.c: the response, open for members behind these. output: its items, a JSON array.
 * is_over: with the usage. */
void kt_responses_put(const kt_responses_call *c, kt_json_writer *w, bool is_over,
                      const char *output, size_t size);
/* The open item, as far as it came; is_begun: without what deltas will say. */
void kt_responses_put_item(const kt_responses_call *c, kt_json_writer *w, bool is_begun,
                           const char *status);
/* The only content of the open item, if that is a message or reasoning. */
void kt_responses_put_part(const kt_responses_call *c, kt_json_writer *w, bool is_begun);
/* A member: the open item's id. */
void kt_responses_add_id(const kt_responses_call *c, kt_json_writer *w, const char *key);
/* "name" of the open call, as the request has it. */
void kt_responses_add_name(const kt_responses_call *c, kt_json_writer *w);
/* "logprobs": an array of these members. */
void kt_responses_add_logprobs(kt_json_writer *w, const char *members, size_t size);

/* responses_write.c: kt_api_kind.event and finish. */
void kt_responses_on_event(kt_api_call *call, const kt_event *event);
void kt_responses_finish(kt_api_call *call);

#endif
