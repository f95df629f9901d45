/* Conversations in OpenAI's form -> prompt text and token ids, as the model's template writes them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MESSAGES_H
#define KT_RUNTIME_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kt/chat.h"
#include "runtime/chat/template.h"
#include "runtime/token/tokenizer.h"

/* Where a format comes from. All strings are borrowed during the call. */
typedef struct kt_chat_source {
    const char *model; /* folder, or .gguf file; NULL = none, then template_file is needed */
    const char *template_file; /* --chat-template: this file instead of the model's; or NULL */
    const char *template_name; /* of a list of named ones; NULL = "default" */
} kt_chat_source;

/* Find and compile the template: template_file, or in a folder chat_template.jinja, then
 * chat_template.json, then tokenizer_config.json's chat_template (text, or a list of named ones),
 * or a GGUF file's tokenizer.chat_template. DeepSeek-V3.2 and V4 without one get the
 * built-in encoder. Without any: KT_E_NOT_FOUND, and the message says how to give one. */
kt_status kt_chat_format_load(const kt_chat_source *source, kt_chat_format **out, kt_err *err);
/* The same from text, with special tokens as an object {"bos_token": "...", ...}, or NULL. */
kt_status kt_chat_format_create(const char *text, size_t size, const char *name,
                                const kt_json *tokens, kt_chat_format **out, kt_err *err);

/* The text of the template ("" for a built-in encoder), owned by the format: for /props, and for
 * choosing an output parser. */
const char *kt_chat_format_text(const kt_chat_format *f);
/* Where it came from: a path, with the key where it is one of several. */
const char *kt_chat_format_origin(const kt_chat_format *f);

/* One conversation; all JSON is borrowed. Zero-initialise: zeros are the defaults. */
typedef struct kt_chat_request {
    const kt_json *messages;        /* array of {role, content, ...}; at least one */
    const kt_json *tools;           /* array, or NULL */
    const kt_json *documents;       /* array, or NULL */
    const kt_json *kwargs;          /* chat_template_kwargs: object of further variables, or NULL */
    const kt_json *response_format; /* given to the template (DeepSeek-V3.2 writes it), or NULL */
    bool no_generation_prompt;      /* add_generation_prompt: false */
    bool continue_final_message;    /* the last message is left open for the model to go on with */
    const char *reasoning_effort;   /* "none" (no thinking), "low", ...; NULL = not said */
    int enable_thinking;            /* 1 = on, -1 = off, 0 = as the template has it */
    bool has_now;                   /* `now` is the clock of strftime_now; else the machine's */
    int64_t now;
} kt_chat_request;

/* Check the conversation and write the template's variables as a JSON document:
 *
 * content   text parts are joined with a newline where the template wants a string; parts that are
 *           not text are refused by name. null becomes "" where there are no tool calls.
 * tool calls  arguments become an object where the template writes objects, else stay a string.
 * reasoning   reasoning_content and reasoning mean the same: both are there when one was given.
 * developer   becomes system where the template does not know it.
 * system      behind other messages becomes user where the template refuses it or leaves it out.
 * gpt-oss     its template calls reasoning "thinking" and allows no content beside it in a message
 *             with calls, and one call a message: several become messages with their results behind
 *             them; efforts below "low" become "low", those above "high" become "high".
 * thinking    enable_thinking sets the variables enable_thinking and thinking.
 *
 * Errors are KT_E_INVALID and name the place ("messages[2].content[0]: ..."). The document is the
 * caller's (kt_json_destroy). */
kt_status kt_chat_context(const kt_chat_format *f, const kt_chat_request *request,
                          kt_json_doc **out, kt_err *err);

/* Context, rendering; with continue_final_message cut after the last message. Errors of the
 * template are KT_E_INVALID. */
kt_status kt_chat_render(const kt_chat_format *f, const kt_chat_request *request, kt_rendered *out,
                         kt_err *err);

/* Render with `variables`, an object, as they are; special tokens are added where it has none of
 * that name. For whoever ports a template. */
kt_status kt_chat_render_variables(const kt_chat_format *f, const kt_json *variables,
                                   const kt_template_options *options, kt_rendered *out,
                                   kt_err *err);

/* The prompt of a conversation. Zero-initialise; kt_chat_prompt_deinit. */
typedef struct kt_chat_prompt {
    kt_rendered rendered;
    int32_t *ids; /* owned */
    size_t n_ids;
    bool starts_in_reasoning; /* the prompt ends inside an open <think> */
    /* Ids in front of the text of the first and of the last message of a user: what stands there
     * other conversations may begin with, too. A hint; 0 = not found. */
    size_t first_turn, last_turn;
} kt_chat_prompt;

void kt_chat_prompt_deinit(kt_chat_prompt *p);

/* kt_chat_render, then ids: added tokens are recognised in what the template wrote, never in what a
 * user wrote. Nothing is put in front (templates write BOS themselves). */
kt_status kt_chat_encode(const kt_chat_format *f, const kt_tokenizer *t,
                         const kt_chat_request *request, kt_chat_prompt *out, kt_err *err);

#endif
