/* Writing the body of a chat: what routes have in common whose requests are translated to one.
 * Functions that return bool are false with *e, which names the place.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_BODY_H
#define KT_RUNTIME_CHAT_BODY_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/http/api/fields.h"
#include "runtime/token/text.h"

/* Of the name of a place in a body, such as "messages[3].content[0]"; longer ones are cut. */
enum { KT_WHERE_BYTES = 64 };

/* ---- reading ---- */

/* Append to t, as a line of its own. */
bool kt_body_add_line(kt_text *t, const char *text, size_t size, kt_api_error *e);
/* A block's "type", borrowed; NULL with *e. */
const char *kt_body_type(const kt_json *block, const char *where, kt_api_error *e);
/* Is it one of the types, which end with NULL? */
bool kt_body_is_among(const char *type, const char *const *types);
/* Always false: a type that is not among the expected. */
bool kt_body_refuse_type(const char *type, const char *where, const char *expected,
                         kt_api_error *e);
/* The member of an object that must be a string, borrowed; NULL with *e. */
const char *kt_body_string(const kt_json *object, const char *member, const char *where,
                           size_t *size, kt_api_error *e);
/* The same, added to t as a line. */
bool kt_body_add_member(kt_text *t, const kt_json *block, const char *member, const char *where,
                        kt_api_error *e);
/* A string, or an array of blocks with the given types, whose `text` becomes a line each. types
 * ends with NULL; expected lists it for an error. */
bool kt_body_join_text(const kt_json *content, const char *const *types, const char *expected,
                       const char *where, kt_text *out, kt_api_error *e);

/* ---- writing ---- */

void kt_body_put_message(kt_json_writer *w, const char *role, const kt_text *text);
/* What a tool answered. */
void kt_body_put_result(kt_json_writer *w, const char *id, const kt_text *text);
/* A call that the assistant made; arguments is JSON. */
void kt_body_put_call(kt_json_writer *w, const char *id, const char *name, const char *arguments,
                      size_t size);
/* A turn of the assistant. calls is an array that is ended here. */
bool kt_body_put_assistant(kt_json_writer *w, const kt_text *text, const kt_text *thinking,
                           kt_json_writer *calls, kt_api_error *e);
/* description and parameters may be NULL. */
void kt_body_put_tool(kt_json_writer *w, const char *name, const kt_json *description,
                      const kt_json *parameters);
/* "tool_choice": the function of this name. */
void kt_body_add_named_choice(kt_json_writer *w, const char *name);
/* "response_format": a schema. */
void kt_body_add_schema(kt_json_writer *w, const kt_json *schema);
/* Members of the body that have the same name in a chat: all but those in translated[n]. */
void kt_body_add_rest(kt_json_writer *w, const kt_json *body, const char *const *translated,
                      size_t n);
/* What was written as a document of its own, the caller's; w is released. ok: nothing went wrong
 * before, else *e is filled already and *out is NULL. */
bool kt_body_end(kt_json_writer *w, bool ok, kt_json_doc **out, kt_api_error *e);

#endif
