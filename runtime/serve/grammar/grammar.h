/* Constrained decoding: which tokens may come next so that the text obeys a grammar or JSON Schema.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_H
#define KT_RUNTIME_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/serve/grammar/vocabulary.h"

/* A language over UTF-8 text and special tokens. Made once, used by any number of states on any
 * threads: a mutex guards its caches. Destroy it after its states. */
typedef struct kt_grammar kt_grammar;

/* A rule name that GBNF text may call without defining it: it stands for the JSON texts that obey
 * the schema (borrowed during the call). So an envelope can be written around schemas. */
typedef struct kt_grammar_symbol {
    const char *name;
    const kt_json *schema;
} kt_grammar_symbol;

/* Make a grammar; vocabulary is borrowed and outlives it. NULL is allowed where only bytes are
 * accepted and no mask is asked for.
 *
 * from_gbnf    GBNF text, at most 1 MiB, whose first symbol is `root` (README.md has the syntax);
 *              errors are KT_E_INVALID with "grammar: line:column: ". symbols may be NULL.
 * from_schema  the JSON texts that obey a JSON Schema. What cannot be held to is KT_E_UNSUPPORTED,
 *              what is meaningless KT_E_INVALID; the message names the keyword and its JSON
 *              pointer.
 * json_object  any JSON object.
 * KT_E_UNSUPPORTED as well when the grammar needs more states than the limits allow. *out is NULL
 * then. */
kt_status kt_grammar_from_gbnf(const kt_vocabulary *vocabulary, const char *text, size_t size,
                               const kt_grammar_symbol *symbols, size_t n_symbols, kt_grammar **out,
                               kt_err *err);
kt_status kt_grammar_from_schema(const kt_vocabulary *vocabulary, const kt_json *schema,
                                 kt_grammar **out, kt_err *err);
kt_status kt_grammar_json_object(const kt_vocabulary *vocabulary, kt_grammar **out, kt_err *err);
void kt_grammar_destroy(kt_grammar *g);

/* A place in a text of the grammar. The caller places it; it may be moved. One thread at a time per
 * state, any number of states of a grammar at once. */
typedef struct kt_grammar_state {
    kt_grammar *grammar; /* borrowed; NULL = not initialised, which deinit accepts */
    uint32_t slot;
} kt_grammar_state;

/* At the start of the text; or where another state is (to is not initialised before). Cheap. */
kt_status kt_grammar_state_init(kt_grammar_state *s, kt_grammar *g, kt_err *err);
kt_status kt_grammar_state_copy(const kt_grammar_state *from, kt_grammar_state *to, kt_err *err);
void kt_grammar_state_deinit(kt_grammar_state *s);

/* Go on by n bytes, or by one token (a special token counts as itself, not as its text; an end
 * token is right where the text is complete, and changes nothing). KT_E_MISMATCH when no text of
 * the grammar goes on like that; then, and after any other error, the state is what it was. */
kt_status kt_grammar_state_accept(kt_grammar_state *s, const char *bytes, size_t n, kt_err *err);
kt_status kt_grammar_state_accept_token(kt_grammar_state *s, int32_t id, kt_err *err);

/* Is what was accepted a whole text of the grammar? */
bool kt_grammar_state_is_complete(const kt_grammar_state *s);

/* bits[kt_vocabulary_words(vocabulary)]: bit id % 64 of word id / 64 is set when accept_token(id)
 * would succeed. Kept for states seen lately: then it is a copy. Never empty as long as the
 * vocabulary can spell what the grammar asks for. KT_E_UNSUPPORTED when the grammar is too
 * ambiguous to follow. */
kt_status kt_grammar_state_mask(kt_grammar_state *s, uint64_t *bits, kt_err *err);

#endif
