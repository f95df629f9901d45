/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_rules.h"

#include <stdlib.h>
#include <string.h>

/* Items of any one kind: 64 MB of nodes. A request of 1 MiB of text stays far below. */
#define MOST_ITEMS ((size_t)1 << 22)

/* ---- sets of characters ---- */

void kt_char_set_add(kt_char_set *s, uint32_t first, uint32_t last) {
    if (s->n == KT_CHAR_SET_MAX) kt_char_set_sort(s);
    if (s->n == KT_CHAR_SET_MAX) {
        s->overflow = true;
        return;
    }
    s->range[s->n++] = (kt_char_range){first, last};
}

static int by_first(const void *a, const void *b) {
    const kt_char_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

void kt_char_set_sort(kt_char_set *s) {
    int n = 0;

    if (s->n == 0) return;
    qsort(s->range, (size_t)s->n, sizeof *s->range, by_first);
    for (int i = 1; i < s->n; i++) {
        kt_char_range *into = &s->range[n], next = s->range[i];
        if (next.first <= into->last || next.first == into->last + 1)
            into->last = next.last > into->last ? next.last : into->last;
        else
            s->range[++n] = next;
    }
    s->n = n + 1;
}

void kt_char_set_negate(kt_char_set *s) {
    kt_char_set out = {.n = 0, .overflow = s->overflow};
    uint32_t next = 0;

    kt_char_set_add(s, 0xd800, 0xdfff);
    kt_char_set_sort(s);
    for (int i = 0; i < s->n; i++) {
        if (s->range[i].first > next) kt_char_set_add(&out, next, s->range[i].first - 1);
        next = s->range[i].last + 1;
    }
    if (next <= 0x10ffff) kt_char_set_add(&out, next, 0x10ffff);
    out.overflow |= s->overflow;
    *s = out;
}

void kt_char_set_remove(kt_char_set *s, uint32_t first, uint32_t last) {
    kt_char_set out = {.n = 0, .overflow = s->overflow};

    for (int i = 0; i < s->n; i++) {
        kt_char_range r = s->range[i];
        if (r.last < first || r.first > last) {
            kt_char_set_add(&out, r.first, r.last);
            continue;
        }
        if (r.first < first) kt_char_set_add(&out, r.first, first - 1);
        if (r.last > last) kt_char_set_add(&out, last + 1, r.last);
    }
    *s = out;
}

bool kt_char_set_has(const kt_char_set *s, uint32_t c) {
    for (int i = 0; i < s->n; i++)
        if (s->range[i].first <= c && c <= s->range[i].last) return true;
    return false;
}

/* ---- rules ---- */

void kt_rules_deinit(kt_rules *r) {
    free(r->node);
    free(r->child);
    free(r->range);
    free(r->text);
    free(r->rule);
    memset(r, 0, sizeof *r);
}

/* Room for `more` items; false (and r->failed) without. */
static bool reserve(kt_rules *r, void **items, size_t used, size_t *room, size_t more,
                    size_t item_bytes) {
    size_t want = *room ? *room : 64;
    void *larger;

    if (r->failed != KT_OK) return false;
    if (more <= *room - used) return true;
    if (more > MOST_ITEMS - used) {
        r->failed = KT_E_UNSUPPORTED;
        return false;
    }
    while (want - used < more) want *= 2;
    larger = realloc(*items, want * item_bytes);
    if (!larger) {
        r->failed = KT_E_NOMEM;
        return false;
    }
    *items = larger;
    *room = want;
    return true;
}

#define RESERVE(r, array, used, room, more) \
    reserve(r, (void **)&(r)->array, (r)->used, &(r)->room, more, sizeof *(r)->array)

static kt_expr add_node(kt_rules *r, kt_expr_node node) {
    if (!RESERVE(r, node, n_nodes, node_room, 2)) return 0;
    if (r->n_nodes == 0) r->node[r->n_nodes++] = (kt_expr_node){.kind = KT_EXPR_SEQUENCE};
    r->node[r->n_nodes] = node;
    return (kt_expr)r->n_nodes++;
}

int32_t kt_rules_add(kt_rules *r, const char *name, size_t size) {
    kt_rule *rule;

    if (!RESERVE(r, rule, n_rules, rule_room, 1)) return -1;
    rule = memset(&r->rule[r->n_rules], 0, sizeof *rule);
    if (size >= KT_RULE_NAME) size = KT_RULE_NAME - 1;
    memcpy(rule->name, name, size);
    return (int32_t)r->n_rules++;
}

void kt_rules_define(kt_rules *r, int32_t rule, kt_expr body) {
    if (r->failed != KT_OK || rule < 0) return;
    r->rule[rule].body = body;
    r->rule[rule].is_defined = true;
}

kt_expr kt_rules_text(kt_rules *r, const char *bytes, size_t n) {
    size_t at = r->n_text;

    if (n == 0 || !RESERVE(r, text, n_text, text_room, n)) return 0;
    memcpy(r->text + at, bytes, n);
    r->n_text += n;
    return add_node(
        r, (kt_expr_node){.kind = KT_EXPR_TEXT, .first = (int32_t)at, .count = (int32_t)n});
}

kt_expr kt_rules_literal(kt_rules *r, const char *text) {
    return kt_rules_text(r, text, strlen(text));
}

kt_expr kt_rules_chars(kt_rules *r, const kt_char_set *sorted) {
    size_t at = r->n_ranges;

    if (sorted->overflow && r->failed == KT_OK) r->failed = KT_E_UNSUPPORTED;
    if (sorted->n == 0) return kt_rules_never(r);
    if (!RESERVE(r, range, n_ranges, range_room, (size_t)sorted->n)) return 0;
    memcpy(r->range + at, sorted->range, (size_t)sorted->n * sizeof *r->range);
    r->n_ranges += (size_t)sorted->n;
    return add_node(
        r, (kt_expr_node){.kind = KT_EXPR_CHARS, .first = (int32_t)at, .count = sorted->n});
}

static kt_expr add_list(kt_rules *r, kt_expr_kind kind, const kt_expr *parts, size_t n) {
    size_t at = r->n_children;

    if (n == 1) return parts[0];
    if (!RESERVE(r, child, n_children, child_room, n + 1)) return 0;
    if (n) memcpy(r->child + at, parts, n * sizeof *parts);
    r->n_children += n;
    return add_node(r, (kt_expr_node){.kind = kind, .first = (int32_t)at, .count = (int32_t)n});
}

kt_expr kt_rules_sequence(kt_rules *r, const kt_expr *parts, size_t n) {
    return n == 0 ? 0 : add_list(r, KT_EXPR_SEQUENCE, parts, n);
}

kt_expr kt_rules_choice(kt_rules *r, const kt_expr *parts, size_t n) {
    return add_list(r, KT_EXPR_CHOICE, parts, n);
}

kt_expr kt_rules_pair(kt_rules *r, kt_expr a, kt_expr b) {
    kt_expr parts[2] = {a, b};
    return a == 0 ? b : b == 0 ? a : kt_rules_sequence(r, parts, 2);
}

kt_expr kt_rules_either(kt_rules *r, kt_expr a, kt_expr b) {
    kt_expr parts[2] = {a, b};
    return kt_rules_choice(r, parts, 2);
}

kt_expr kt_rules_never(kt_rules *r) {
    return kt_rules_choice(r, NULL, 0);
}

kt_expr kt_rules_repeat(kt_rules *r, kt_expr body, int32_t min, int32_t max) {
    if (max == 0 || (body == 0 && r->failed == KT_OK)) return 0;
    if (min == 1 && max == 1) return body;
    return add_node(r,
                    (kt_expr_node){.kind = KT_EXPR_REPEAT, .first = body, .min = min, .max = max});
}

kt_expr kt_rules_optional(kt_rules *r, kt_expr body) {
    return kt_rules_repeat(r, body, 0, 1);
}

kt_expr kt_rules_call(kt_rules *r, int32_t rule) {
    return rule < 0 ? 0 : add_node(r, (kt_expr_node){.kind = KT_EXPR_CALL, .first = rule});
}

kt_expr kt_rules_token(kt_rules *r, int32_t id) {
    return add_node(r, (kt_expr_node){.kind = KT_EXPR_TOKEN, .first = id});
}

void kt_expr_list_add(kt_rules *r, kt_expr_list *list, kt_expr e) {
    if (reserve(r, (void **)&list->item, list->n, &list->room, 1, sizeof *list->item))
        list->item[list->n++] = e;
}
