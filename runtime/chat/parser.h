/* Output parser: a model's tokens to text, reasoning and tool calls, as they come.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PARSER_H
#define KT_RUNTIME_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/chat/events.h"

typedef struct kt_calls kt_calls;         /* how tool calls are written: runtime/chat/calls.h */
typedef struct kt_reasoning kt_reasoning; /* how reasoning is marked: runtime/chat/reasoning.h */

/* The grammars of one model. NULL members: calls or reasoning are not recognised. */
typedef struct kt_parser_choice {
    const kt_calls *calls;
    const kt_reasoning *reasoning;
} kt_parser_choice;

/* What is known about a model. All members may be NULL. */
typedef struct kt_parser_evidence {
    const char *tool_parser; /* --tool-parser: a name that vLLM, SGLang or we use; "none" = off */
    const char *reasoning_parser; /* --reasoning-parser, likewise; NULL or "auto" = choose */
    const char *family;           /* model family ("qwen3_moe"), for models without a template */
    const char *template_text;    /* the chat template's source */
    size_t template_size;
} kt_parser_evidence;

/* Choose grammars: by name, else by what the template writes, else by family; neither is no error.
 * KT_E_INVALID with the list of names when a name is unknown. Once per model. */
kt_status kt_parser_choose(const kt_parser_evidence *evidence, kt_parser_choice *out, kt_err *err);
/* Names for logs: "hermes", "none". */
const char *kt_parser_calls_name(const kt_parser_choice *choice);
const char *kt_parser_reasoning_name(const kt_parser_choice *choice);

/* Does generation start inside reasoning, because the rendered prompt ends in an open mark?
 * Looks at the prompt's end only: what a user wrote further up does not count. */
bool kt_parser_starts_inside(const kt_parser_choice *choice, const char *prompt, size_t size);

/* Id of the *special* token that is spelled exactly so, or -1. For kt_tokenizer: find, then ask
 * kt_tokenizer_bytes whether it is special. */
typedef int32_t kt_special_token(const void *arg, const char *text);

typedef struct kt_parser_options {
    kt_parser_choice choice;
    const kt_json *tools; /* the request's "tools" in OpenAI's form, or NULL: calls are text then.
                             Borrowed for the parser's life */
    bool starts_in_reasoning;
    int first_call; /* calls made earlier in the conversation; Kimi counts on from there */
    uint64_t seed;  /* of call ids: a number no other answer has */
    kt_special_token *special_token; /* NULL: every mark is recognised by its text */
    const void *special_arg;         /* borrowed during create */
} kt_parser_options;

/* One parser per answer (choice). A mark that is one special token of the vocabulary counts only
 * when that token arrives; the same characters made of other tokens are text. Other marks count
 * however they are tokenised. Memory is bounded: at most 2 MiB whatever is pushed.
 * Not thread-safe; different parsers are independent. */
typedef struct kt_parser kt_parser;
kt_status kt_parser_create(const kt_parser_options *options, kt_parser **out, kt_err *err);
void kt_parser_destroy(kt_parser *p);

/* Is this special token part of the grammar? Its bytes must be pushed then, while other special
 * tokens are the caller's to drop. */
bool kt_parser_wants(const kt_parser *p, int32_t id);

/* One token: its id (-1 = unknown) and its raw bytes, which may be parts of characters. Events come
 * before the call returns; concatenated they are the same however the bytes are cut into pushes.
 * Bytes that are not UTF-8 become U+FFFD. What does not parse as a call is text, nothing is lost
 * but marks and the white space that belongs to them. Text that a broken call holds comes after its
 * TOOL_END. KT_E_NOMEM: the parser can only be destroyed then. */
kt_status kt_parser_push(kt_parser *p, int32_t id, const char *bytes, size_t size,
                         kt_event_sink *sink, void *arg, kt_err *err);

/* The end of the answer: everything held comes out, an open call is completed to valid JSON and
 * marked as cut. Nothing may be pushed afterwards; a second call does nothing. */
kt_status kt_parser_finish(kt_parser *p, kt_event_sink *sink, void *arg, kt_err *err);

/* State between pushes: where the next byte would go. Calls include those that were cut. */
bool kt_parser_in_reasoning(const kt_parser *p);
/* Between messages, or in a header of one: the next byte is neither text nor reasoning. */
bool kt_parser_in_header(const kt_parser *p);
bool kt_parser_in_call(const kt_parser *p);
int kt_parser_calls(const kt_parser *p, int *n_whole);

#endif
