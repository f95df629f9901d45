/* Running statements. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/jinja_node.h"

/* Why a list of statements ended before its end. */
typedef enum ending { TO_THE_END, BY_BREAK, BY_CONTINUE } ending;

static kt_status run_list(kt_jinja_run *r, const kt_jinja_node *first, ending *how);

/* ---- variables ---- */

kt_status kt_jinja_define(kt_jinja_run *r, uint32_t symbol, const kt_jinja_value *value) {
    kt_jinja_binding *b;
    void *memory;

    r->stores++;
    if (!r->scope->outer) {
        r->variables[symbol] = *value;
        return KT_OK;
    }
    for (b = r->scope->bindings; b; b = b->next)
        if (b->symbol == symbol) {
            b->value = *value;
            return KT_OK;
        }
    memory = r->spare;
    if (r->spare)
        r->spare = r->spare->next;
    else
        KT_TRY(kt_jinja_alloc(r, 1, sizeof *b, &memory));
    b = memory;
    *b = (kt_jinja_binding){r->scope->bindings, symbol, *value};
    r->scope->bindings = b;
    return KT_OK;
}

/* A new innermost scope; put the old r->scope back to end it. Macros may outlive it. */
static kt_status open_scope(kt_jinja_run *r) {
    void *memory;

    r->stores++;
    KT_TRY(kt_jinja_alloc(r, 1, sizeof *r->scope, &memory));
    ((kt_jinja_scope *)memory)->outer = r->scope;
    r->scope = memory;
    return KT_OK;
}

/* The innermost scope anew for the next turn of a loop. Unless a macro keeps it, its memory serves
 * again, so that loops of any length need no more of it. */
static kt_status renew_scope(kt_jinja_run *r, kt_jinja_scope *outer, uint64_t closures) {
    kt_jinja_binding *last = r->scope->bindings;

    if (r->closures != closures) {
        r->scope = outer;
        return open_scope(r);
    }
    if (!last) return KT_OK;
    while (last->next) last = last->next;
    last->next = r->spare;
    r->spare = r->scope->bindings;
    r->scope->bindings = NULL;
    return KT_OK;
}

/* Does a member that is there get a value which refers to no memory? */
static bool replaces_in_place(const kt_jinja_dict *d, const kt_jinja_string *name,
                              const kt_jinja_value *value) {
    return (value->type == KT_JINJA_NONE || kt_jinja_is_number(value)) &&
           kt_jinja_get_text(d, name->data, name->size);
}

static kt_status assign(kt_jinja_run *r, const kt_jinja_node *target, const kt_jinja_value *value) {
    kt_jinja_value of, key;
    kt_jinja_list items;
    const kt_jinja_node *part;
    size_t n = 0;

    if (target->kind == KT_NODE_NAME) return kt_jinja_define(r, target->symbol, value);
    r->at = target;
    if (target->kind == KT_NODE_ATTR) {
        KT_TRY(kt_jinja_eval(r, target->children, &of));
        r->at = target;
        if (of.type != KT_JINJA_NAMESPACE)
            return kt_jinja_fail(r, KT_E_INVALID,
                                 "cannot assign attribute on non-namespace object");
        key = kt_jinja_text(&target->name);
        if (!replaces_in_place(of.as.dict, &target->name, value)) kt_jinja_keep(r);
        return kt_jinja_set(r, of.as.dict, &key, value);
    }
    KT_TRY(kt_jinja_iterate(r, value, &items));
    for (part = target->children; part; part = part->next) n++;
    if (items.size != n)
        return kt_jinja_fail(r, KT_E_INVALID, "found %zu values to unpack, expected %zu",
                             items.size, n);
    part = target->children;
    for (size_t i = 0; i < n; i++, part = part->next) KT_TRY(assign(r, part, &items.items[i]));
    return KT_OK;
}

/* ---- captured output ---- */

/* Run statements in a scope of their own; what they write becomes a string. */
static kt_status capture(kt_jinja_run *r, const kt_jinja_node *first, kt_jinja_value *out) {
    kt_jinja_builder b = {0}, *outer = r->out;
    kt_jinja_scope *scope = r->scope;
    ending how;
    kt_status st = open_scope(r);

    r->out = &b;
    if (st == KT_OK) st = run_list(r, first, &how);
    r->out = outer;
    r->scope = scope;
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

/* ---- macros ---- */

static const kt_jinja_value *named_argument(const kt_jinja_args *args,
                                            const kt_jinja_string *name) {
    for (size_t i = 0; i < args->n_named; i++)
        if (kt_jinja_same_text(&args->names[i], name)) return &args->values[args->n_positional + i];
    return NULL;
}

static bool is_parameter(const kt_jinja_node *macro, const kt_jinja_string *name) {
    for (const kt_jinja_node *p = macro->children; p; p = p->next)
        if (kt_jinja_same_text(&p->name, name)) return true;
    return false;
}

static kt_status define_rest(kt_jinja_run *r, kt_jinja_rest which, const kt_jinja_value *value) {
    return r->t->rest[which] ? kt_jinja_define(r, r->t->rest[which] - 1, value) : KT_OK;
}

/* Arguments that no parameter takes: varargs, kwargs and caller. */
static kt_status bind_rest(kt_jinja_run *r, const kt_jinja_node *macro, size_t taken,
                           const kt_jinja_args *args) {
    const kt_jinja_string *caller = KT_JINJA_LITERAL("caller");
    const kt_jinja_value *called = named_argument(args, caller);
    kt_jinja_value rest, named, undefined = kt_jinja_undefined();

    if (!r->t->rest[KT_REST_VALUES] && !r->t->rest[KT_REST_NAMED] && !r->t->rest[KT_REST_CALLER])
        return KT_OK;
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 0, &rest));
    for (size_t i = taken; i < args->n_positional; i++)
        KT_TRY(kt_jinja_append(r, rest.as.list, &args->values[i]));
    KT_TRY(kt_jinja_new_dict(r, 0, &named));
    for (size_t i = 0; i < args->n_named; i++) {
        const kt_jinja_value key = kt_jinja_text(&args->names[i]);
        if (is_parameter(macro, &args->names[i]) || kt_jinja_same_text(&args->names[i], caller))
            continue;
        KT_TRY(kt_jinja_set(r, named.as.dict, &key, &args->values[args->n_positional + i]));
    }
    KT_TRY(define_rest(r, KT_REST_VALUES, &rest));
    KT_TRY(define_rest(r, KT_REST_NAMED, &named));
    return is_parameter(macro, caller)
               ? KT_OK
               : define_rest(r, KT_REST_CALLER, called ? called : &undefined);
}

static kt_status bind_parameters(kt_jinja_run *r, const kt_jinja_node *macro,
                                 const kt_jinja_args *args) {
    size_t i = 0;

    for (const kt_jinja_node *p = macro->children; p; p = p->next, i++) {
        const kt_jinja_value *named = named_argument(args, &p->name);
        kt_jinja_value v = kt_jinja_undefined();
        if (i < args->n_positional && named)
            return kt_jinja_fail(r, KT_E_INVALID, "macro '%.*s' got two values for '%.*s'",
                                 (int)(macro->name.size & 63), macro->name.data,
                                 (int)(p->name.size & 63), p->name.data);
        if (i < args->n_positional)
            v = args->values[i];
        else if (named)
            v = *named;
        else if (p->children)
            KT_TRY(kt_jinja_eval(r, p->children, &v));
        else
            KT_TRY(kt_jinja_missing_variable(r, p->name.data, p->name.size, &v));
        KT_TRY(kt_jinja_define(r, p->symbol, &v));
    }
    return bind_rest(r, macro, i, args);
}

/* Its text becomes *out, or goes to r->out when that is NULL. */
static kt_status run_macro(kt_jinja_run *r, const kt_jinja_macro *m, const kt_jinja_args *args,
                           kt_jinja_value *out) {
    kt_jinja_scope *scope = r->scope;
    kt_jinja_here here;
    ending how;
    kt_status st;

    KT_TRY(kt_jinja_enter(r));
    here = kt_jinja_enter_scopes(r);
    r->scope = m->scope;
    st = open_scope(r);
    if (st == KT_OK) st = bind_parameters(r, m->node, args);
    if (st == KT_OK && out) st = capture(r, m->node->body, out);
    if (st == KT_OK && !out) st = open_scope(r);
    if (st == KT_OK && !out) st = run_list(r, m->node->body, &how);
    r->scope = scope;
    r->depth--;
    kt_jinja_leave(r, &here);
    return st;
}

kt_status kt_jinja_call_macro(kt_jinja_run *r, const kt_jinja_macro *m, const kt_jinja_args *args,
                              kt_jinja_value *out) {
    return run_macro(r, m, args, out);
}

kt_status kt_jinja_put_macro(kt_jinja_run *r, const kt_jinja_macro *m, const kt_jinja_args *args) {
    return run_macro(r, m, args, NULL);
}

static kt_status define_macro(kt_jinja_run *r, const kt_jinja_node *node) {
    kt_jinja_value v = {.type = KT_JINJA_MACRO};
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *v.as.macro, &memory));
    v.as.macro = memory;
    *v.as.macro = (kt_jinja_macro){node, r->scope};
    r->closures++;
    kt_jinja_keep(r);
    return kt_jinja_define(r, node->symbol, &v);
}

/* ---- loops ---- */

/* The items for which the loop's condition holds. */
static kt_status filter_items(kt_jinja_run *r, const kt_jinja_node *target,
                              const kt_jinja_node *test, kt_jinja_list *items) {
    kt_jinja_scope *scope = r->scope;
    kt_jinja_value kept, v;

    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, items->size, &kept));
    for (size_t i = 0; i < items->size; i++) {
        KT_TRY(open_scope(r));
        KT_TRY(assign(r, target, &items->items[i]));
        KT_TRY(kt_jinja_eval(r, test, &v));
        r->scope = scope;
        if (kt_jinja_truth(&v)) KT_TRY(kt_jinja_append(r, kept.as.list, &items->items[i]));
    }
    *items = *kept.as.list;
    return KT_OK;
}

static kt_status loop_over(kt_jinja_run *r, const kt_jinja_node *node, const kt_jinja_value *over,
                           int depth) {
    const kt_jinja_node *target = node->children, *test = target->next->next;
    kt_jinja_scope *scope = r->scope;
    kt_jinja_value loop = {.type = KT_JINJA_LOOP};
    kt_jinja_list items;
    void *memory;
    ending how = TO_THE_END;

    KT_TRY(kt_jinja_iterate(r, over, &items));
    if (test) KT_TRY(filter_items(r, target, test, &items));
    if (items.size == 0) {
        KT_TRY(open_scope(r));
        KT_TRY(kt_jinja_exec(r, node->otherwise));
        r->scope = scope;
        return KT_OK;
    }
    KT_TRY(kt_jinja_alloc(r, 1, sizeof *loop.as.loop, &memory));
    loop.as.loop = memory;
    *loop.as.loop = (kt_jinja_loop){.items = items.items,
                                    .size = items.size,
                                    .depth = depth,
                                    .node = node->is_recursive ? node : NULL,
                                    .scope = scope};
    KT_TRY(open_scope(r));
    for (size_t i = 0; how != BY_BREAK && i < items.size; i++) {
        const uint64_t closures = r->closures;
        const kt_jinja_here here = kt_jinja_enter_scopes(r);
        KT_TRY(kt_jinja_spend(r, 1));
        loop.as.loop->index = i;
        KT_TRY(kt_jinja_define(r, node->symbol, &loop));
        KT_TRY(assign(r, target, &items.items[i]));
        KT_TRY(run_list(r, node->body, &how));
        if (kt_jinja_leave(r, &here)) {
            r->scope->bindings = NULL;
            kt_jinja_forget(r, &here);
        } else {
            KT_TRY(renew_scope(r, scope, closures));
        }
    }
    r->scope = scope;
    return KT_OK;
}

static kt_status run_for(kt_jinja_run *r, const kt_jinja_node *node) {
    kt_jinja_value over;
    kt_status st;

    KT_TRY(kt_jinja_eval(r, node->children->next, &over));
    r->at = node;
    KT_TRY(kt_jinja_enter(r));
    st = loop_over(r, node, &over, 1);
    r->depth--;
    return st;
}

/* loop(items) in a recursive loop: the same loop over other items, as a string. */
kt_status kt_jinja_call_loop(kt_jinja_run *r, const kt_jinja_loop *loop, const kt_jinja_value *over,
                             kt_jinja_value *out) {
    kt_jinja_builder b = {0}, *outer = r->out;
    kt_jinja_scope *scope = r->scope;
    kt_status st;

    if (!loop->node)
        return kt_jinja_fail(r, KT_E_INVALID,
                             "the loop must have the 'recursive' marker to be called");
    KT_TRY(kt_jinja_enter(r));
    r->out = &b;
    r->scope = loop->scope;
    st = loop_over(r, loop->node, over, loop->depth + 1);
    r->out = outer;
    r->scope = scope;
    r->depth--;
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

/* ---- the others ---- */

static kt_status run_if(kt_jinja_run *r, const kt_jinja_node *node, ending *how) {
    for (const kt_jinja_node *b = node->children; b; b = b->next) {
        const kt_jinja_here here = kt_jinja_note_here(r);
        kt_jinja_value v = kt_jinja_bool(true);
        bool holds;
        if (b->children) KT_TRY(kt_jinja_eval(r, b->children, &v));
        holds = kt_jinja_truth(&v);
        kt_jinja_forget(r, &here);
        if (holds) return run_list(r, b->body, how);
    }
    return KT_OK;
}

/* A block's text through its filters. */
static kt_status captured(kt_jinja_run *r, const kt_jinja_node *node, const kt_jinja_node *filters,
                          kt_jinja_value *out) {
    kt_jinja_value outer = r->body;
    kt_status st = capture(r, node->body, out);

    if (st != KT_OK || !filters) return st;
    r->body = *out;
    st = kt_jinja_eval(r, filters, out);
    r->body = outer;
    return st;
}

static kt_status run_with(kt_jinja_run *r, const kt_jinja_node *node, ending *how) {
    kt_jinja_scope *scope = r->scope, *inner;
    kt_jinja_value v;

    KT_TRY(open_scope(r));
    inner = r->scope;
    for (const kt_jinja_node *c = node->children; c; c = c->next->next) {
        r->scope = scope; /* values do not see each other */
        KT_TRY(kt_jinja_eval(r, c->next, &v));
        r->scope = inner;
        KT_TRY(assign(r, c, &v));
    }
    KT_TRY(run_list(r, node->body, how));
    r->scope = scope;
    return KT_OK;
}

static kt_status run_scope(kt_jinja_run *r, const kt_jinja_node *node, ending *how) {
    kt_jinja_scope *scope = r->scope;

    KT_TRY(open_scope(r));
    KT_TRY(run_list(r, node->body, how));
    r->scope = scope;
    return KT_OK;
}

static kt_status put_value(kt_jinja_run *r, const kt_jinja_node *expression) {
    const kt_jinja_here here = kt_jinja_note_here(r);

    KT_TRY(kt_jinja_put_value(r, expression));
    kt_jinja_forget(r, &here);
    return KT_OK;
}

static kt_status run_one(kt_jinja_run *r, const kt_jinja_node *node, ending *how) {
    kt_jinja_value v;

    switch (node->kind) {
    case KT_NODE_TEXT: return kt_jinja_put_string(r, r->out, node->value.as.string);
    case KT_NODE_OUTPUT: return put_value(r, node->children);
    case KT_NODE_CALL_BLOCK: return put_value(r, node);
    case KT_NODE_DO: return kt_jinja_eval(r, node->children, &v);
    case KT_NODE_IF: return run_if(r, node, how);
    case KT_NODE_FOR: return run_for(r, node);
    case KT_NODE_SET:
        KT_TRY(kt_jinja_eval(r, node->children->next, &v));
        return assign(r, node->children, &v);
    case KT_NODE_SET_BLOCK:
        KT_TRY(captured(r, node, node->children->next, &v));
        return assign(r, node->children, &v);
    case KT_NODE_FILTER_BLOCK:
        KT_TRY(captured(r, node, node->children, &v));
        return kt_jinja_put_str(r, r->out, &v);
    case KT_NODE_MACRO: return define_macro(r, node);
    case KT_NODE_WITH: return run_with(r, node, how);
    case KT_NODE_SCOPE: return run_scope(r, node, how);
    case KT_NODE_BREAK: *how = BY_BREAK; return KT_OK;
    case KT_NODE_CONTINUE: *how = BY_CONTINUE; return KT_OK;
    default: return kt_jinja_fail(r, KT_E_INTERNAL, "an expression where a statement should be");
    }
}

static kt_status run_list(kt_jinja_run *r, const kt_jinja_node *first, ending *how) {
    *how = TO_THE_END;
    if (++r->nested > KT_JINJA_MAX_NESTED)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "statements nest too deep");
    for (const kt_jinja_node *n = first; n && *how == TO_THE_END; n = n->next) {
        r->at = n;
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(run_one(r, n, how));
    }
    r->nested--;
    return KT_OK;
}

kt_status kt_jinja_exec(kt_jinja_run *r, const kt_jinja_node *first) {
    ending how;
    return run_list(r, first, &how);
}
