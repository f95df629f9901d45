/* Evaluating expressions. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/jinja_node.h"

static kt_status variable(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    for (const kt_jinja_scope *s = r->scope; s; s = s->outer)
        for (const kt_jinja_binding *b = s->bindings; b; b = b->next)
            if (b->symbol == node->symbol) {
                *out = b->value;
                return KT_OK;
            }
    *out = r->variables[node->symbol];
    if (out->type != KT_JINJA_UNSET) return KT_OK;
    return kt_jinja_missing_variable(r, r->t->symbols[node->symbol].text,
                                     r->t->symbols[node->symbol].size, out);
}

static kt_status list(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_value item;

    KT_TRY(kt_jinja_new_list(r, node->kind == KT_NODE_TUPLE ? KT_JINJA_TUPLE : KT_JINJA_PLAIN, 0,
                             out));
    for (const kt_jinja_node *c = node->children; c; c = c->next) {
        KT_TRY(kt_jinja_eval(r, c, &item));
        KT_TRY(kt_jinja_append(r, out->as.list, &item));
    }
    return KT_OK;
}

static kt_status dict(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_value key, value;

    KT_TRY(kt_jinja_new_dict(r, 0, out));
    for (const kt_jinja_node *c = node->children; c; c = c->next->next) {
        KT_TRY(kt_jinja_eval(r, c, &key));
        KT_TRY(kt_jinja_eval(r, c->next, &value));
        r->at = node;
        KT_TRY(kt_jinja_set(r, out->as.dict, &key, &value));
    }
    return KT_OK;
}

/* ---- operators ---- */

static kt_status chain(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    const kt_jinja_node *c = node->children;
    kt_jinja_value left, right;

    KT_TRY(kt_jinja_eval(r, c, &left));
    for (c = c->next; c; c = c->next) {
        KT_TRY(kt_jinja_eval(r, c, &right));
        r->at = node;
        KT_TRY(kt_jinja_binary(r, (int)c->op, &left, &right, out));
        left = *out;
    }
    return KT_OK;
}

static kt_status compare_pair(kt_jinja_run *r, kt_jinja_op op, const kt_jinja_value *a,
                              const kt_jinja_value *b, bool *out) {
    static const char *const texts[] = {"<", "<=", ">", ">="};
    int order;

    switch (op) {
    case KT_OP_EQ: return kt_jinja_equal(r, a, b, out);
    case KT_OP_NE:
        KT_TRY(kt_jinja_equal(r, a, b, out));
        *out = !*out;
        return KT_OK;
    case KT_OP_IN: return kt_jinja_contains(r, b, a, out);
    case KT_OP_NOT_IN:
        KT_TRY(kt_jinja_contains(r, b, a, out));
        *out = !*out;
        return KT_OK;
    default: break;
    }
    KT_TRY(kt_jinja_compare(r, a, b, texts[op - KT_OP_LT], &order));
    *out = order != 2 && (op == KT_OP_LT   ? order < 0
                          : op == KT_OP_LE ? order <= 0
                          : op == KT_OP_GT ? order > 0
                                           : order >= 0);
    return KT_OK;
}

static kt_status comparison(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    const kt_jinja_node *c = node->children;
    kt_jinja_value left, right;
    bool holds = true;

    KT_TRY(kt_jinja_eval(r, c, &left));
    for (c = c->next; holds && c; c = c->next) {
        KT_TRY(kt_jinja_eval(r, c, &right));
        r->at = node;
        KT_TRY(compare_pair(r, c->op, &left, &right, &holds));
        left = right;
    }
    *out = kt_jinja_bool(holds);
    return KT_OK;
}

static kt_status concat(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_builder b = {0};
    kt_jinja_value v;
    kt_status st = KT_OK;

    for (const kt_jinja_node *c = node->children; st == KT_OK && c; c = c->next) {
        st = kt_jinja_eval(r, c, &v);
        if (st == KT_OK) st = kt_jinja_put_str(r, &b, &v);
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

static kt_status logic(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    for (const kt_jinja_node *c = node->children; c; c = c->next) {
        KT_TRY(kt_jinja_eval(r, c, out));
        if (kt_jinja_truth(out) == (node->kind == KT_NODE_OR)) break;
    }
    return KT_OK;
}

static kt_status condition(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    const kt_jinja_node *yes = node->children->next;

    KT_TRY(kt_jinja_eval(r, node->children, out));
    if (kt_jinja_truth(out)) return kt_jinja_eval(r, yes, out);
    if (yes->next) return kt_jinja_eval(r, yes->next, out);
    *out = kt_jinja_undefined();
    return KT_OK;
}

static kt_status unary(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_value v;

    KT_TRY(kt_jinja_eval(r, node->children, &v));
    r->at = node;
    if (node->kind == KT_NODE_NOT) {
        *out = kt_jinja_bool(!kt_jinja_truth(&v));
        return KT_OK;
    }
    if (v.type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, &v);
    if (!kt_jinja_is_number(&v))
        return kt_jinja_fail(r, KT_E_INVALID, "bad operand type for unary %s: '%s'",
                             node->kind == KT_NODE_NEGATE ? "-" : "+", kt_jinja_type_name(&v));
    if (v.type == KT_JINJA_BOOL) v = kt_jinja_int(v.as.truth);
    if (node->kind == KT_NODE_NEGATE && v.type == KT_JINJA_FLOAT) v.as.real = -v.as.real;
    if (node->kind == KT_NODE_NEGATE && v.type == KT_JINJA_INT &&
        __builtin_sub_overflow(0, v.as.integer, &v.as.integer))
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "this integer is beyond 64 bits");
    *out = v;
    return KT_OK;
}

static kt_status slice(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    const kt_jinja_node *c = node->children;
    kt_jinja_value part[4];

    for (int i = 0; i < 4; i++, c = c->next) KT_TRY(kt_jinja_eval(r, c, &part[i]));
    r->at = node;
    return kt_jinja_slice(r, &part[0], &part[1], &part[2], &part[3], out);
}

/* ---- calls ---- */

typedef struct gathered {
    kt_jinja_value values; /* a list */
    kt_jinja_value names,
        named; /* lists of the named ones and their values; UNSET = there is none */
} gathered;

static kt_status gather_named(kt_jinja_run *r, gathered *g, const kt_jinja_string *name,
                              const kt_jinja_value *v) {
    const kt_jinja_value text = kt_jinja_text(name);

    if (g->names.type == KT_JINJA_UNSET) {
        KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, &g->names));
        KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, &g->named));
    }
    KT_TRY(kt_jinja_append(r, g->names.as.list, &text));
    return kt_jinja_append(r, g->named.as.list, v);
}

static kt_status gather(kt_jinja_run *r, gathered *g, const kt_jinja_node *a) {
    kt_jinja_value v;
    kt_jinja_list items;

    KT_TRY(kt_jinja_eval(r, a, &v));
    switch (a->star) {
    case KT_STAR_NONE: return kt_jinja_append(r, g->values.as.list, &v);
    case KT_STAR_NAMED: return gather_named(r, g, &a->name, &v);
    case KT_STAR_LIST:
        KT_TRY(kt_jinja_iterate(r, &v, &items));
        for (size_t i = 0; i < items.size; i++)
            KT_TRY(kt_jinja_append(r, g->values.as.list, &items.items[i]));
        return KT_OK;
    case KT_STAR_DICT: break;
    }
    if (v.type != KT_JINJA_DICT)
        return kt_jinja_fail(r, KT_E_INVALID, "argument after ** must be a mapping, not %s",
                             kt_jinja_type_name(&v));
    for (size_t i = 0; i < v.as.dict->size; i++) {
        const kt_jinja_entry *e = &v.as.dict->entries[i];
        if (e->key.type != KT_JINJA_STRING)
            return kt_jinja_fail(r, KT_E_INVALID, "keywords must be strings");
        KT_TRY(gather_named(r, g, e->key.as.string, &e->value));
    }
    return KT_OK;
}

/* How many there are when all are plain values, else SIZE_MAX. */
static size_t plain_arguments(const kt_jinja_node *first) {
    size_t n = 0;

    for (const kt_jinja_node *a = first; a; a = a->next, n++)
        if (a->star != KT_STAR_NONE) return SIZE_MAX;
    return n;
}

static kt_status plain_values(kt_jinja_run *r, const kt_jinja_node *first, size_t n,
                              kt_jinja_args *out) {
    kt_jinja_value *values;
    void *memory;

    KT_TRY(kt_jinja_alloc(r, n, sizeof *values, &memory));
    out->values = values = memory;
    out->n_positional = n;
    for (const kt_jinja_node *a = first; a; a = a->next) KT_TRY(kt_jinja_eval(r, a, values++));
    return KT_OK;
}

/* Evaluate the arguments of a call, filter or test. `caller`, when given, is one more named one. */
static kt_status arguments(kt_jinja_run *r, const kt_jinja_node *first,
                           const kt_jinja_value *caller, kt_jinja_args *out) {
    const kt_jinja_string caller_name = *KT_JINJA_LITERAL("caller");
    gathered g = {.names = {.type = KT_JINJA_UNSET}};
    const size_t n_plain = plain_arguments(first);
    kt_jinja_string *names;
    void *memory;

    memset(out, 0, sizeof *out);
    if (!first && !caller) return KT_OK;
    if (n_plain < SIZE_MAX && !caller) return plain_values(r, first, n_plain, out);
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 4, &g.values));
    for (const kt_jinja_node *a = first; a; a = a->next) KT_TRY(gather(r, &g, a));
    if (caller) KT_TRY(gather_named(r, &g, &caller_name, caller));
    out->n_positional = g.values.as.list->size;
    out->values = g.values.as.list->items;
    if (g.names.type == KT_JINJA_UNSET) return KT_OK;
    out->n_named = g.named.as.list->size;
    KT_TRY(kt_jinja_alloc(r, out->n_named + 1, sizeof *names, &memory));
    names = memory;
    for (size_t i = 0; i < out->n_named; i++) {
        names[i] = *g.names.as.list->items[i].as.string;
        KT_TRY(kt_jinja_append(r, g.values.as.list, &g.named.as.list->items[i]));
    }
    out->names = names;
    out->values = g.values.as.list->items;
    return KT_OK;
}

static kt_status cycle(kt_jinja_run *r, kt_jinja_cycle *c, kt_jinja_value *out) {
    (void)r;
    *out = c->items.items[c->at % c->items.size];
    c->at++;
    return KT_OK;
}

static kt_status join_once(kt_jinja_run *r, kt_jinja_cycle *c, kt_jinja_value *out) {
    if (c->at++) {
        *out = c->items.items[0];
        return KT_OK;
    }
    return kt_jinja_string_of(r, "", 0, true, out);
}

kt_status kt_jinja_call(kt_jinja_run *r, const kt_jinja_value *callee, const kt_jinja_args *args,
                        kt_jinja_value *out) {
    switch (callee->type) {
    case KT_JINJA_UNDEFINED: return kt_jinja_fail_undefined(r, callee);
    case KT_JINJA_MACRO: return kt_jinja_call_macro(r, callee->as.macro, args, out);
    case KT_JINJA_BUILTIN:
        return kt_jinja_invoke(r, callee->as.bound->builtin,
                               callee->as.bound->of ? "method" : "function",
                               &callee->as.bound->self, args, out);
    case KT_JINJA_JOINER: return join_once(r, callee->as.cycle, out);
    case KT_JINJA_LOOP:
        if (args->n_positional == 1)
            return kt_jinja_call_loop(r, callee->as.loop, &args->values[0], out);
        break;
    default: break;
    }
    return kt_jinja_fail(r, KT_E_INVALID, "'%s' object is not callable",
                         kt_jinja_type_name(callee));
}

/* loop.cycle(...), loop.changed(...), and next and reset of a cycler. */
static kt_status object_method(kt_jinja_run *r, const kt_jinja_value *of,
                               const kt_jinja_string *name, const kt_jinja_args *args, bool *known,
                               kt_jinja_value *out) {
    bool is_loop = of->type == KT_JINJA_LOOP;
    kt_jinja_value seen;

    *known = true;
    if (is_loop && kt_jinja_same_text(name, KT_JINJA_LITERAL("cycle"))) {
        if (args->n_positional == 0)
            return kt_jinja_fail(r, KT_E_INVALID, "no items for cycling given");
        *out = args->values[of->as.loop->index % args->n_positional];
        return KT_OK;
    }
    if (is_loop && kt_jinja_same_text(name, KT_JINJA_LITERAL("changed"))) {
        bool same = false;
        KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 0, &seen));
        for (size_t i = 0; i < args->n_positional; i++)
            KT_TRY(kt_jinja_append(r, seen.as.list, &args->values[i]));
        if (of->as.loop->has_seen) KT_TRY(kt_jinja_equal(r, &of->as.loop->seen, &seen, &same));
        of->as.loop->has_seen = true;
        kt_jinja_keep(r);
        of->as.loop->seen = seen;
        *out = kt_jinja_bool(!same);
        return KT_OK;
    }
    if (of->type == KT_JINJA_CYCLER && kt_jinja_same_text(name, KT_JINJA_LITERAL("next")))
        return cycle(r, of->as.cycle, out);
    if (of->type == KT_JINJA_CYCLER && kt_jinja_same_text(name, KT_JINJA_LITERAL("reset"))) {
        of->as.cycle->at = 0;
        *out = kt_jinja_none();
        return KT_OK;
    }
    *known = false;
    return KT_OK;
}

static kt_status call_member(kt_jinja_run *r, const kt_jinja_node *node,
                             const kt_jinja_value *caller, kt_jinja_value *out) {
    const kt_jinja_node *callee = node->children;
    const kt_jinja_builtin *method;
    kt_jinja_value of, function;
    kt_jinja_args args;
    bool known;

    KT_TRY(kt_jinja_eval(r, callee->children, &of));
    method = kt_jinja_method(&of, callee->name.data, callee->name.size);
    if (of.type == KT_JINJA_UNDEFINED) {
        r->at = callee;
        return kt_jinja_fail_undefined(r, &of);
    }
    KT_TRY(arguments(r, node->args, caller, &args));
    r->at = callee;
    if (method) return kt_jinja_invoke(r, method, "method", &of, &args, out);
    KT_TRY(object_method(r, &of, &callee->name, &args, &known, out));
    if (known) return KT_OK;
    KT_TRY(kt_jinja_attribute(r, &of, callee->name.data, callee->name.size, &function));
    return kt_jinja_call(r, &function, &args, out);
}

static kt_status call(kt_jinja_run *r, const kt_jinja_node *node, const kt_jinja_value *caller,
                      kt_jinja_value *out) {
    kt_jinja_value callee;
    kt_jinja_args args;

    if (node->children->kind == KT_NODE_ATTR) return call_member(r, node, caller, out);
    KT_TRY(kt_jinja_eval(r, node->children, &callee));
    KT_TRY(arguments(r, node->args, caller, &args));
    r->at = node;
    return kt_jinja_call(r, &callee, &args, out);
}

static kt_status apply(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_value input;
    kt_jinja_args args;

    KT_TRY(kt_jinja_eval(r, node->children, &input));
    KT_TRY(arguments(r, node->args, NULL, &args));
    r->at = node;
    return kt_jinja_invoke(r, node->builtin, node->kind == KT_NODE_TEST ? "test" : "filter", &input,
                           &args, out);
}

/* dictionary.name, which no method has. */
static kt_status named_member(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_node *node,
                              kt_jinja_value *out) {
    const kt_jinja_entry *e = kt_jinja_get_hashed(of->as.dict, &node->name, node->hash);

    if (!e) return kt_jinja_missing_member(r, of, node->name.data, node->name.size, 0, out);
    *out = e->value;
    return KT_OK;
}

static kt_status member(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_jinja_value of, key;

    KT_TRY(kt_jinja_eval(r, node->children, &of));
    if (node->kind == KT_NODE_ATTR) {
        r->at = node;
        if (of.type == KT_JINJA_DICT && !node->is_method) return named_member(r, &of, node, out);
        return kt_jinja_attribute(r, &of, node->name.data, node->name.size, out);
    }
    KT_TRY(kt_jinja_eval(r, node->children->next, &key));
    r->at = node;
    return kt_jinja_item(r, &of, &key, out);
}

static kt_status evaluate(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    switch (node->kind) {
    case KT_NODE_LIST:
    case KT_NODE_TUPLE: return list(r, node, out);
    case KT_NODE_DICT: return dict(r, node, out);
    case KT_NODE_ATTR:
    case KT_NODE_ITEM: return member(r, node, out);
    case KT_NODE_SLICE: return slice(r, node, out);
    case KT_NODE_CALL: return call(r, node, NULL, out);
    case KT_NODE_CALL_BLOCK: {
        kt_jinja_macro macro = {node->children->next, r->scope};
        kt_jinja_value caller = {.type = KT_JINJA_MACRO};
        void *memory;
        KT_TRY(kt_jinja_alloc(r, 1, sizeof macro, &memory));
        memcpy(memory, &macro, sizeof macro);
        caller.as.macro = memory;
        r->closures++;
        kt_jinja_keep(r);
        return call(r, node->children, &caller, out);
    }
    case KT_NODE_FILTER:
    case KT_NODE_TEST: return apply(r, node, out);
    case KT_NODE_NOT:
    case KT_NODE_NEGATE:
    case KT_NODE_PLUS: return unary(r, node, out);
    case KT_NODE_CHAIN: return chain(r, node, out);
    case KT_NODE_COMPARE: return comparison(r, node, out);
    case KT_NODE_CONCAT: return concat(r, node, out);
    case KT_NODE_AND:
    case KT_NODE_OR: return logic(r, node, out);
    case KT_NODE_COND: return condition(r, node, out);
    default: return kt_jinja_fail(r, KT_E_INTERNAL, "a statement where an expression should be");
    }
}

kt_status kt_jinja_eval(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out) {
    kt_status st;

    if (node->kind == KT_NODE_CONST || node->kind == KT_NODE_BODY) {
        *out = node->kind == KT_NODE_BODY ? r->body : node->value;
        return KT_OK;
    }
    r->at = node;
    KT_TRY(kt_jinja_spend(r, 1));
    if (node->kind == KT_NODE_NAME) return variable(r, node, out);
    if (++r->nested > KT_JINJA_MAX_NESTED)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "evaluation nests too deep");
    st = evaluate(r, node, out);
    r->nested--;
    return st;
}

/* ---- straight to the output ---- */

static bool is_text(const kt_jinja_value *v) {
    return v->type == KT_JINJA_STRING && !v->as.string->is_markup;
}

/* A chain of which nearly all are sums of strings: these are written one after the other. Whatever
 * is no such sum is worked out as the chain says. */
static kt_status put_chain(kt_jinja_run *r, const kt_jinja_node *node) {
    enum { MOST = 8 };
    kt_jinja_value part[MOST], left, right;
    size_t n = 0;
    bool is_sum = true;

    for (const kt_jinja_node *c = node->children; c; c = c->next) {
        KT_TRY(kt_jinja_eval(r, c, &right));
        r->at = node;
        is_sum = is_sum && n < MOST && is_text(&right) && (n == 0 || c->op == KT_OP_ADD);
        if (is_sum || n == 0) {
            part[n++] = right;
            continue;
        }
        for (size_t i = 1; i < n; i++) {
            left = part[0];
            KT_TRY(kt_jinja_binary(r, KT_OP_ADD, &left, &part[i], &part[0]));
        }
        n = 1;
        left = part[0];
        KT_TRY(kt_jinja_binary(r, (int)c->op, &left, &right, &part[0]));
    }
    for (size_t i = 0; i < n; i++) KT_TRY(kt_jinja_put_str(r, r->out, &part[i]));
    return KT_OK;
}

/* The call of a macro, whose text needs no place of its own; others as any value. */
static kt_status put_call(kt_jinja_run *r, const kt_jinja_node *node) {
    kt_jinja_value callee, v;
    kt_jinja_args args;

    if (node->children->kind == KT_NODE_ATTR) {
        KT_TRY(call_member(r, node, NULL, &v));
        return kt_jinja_put_str(r, r->out, &v);
    }
    KT_TRY(kt_jinja_eval(r, node->children, &callee));
    KT_TRY(arguments(r, node->args, NULL, &args));
    r->at = node;
    if (callee.type == KT_JINJA_MACRO) return kt_jinja_put_macro(r, callee.as.macro, &args);
    KT_TRY(kt_jinja_call(r, &callee, &args, &v));
    return kt_jinja_put_str(r, r->out, &v);
}

static kt_status put_parts(kt_jinja_run *r, const kt_jinja_node *node) {
    const kt_jinja_node *c = node->children;
    kt_jinja_value v;

    switch (node->kind) {
    case KT_NODE_CHAIN: return put_chain(r, node);
    case KT_NODE_CALL: return put_call(r, node);
    case KT_NODE_CONCAT:
        for (; c; c = c->next) KT_TRY(kt_jinja_put_value(r, c));
        return KT_OK;
    default: break; /* KT_NODE_COND */
    }
    KT_TRY(kt_jinja_eval(r, c, &v));
    c = kt_jinja_truth(&v) ? c->next : c->next->next;
    return c ? kt_jinja_put_value(r, c) : KT_OK;
}

kt_status kt_jinja_put_value(kt_jinja_run *r, const kt_jinja_node *node) {
    kt_jinja_value v;
    kt_status st;

    if (node->kind != KT_NODE_CHAIN && node->kind != KT_NODE_CALL && node->kind != KT_NODE_CONCAT &&
        node->kind != KT_NODE_COND) {
        KT_TRY(kt_jinja_eval(r, node, &v));
        return kt_jinja_put_str(r, r->out, &v);
    }
    r->at = node;
    KT_TRY(kt_jinja_spend(r, 1));
    if (++r->nested > KT_JINJA_MAX_NESTED)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "evaluation nests too deep");
    st = put_parts(r, node);
    r->nested--;
    return st;
}
