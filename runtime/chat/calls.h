/* How a model family writes tool calls: one file runtime/chat/parsers/calls_<name>.c defines
 * `const kt_calls kt_calls_<name> = {...};` The build finds it and writes the table. The same
 * strings drive the parser (runtime/chat/parser.c) and the grammar for forced calls (call_gbnf.c).
 *
 * Shape of an answer with calls, [] where a member is NULL:
 *   [section_begin] CALL* [section_end]
 * CALL is: call_begin [head_prefix prefix_end] NAME name_end BODY call_end
 * BODY by its kind:
 *   KT_CALL_ARGUMENTS   ARGUMENTS [arguments_end], one JSON object
 *   KT_CALL_OBJECT      no NAME and name_end before it: {"name": NAME, "arguments": ARGUMENTS}
 *   KT_CALL_PARAMETERS  (param_begin KEY key_end [value_begin] VALUE value_end)*
 *                       with `tree`: value_end is followed by KEY and key_end
 *
 * White space at the ends of these strings is what the family writes; it goes into the grammar,
 * while the parser takes any. A name_end of white space only: the name ends at a line's end or at
 * the next mark. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CALLS_H
#define KT_RUNTIME_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/chat/channels.h"

typedef enum kt_call_body { KT_CALL_ARGUMENTS, KT_CALL_OBJECT, KT_CALL_PARAMETERS } kt_call_body;

typedef enum kt_call_ids {
    KT_CALL_ID_RANDOM, /* call_ and 24 letters and digits */
    KT_CALL_ID_KIMI    /* NAME in the answer is functions.NAME:N, and that is the id */
} kt_call_ids;

typedef struct kt_calls {
    const char *name;
    const char *const *aliases;  /* names that other servers use, NULL-terminated, or NULL */
    const char *const *families; /* models without a template that write so, or NULL */
    const char *const *evidence; /* strings that the template contains, all of them */
    const char *const *counter;  /* strings that it does not contain, or NULL */

    kt_call_body body;
    kt_call_ids ids;
    const char *section_begin, *section_end;
    const char *call_begin, *call_end;
    const char *head_prefix, *prefix_end; /* KT_CALL_ARGUMENTS */
    const char *name_end;
    const char *arguments_end;                                   /* KT_CALL_ARGUMENTS */
    const char *param_begin, *key_end, *value_begin, *value_end; /* KT_CALL_PARAMETERS */
    const char *between; /* what the family writes between two calls, or NULL */
    const kt_channels
        *channels;    /* a call is a message of these instead of what is above; or NULL */
    const char *part; /* a special token inside the marks above, or NULL */

    bool quoted;           /* NAME and KEY stand in "quotes", which may be missing */
    bool one_call;         /* a section holds one call, so several calls are several sections */
    bool bare_calls;       /* a call may come without its section */
    bool ends_reasoning;   /* a call inside reasoning ends it */
    bool trims_newline;    /* one newline at each end of VALUE is not part of it */
    bool unknown_is_json;  /* VALUE of a parameter that the schema lacks: JSON where it parses */
    bool string_attribute; /* KEY is followed by string="true|false", which types VALUE */
    bool tree;             /* VALUE may be elements: param_begin and key_end stand around every tag,
                              "/KEY" closes KEY and "/invoke" the call */
    bool open_values;      /* value_end may be missing before the next param_begin */
} kt_calls;

extern const kt_calls *const kt_builtin_calls[];
extern const size_t kt_builtin_calls_count;

#endif
