/* Inside of a chat format. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_FORMAT_H
#define KT_RUNTIME_CHAT_FORMAT_H

#include "runtime/chat/messages.h"

struct kt_chat_format {
    kt_template *t;
    char *text, *origin;
    kt_json_doc *tokens;   /* object of the variables *_token, or NULL */
    bool is_built_in;      /* the text is ours */
    bool object_arguments; /* of tool calls: else strings */
    bool part_list;        /* content may be a list of parts */
    bool null_content;     /* beside tool calls */
    bool knows_developer;  /* the role */
    bool late_system;      /* a message of the system may stand behind others */
    bool has_channels;     /* gpt-oss: reasoning is called thinking, efforts are three */
};

/* Find out by trial renderings what the template can do. */
kt_status kt_chat_probe(kt_chat_format *f, kt_err *err);

/* Templates of our own after the published encoders of DeepSeek-V3.2 and V4, which come without. */
extern const char kt_chat_deepseek_v32[], kt_chat_deepseek_v4[];

#endif
