/* Thompson's construction. A repetition is written out; a long one of anything bigger than a call
 * first gets a rule of its own for its body, so that a string of up to 10,000 characters costs one
 * state per character and not twenty. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_nfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "runtime/serve/grammar/grammar_build.h"

static const size_t most_items = (size_t)1 << 21; /* states, and edges: 8 and 32 MB */
enum { LONG_REPEAT = 8, MOST_DEPTH = 1000 };

typedef struct nfa_writer {
    kt_rules *rules;
    kt_nfa *out;
    int32_t *helper; /* [expressions]: rule that stands for it, or 0 */
    int depth;
    kt_status failed;
} nfa_writer;

void kt_nfa_deinit(kt_nfa *n) {
    free(n->first);
    free(n->edge);
    free(n->begin);
    free(n->end);
    memset(n, 0, sizeof *n);
}

static bool grow(nfa_writer *w, void **items, size_t used, size_t *room, size_t item_bytes) {
    size_t want = *room ? *room * 2 : 256;
    void *larger;

    if (w->failed != KT_OK) return false;
    if (used < *room) return true;
    larger = used < most_items ? realloc(*items, want * item_bytes) : NULL;
    if (!larger) {
        w->failed = used < most_items ? KT_E_NOMEM : KT_E_UNSUPPORTED;
        return false;
    }
    *items = larger;
    *room = want;
    return true;
}

static int32_t new_state(nfa_writer *w) {
    kt_nfa *n = w->out;

    if (!grow(w, (void **)&n->first, n->n_states, &n->state_room, sizeof *n->first)) return 0;
    n->first[n->n_states] = -1;
    return (int32_t)n->n_states++;
}

static void add_edge(nfa_writer *w, int32_t from, int32_t to, int32_t kind, uint8_t low,
                     uint8_t high) {
    kt_nfa *n = w->out;

    if (!grow(w, (void **)&n->edge, n->n_edges, &n->edge_room, sizeof *n->edge)) return;
    n->edge[n->n_edges] = (kt_nfa_edge){to, n->first[from], kind, low, high};
    n->first[from] = (int32_t)n->n_edges++;
}

static void add_empty(nfa_writer *w, int32_t from, int32_t to) {
    add_edge(w, from, to, KT_NFA_EMPTY, 0, 0);
}

static void add_bytes(nfa_writer *w, int32_t from, int32_t to, const char *bytes, size_t n) {
    for (size_t i = 0; i < n && w->failed == KT_OK; i++) {
        int32_t next = i + 1 < n ? new_state(w) : to;
        uint8_t byte = (uint8_t)bytes[i];
        add_edge(w, from, next, KT_NFA_BYTES, byte, byte);
        from = next;
    }
}

/* ---- characters ---- */

/* Where `left` continuation bytes lead to `to`, made once per set of characters. */
typedef struct tails {
    int32_t to, state[4];
} tails;

static int32_t tail(nfa_writer *w, tails *t, int left) {
    if (left == 0) return t->to;
    if (t->state[left] < 0) {
        t->state[left] = new_state(w);
        add_edge(w, t->state[left], tail(w, t, left - 1), KT_NFA_BYTES, 0x80, 0xbf);
    }
    return t->state[left];
}

/* Characters whose UTF-8 forms have the same length n; bytes before `at` are equal and were
 * written. A range is cut into a ragged beginning, whole blocks of the first byte, and a ragged
 * end. */
static void add_range(nfa_writer *w, int32_t from, tails *t, const uint8_t *low,
                      const uint8_t *high, int at, int n) {
    int first = low[at], last = high[at];
    bool low_ragged = false, high_ragged = false;

    for (int i = at + 1; i < n; i++) {
        low_ragged |= low[i] != 0x80;
        high_ragged |= high[i] != 0xbf;
    }
    if (first == last && (low_ragged || high_ragged)) {
        int32_t next = new_state(w);
        add_edge(w, from, next, KT_NFA_BYTES, low[at], low[at]);
        if (w->failed == KT_OK) add_range(w, next, t, low, high, at + 1, n);
        return;
    }
    if (low_ragged) {
        static const uint8_t most[4] = {0xbf, 0xbf, 0xbf, 0xbf};
        int32_t next = new_state(w);
        add_edge(w, from, next, KT_NFA_BYTES, low[at], low[at]);
        if (w->failed == KT_OK) add_range(w, next, t, low, most, at + 1, n);
        first++;
    }
    if (high_ragged) {
        static const uint8_t least[4] = {0x80, 0x80, 0x80, 0x80};
        int32_t next = new_state(w);
        add_edge(w, from, next, KT_NFA_BYTES, high[at], high[at]);
        if (w->failed == KT_OK) add_range(w, next, t, least, high, at + 1, n);
        last--;
    }
    if (first <= last && w->failed == KT_OK)
        add_edge(w, from, tail(w, t, n - 1 - at), KT_NFA_BYTES, (uint8_t)first, (uint8_t)last);
}

static void add_chars(nfa_writer *w, int32_t from, int32_t to, const kt_char_range *range, int n) {
    static const kt_char_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    tails t = {to, {-1, -1, -1, -1}};

    for (int i = 0; i < n; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths && w->failed == KT_OK; l++) {
            uint32_t first = range[i].first, last = range[i].last;
            char low[4], high[4];
            if (first < lengths[l].first) first = lengths[l].first;
            if (last > lengths[l].last) last = lengths[l].last;
            if (first > last) continue;
            kt_utf8_put(low, first);
            add_range(w, from, &t, (uint8_t *)low, (uint8_t *)high, 0, kt_utf8_put(high, last));
        }
}

/* ---- expressions ---- */

static void write_expr(nfa_writer *w, kt_expr e, int32_t from, int32_t to);

/* A long repetition's body becomes a rule, written like any other when its turn comes. */
static kt_expr short_body(nfa_writer *w, kt_expr body) {
    const kt_expr_node *node = &w->rules->node[body];
    int32_t rule;

    if (node->kind == KT_EXPR_CALL || (node->kind == KT_EXPR_TEXT && node->count == 1)) return body;
    if (node->kind == KT_EXPR_CHARS && w->rules->range[node->first + node->count - 1].last < 0x80)
        return body;
    if (w->helper[body] == 0) {
        rule = kt_rules_add(w->rules, "repeated part", 13);
        kt_rules_define(w->rules, rule, body);
        w->helper[body] = kt_rules_call(w->rules, rule);
        if (w->rules->failed != KT_OK) w->failed = w->rules->failed;
    }
    return w->helper[body];
}

static void write_repeat(nfa_writer *w, kt_expr_node node, int32_t from, int32_t to) {
    kt_expr body = node.first;
    int32_t copies = node.max > node.min ? node.max : node.min;

    if (copies > LONG_REPEAT) body = short_body(w, body);
    for (int32_t i = 0; i < node.min && w->failed == KT_OK; i++) {
        int32_t next = i + 1 < node.min || node.max != node.min ? new_state(w) : to;
        write_expr(w, body, from, next);
        from = next;
    }
    if (node.max < 0) {
        int32_t loop = new_state(w);
        add_empty(w, from, loop);
        write_expr(w, body, loop, loop);
        if (w->failed == KT_OK) add_empty(w, loop, to);
    }
    for (int32_t i = node.min; i < node.max && w->failed == KT_OK; i++) {
        int32_t next = i + 1 < node.max ? new_state(w) : to;
        write_expr(w, body, from, next);
        if (w->failed == KT_OK) add_empty(w, from, to);
        from = next;
    }
}

static void write_expr(nfa_writer *w, kt_expr e, int32_t from, int32_t to) {
    const kt_rules *r = w->rules;
    kt_expr_node node = r->n_nodes ? r->node[e] : (kt_expr_node){.kind = KT_EXPR_SEQUENCE};

    if (w->failed == KT_OK && ++w->depth > MOST_DEPTH) w->failed = KT_E_UNSUPPORTED;
    if (w->failed != KT_OK) return;
    switch (node.kind) {
    case KT_EXPR_SEQUENCE:
        if (node.count == 0) add_empty(w, from, to);
        for (int32_t i = 0; i < node.count && w->failed == KT_OK; i++) {
            int32_t next = i + 1 < node.count ? new_state(w) : to;
            write_expr(w, w->rules->child[node.first + i], from, next);
            from = next;
        }
        break;
    case KT_EXPR_CHOICE:
        for (int32_t i = 0; i < node.count && w->failed == KT_OK; i++)
            write_expr(w, w->rules->child[node.first + i], from, to);
        break;
    case KT_EXPR_TEXT: add_bytes(w, from, to, r->text + node.first, (size_t)node.count); break;
    case KT_EXPR_CHARS: add_chars(w, from, to, r->range + node.first, node.count); break;
    case KT_EXPR_REPEAT: write_repeat(w, node, from, to); break;
    case KT_EXPR_CALL: add_edge(w, from, to, node.first, 0, 0); break;
    case KT_EXPR_TOKEN: {
        const char bytes[4] = {(char)KT_TOKEN_BYTE, (char)(node.first >> 16),
                               (char)(node.first >> 8), (char)node.first};
        add_bytes(w, from, to, bytes, 4);
        break;
    }
    }
    w->depth--;
}

/* Two more rules' ends; false without memory. */
static bool add_ends(nfa_writer *w, size_t n_rules) {
    kt_nfa *n = w->out;
    int32_t *begin = realloc(n->begin, n_rules * sizeof *begin), *end;

    if (begin) n->begin = begin;
    end = begin ? realloc(n->end, n_rules * sizeof *end) : NULL;
    if (end) n->end = end;
    if (!end) w->failed = KT_E_NOMEM;
    return end != NULL;
}

kt_status kt_nfa_build(kt_rules *r, kt_nfa *out, kt_err *err) {
    nfa_writer w = {.rules = r, .out = out, .failed = r->failed};

    memset(out, 0, sizeof *out);
    w.helper = calloc(r->n_nodes + 1, sizeof *w.helper);
    if (!w.helper && w.failed == KT_OK) w.failed = KT_E_NOMEM;
    for (size_t i = 0; i < r->n_rules && w.failed == KT_OK; i++) { /* r->n_rules may grow */
        if ((i & (i - 1)) == 0 && !add_ends(&w, i ? i * 2 : 1)) break;
        out->begin[i] = new_state(&w);
        out->end[i] = new_state(&w);
        write_expr(&w, r->rule[i].body, out->begin[i], out->end[i]);
    }
    out->n_rules = (int32_t)r->n_rules;
    free(w.helper);
    if (w.failed == KT_OK) return KT_OK;
    kt_nfa_deinit(out);
    if (w.failed == KT_E_NOMEM) return kt_fail(err, KT_E_NOMEM, "grammar: no memory to build it");
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "grammar: too large: more than %zu positions, or nested over %d deep",
                   most_items, (int)MOST_DEPTH);
}
