/* What chat needs to know of a model besides its backend: how conversations become prompts, how its
 * answers are written, and its vocabulary for grammars. Tests bring their own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_MODEL_H
#define KT_RUNTIME_CHAT_MODEL_H

#include "kt/status.h"
#include "runtime/chat/messages.h"
#include "runtime/chat/parser.h"
#include "runtime/serve/grammar/vocabulary.h"

/* The prompt of a conversation. */
typedef struct kt_model_prompt {
    char *text; /* owned; NUL-terminated */
    size_t size;
    int32_t *ids; /* owned; NULL when only the text was asked for */
    size_t n_ids;
    bool starts_in_reasoning;
    size_t first_turn, last_turn; /* as in kt_chat_prompt */
} kt_model_prompt;

/* All members are borrowed and constant; the function is called on any thread. */
typedef struct kt_chat_model {
    const void *self;
    /* NULL: the model has no template. KT_E_INVALID: the conversation, or what the template says of
     * it. with_ids: tokens too. */
    kt_status (*make_prompt)(const void *self, const kt_chat_request *request, bool with_ids,
                             kt_model_prompt *out, kt_err *err);
    const char *template_text; /* for /props; "" = none */
    kt_parser_choice parsers;
    const kt_vocabulary *vocabulary; /* NULL: no grammars */
} kt_chat_model;

/* A kt_special_token whose argument is a kt_tokenizer. */
int32_t kt_chat_special_token(const void *tokenizer, const char *text);

void kt_model_prompt_deinit(kt_model_prompt *p);

#endif
