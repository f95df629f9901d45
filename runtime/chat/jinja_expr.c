/* Expressions of templates, read by recursive descent in Jinja's order of precedence.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/jinja_node.h"

enum { MAX_HEIGHT = 250 };

/* ---- helpers of both readers ---- */

kt_status kt_jinja_syntax(const kt_jinja_parser *p, const kt_jinja_token *at, const char *format,
                          ...) {
    char what[256];
    va_list ap;

    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return kt_fail(p->err, KT_E_FORMAT, "%.200s:%u:%u: %s", p->t->name, at->line, at->column, what);
}

static kt_status unexpected(const kt_jinja_parser *p, const char *expected) {
    const kt_jinja_token *t = p->at;
    int n = (int)(t->size < 40 ? t->size : 40);

    switch (t->type) {
    case KT_TOK_END:
        return kt_jinja_syntax(p, t, "unexpected end of the template, expected %s", expected);
    case KT_TOK_VAR_END:
    case KT_TOK_BLOCK_END:
        return kt_jinja_syntax(p, t, "unexpected end of the tag, expected %s", expected);
    default: return kt_jinja_syntax(p, t, "unexpected '%.*s', expected %s", n, t->text, expected);
    }
}

bool kt_jinja_is_op(const kt_jinja_token *t, const char *op) {
    return t->type == KT_TOK_OP && t->size == strlen(op) && memcmp(t->text, op, t->size) == 0;
}

bool kt_jinja_is_name(const kt_jinja_token *t, const char *name) {
    return t->type == KT_TOK_NAME && t->size == strlen(name) && memcmp(t->text, name, t->size) == 0;
}

static bool skip_op(kt_jinja_parser *p, const char *op) {
    if (!kt_jinja_is_op(p->at, op)) return false;
    p->at++;
    return true;
}

kt_status kt_jinja_expect_op(kt_jinja_parser *p, const char *op) {
    char expected[16];

    if (skip_op(p, op)) return KT_OK;
    snprintf(expected, sizeof expected, "'%s'", op);
    return unexpected(p, expected);
}

kt_status kt_jinja_node_new(kt_jinja_parser *p, kt_jinja_kind kind, const kt_jinja_token *at,
                            kt_jinja_node **out) {
    kt_jinja_node *n = kt_arena_alloc(&p->t->arena, sizeof *n, _Alignof(kt_jinja_node));

    if (!n) return kt_fail(p->err, KT_E_NOMEM, "%.200s: no memory for the template", p->t->name);
    n->kind = kind;
    n->line = at->line;
    n->column = at->column;
    n->height = 1;
    *out = n;
    return KT_OK;
}

void kt_jinja_node_add(kt_jinja_node *parent, kt_jinja_node ***last, kt_jinja_node *child) {
    **last = child;
    *last = &child->next;
    if (child->height >= parent->height) parent->height = child->height + 1;
}

kt_status kt_jinja_check_height(const kt_jinja_parser *p, const kt_jinja_node *node) {
    if (node->height <= MAX_HEIGHT) return KT_OK;
    return kt_fail(p->err, KT_E_FORMAT, "%.200s:%u:%u: nested deeper than %d", p->t->name,
                   node->line, node->column, MAX_HEIGHT);
}

kt_status kt_jinja_symbol(kt_jinja_parser *p, const char *name, size_t size, uint32_t *out) {
    kt_template *t = p->t;

    for (*out = 0; *out < t->n_symbols; ++*out)
        if (t->symbols[*out].size == size && memcmp(t->symbols[*out].text, name, size) == 0)
            return KT_OK;
    if (t->n_symbols == t->symbol_capacity) {
        uint32_t more = t->symbol_capacity ? t->symbol_capacity * 2 : 64;
        kt_jinja_name *grown =
            kt_arena_alloc(&t->arena, more * sizeof *grown, _Alignof(kt_jinja_name));
        if (!grown)
            return kt_fail(p->err, KT_E_NOMEM, "%.200s: no memory for the template", t->name);
        if (t->n_symbols) memcpy(grown, t->symbols, t->n_symbols * sizeof *grown);
        t->symbols = grown;
        t->symbol_capacity = more;
    }
    t->symbols[t->n_symbols++] = (kt_jinja_name){name, size};
    return KT_OK;
}

static kt_status down(kt_jinja_parser *p) {
    if (++p->depth > MAX_HEIGHT)
        return kt_jinja_syntax(p, p->at, "nested deeper than %d", MAX_HEIGHT);
    return KT_OK;
}

/* A node of one child. */
static kt_status wrap(kt_jinja_parser *p, kt_jinja_kind kind, const kt_jinja_token *at,
                      kt_jinja_node *child, kt_jinja_node **out, kt_jinja_node ***last) {
    kt_jinja_node *n = NULL;

    KT_TRY(kt_jinja_node_new(p, kind, at, &n));
    *last = &n->children;
    kt_jinja_node_add(n, last, child);
    *out = n;
    return kt_jinja_check_height(p, n);
}

static kt_status constant(kt_jinja_parser *p, const kt_jinja_token *at, kt_jinja_value value,
                          kt_jinja_node **out) {
    KT_TRY(kt_jinja_node_new(p, KT_NODE_CONST, at, out));
    (*out)->value = value;
    return KT_OK;
}

/* ---- literals ---- */

static kt_status number(kt_jinja_parser *p, kt_jinja_node **out) {
    const kt_jinja_token *t = p->at++;
    char text[64];
    size_t n = 0;
    char *end;
    int base = 10;
    kt_jinja_value v = {.type = KT_JINJA_INT};

    for (size_t i = 0; i < t->size && n + 1 < sizeof text; i++)
        if (t->text[i] != '_') text[n++] = t->text[i];
    text[n] = '\0';
    if (n + 1 == sizeof text) return kt_jinja_syntax(p, t, "this number is too long");
    if (t->type == KT_TOK_FLOAT) {
        v.type = KT_JINJA_FLOAT;
        v.as.real = strtod(text, NULL);
        return constant(p, t, v, out);
    }
    if (n > 2 && text[0] == '0') {
        char letter = (char)(text[1] | 0x20);
        base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    errno = 0;
    v.as.integer = strtoll(text + (base == 10 ? 0 : 2), &end, base);
    if (errno) return kt_jinja_syntax(p, t, "this number is beyond 64 bits");
    return constant(p, t, v, out);
}

static kt_status text(kt_jinja_parser *p, kt_jinja_node **out) {
    const kt_jinja_token *first = p->at;
    kt_jinja_string *s = kt_arena_alloc(&p->t->arena, sizeof *s, _Alignof(kt_jinja_string));
    size_t size = 0;
    char *all;

    for (; p->at->type == KT_TOK_STRING; p->at++) size += p->at->size;
    all = kt_arena_alloc(&p->t->arena, size + 1, 1);
    if (!s || !all)
        return kt_fail(p->err, KT_E_NOMEM, "%.200s: no memory for the template", p->t->name);
    *s = (kt_jinja_string){.data = all, .size = size, .all_trusted = true};
    size = 0;
    for (const kt_jinja_token *t = first; t < p->at; t++) {
        memcpy(all + size, t->text, t->size);
        size += t->size;
    }
    return constant(p, first, (kt_jinja_value){.type = KT_JINJA_STRING, .as.string = s}, out);
}

static kt_status list(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_node *item, **last;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_LIST, p->at++, out));
    last = &(*out)->children;
    while (!skip_op(p, "]")) {
        if ((*out)->children) {
            KT_TRY(kt_jinja_expect_op(p, ","));
            if (skip_op(p, "]")) break;
        }
        KT_TRY(kt_jinja_parse_expression(p, &item));
        kt_jinja_node_add(*out, &last, item);
    }
    return kt_jinja_check_height(p, *out);
}

static kt_status dict(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_node *item, **last;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_DICT, p->at++, out));
    last = &(*out)->children;
    while (!skip_op(p, "}")) {
        if ((*out)->children) {
            KT_TRY(kt_jinja_expect_op(p, ","));
            if (skip_op(p, "}")) break;
        }
        KT_TRY(kt_jinja_parse_expression(p, &item));
        kt_jinja_node_add(*out, &last, item);
        KT_TRY(kt_jinja_expect_op(p, ":"));
        KT_TRY(kt_jinja_parse_expression(p, &item));
        kt_jinja_node_add(*out, &last, item);
    }
    return kt_jinja_check_height(p, *out);
}

static kt_status name(kt_jinja_parser *p, kt_jinja_node **out) {
    static const struct {
        const char *name;
        kt_jinja_value value;
    } constants[] = {
        {"true", {.type = KT_JINJA_BOOL, .as.truth = true}},
        {"True", {.type = KT_JINJA_BOOL, .as.truth = true}},
        {"false", {.type = KT_JINJA_BOOL}},
        {"False", {.type = KT_JINJA_BOOL}},
        {"none", {.type = KT_JINJA_NONE}},
        {"None", {.type = KT_JINJA_NONE}},
    };
    const kt_jinja_token *t = p->at++;

    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (kt_jinja_is_name(t, constants[i].name)) return constant(p, t, constants[i].value, out);
    KT_TRY(kt_jinja_node_new(p, KT_NODE_NAME, t, out));
    return kt_jinja_symbol(p, t->text, t->size, &(*out)->symbol);
}

kt_status kt_jinja_parse_primary(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_status st;

    switch (p->at->type) {
    case KT_TOK_NAME: return name(p, out);
    case KT_TOK_STRING: return text(p, out);
    case KT_TOK_INT:
    case KT_TOK_FLOAT: return number(p, out);
    default: break;
    }
    KT_TRY(down(p));
    if (kt_jinja_is_op(p->at, "(")) {
        const kt_jinja_token *open = p->at++;
        if (skip_op(p, ")"))
            st = kt_jinja_node_new(p, KT_NODE_TUPLE, open, out);
        else {
            st = kt_jinja_parse_tuple(p, false, out);
            if (st == KT_OK) st = kt_jinja_expect_op(p, ")");
        }
    } else if (kt_jinja_is_op(p->at, "[")) {
        st = list(p, out);
    } else if (kt_jinja_is_op(p->at, "{")) {
        st = dict(p, out);
    } else {
        st = unexpected(p, "an expression");
    }
    p->depth--;
    return st;
}

/* ---- what follows a value ---- */

/* "(" was read. Arguments are children in the order written, each with its star. */
static kt_status arguments(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_node parent = {.height = 1};
    kt_jinja_node **last = out, *value;
    bool first = true, named = false;

    *out = NULL;
    while (!skip_op(p, ")")) {
        kt_jinja_star star = KT_STAR_NONE;
        const kt_jinja_token *label = p->at;
        if (!first) {
            KT_TRY(kt_jinja_expect_op(p, ","));
            if (skip_op(p, ")")) break;
            label = p->at;
        }
        first = false;
        if (skip_op(p, "**")) {
            star = KT_STAR_DICT;
        } else if (skip_op(p, "*")) {
            star = KT_STAR_LIST;
        } else if (p->at->type == KT_TOK_NAME && kt_jinja_is_op(p->at + 1, "=")) {
            star = KT_STAR_NAMED;
            p->at += 2;
        }
        if (named && star == KT_STAR_NONE)
            return kt_jinja_syntax(p, p->at, "a positional argument after a named one");
        named = named || star == KT_STAR_NAMED || star == KT_STAR_DICT;
        KT_TRY(kt_jinja_parse_expression(p, &value));
        value->star = star;
        if (star == KT_STAR_NAMED)
            value->name =
                (kt_jinja_string){.data = label->text, .size = label->size, .all_trusted = true};
        kt_jinja_node_add(&parent, &last, value);
    }
    return kt_jinja_check_height(p, &parent);
}

static void grow(kt_jinja_node *node) {
    for (const kt_jinja_node *a = node->args; a; a = a->next)
        if (a->height >= node->height) node->height = a->height + 1;
}

static kt_status call(kt_jinja_parser *p, kt_jinja_node *callee, kt_jinja_node **out) {
    kt_jinja_node **last;
    const kt_jinja_token *at = p->at++;

    KT_TRY(wrap(p, KT_NODE_CALL, at, callee, out, &last));
    (*out)->line = callee->line;
    (*out)->column = callee->column;
    KT_TRY(down(p));
    KT_TRY(arguments(p, &(*out)->args));
    p->depth--;
    grow(*out);
    return kt_jinja_check_height(p, *out);
}

/* One bound of a slice, None when it is left out. */
static kt_status bound(kt_jinja_parser *p, kt_jinja_node **out) {
    if (kt_jinja_is_op(p->at, ":") || kt_jinja_is_op(p->at, "]"))
        return constant(p, p->at, (kt_jinja_value){.type = KT_JINJA_NONE}, out);
    return kt_jinja_parse_expression(p, out);
}

static kt_status subscript(kt_jinja_parser *p, kt_jinja_node *of, kt_jinja_node **out) {
    const kt_jinja_token *at = p->at++;
    kt_jinja_node *item, **last;

    KT_TRY(wrap(p, KT_NODE_ITEM, at, of, out, &last));
    KT_TRY(down(p));
    KT_TRY(bound(p, &item));
    kt_jinja_node_add(*out, &last, item);
    if (kt_jinja_is_op(p->at, ":")) {
        (*out)->kind = KT_NODE_SLICE;
        p->at++;
        KT_TRY(bound(p, &item));
        kt_jinja_node_add(*out, &last, item);
        skip_op(p, ":");
        KT_TRY(bound(p, &item));
        kt_jinja_node_add(*out, &last, item);
    }
    p->depth--;
    KT_TRY(kt_jinja_expect_op(p, "]"));
    return kt_jinja_check_height(p, *out);
}

static kt_status attribute(kt_jinja_parser *p, kt_jinja_node *of, kt_jinja_node **out) {
    const kt_jinja_token *at = ++p->at;
    kt_jinja_node **last, *index;

    if (at->type == KT_TOK_INT) {
        KT_TRY(wrap(p, KT_NODE_ITEM, at, of, out, &last));
        KT_TRY(number(p, &index));
        kt_jinja_node_add(*out, &last, index);
        return KT_OK;
    }
    if (at->type != KT_TOK_NAME) return unexpected(p, "a name");
    KT_TRY(wrap(p, KT_NODE_ATTR, at, of, out, &last));
    (*out)->name = (kt_jinja_string){.data = at->text, .size = at->size, .all_trusted = true};
    (*out)->is_method = kt_jinja_is_dict_method(at->text, at->size);
    (*out)->hash = kt_jinja_hash(&(*out)->name);
    p->at++;
    return KT_OK;
}

kt_status kt_jinja_parse_postfix(kt_jinja_parser *p, kt_jinja_node *node, kt_jinja_node **out) {
    for (;;) {
        if (kt_jinja_is_op(p->at, "."))
            KT_TRY(attribute(p, node, &node));
        else if (kt_jinja_is_op(p->at, "["))
            KT_TRY(subscript(p, node, &node));
        else if (kt_jinja_is_op(p->at, "("))
            KT_TRY(call(p, node, &node));
        else
            break;
    }
    *out = node;
    return KT_OK;
}

kt_status kt_jinja_parse_filters(kt_jinja_parser *p, kt_jinja_node *input, kt_jinja_node **out) {
    for (;;) {
        const kt_jinja_token *at = p->at;
        kt_jinja_node *node, **last;
        if (at->type != KT_TOK_NAME) return unexpected(p, "the name of a filter");
        KT_TRY(wrap(p, KT_NODE_FILTER, at, input, &node, &last));
        node->name = (kt_jinja_string){.data = at->text, .size = at->size, .all_trusted = true};
        node->builtin = kt_jinja_find_filter(at->text, at->size);
        if (!node->builtin)
            return kt_jinja_syntax(p, at, "there is no filter '%.*s'",
                                   (int)(at->size < 60 ? at->size : 60), at->text);
        p->at++;
        if (skip_op(p, "(")) {
            KT_TRY(down(p));
            KT_TRY(arguments(p, &node->args));
            p->depth--;
        }
        grow(node);
        KT_TRY(kt_jinja_check_height(p, node));
        input = node;
        if (!skip_op(p, "|")) break;
    }
    *out = input;
    return KT_OK;
}

/* The argument of a test may stand without brackets: "is divisibleby 3". */
static bool starts_argument(const kt_jinja_token *t) {
    static const char *const not [] = {"else", "or", "and", "if", "in", "not", "is", "recursive"};

    if (t->type == KT_TOK_OP)
        return kt_jinja_is_op(t, "(") || kt_jinja_is_op(t, "[") || kt_jinja_is_op(t, "{");
    if (t->type != KT_TOK_NAME)
        return t->type == KT_TOK_STRING || t->type == KT_TOK_INT || t->type == KT_TOK_FLOAT;
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (kt_jinja_is_name(t, not [i])) return false;
    return true;
}

static kt_status test(kt_jinja_parser *p, kt_jinja_node *input, kt_jinja_node **out) {
    kt_jinja_node *node, **last;
    const kt_jinja_token *is = p->at++, *at;
    bool negate = kt_jinja_is_name(p->at, "not");

    if (negate) p->at++;
    at = p->at;
    if (at->type != KT_TOK_NAME) return unexpected(p, "the name of a test");
    KT_TRY(wrap(p, KT_NODE_TEST, at, input, &node, &last));
    node->name = (kt_jinja_string){.data = at->text, .size = at->size, .all_trusted = true};
    node->builtin = kt_jinja_find_test(at->text, at->size);
    if (!node->builtin)
        return kt_jinja_syntax(p, at, "there is no test '%.*s'",
                               (int)(at->size < 60 ? at->size : 60), at->text);
    p->at++;
    if (skip_op(p, "(")) {
        KT_TRY(down(p));
        KT_TRY(arguments(p, &node->args));
        p->depth--;
    } else if (starts_argument(p->at)) {
        KT_TRY(kt_jinja_parse_primary(p, &node->args));
        KT_TRY(kt_jinja_parse_postfix(p, node->args, &node->args));
    } else if (kt_jinja_is_name(p->at, "is")) {
        return kt_jinja_syntax(p, p->at, "tests cannot be chained with 'is'");
    }
    grow(node);
    *out = node;
    return negate ? wrap(p, KT_NODE_NOT, is, node, out, &last) : kt_jinja_check_height(p, node);
}

static kt_status filters_and_tests(kt_jinja_parser *p, kt_jinja_node *node, kt_jinja_node **out) {
    for (;;) {
        if (kt_jinja_is_op(p->at, "|")) {
            p->at++;
            KT_TRY(kt_jinja_parse_filters(p, node, &node));
        } else if (kt_jinja_is_name(p->at, "is")) {
            KT_TRY(test(p, node, &node));
        } else if (kt_jinja_is_op(p->at, "(")) {
            KT_TRY(call(p, node, &node));
        } else {
            break;
        }
    }
    *out = node;
    return KT_OK;
}

/* ---- operators, from the tightest ---- */

static kt_status unary(kt_jinja_parser *p, bool with_filters, kt_jinja_node **out) {
    const kt_jinja_token *at = p->at;
    kt_jinja_node *node = NULL, **last;

    KT_TRY(down(p));
    if (kt_jinja_is_op(at, "-") || kt_jinja_is_op(at, "+")) {
        p->at++;
        KT_TRY(unary(p, false, &node));
        KT_TRY(wrap(p, kt_jinja_is_op(at, "-") ? KT_NODE_NEGATE : KT_NODE_PLUS, at, node, &node,
                    &last));
    } else {
        KT_TRY(kt_jinja_parse_primary(p, &node));
    }
    KT_TRY(kt_jinja_parse_postfix(p, node, &node));
    if (with_filters) KT_TRY(filters_and_tests(p, node, &node));
    p->depth--;
    *out = node;
    return KT_OK;
}

typedef struct level {
    kt_jinja_kind kind;
    struct {
        const char *text;
        kt_jinja_op op;
    } ops[8];
} level;

/* Operators of one strength; the operands of each level are of the next one, at last unary. */
static const level levels[] = {
    {KT_NODE_CHAIN, {{"+", KT_OP_ADD}, {"-", KT_OP_SUB}}},
    {KT_NODE_CONCAT, {{"~", KT_OP_NONE}}},
    {KT_NODE_CHAIN, {{"*", KT_OP_MUL}, {"/", KT_OP_DIV}, {"//", KT_OP_FLOORDIV}, {"%", KT_OP_MOD}}},
    {KT_NODE_CHAIN, {{"**", KT_OP_POW}}},
};

static kt_status chain(kt_jinja_parser *p, size_t l, kt_jinja_node **out) {
    kt_jinja_node *node, *operand, **last = NULL;
    bool wrapped = false;

    if (l == sizeof levels / sizeof *levels) return unary(p, true, out);
    KT_TRY(chain(p, l + 1, &node));
    for (;;) {
        const kt_jinja_token *at = p->at;
        size_t i = 0;
        while (levels[l].ops[i].text && !kt_jinja_is_op(at, levels[l].ops[i].text)) i++;
        if (!levels[l].ops[i].text) break;
        p->at++;
        KT_TRY(chain(p, l + 1, &operand));
        if (!wrapped) KT_TRY(wrap(p, levels[l].kind, at, node, &node, &last));
        wrapped = true;
        operand->op = levels[l].ops[i].op;
        kt_jinja_node_add(node, &last, operand);
        KT_TRY(kt_jinja_check_height(p, node));
    }
    *out = node;
    return KT_OK;
}

static kt_jinja_op compare_op(kt_jinja_parser *p) {
    static const struct {
        const char *text;
        kt_jinja_op op;
    } ops[] = {{"==", KT_OP_EQ}, {"!=", KT_OP_NE}, {"<", KT_OP_LT},
               {"<=", KT_OP_LE}, {">", KT_OP_GT},  {">=", KT_OP_GE}};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (skip_op(p, ops[i].text)) return ops[i].op;
    if (kt_jinja_is_name(p->at, "in")) {
        p->at++;
        return KT_OP_IN;
    }
    if (kt_jinja_is_name(p->at, "not") && kt_jinja_is_name(p->at + 1, "in")) {
        p->at += 2;
        return KT_OP_NOT_IN;
    }
    return KT_OP_NONE;
}

static kt_status comparison(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_node *node, *operand, **last = NULL;
    bool wrapped = false;

    KT_TRY(chain(p, 0, &node));
    for (;;) {
        const kt_jinja_token *at = p->at;
        kt_jinja_op op = compare_op(p);
        if (op == KT_OP_NONE) break;
        KT_TRY(chain(p, 0, &operand));
        if (!wrapped) KT_TRY(wrap(p, KT_NODE_COMPARE, at, node, &node, &last));
        wrapped = true;
        operand->op = op;
        kt_jinja_node_add(node, &last, operand);
    }
    *out = node;
    return KT_OK;
}

static kt_status negation(kt_jinja_parser *p, kt_jinja_node **out) {
    const kt_jinja_token *at = p->at;
    kt_jinja_node *node, **last;
    kt_status st;

    if (!kt_jinja_is_name(at, "not")) return comparison(p, out);
    p->at++;
    KT_TRY(down(p));
    st = negation(p, &node);
    p->depth--;
    KT_TRY(st);
    return wrap(p, KT_NODE_NOT, at, node, out, &last);
}

static kt_status logic(kt_jinja_parser *p, kt_jinja_kind kind, kt_jinja_node **out) {
    const char *word = kind == KT_NODE_OR ? "or" : "and";
    kt_jinja_node *node, *operand, **last = NULL;
    bool wrapped = false;

    KT_TRY(kind == KT_NODE_OR ? logic(p, KT_NODE_AND, &node) : negation(p, &node));
    while (kt_jinja_is_name(p->at, word)) {
        const kt_jinja_token *at = p->at++;
        KT_TRY(kind == KT_NODE_OR ? logic(p, KT_NODE_AND, &operand) : negation(p, &operand));
        if (!wrapped) KT_TRY(wrap(p, kind, at, node, &node, &last));
        wrapped = true;
        kt_jinja_node_add(node, &last, operand);
    }
    *out = node;
    return KT_OK;
}

kt_status kt_jinja_parse_expression(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_node *value, *node, **last;

    KT_TRY(down(p));
    KT_TRY(logic(p, KT_NODE_OR, &value));
    while (kt_jinja_is_name(p->at, "if")) {
        const kt_jinja_token *at = p->at++;
        KT_TRY(logic(p, KT_NODE_OR, &node));
        KT_TRY(wrap(p, KT_NODE_COND, at, node, &node, &last));
        kt_jinja_node_add(node, &last, value);
        if (kt_jinja_is_name(p->at, "else")) {
            p->at++;
            KT_TRY(kt_jinja_parse_expression(p, &value));
            kt_jinja_node_add(node, &last, value);
        }
        KT_TRY(kt_jinja_check_height(p, node));
        value = node;
    }
    p->depth--;
    *out = value;
    return KT_OK;
}

/* ---- lists without brackets ---- */

static bool ends_tuple(const kt_jinja_token *t) {
    return t->type == KT_TOK_VAR_END || t->type == KT_TOK_BLOCK_END || t->type == KT_TOK_END ||
           kt_jinja_is_op(t, ")") || kt_jinja_is_op(t, "=") || kt_jinja_is_name(t, "in") ||
           kt_jinja_is_name(t, "recursive") || kt_jinja_is_name(t, "if");
}

kt_status kt_jinja_parse_tuple(kt_jinja_parser *p, bool without_if, kt_jinja_node **out) {
    const kt_jinja_token *at = p->at;
    kt_jinja_node *node, *item, **last;

    KT_TRY(without_if ? logic(p, KT_NODE_OR, &node) : kt_jinja_parse_expression(p, &node));
    *out = node;
    if (!kt_jinja_is_op(p->at, ",")) return KT_OK;
    KT_TRY(wrap(p, KT_NODE_TUPLE, at, node, out, &last));
    while (skip_op(p, ",") && !ends_tuple(p->at)) {
        KT_TRY(without_if ? logic(p, KT_NODE_OR, &item) : kt_jinja_parse_expression(p, &item));
        kt_jinja_node_add(*out, &last, item);
    }
    return kt_jinja_check_height(p, *out);
}

static kt_status target_part(kt_jinja_parser *p, bool with_attribute, kt_jinja_node **out) {
    kt_status st;

    if (skip_op(p, "(")) {
        KT_TRY(down(p));
        st = kt_jinja_parse_target(p, with_attribute, out);
        p->depth--;
        KT_TRY(st);
        return kt_jinja_expect_op(p, ")");
    }
    if (p->at->type != KT_TOK_NAME) return unexpected(p, "the name of a variable");
    KT_TRY(name(p, out));
    if ((*out)->kind != KT_NODE_NAME)
        return kt_jinja_syntax(p, p->at - 1, "a constant cannot be assigned to");
    if (with_attribute && kt_jinja_is_op(p->at, ".")) return attribute(p, *out, out);
    return KT_OK;
}

kt_status kt_jinja_parse_target(kt_jinja_parser *p, bool with_attribute, kt_jinja_node **out) {
    const kt_jinja_token *at = p->at;
    kt_jinja_node *node, **last;

    KT_TRY(target_part(p, with_attribute, &node));
    *out = node;
    if (!kt_jinja_is_op(p->at, ",")) return KT_OK;
    KT_TRY(wrap(p, KT_NODE_TUPLE, at, node, out, &last));
    while (skip_op(p, ",") && !ends_tuple(p->at)) {
        KT_TRY(target_part(p, with_attribute, &node));
        kt_jinja_node_add(*out, &last, node);
    }
    return KT_OK;
}
