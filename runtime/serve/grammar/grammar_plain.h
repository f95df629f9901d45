/* What plain characters (vocabulary_trie.h) do to a place. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_PLAIN_H
#define KT_RUNTIME_GRAMMAR_PLAIN_H

#include "runtime/serve/grammar/grammar_impl.h"

enum { KT_PLAIN_MIXED = -1 };

/* What plain characters do from a place on, whichever they are. */
typedef struct kt_plain_run {
    int n; /* so many go on, up to KT_PLAIN_CHARS; after them none does, or there were enough. Or
              KT_PLAIN_MIXED: they do not all lead to the same places; a walk has to tell */
    kt_byte_set others; /* the characters of one byte for which that does not hold, at one of the
                           places at least */
    bool leaves;        /* the unknown stack of a local place may go on behind each: is mixed */
    uint32_t depth;     /* of the highest stack met */
} kt_plain_run;

/* Errors are those of steps. */
kt_status kt_plain_chars(kt_grammar *g, uint32_t place, kt_plain_run *out, kt_err *err);

/* Does every plain character lead from the place to itself? Kept for the place asked last. */
bool kt_plain_loops(kt_grammar *g, uint32_t place);

#endif
