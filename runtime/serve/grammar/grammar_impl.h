/* Inside of a grammar. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_IMPL_H
#define KT_RUNTIME_GRAMMAR_IMPL_H

#include <pthread.h>

#include "runtime/serve/grammar/grammar.h"
#include "runtime/serve/grammar/grammar_stacks.h"
#include "runtime/serve/grammar/vocabulary_trie.h"

/* The mask of a key, among those asked for last. */
typedef struct kt_mask_entry {
    uint32_t key;
    uint64_t used;  /* when it was asked for last; 0 = empty */
    uint64_t *bits; /* [words] */
    /* Of masks below any stack: nodes of a trie where the frame is left, from which the stack below
     * decides. `whole`: it can be left at once. `unclear`: not known, since the walk went too deep
     * or the frame is left nearly everywhere. */
    const kt_trie *trie; /* that the nodes are of: the vocabulary's */
    uint32_t *leave;
    size_t n_leave, leave_room;
    bool whole, unclear;
} kt_mask_entry;

typedef struct kt_mask_cache {
    kt_mask_entry *entry;
    int n, room;
    uint64_t clock;
} kt_mask_cache;

struct kt_grammar {
    pthread_mutex_t lock; /* of all below */
    const kt_vocabulary *vocabulary;
    kt_auto automaton;
    kt_stacks stacks;
    uint32_t first;  /* the place before the text */
    uint32_t *place; /* [n_slots]: where each state is; KT_PLACE_UNKNOWN = the slot is free */
    uint32_t n_slots, free_hint;
    size_t keep_at;         /* bytes of stacks from which on to forget unused places */
    kt_mask_cache by_place; /* the mask of a place */
    kt_mask_cache by_state; /* the mask of a state of the automaton, below any stack */
    uint32_t stay_at;       /* the place that `stay` is of */
    kt_byte_set stay;       /* bytes that lead from it to itself */
    uint32_t loop_at;       /* the place that `loops` is of: plain characters lead to itself */
    bool loops;
    uint32_t *trail; /* [deepest token + 1]: places on the way to a node */
};

/* From rules, whose rule 0 is the whole text. */
kt_status kt_grammar_from_rules(const kt_vocabulary *vocabulary, kt_rules *r, kt_grammar **out,
                                kt_err *err);

/* The mask of a place into bits[words]; the lock is held. */
kt_status kt_grammar_mask_of(kt_grammar *g, uint32_t place, uint64_t *bits, kt_err *err);
void kt_mask_cache_clear(kt_mask_cache *c);

#endif
