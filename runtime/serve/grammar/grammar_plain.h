/* What plain characters (vocabulary_trie.h) do to a place. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_PLAIN_H
#define KT_RUNTIME_GRAMMAR_PLAIN_H

#include "runtime/serve/grammar/grammar_impl.h"

enum { KT_PLAIN_MIXED = -1 };

/* How many plain characters, whichever they are, go on from a place, up to KT_PLAIN_CHARS: after so
 * many none goes on, or there were enough. KT_PLAIN_MIXED when they do not all lead to the same
 * places, or when the unknown stack of a local place might go on; a walk has to tell then. *depth
 * is that of the highest stack met. Errors are those of steps. */
kt_status kt_plain_chars(kt_grammar *g, uint32_t place, int *n, uint32_t *depth, kt_err *err);

/* Does every plain character lead from the place to itself? Kept for the place asked last. */
bool kt_plain_loops(kt_grammar *g, uint32_t place);

#endif
