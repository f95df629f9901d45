/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/grammar_impl.h"

/* Places that no state is at are forgotten when the tables have grown to this, or to twice of what
 * the last time has kept. */
static const size_t least_keep = (size_t)16 << 20;

void kt_grammar_destroy(kt_grammar *g) {
    if (!g) return;
    kt_mask_cache_clear(&g->by_place);
    kt_mask_cache_clear(&g->by_state);
    free(g->trail);
    free(g->place);
    kt_stacks_deinit(&g->stacks);
    kt_auto_deinit(&g->automaton);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

kt_status kt_grammar_from_rules(const kt_vocabulary *vocabulary, kt_rules *r, kt_grammar **out,
                                kt_err *err) {
    kt_grammar *g;
    uint32_t stack;
    kt_status st;

    *out = NULL;
    g = calloc(1, sizeof *g);
    if (!g) return kt_fail(err, KT_E_NOMEM, "grammar: no memory for it");
    pthread_mutex_init(&g->lock, NULL);
    g->vocabulary = vocabulary;
    g->keep_at = least_keep;
    st = kt_auto_build(r, &g->automaton, err);
    if (st == KT_OK) st = kt_stacks_init(&g->stacks, &g->automaton, err);
    if (st == KT_OK)
        st = kt_stacks_push(&g->stacks, g->automaton.start, KT_STACK_DONE, &stack, err);
    if (st == KT_OK) st = kt_stacks_place(&g->stacks, stack, &g->first, err);
    if (st == KT_OK && vocabulary) {
        g->trail = malloc(((size_t)vocabulary->all.most_depth + 1) * sizeof *g->trail);
        if (!g->trail) st = kt_fail(err, KT_E_NOMEM, "grammar: no memory for it");
    }
    if (st == KT_OK)
        *out = g;
    else
        kt_grammar_destroy(g);
    return st;
}

/* ---- states ---- */

static kt_status take_slot(kt_grammar *g, uint32_t place, uint32_t *slot, kt_err *err) {
    uint32_t n = g->n_slots ? g->n_slots * 2 : 16;
    uint32_t *larger;

    for (uint32_t i = 0; i < g->n_slots; i++) {
        *slot = (g->free_hint + i) % g->n_slots;
        if (g->place[*slot] != KT_PLACE_UNKNOWN) continue;
        g->free_hint = *slot + 1;
        g->place[*slot] = place;
        return KT_OK;
    }
    larger = realloc(g->place, n * sizeof *larger);
    if (!larger) return kt_fail(err, KT_E_NOMEM, "grammar: no memory for %u states", n);
    memset(larger + g->n_slots, 0, (n - g->n_slots) * sizeof *larger);
    *slot = g->free_hint = g->n_slots;
    g->place = larger;
    g->n_slots = n;
    g->place[*slot] = place;
    return KT_OK;
}

/* Room for new places, when there are many, by forgetting those that no state is at. */
static kt_status make_room(kt_grammar *g, kt_err *err) {
    uint32_t *kept, n = 0;
    kt_status st;

    if (kt_stacks_bytes(&g->stacks) < g->keep_at) return KT_OK;
    kept = malloc(((size_t)g->n_slots + 1) * sizeof *kept);
    if (!kept) return kt_fail(err, KT_E_NOMEM, "grammar: no memory for %u states", g->n_slots);
    kept[n++] = g->first;
    for (uint32_t i = 0; i < g->n_slots; i++)
        if (g->place[i] != KT_PLACE_UNKNOWN) kept[n++] = g->place[i];
    st = kt_stacks_keep(&g->stacks, kept, n, err);
    if (st == KT_OK) {
        g->first = kept[0];
        n = 1;
        for (uint32_t i = 0; i < g->n_slots; i++)
            if (g->place[i] != KT_PLACE_UNKNOWN) g->place[i] = kept[n++];
        kt_mask_cache_clear(&g->by_place);
        g->stay_at = g->loop_at = KT_PLACE_UNKNOWN;
        g->keep_at = 2 * kt_stacks_bytes(&g->stacks);
        if (g->keep_at < least_keep) g->keep_at = least_keep;
    }
    free(kept);
    return st;
}

kt_status kt_grammar_state_init(kt_grammar_state *s, kt_grammar *g, kt_err *err) {
    kt_status st;

    *s = (kt_grammar_state){NULL, 0};
    pthread_mutex_lock(&g->lock);
    st = take_slot(g, g->first, &s->slot, err);
    pthread_mutex_unlock(&g->lock);
    if (st == KT_OK) s->grammar = g;
    return st;
}

kt_status kt_grammar_state_copy(const kt_grammar_state *from, kt_grammar_state *to, kt_err *err) {
    kt_grammar *g = from->grammar;
    kt_grammar_state out = {g, 0};
    kt_status st;

    pthread_mutex_lock(&g->lock);
    st = take_slot(g, g->place[from->slot], &out.slot, err);
    pthread_mutex_unlock(&g->lock);
    *to = st == KT_OK ? out : (kt_grammar_state){NULL, 0};
    return st;
}

void kt_grammar_state_deinit(kt_grammar_state *s) {
    if (!s->grammar) return;
    pthread_mutex_lock(&s->grammar->lock);
    s->grammar->place[s->slot] = KT_PLACE_UNKNOWN;
    s->grammar->free_hint = s->slot;
    pthread_mutex_unlock(&s->grammar->lock);
    s->grammar = NULL;
}

static kt_status go_on(kt_grammar *g, uint32_t slot, const char *bytes, size_t n, kt_err *err) {
    uint32_t place = g->place[slot];

    for (size_t i = 0; i < n; i++) {
        KT_TRY(kt_stacks_step(&g->stacks, place, (uint8_t)bytes[i], &place, err));
        if (place == KT_PLACE_DEAD)
            return kt_fail(err, KT_E_MISMATCH,
                           "grammar: byte 0x%02x, which is number %zu of %zu, cannot come here",
                           (uint8_t)bytes[i], i, n);
    }
    g->place[slot] = place;
    return KT_OK;
}

kt_status kt_grammar_state_accept(kt_grammar_state *s, const char *bytes, size_t n, kt_err *err) {
    kt_grammar *g = s->grammar;
    kt_status st;

    if (n && memchr(bytes, KT_TOKEN_BYTE, n))
        return kt_fail(err, KT_E_MISMATCH, "grammar: byte 0x%02x is in no text", KT_TOKEN_BYTE);
    pthread_mutex_lock(&g->lock);
    st = make_room(g, err);
    if (st == KT_OK) st = go_on(g, s->slot, bytes, n, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

static bool is_end(const kt_vocabulary *v, int32_t id) {
    for (size_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == id) return true;
    return false;
}

kt_status kt_grammar_state_accept_token(kt_grammar_state *s, int32_t id, kt_err *err) {
    kt_grammar *g = s->grammar;
    const kt_vocabulary *v = g->vocabulary;
    size_t begin, n;
    kt_status st;

    if (!v || id < 0 || id >= v->n_tokens)
        return kt_fail(err, KT_E_INVALID, "grammar: token %d, expected 0 to %d", id,
                       v ? v->n_tokens - 1 : -1);
    begin = v->text_begin[id];
    n = v->text_begin[id + 1] - begin;
    pthread_mutex_lock(&g->lock);
    st = make_room(g, err);
    if (st == KT_OK && is_end(v, id) &&
        (g->stacks.place[g->place[s->slot]].flags & KT_PLACE_COMPLETE)) {
        pthread_mutex_unlock(&g->lock);
        return KT_OK;
    }
    if (st == KT_OK && n == 0)
        st = kt_fail(err, KT_E_MISMATCH, "grammar: token %d has no text", id);
    if (st == KT_OK) st = go_on(g, s->slot, v->text + begin, n, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

bool kt_grammar_state_is_complete(const kt_grammar_state *s) {
    kt_grammar *g = s->grammar;
    bool complete;

    pthread_mutex_lock(&g->lock);
    complete = g->stacks.place[g->place[s->slot]].flags & KT_PLACE_COMPLETE;
    pthread_mutex_unlock(&g->lock);
    return complete;
}

kt_status kt_grammar_state_mask(kt_grammar_state *s, uint64_t *bits, kt_err *err) {
    kt_grammar *g = s->grammar;
    kt_status st;

    if (!g->vocabulary)
        return kt_fail(err, KT_E_INVALID, "grammar: made without a vocabulary, it has no masks");
    pthread_mutex_lock(&g->lock);
    st = make_room(g, err);
    if (st == KT_OK) st = kt_grammar_mask_of(g, g->place[s->slot], bits, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}
