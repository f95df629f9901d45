/* Masks: the vocabulary's trie walked in step with the automaton.
 *
 * A place's tokens are those of each of its stacks. A stack's tokens are decided, as far as the
 * frame on top of the kernel goes, whatever lies below: these answers are kept by the frame's
 * state, for all strings in all properties are in the same state. Where the walk leaves the frame,
 * the stack below is asked about what goes on from there, which after a string's closing quote is
 * little. Where nothing below a node holds a byte that would lead away from the place, all its
 * tokens are taken at once; and where plain characters all do the same, a mask made with the
 * vocabulary has the plain tokens, and only the others are walked. Where nearly all do, tokens with
 * one of the exceptions are walked, too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/grammar_impl.h"
#include "runtime/serve/grammar/grammar_plain.h"

/* Masks kept: at 151,936 tokens 19 KB each, so 2.4 and 4.9 MB at most. */
enum { PLACES_KEPT = 128, STATES_KEPT = 256 };
/* A place of more stacks than this is walked as a whole. */
enum { FEW_STACKS = 4 };
/* Frames above the unknown stack; a deeper walk, or one near the limit, knows its stacks. */
enum { LOCAL_DEPTH = 100 };
/* A frame that is left at more than one in so many nodes decides too little by itself: the place is
 * walked as a whole. */
enum { NODES_PER_LEAVE = 32 };

static void clear_entry(kt_mask_entry *e) {
    free(e->bits);
    free(e->leave);
    *e = (kt_mask_entry){.used = 0};
}

void kt_mask_cache_clear(kt_mask_cache *c) {
    for (int i = 0; i < c->n; i++) clear_entry(&c->entry[i]);
    free(c->entry);
    *c = (kt_mask_cache){.entry = NULL};
}

static kt_mask_entry *find(kt_mask_cache *c, uint32_t key) {
    for (int i = 0; i < c->n; i++)
        if (c->entry[i].key == key && c->entry[i].used) {
            c->entry[i].used = ++c->clock;
            return &c->entry[i];
        }
    return NULL;
}

/* Move an entry into the cache, in place of the one that was not asked for longest when it is full.
 * Without memory the entry is not kept. Returns where it is, or NULL. */
static kt_mask_entry *keep(kt_mask_cache *c, kt_mask_entry *e, int most) {
    kt_mask_entry *to;

    if (c->n == c->room && c->room < most) {
        int room = c->room ? c->room * 2 : 8;
        kt_mask_entry *larger = realloc(c->entry, (size_t)room * sizeof *larger);
        if (larger) {
            c->entry = larger;
            c->room = room;
        }
    }
    if (c->n == 0 && c->room == 0) return NULL;
    to = &c->entry[0];
    if (c->n < c->room) {
        to = &c->entry[c->n++];
    } else {
        for (int i = 1; i < c->n; i++)
            if (c->entry[i].used < to->used) to = &c->entry[i];
        clear_entry(to);
    }
    *to = *e;
    to->used = ++c->clock;
    return to;
}

static void set_ranks(const kt_trie *t, uint64_t *bits, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++)
        bits[t->order[i] / 64] |= (uint64_t)1 << t->order[i] % 64;
}

static void clear_ranks(const kt_trie *t, uint64_t *bits, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++)
        bits[t->order[i] / 64] &= ~((uint64_t)1 << t->order[i] % 64);
}

/* Does each of these bytes lead from the place to itself? Which do is kept for the place asked
 * last. */
static bool stays(kt_grammar *g, uint32_t place, const kt_byte_set *set) {
    const kt_byte_set *stay = &g->stay;

    if (g->stay_at != place) {
        memset(&g->stay, 0, sizeof g->stay);
        g->stay_at = place;
        for (int byte = 0; byte < 256; byte++) {
            uint32_t to;
            kt_status st = kt_stacks_step(&g->stacks, place, (uint8_t)byte, &to, NULL);
            if (st == KT_OK && to == place) kt_byte_set_add(&g->stay, (uint8_t)byte);
        }
    }
    return !(set->bits[0] & ~stay->bits[0]) && !(set->bits[1] & ~stay->bits[1]) &&
           !(set->bits[2] & ~stay->bits[2]) && !(set->bits[3] & ~stay->bits[3]);
}

static kt_status note_leave(kt_mask_entry *local, uint32_t node, kt_err *err) {
    size_t room = local->leave_room ? local->leave_room * 2 : 64;
    uint32_t *larger;

    if (local->n_leave == local->leave_room) {
        larger = realloc(local->leave, room * sizeof *larger);
        if (!larger) return kt_fail(err, KT_E_NOMEM, "grammar: no memory for a mask");
        local->leave = larger;
        local->leave_room = room;
    }
    local->leave[local->n_leave++] = node;
    return KT_OK;
}

/* Do all tokens below a node lead from its place, which `from` led to, to itself? Asked where the
 * place is the one before; behind a character of several bytes, only when that is known. */
static bool stays_below(kt_grammar *g, const kt_trie *t, const kt_trie_node *node, uint32_t from,
                        uint32_t place) {
    if (from != place) return node->plain && g->loop_at == place && g->loops;
    return (node->plain && kt_plain_loops(g, place)) ||
           (node->seen && stays(g, place, &t->seen[node->seen - 1]));
}

/* Nodes [begin, end) of a trie, and where the text is in front of them: at depth `depth`. With
 * `others`, the bits of plain tokens without these bytes are right already, so they are passed
 * over; those of plain tokens with one of them may be wrong. */
typedef struct walk_range {
    const kt_trie *trie;
    uint32_t begin, end, depth;
    const kt_byte_set *others;
} walk_range;

/* Are the tokens of node i and below known, given that no byte on the way to it is of `others`? */
static bool is_known(const kt_trie *t, uint32_t i, const kt_byte_set *others) {
    const kt_trie_node *node = &t->node[i];

    if (!node->plain || kt_byte_set_has(others, node->byte)) return false;
    if (node->seen) return kt_byte_sets_apart(&t->seen[node->seen - 1], others);
    while (++i < node->end)
        if (kt_byte_set_has(others, t->node[i].byte)) return false;
    return true;
}

/* Set the bits of all tokens in the range that go on from the place. With `local`, the place is
 * above an unknown stack. */
static kt_status walk(kt_grammar *g, walk_range range, uint32_t place, uint64_t *bits,
                      kt_mask_entry *local, kt_err *err) {
    const kt_trie *t = range.trie;
    uint32_t *trail = g->trail, odd = UINT32_MAX; /* depth of a byte of `others` on the way */

    trail[range.depth] = place;
    for (uint32_t i = range.begin; i < range.end;) {
        const kt_trie_node *node = &t->node[i];
        uint32_t to;
        if (range.others && node->depth <= odd) {
            if (is_known(t, i, range.others)) {
                i = node->end;
                continue;
            }
            odd = kt_byte_set_has(range.others, node->byte) ? node->depth : UINT32_MAX;
            if (odd == node->depth) clear_ranks(t, bits, node->rank, t->node[node->end].rank);
        }
        KT_TRY(kt_stacks_step(&g->stacks, trail[node->depth - 1], node->byte, &to, err));
        if (to == KT_PLACE_DEAD) {
            i = node->end;
            continue;
        }
        trail[node->depth] = to;
        if (local) local->unclear |= g->stacks.place[to].depth > LOCAL_DEPTH;
        if (local && (g->stacks.place[to].flags & KT_PLACE_LEAVES)) {
            if (node->end > i + 1) KT_TRY(note_leave(local, i, err));
            local->unclear |= local->n_leave > t->n_nodes / NODES_PER_LEAVE;
            if (local->unclear) return KT_OK;
        } else if (node->end > i + 1 && stays_below(g, t, node, trail[node->depth - 1], to)) {
            set_ranks(t, bits, node->rank, t->node[node->end].rank);
            i = node->end;
            continue;
        }
        set_ranks(t, bits, node->rank, t->node[i + 1].rank);
        i++;
    }
    return KT_OK;
}

/* All tokens that go on from the place. */
static kt_status walk_all(kt_grammar *g, uint32_t place, uint64_t *bits, kt_mask_entry *local,
                          kt_err *err) {
    const kt_vocabulary *v = g->vocabulary;
    const size_t words = kt_vocabulary_words(v);
    walk_range range = {.trie = &v->all};
    kt_plain_run run;

    KT_TRY(kt_plain_chars(g, place, &run, err));
    if (run.n != KT_PLAIN_MIXED) {
        const uint64_t *plain = v->plain + (size_t)(run.n > 0 ? run.n - 1 : 0) * words;
        for (size_t i = 0; run.n > 0 && i < words; i++) bits[i] |= plain[i];
        if (kt_byte_set_size(&run.others) == 0)
            range.trie = &v->other;
        else
            range.others = &run.others;
    }
    if (local) {
        local->unclear |= run.depth > LOCAL_DEPTH || run.leaves;
        local->trie = range.trie;
        if (run.leaves) return KT_OK;
    }
    range.end = range.trie->n_nodes;
    return walk(g, range, place, bits, local, err);
}

/* What is known of a state of the automaton below any stack: kept, or worked out into *scratch. */
static kt_status local_mask(kt_grammar *g, int32_t state, kt_mask_entry *scratch,
                            const kt_mask_entry **out, kt_err *err) {
    uint32_t stack, place;
    kt_mask_entry *kept = find(&g->by_state, (uint32_t)state);
    kt_status st;

    *out = kept;
    if (kept) return KT_OK;
    *scratch = (kt_mask_entry){.key = (uint32_t)state};
    scratch->bits = calloc(kt_vocabulary_words(g->vocabulary), sizeof *scratch->bits);
    if (!scratch->bits) return kt_fail(err, KT_E_NOMEM, "grammar: no memory for a mask");
    st = kt_stacks_push(&g->stacks, state, KT_STACK_UNKNOWN, &stack, err);
    if (st == KT_OK) st = kt_stacks_place(&g->stacks, stack, &place, err);
    if (st == KT_OK) {
        scratch->whole = g->stacks.place[place].flags & KT_PLACE_LEAVES;
        st = walk_all(g, place, scratch->bits, scratch, err);
    }
    if (st != KT_OK) return st;
    *out = keep(&g->by_state, scratch, STATES_KEPT);
    if (*out)
        *scratch = (kt_mask_entry){.used = 0}; /* it is the cache's */
    else
        *out = scratch;
    return KT_OK;
}

/* Where the walk left the frame, the stack below goes on. */
static kt_status walk_left(kt_grammar *g, const kt_mask_entry *local, uint32_t below,
                           uint64_t *bits, kt_err *err) {
    const kt_trie_node *node = local->trie->node;
    uint32_t place;

    if (below == KT_STACK_DONE || local->n_leave == 0) return KT_OK;
    KT_TRY(kt_stacks_place(&g->stacks, below, &place, err));
    if (place == KT_PLACE_DEAD) return KT_OK;
    for (size_t i = 0; i < local->n_leave; i++) {
        uint32_t at = local->leave[i];
        const walk_range below_it = {
            .trie = local->trie, .begin = at + 1, .end = node[at].end, .depth = node[at].depth};
        KT_TRY(walk(g, below_it, place, bits, NULL, err));
    }
    return KT_OK;
}

/* The tokens of one stack of a kernel. A frame that can be left at once adds those of the stack
 * below. *unclear: some are missing, since a frame by itself does not tell them. */
static kt_status mask_of_stack(kt_grammar *g, uint32_t stack, uint64_t *bits, bool *unclear,
                               kt_err *err) {
    size_t words = kt_vocabulary_words(g->vocabulary);

    while (stack != KT_STACK_DONE) {
        kt_frame top = g->stacks.frame[stack];
        kt_mask_entry scratch = {.used = 0};
        const kt_mask_entry *local = NULL;
        bool whole;
        kt_status st = KT_OK;

        *unclear = top.depth + LOCAL_DEPTH > KT_STACK_DEPTH;
        if (!*unclear) st = local_mask(g, top.state, &scratch, &local, err);
        if (st == KT_OK && local) *unclear = local->unclear;
        if (st != KT_OK || *unclear) {
            clear_entry(&scratch);
            return st;
        }
        whole = local->whole;
        for (size_t i = 0; i < words; i++) bits[i] |= local->bits[i];
        st = walk_left(g, local, top.below, bits, err);
        clear_entry(&scratch);
        if (st != KT_OK || !whole) return st;
        stack = top.below;
    }
    return KT_OK;
}

static kt_status work_out(kt_grammar *g, uint32_t place, uint64_t *bits, kt_err *err) {
    const kt_vocabulary *v = g->vocabulary;
    kt_place p = g->stacks.place[place];
    bool unclear = p.n_kernel > FEW_STACKS;

    memset(bits, 0, kt_vocabulary_words(v) * sizeof *bits);
    for (uint32_t i = 0; i < p.n_kernel && !unclear; i++)
        KT_TRY(mask_of_stack(g, g->stacks.pool[p.at + i], bits, &unclear, err));
    if (unclear) KT_TRY(walk_all(g, place, bits, NULL, err));
    for (size_t i = 0; i < v->n_ends; i++) {
        uint64_t bit = (uint64_t)1 << v->ends[i] % 64;
        if (p.flags & KT_PLACE_COMPLETE) bits[v->ends[i] / 64] |= bit;
    }
    return KT_OK;
}

kt_status kt_grammar_mask_of(kt_grammar *g, uint32_t place, uint64_t *bits, kt_err *err) {
    size_t bytes = kt_vocabulary_words(g->vocabulary) * sizeof *bits;
    const kt_mask_entry *kept = find(&g->by_place, place);
    kt_mask_entry fresh = {.key = place};

    if (kept) {
        memcpy(bits, kept->bits, bytes);
        return KT_OK;
    }
    KT_TRY(work_out(g, place, bits, err));
    fresh.bits = malloc(bytes);
    if (!fresh.bits) return KT_OK; /* a copy less to keep */
    memcpy(fresh.bits, bits, bytes);
    if (!keep(&g->by_place, &fresh, PLACES_KEPT)) free(fresh.bits);
    return KT_OK;
}
