/* Subset construction, rule by rule, with calls as letters of the alphabet: two ways into the same
 * rule from one state become one call, which keeps ambiguous grammars from having a stack per way.
 * What follows (grammar_trim.c) cuts away states that lead nowhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_build.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/grammar_trim.h"
#include "runtime/serve/grammar/grammar_nfa.h"

static const size_t most_table = (size_t)64 << 20; /* bytes of kt_auto.next */
static const size_t most_calls = (size_t)1 << 22;
static const size_t most_pool = (size_t)64 << 20; /* bytes of sets of one rule */
static const int32_t most_states = 1 << 18;
static const size_t most_work = (size_t)1 << 26; /* edges looked at: some tenths of a second */

typedef struct dfa_writer {
    const kt_nfa *nfa;
    kt_auto *out;
    size_t state_room, call_room, n_calls;
    /* The sets of nondeterministic states: set i is pool[set_begin[i], set_begin[i + 1]). */
    int32_t *pool, *set_begin;
    size_t n_pool, pool_room;
    int32_t *table; /* hash of the rule's sets: state or -1 */
    size_t table_size;
    int32_t rule_begin; /* the rule's first state */
    int32_t rule_end;   /* where its text ends: a nondeterministic state */
    uint32_t *mark;     /* [nfa states]: round in which a state was put into the set */
    uint32_t round;
    int32_t *stack; /* [nfa states] */
    size_t work;
    kt_status failed;
} dfa_writer;

void kt_auto_deinit(kt_auto *a) {
    free(a->next);
    free(a->flags);
    free(a->call_begin);
    free(a->call);
    memset(a, 0, sizeof *a);
}

static bool fail(dfa_writer *w, kt_status st) {
    if (w->failed == KT_OK) w->failed = st;
    return false;
}

/* Room for one more item after `used`. */
static bool grow(dfa_writer *w, void **items, size_t used, size_t *room, size_t item_bytes,
                 size_t most_bytes) {
    size_t want = *room ? *room * 2 : 64;
    void *larger;

    if (used < *room) return true;
    if (want * item_bytes > most_bytes * 2) return fail(w, KT_E_UNSUPPORTED);
    larger = realloc(*items, want * item_bytes);
    if (!larger) return fail(w, KT_E_NOMEM);
    *items = larger;
    *room = want;
    return true;
}

/* ---- classes of bytes ---- */

/* A class begins wherever some edge begins or has just ended. */
static void find_classes(const kt_nfa *n, kt_auto *a) {
    bool begins[257] = {true};
    int class = -1;

    for (size_t i = 0; i < n->n_edges; i++) {
        if (n->edge[i].kind != KT_NFA_BYTES) continue;
        begins[n->edge[i].low] = true;
        begins[n->edge[i].high + 1] = true;
    }
    for (int byte = 0; byte < 256; byte++) {
        class += begins[byte];
        a->class_of[byte] = (uint8_t) class;
    }
    a->n_classes = class + 1;
}

/* ---- sets of states ---- */

static void begin_set(dfa_writer *w) {
    if (++w->round == 0) {
        memset(w->mark, 0, w->nfa->n_states * sizeof *w->mark);
        w->round = 1;
    }
}

/* Put a state and what is reached from it by empty edges into the set at the pool's end. States
 * that have nothing but empty edges are left out, so that sets which go on alike are the same
 * set. */
static void add_to_set(dfa_writer *w, int32_t state) {
    size_t n = 0;

    if (w->mark[state] == w->round) return;
    w->mark[state] = w->round;
    w->stack[n++] = state;
    while (n > 0) {
        int32_t s = w->stack[--n];
        bool matters = s == w->rule_end;
        for (int32_t e = w->nfa->first[s]; e >= 0; e = w->nfa->edge[e].after) {
            int32_t to = w->nfa->edge[e].to;
            w->work++;
            matters |= w->nfa->edge[e].kind != KT_NFA_EMPTY;
            if (w->nfa->edge[e].kind != KT_NFA_EMPTY || w->mark[to] == w->round) continue;
            w->mark[to] = w->round;
            w->stack[n++] = to;
        }
        if (!matters) continue;
        if (!grow(w, (void **)&w->pool, w->n_pool, &w->pool_room, sizeof *w->pool, most_pool))
            return;
        w->pool[w->n_pool++] = s;
    }
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static uint64_t hash_set(const int32_t *set, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)set[i]) * 0x100000001b3u ^ h >> 29;
    return h ^ h >> 32;
}

static bool grow_table(dfa_writer *w) {
    size_t size = w->table_size ? w->table_size * 2 : 256;
    int32_t *table = malloc(size * sizeof *table);

    if (!table) return fail(w, KT_E_NOMEM);
    memset(table, 0xff, size * sizeof *table);
    free(w->table);
    w->table = table;
    w->table_size = size;
    for (int32_t s = w->rule_begin; s < w->out->n_states; s++) {
        const int32_t *set = w->pool + w->set_begin[s];
        size_t at = hash_set(set, (size_t)(w->set_begin[s + 1] - w->set_begin[s])) & (size - 1);
        while (table[at] >= 0) at = (at + 1) & (size - 1);
        table[at] = s;
    }
    return true;
}

static bool add_state(dfa_writer *w) {
    kt_auto *a = w->out;
    size_t room = w->state_room, width = (size_t)a->n_classes * sizeof *a->next;
    size_t begins = room, flags = room, calls = room;

    if (a->n_states >= most_states) return fail(w, KT_E_UNSUPPORTED);
    if (!grow(w, (void **)&a->flags, (size_t)a->n_states, &flags, 1, most_table) ||
        !grow(w, (void **)&w->set_begin, (size_t)a->n_states + 2, &begins, sizeof *w->set_begin,
              most_table) ||
        !grow(w, (void **)&a->call_begin, (size_t)a->n_states + 2, &calls, sizeof *a->call_begin,
              most_table) ||
        !grow(w, (void **)&a->next, (size_t)a->n_states, &room, width, most_table))
        return false;
    w->state_room = room;
    memset(a->next + (size_t)a->n_states * (size_t)a->n_classes, 0xff, width);
    a->flags[a->n_states++] = 0;
    return true;
}

/* The state of the set that lies at the pool's end from `begin` on; a new one when it is new. */
static int32_t state_of_set(dfa_writer *w, size_t begin) {
    size_t n = w->n_pool - begin, at;
    kt_auto *a = w->out;

    if (w->failed != KT_OK) return -1;
    qsort(w->pool + begin, n, sizeof *w->pool, by_number);
    if ((size_t)(a->n_states - w->rule_begin) * 2 >= w->table_size && !grow_table(w)) return -1;
    at = hash_set(w->pool + begin, n) & (w->table_size - 1);
    for (; w->table[at] >= 0; at = (at + 1) & (w->table_size - 1)) {
        int32_t s = w->table[at], from = w->set_begin[s];
        if ((size_t)(w->set_begin[s + 1] - from) == n &&
            memcmp(w->pool + from, w->pool + begin, n * sizeof *w->pool) == 0) {
            w->n_pool = begin;
            return s;
        }
    }
    if (!add_state(w)) return -1;
    w->table[at] = a->n_states - 1;
    w->set_begin[a->n_states - 1] = (int32_t)begin;
    w->set_begin[a->n_states] = (int32_t)w->n_pool;
    return a->n_states - 1;
}

/* ---- edges of one state ---- */

static void write_bytes(dfa_writer *w, int32_t state) {
    kt_auto *a = w->out;

    for (int byte = 0; byte < 256 && w->failed == KT_OK; byte++) {
        size_t begin = w->n_pool;
        if (byte > 0 && a->class_of[byte] == a->class_of[byte - 1]) continue;
        begin_set(w);
        for (int32_t i = w->set_begin[state]; i < w->set_begin[state + 1]; i++)
            for (int32_t e = w->nfa->first[w->pool[i]]; e >= 0; e = w->nfa->edge[e].after) {
                const kt_nfa_edge *edge = &w->nfa->edge[e];
                w->work++;
                if (edge->kind == KT_NFA_BYTES && edge->low <= byte && byte <= edge->high)
                    add_to_set(w, edge->to);
            }
        if (w->n_pool > begin) {
            int32_t to = state_of_set(w, begin);
            a->next[(size_t)state * (size_t)a->n_classes + a->class_of[byte]] = to;
        }
        if (w->work > most_work) fail(w, KT_E_UNSUPPORTED);
    }
}

/* The lowest rule above `above` that the set calls, or INT32_MAX. */
static int32_t next_called(dfa_writer *w, int32_t state, int32_t above) {
    int32_t lowest = INT32_MAX;

    for (int32_t i = w->set_begin[state]; i < w->set_begin[state + 1]; i++)
        for (int32_t e = w->nfa->first[w->pool[i]]; e >= 0; e = w->nfa->edge[e].after) {
            int32_t kind = w->nfa->edge[e].kind;
            w->work++;
            if (kind > above && kind < lowest) lowest = kind;
        }
    return lowest;
}

/* Calls hold the number of the rule in `start` until all rules have their states. */
static void write_calls(dfa_writer *w, int32_t state) {
    kt_auto *a = w->out;

    for (int32_t rule = next_called(w, state, -1); rule != INT32_MAX && w->failed == KT_OK;
         rule = next_called(w, state, rule)) {
        size_t begin = w->n_pool;
        int32_t to;
        begin_set(w);
        for (int32_t i = w->set_begin[state]; i < w->set_begin[state + 1]; i++)
            for (int32_t e = w->nfa->first[w->pool[i]]; e >= 0; e = w->nfa->edge[e].after) {
                w->work++;
                if (w->nfa->edge[e].kind == rule) add_to_set(w, w->nfa->edge[e].to);
            }
        to = state_of_set(w, begin);
        if (w->work > most_work) fail(w, KT_E_UNSUPPORTED);
        if (to < 0 || !grow(w, (void **)&a->call, w->n_calls, &w->call_room, sizeof *a->call,
                            most_calls * sizeof *a->call))
            return;
        a->call[w->n_calls++] = (kt_auto_call){rule, to};
    }
}

/* All states of a rule; start[rule] is the first. */
static void write_rule(dfa_writer *w, int32_t rule, int32_t *start) {
    kt_auto *a = w->out;

    w->rule_begin = a->n_states;
    w->rule_end = w->nfa->end[rule];
    w->n_pool = 0;
    if (w->table) memset(w->table, 0xff, w->table_size * sizeof *w->table);
    begin_set(w);
    add_to_set(w, w->nfa->begin[rule]);
    start[rule] = state_of_set(w, 0);
    for (int32_t s = w->rule_begin; s < a->n_states && w->failed == KT_OK; s++) {
        for (int32_t i = w->set_begin[s]; i < w->set_begin[s + 1]; i++)
            if (w->pool[i] == w->rule_end) a->flags[s] = KT_AUTO_ACCEPTS;
        a->call_begin[s] = (int32_t)w->n_calls;
        write_bytes(w, s);
        write_calls(w, s);
    }
}

static void write_rules(dfa_writer *w, int32_t *start) {
    const kt_nfa *nfa = w->nfa;
    kt_auto *a = w->out;

    w->mark = calloc(nfa->n_states, sizeof *w->mark);
    w->stack = malloc(nfa->n_states * sizeof *w->stack);
    w->pool_room = 64; /* so that empty sets lie somewhere, too */
    w->pool = malloc(w->pool_room * sizeof *w->pool);
    if (!w->mark || !w->stack || !w->pool) fail(w, KT_E_NOMEM);
    for (int32_t i = 0; i < nfa->n_rules && w->failed == KT_OK; i++) write_rule(w, i, start);
    if (w->failed == KT_OK) {
        a->call_begin[a->n_states] = (int32_t)w->n_calls;
        for (size_t i = 0; i < w->n_calls; i++) a->call[i].start = start[a->call[i].start];
        a->start = start[0];
    }
    free(w->mark);
    free(w->stack);
    free(w->pool);
    free(w->set_begin);
    free(w->table);
}

static kt_status find_undefined(const kt_rules *r, kt_err *err) {
    for (size_t i = 0; i < r->n_rules; i++)
        if (!r->rule[i].is_defined)
            return kt_fail(err, KT_E_INVALID, "grammar: rule '%s' is called but not defined",
                           r->rule[i].name);
    return KT_OK;
}

kt_status kt_auto_build(kt_rules *r, kt_auto *out, kt_err *err) {
    dfa_writer w = {.out = out};
    kt_nfa nfa;
    int32_t *start;
    kt_status st;

    memset(out, 0, sizeof *out);
    if (r->failed == KT_OK) KT_TRY(find_undefined(r, err));
    KT_TRY(kt_nfa_build(r, &nfa, err));
    w.nfa = &nfa;
    find_classes(&nfa, out);
    start = malloc((size_t)nfa.n_rules * sizeof *start);
    if (start) write_rules(&w, start);
    st = start ? w.failed : KT_E_NOMEM;
    if (st == KT_E_NOMEM) kt_fail(err, st, "grammar: no memory to build it");
    if (st == KT_E_UNSUPPORTED)
        kt_fail(err, st,
                "grammar: too large: its automaton has over %d states, needs over %zu MiB or too "
                "much work",
                (int)most_states, most_table >> 20);
    if (st == KT_OK) st = kt_auto_check(out, r, start, err);
    if (st != KT_OK) kt_auto_deinit(out);
    free(start);
    kt_nfa_deinit(&nfa);
    return st;
}
