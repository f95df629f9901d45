/* A grammar while it is written down: rules with expressions over characters. GBNF, JSON Schema and
 * regular expressions are turned into it, grammar_build.h turns it into an automaton.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_RULES_H
#define KT_RUNTIME_GRAMMAR_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

/* A set of code points: ranges, at most KT_CHAR_SET_MAX of them after merging. */
enum { KT_CHAR_SET_MAX = 512 };

typedef struct kt_char_range {
    uint32_t first, last;
} kt_char_range;

typedef struct kt_char_set {
    kt_char_range range[KT_CHAR_SET_MAX]; /* ascending and disjoint after kt_char_set_sort */
    int n;
    bool overflow; /* more ranges than there is room for */
} kt_char_set;

void kt_char_set_add(kt_char_set *s, uint32_t first, uint32_t last);
void kt_char_set_sort(kt_char_set *s);   /* sort and merge */
void kt_char_set_negate(kt_char_set *s); /* all other code points but surrogates */
void kt_char_set_remove(kt_char_set *s, uint32_t first, uint32_t last);
bool kt_char_set_has(const kt_char_set *s, uint32_t c);

/* Expressions are numbers; 0 is the empty text, which is also what a failed call returns. */
typedef int32_t kt_expr;

typedef enum kt_expr_kind {
    KT_EXPR_SEQUENCE, /* count children from `first` */
    KT_EXPR_CHOICE,   /* one of count children; of none: nothing matches */
    KT_EXPR_TEXT,     /* count bytes */
    KT_EXPR_CHARS,    /* a character of count ranges */
    KT_EXPR_REPEAT,   /* expression `first`, min to max times; max < 0 = no end */
    KT_EXPR_CALL,     /* rule `first` */
    KT_EXPR_TOKEN     /* the special token of id `first` */
} kt_expr_kind;

typedef struct kt_expr_node {
    kt_expr_kind kind;
    int32_t first, count, min, max;
} kt_expr_node;

enum { KT_RULE_NAME = 64 };

typedef struct kt_rule {
    char name[KT_RULE_NAME]; /* for messages; cut when longer */
    kt_expr body;
    bool is_defined;
} kt_rule;

/* Growing arrays; errors stick in `failed` and show when the automaton is built.
 * Zero-initialise. */
typedef struct kt_rules {
    kt_expr_node *node;
    kt_expr *child;
    kt_char_range *range;
    char *text;
    kt_rule *rule;
    size_t n_nodes, n_children, n_ranges, n_text, n_rules;
    size_t node_room, child_room, range_room, text_room, rule_room;
    kt_status failed;
} kt_rules;

void kt_rules_deinit(kt_rules *r);

/* A new rule without body, or -1. The name may repeat another. */
int32_t kt_rules_add(kt_rules *r, const char *name, size_t size);
void kt_rules_define(kt_rules *r, int32_t rule, kt_expr body);

kt_expr kt_rules_text(kt_rules *r, const char *bytes, size_t n);
kt_expr kt_rules_literal(kt_rules *r, const char *text); /* NUL-terminated */
kt_expr kt_rules_chars(kt_rules *r, const kt_char_set *sorted);
kt_expr kt_rules_sequence(kt_rules *r, const kt_expr *parts, size_t n);
kt_expr kt_rules_choice(kt_rules *r, const kt_expr *parts, size_t n);
kt_expr kt_rules_pair(kt_rules *r, kt_expr a, kt_expr b); /* a, then b */
kt_expr kt_rules_either(kt_rules *r, kt_expr a, kt_expr b);
kt_expr kt_rules_never(kt_rules *r);
kt_expr kt_rules_repeat(kt_rules *r, kt_expr body, int32_t min, int32_t max);
kt_expr kt_rules_optional(kt_rules *r, kt_expr body);
kt_expr kt_rules_call(kt_rules *r, int32_t rule);
kt_expr kt_rules_token(kt_rules *r, int32_t id);

/* A list of expressions, for sequences and choices of unknown length. Zero-initialise,
 * free(item). */
typedef struct kt_expr_list {
    kt_expr *item;
    size_t n, room;
} kt_expr_list;

void kt_expr_list_add(kt_rules *r, kt_expr_list *list, kt_expr e);

#endif
