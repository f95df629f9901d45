/* The middle step of grammar_build.h: nondeterministic automata with empty edges.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_NFA_H
#define KT_RUNTIME_GRAMMAR_NFA_H

#include <stdint.h>

#include "kt/status.h"
#include "runtime/serve/grammar/grammar_rules.h"

enum { KT_NFA_EMPTY = -1, KT_NFA_BYTES = -2 }; /* other kinds: the rule that is called */

typedef struct kt_nfa_edge {
    int32_t to, after; /* `after`: the next edge of the same state, or -1 */
    int32_t kind;
    uint8_t low, high; /* KT_NFA_BYTES */
} kt_nfa_edge;

typedef struct kt_nfa {
    int32_t *first; /* [n_states]: its first edge, or -1 */
    kt_nfa_edge *edge;
    int32_t *begin, *end; /* [n_rules] */
    size_t n_states, state_room, n_edges, edge_room;
    int32_t n_rules;
} kt_nfa;

/* Helper rules for long repetitions are added to r. */
kt_status kt_nfa_build(kt_rules *r, kt_nfa *out, kt_err *err);
void kt_nfa_deinit(kt_nfa *n);

#endif
