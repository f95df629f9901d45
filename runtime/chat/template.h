/* Chat templates: text in the Jinja language of Hugging Face models -> the text of a prompt.
 *
 * What is rendered is byte-equal to Jinja2 set up as Hugging Face does it: trim_blocks,
 * lstrip_blocks, break and continue, `{% generation %}`, tojson as Python's json.dumps,
 * raise_exception, strftime_now. Unlike there, append, pop and the like work on lists and
 * dictionaries, `{% do %}` and the filters from_json and fromjson exist. Nothing outside of the
 * context can be reached. Integers have 64 bits; beyond them arithmetic is an error.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TEMPLATE_H
#define KT_RUNTIME_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/token/tokenizer.h"

typedef struct kt_template kt_template; /* immutable; several threads may render it at once */

/* What one rendering may use; 0 = the value in brackets. Beyond: KT_E_UNSUPPORTED with the place.
 */
typedef struct kt_template_limits {
    int64_t steps; /* nodes evaluated, items visited, and one per 64 bytes made (50 million) */
    size_t memory_bytes; /* values and intermediate text (1 GiB) */
    size_t output_bytes; /* (256 MiB) */
    int depth;           /* of nested macro calls, loops, values (100) */
} kt_template_limits;

typedef struct kt_template_options {
    bool has_now; /* `now` is the clock of strftime_now, else the machine's; both read as UTC */
    int64_t now;  /* seconds since 1970 */
    kt_template_limits limits;
} kt_template_options;

/* A rendering: text, and where it came from. `trusted` are the ranges, ascending and apart, that
 * the template's own literals wrote, and the values of the context that only the program sets:
 * strings of top-level variables whose name ends in _token, and the usual names of roles. All other
 * bytes are the user's. Zero-initialise; kt_rendered_deinit. */
typedef struct kt_rendered {
    char *text; /* owned, NUL-terminated UTF-8; may hold NULs */
    size_t size;
    kt_trusted_span *trusted; /* owned */
    size_t n_trusted;
} kt_rendered;

void kt_rendered_deinit(kt_rendered *r);

/* Compile size bytes of UTF-8 (not kept). `name` stands in messages: "NAME:LINE:COLUMN: what is
 * wrong", both from 1, columns in characters. Syntax errors and unknown filters or tests are
 * KT_E_FORMAT. */
kt_status kt_template_create(const char *text, size_t size, const char *name, kt_template **out,
                             kt_err *err);
void kt_template_destroy(kt_template *t); /* accepts NULL */

/* Does the template's own text mention this word? For what a template can do without being run. */
bool kt_template_mentions(const kt_template *t, const char *word);

/* Render with the members of `context`, an object, as variables. `options` may be NULL. What the
 * template itself refuses (raise_exception, a wrong type) is KT_E_INVALID with the place; on any
 * error `out` is untouched. `context` is borrowed during the call. */
kt_status kt_template_render(const kt_template *t, const kt_json *context,
                             const kt_template_options *options, kt_rendered *out, kt_err *err);

#endif
