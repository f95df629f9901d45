/* The chat of a model, from its files. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_LOAD_H
#define KT_RUNTIME_CHAT_LOAD_H

#include "runtime/http/api/chat_model.h"
#include "runtime/sched/backend.h"

/* What a kt_chat_model borrows, held together. */
typedef struct kt_loaded_chat kt_loaded_chat;

/* Find the template (source), choose the parsers (evidence: names that were asked for and the
 * family; the template is added), and sort the vocabulary for grammars. The backend outlives it.
 * KT_E_NOT_FOUND: the model has no template. source NULL: there is to be none, grammars for plain
 * completions only. */
kt_status kt_loaded_chat_create(const kt_chat_source *source, const kt_parser_evidence *evidence,
                                const kt_backend *backend, kt_loaded_chat **out, kt_err *err);
void kt_loaded_chat_destroy(kt_loaded_chat *l); /* accepts NULL */

const kt_chat_model *kt_loaded_chat_model(const kt_loaded_chat *l);
/* "chat template: FOLDER/chat_template.jinja, tool calls hermes, reasoning qwen3", into out. */
char *kt_loaded_chat_line(const kt_loaded_chat *l, char *out, size_t out_bytes);

#endif
