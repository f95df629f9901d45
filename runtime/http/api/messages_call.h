/* One request of Anthropic's Messages API: translated to a chat on its way in, and its events to
 * Anthropic's on their way out. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MESSAGES_CALL_H
#define KT_RUNTIME_MESSAGES_CALL_H

#include "runtime/http/api/chat.h"

/* Parts of the answer, in the order in which they come. */
typedef enum kt_block_kind {
    KT_BLOCK_NONE,
    KT_BLOCK_TEXT,
    KT_BLOCK_THINKING,
    KT_BLOCK_TOOL
} kt_block_kind;

typedef struct kt_messages_call {
    kt_chat_call chat;      /* first */
    kt_json_doc *as_chat;   /* owned: the body of the chat, which it borrows from */
    bool has_begun;         /* stream: message_start was sent */
    kt_block_kind open;     /* the block that events go to */
    int64_t n_blocks;       /* begun */
    kt_text text;           /* whole answer: of the open block; arguments of a tool */
    kt_text tool, tool_id;  /* whole answer: of the open block */
    kt_json_writer content; /* whole answer: an array of blocks that is not ended yet */
    kt_finish finish;
    kt_text matched; /* the stop sequence that ended it */
} kt_messages_call;

/* POST /v1/messages: a kt_messages_call. */
extern const kt_api_kind kt_api_kind_messages;

/* messages_parse.c: the body of the chat that means the same. is_run: of a request for an answer,
 * which needs max_tokens; else only of its prompt. The document is the caller's. False with *e,
 * which names the place. */
bool kt_messages_translate(const kt_json *body, bool is_run, kt_json_doc **out, kt_api_error *e);

/* messages_write.c: kt_api_kind.event and finish. */
void kt_messages_on_event(kt_api_call *call, const kt_event *event);
void kt_messages_finish(kt_api_call *call);

#endif
