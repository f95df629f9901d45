/* Two least fixed points over the states, found with a work list, and a topological order of the
 * rules. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_trim.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Which states to look at again when one becomes true: user[begin[s], begin[s + 1]). */
typedef struct users {
    int32_t *begin, *user;
} users;

static void users_deinit(users *u) {
    free(u->begin);
    free(u->user);
}

/* Calls f for each state that s depends on. */
typedef void depends_fn(users *u, int32_t s, int32_t on);

static void each_dependence(const kt_auto *a, users *u, depends_fn *f) {
    for (int32_t s = 0; s < a->n_states; s++) {
        const int32_t *next = a->next + (size_t)s * (size_t)a->n_classes;
        for (int32_t c = 0; c < a->n_classes; c++)
            if (next[c] >= 0 && (c == 0 || next[c] != next[c - 1])) f(u, s, next[c]);
        for (int32_t i = a->call_begin[s]; i < a->call_begin[s + 1]; i++) {
            f(u, s, a->call[i].start);
            f(u, s, a->call[i].back_to);
        }
    }
}

static void count_user(users *u, int32_t s, int32_t on) {
    (void)s;
    u->begin[on + 1]++;
}

static void put_user(users *u, int32_t s, int32_t on) {
    u->user[u->begin[on]++] = s;
}

static bool find_users(const kt_auto *a, users *u) {
    u->begin = calloc((size_t)a->n_states + 2, sizeof *u->begin);
    if (!u->begin) return false;
    each_dependence(a, u, count_user);
    for (int32_t s = 0; s <= a->n_states; s++) u->begin[s + 1] += u->begin[s];
    u->user = malloc(((size_t)u->begin[a->n_states] + 1) * sizeof *u->user);
    if (!u->user) return false;
    each_dependence(a, u,
                    put_user); /* moves each begin to its end, which is the next one's begin */
    memmove(u->begin + 1, u->begin, (size_t)a->n_states * sizeof *u->begin);
    u->begin[0] = 0;
    return true;
}

/* Can s reach its rule's end (by bytes too, or only by calls that may read nothing)? */
static bool reaches(const kt_auto *a, const uint8_t *holds, int32_t s, bool by_bytes) {
    const int32_t *next = a->next + (size_t)s * (size_t)a->n_classes;

    if (a->flags[s] & KT_AUTO_ACCEPTS) return true;
    for (int32_t i = a->call_begin[s]; i < a->call_begin[s + 1]; i++)
        if (holds[a->call[i].start] && holds[a->call[i].back_to]) return true;
    for (int32_t c = 0; by_bytes && c < a->n_classes; c++)
        if (next[c] >= 0 && holds[next[c]]) return true;
    return false;
}

static void find_reaching(const kt_auto *a, const users *u, uint8_t *holds, int32_t *list,
                          bool by_bytes) {
    int32_t n = 0;

    memset(holds, 0, (size_t)a->n_states);
    for (int32_t s = 0; s < a->n_states; s++)
        if (a->flags[s] & KT_AUTO_ACCEPTS) {
            holds[s] = 1;
            list[n++] = s;
        }
    while (n > 0) {
        int32_t s = list[--n];
        for (int32_t i = u->begin[s]; i < u->begin[s + 1]; i++) {
            int32_t t = u->user[i];
            if (holds[t] || !reaches(a, holds, t, by_bytes)) continue;
            holds[t] = 1;
            list[n++] = t;
        }
    }
}

/* ---- left recursion ---- */

/* The rules that a rule calls before it has read anything, one by one: f(arg, rule's first
 * state). */
typedef void leftmost_fn(void *arg, int32_t start);

typedef struct leftmost {
    const kt_auto *a;
    const uint8_t *nullable;
    int32_t *list, *seen, round;
} leftmost;

static void each_leftmost(leftmost *l, int32_t start, leftmost_fn *f, void *arg) {
    const kt_auto *a = l->a;
    int32_t n = 0;

    l->round++;
    l->list[n++] = start;
    l->seen[start] = l->round;
    while (n > 0) {
        int32_t s = l->list[--n];
        for (int32_t i = a->call_begin[s]; i < a->call_begin[s + 1]; i++) {
            kt_auto_call call = a->call[i];
            f(arg, call.start);
            if (!l->nullable[call.start] || l->seen[call.back_to] == l->round) continue;
            l->seen[call.back_to] = l->round;
            l->list[n++] = call.back_to;
        }
    }
}

typedef struct callers {
    int32_t *count, *ready, *caller;
    const int32_t *rule_of;
    int32_t n_ready, current;
} callers;

static void count_caller(void *arg, int32_t start) {
    callers *c = arg;
    c->count[c->rule_of[start]]++;
}

static void take_caller(void *arg, int32_t start) {
    callers *c = arg;
    int32_t rule = c->rule_of[start];
    if (--c->count[rule] == 0) c->ready[c->n_ready++] = rule;
}

static void note_caller(void *arg, int32_t start) {
    callers *c = arg;
    c->caller[c->rule_of[start]] = c->current;
}

/* Take away, again and again, a rule that no remaining rule calls first: what remains are cycles
 * and what they call. From one of these, callers lead back into a cycle. A rule of it, or -1. */
static int32_t find_cycle(leftmost *l, callers *c, const int32_t *start, int32_t n_rules) {
    int32_t done = 0;

    for (int32_t r = 0; r < n_rules; r++) each_leftmost(l, start[r], count_caller, c);
    for (int32_t r = 0; r < n_rules; r++)
        if (c->count[r] == 0) c->ready[c->n_ready++] = r;
    while (c->n_ready > 0) {
        done++;
        each_leftmost(l, start[c->ready[--c->n_ready]], take_caller, c);
    }
    if (done == n_rules) return -1;
    for (int32_t r = 0; r < n_rules; r++) {
        if (c->count[r] == 0) continue;
        c->current = r;
        each_leftmost(l, start[r], note_caller, c);
    }
    for (int32_t i = 0; i < n_rules; i++) c->current = c->caller[c->current];
    return c->current;
}

static kt_status refuse_left_recursion(const kt_auto *a, const kt_rules *r, const int32_t *start,
                                       const uint8_t *nullable, int32_t *list, kt_err *err) {
    int32_t n_rules = (int32_t)r->n_rules, cycle = -1;
    size_t n = (size_t)a->n_states;
    int32_t *scratch = calloc(2 * n + 3 * (size_t)n_rules, sizeof *scratch);
    leftmost l = {.a = a, .nullable = nullable, .list = list, .seen = scratch};
    callers c = {.rule_of = scratch + n};

    if (!scratch) return kt_fail(err, KT_E_NOMEM, "grammar: no memory to check it");
    for (int32_t i = 0; i < n_rules; i++) scratch[n + (size_t)start[i]] = i;
    c.count = scratch + 2 * n;
    c.ready = c.count + n_rules;
    c.caller = c.ready + n_rules;
    cycle = find_cycle(&l, &c, start, n_rules);
    free(scratch);
    if (cycle < 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID,
                   "grammar: left recursion: rule '%s' calls itself, or comes to itself, before it "
                   "has read anything; write it with a repetition",
                   r->rule[cycle].name);
}

/* ---- what leads nowhere ---- */

static void cut_away(kt_auto *a, const uint8_t *live) {
    int32_t n_calls = 0;

    for (int32_t s = 0; s < a->n_states; s++) {
        int32_t *next = a->next + (size_t)s * (size_t)a->n_classes;
        int32_t begin = a->call_begin[s], used = 0;
        for (int32_t c = 0; c < a->n_classes; c++) {
            if (next[c] >= 0 && !live[next[c]]) next[c] = -1;
            used += next[c] >= 0;
        }
        a->call_begin[s] = n_calls;
        for (int32_t i = begin; i < a->call_begin[s + 1]; i++)
            if (live[a->call[i].start] && live[a->call[i].back_to]) a->call[n_calls++] = a->call[i];
        used += n_calls - a->call_begin[s];
        if (a->flags[s] && used == 0) a->flags[s] |= KT_AUTO_ENDS;
    }
    a->call_begin[a->n_states] = n_calls;
}

kt_status kt_auto_check(kt_auto *a, const kt_rules *r, const int32_t *start, kt_err *err) {
    users u = {NULL, NULL};
    uint8_t *holds = malloc((size_t)a->n_states);
    int32_t *list = malloc((size_t)a->n_states * sizeof *list);
    kt_status st = KT_OK;

    if (!holds || !list || !find_users(a, &u))
        st = kt_fail(err, KT_E_NOMEM, "grammar: no memory to check it");
    if (st == KT_OK) {
        find_reaching(a, &u, holds, list, false);
        st = refuse_left_recursion(a, r, start, holds, list, err);
    }
    if (st == KT_OK) {
        find_reaching(a, &u, holds, list, true);
        if (!holds[a->start])
            st = kt_fail(err, KT_E_INVALID,
                         "grammar: no text can ever be complete: rule '%s' never ends",
                         r->rule[0].name);
        else
            cut_away(a, holds);
    }
    users_deinit(&u);
    free(holds);
    free(list);
    return st;
}
