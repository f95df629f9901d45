/* Conversations: from messages to the prompt that a model's chat template writes.
 *
 * A conversation is a JSON object of UTF-8 text with the members
 *
 *   messages               array of {"role", "content", ...} in OpenAI's form; needed
 *   tools, documents       arrays, or missing
 *   response_format        for templates that write it
 *   chat_template_kwargs   object of further variables of the template
 *   reasoning_effort       "none", "low", ...
 *   enable_thinking        true or false; missing = as the template has it
 *   add_generation_prompt  false = do not open the answer (default: true)
 *   continue_final_message true = the last message is left open for the model to go on with
 *   now                    clock of the template, seconds since 1970 (default: the machine's)
 *
 * Other members are refused by name.
 *
 * Threads: a format is immutable; any number of threads may use it at once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CHAT_H
#define KT_CHAT_H

#include "kt/api.h"
#include "kt/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How one model writes conversations: its template, special tokens, what the template can do. */
typedef struct kt_chat_format kt_chat_format;

/* Find and compile a template. model: folder or GGUF file, or a bundled name. template_file: NULL =
 * the model's own; a file gives the template instead, with the special tokens of `model`, which may
 * then be NULL. KT_E_NOT_FOUND when there is none, KT_E_FORMAT with line and column when it is
 * wrong. */
KT_API kt_status kt_chat_format_open(const char *model, const char *template_file,
                                     kt_chat_format **out, kt_err *err);
KT_API void kt_chat_format_destroy(kt_chat_format *f);

/* The prompt of a conversation, size bytes of JSON: NUL-terminated text, owned; kt_free. What the
 * conversation or the template refuses is KT_E_INVALID or KT_E_FORMAT with the place. */
KT_API kt_status kt_chat_render_json(const kt_chat_format *f, const char *conversation, size_t size,
                                     char **text, size_t *text_size, kt_err *err);

/* The same as token ids, owned; kt_free. Control tokens are recognised in what the template wrote,
 * never in what a user wrote. Nothing is put in front: templates write BOS themselves. */
KT_API kt_status kt_chat_encode_json(const kt_chat_format *f, const kt_tokenizer *t,
                                     const char *conversation, size_t size, int32_t **ids,
                                     size_t *count, kt_err *err);

#ifdef __cplusplus
}
#endif
#endif
