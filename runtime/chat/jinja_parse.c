/* Statements of templates. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "runtime/chat/jinja_node.h"

typedef struct block {
    const char *ends[4]; /* names of tags that end it, NULL behind the last */
    const kt_jinja_token *from;
    const char *name;
} block;

static kt_status statements(kt_jinja_parser *p, const block *b, kt_jinja_node **out);

/* ---- helpers ---- */

static bool skip_name(kt_jinja_parser *p, const char *name) {
    if (!kt_jinja_is_name(p->at, name)) return false;
    p->at++;
    return true;
}

static kt_status end_tag(kt_jinja_parser *p) {
    if (p->at->type != KT_TOK_BLOCK_END)
        return kt_jinja_syntax(p, p->at, "unexpected '%.*s', expected the end of the tag",
                               (int)(p->at->size < 40 ? p->at->size : 40), p->at->text);
    p->at++;
    return KT_OK;
}

/* "%}", the statements, and the name of the tag that ends them, after which p stands. */
static kt_status body(kt_jinja_parser *p, const block *b, kt_jinja_node **out) {
    KT_TRY(end_tag(p));
    KT_TRY(statements(p, b, out));
    p->at++; /* the tag's name */
    return KT_OK;
}

static kt_status whole_body(kt_jinja_parser *p, const kt_jinja_token *from, const char *name,
                            const char *end, kt_jinja_node **out) {
    const block b = {{end}, from, name};

    KT_TRY(body(p, &b, out));
    if (p->at->type == KT_TOK_NAME) p->at++; /* {% endmacro name %} */
    return end_tag(p);
}

static kt_status scoped(kt_jinja_parser *p, const kt_jinja_token *from, const char *name,
                        const char *end, kt_jinja_node **out) {
    KT_TRY(kt_jinja_node_new(p, KT_NODE_SCOPE, from, out));
    return whole_body(p, from, name, end, &(*out)->body);
}

/* ---- statements; `from` is the tag's name, p stands behind it ---- */

typedef kt_status parse_fn(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out);

static kt_status parse_if(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    const block open = {{"elif", "else", "endif"}, from, "if"}, last_one = {{"endif"}, from, "if"};
    kt_jinja_node **last;
    bool is_else = false;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_IF, from, out));
    last = &(*out)->children;
    for (;;) {
        kt_jinja_node *branch;
        KT_TRY(kt_jinja_node_new(p, KT_NODE_BRANCH, p->at, &branch));
        if (!is_else) KT_TRY(kt_jinja_parse_tuple(p, false, &branch->children));
        KT_TRY(body(p, is_else ? &last_one : &open, &branch->body));
        kt_jinja_node_add(*out, &last, branch);
        if (kt_jinja_is_name(p->at - 1, "endif")) return end_tag(p);
        is_else = kt_jinja_is_name(p->at - 1, "else");
    }
}

static kt_status parse_for(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    const block open = {{"else", "endfor"}, from, "for"}, last_one = {{"endfor"}, from, "for"};
    kt_jinja_node **last, *part;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_FOR, from, out));
    last = &(*out)->children;
    KT_TRY(kt_jinja_parse_target(p, false, &part));
    kt_jinja_node_add(*out, &last, part);
    if (!skip_name(p, "in")) return kt_jinja_syntax(p, p->at, "expected 'in' after the variable");
    KT_TRY(kt_jinja_parse_tuple(p, true, &part));
    kt_jinja_node_add(*out, &last, part);
    if (skip_name(p, "if")) {
        KT_TRY(kt_jinja_parse_expression(p, &part));
        kt_jinja_node_add(*out, &last, part);
    }
    (*out)->is_recursive = skip_name(p, "recursive");
    KT_TRY(kt_jinja_symbol(p, "loop", 4, &(*out)->symbol));
    p->loops++;
    KT_TRY(body(p, &open, &(*out)->body));
    p->loops--;
    if (kt_jinja_is_name(p->at - 1, "else")) KT_TRY(body(p, &last_one, &(*out)->otherwise));
    return end_tag(p);
}

static kt_status parse_set(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    kt_jinja_node **last, *part;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_SET, from, out));
    last = &(*out)->children;
    KT_TRY(kt_jinja_parse_target(p, true, &part));
    kt_jinja_node_add(*out, &last, part);
    if (kt_jinja_is_op(p->at, "=")) {
        p->at++;
        KT_TRY(kt_jinja_parse_tuple(p, false, &part));
        kt_jinja_node_add(*out, &last, part);
        return end_tag(p);
    }
    (*out)->kind = KT_NODE_SET_BLOCK;
    if (kt_jinja_is_op(p->at, "|")) {
        p->at++;
        KT_TRY(kt_jinja_node_new(p, KT_NODE_BODY, from, &part));
        KT_TRY(kt_jinja_parse_filters(p, part, &part));
        kt_jinja_node_add(*out, &last, part);
    }
    return whole_body(p, from, "set", "endset", &(*out)->body);
}

/* "(a, b=1)": parameters as children of the macro. */
static kt_status parameters(kt_jinja_parser *p, kt_jinja_node *macro) {
    kt_jinja_node **last = &macro->children;
    bool with_default = false;

    KT_TRY(kt_jinja_expect_op(p, "("));
    while (!kt_jinja_is_op(p->at, ")")) {
        kt_jinja_node *parameter;
        if (macro->children) KT_TRY(kt_jinja_expect_op(p, ","));
        if (kt_jinja_is_op(p->at, ")")) break;
        if (p->at->type != KT_TOK_NAME)
            return kt_jinja_syntax(p, p->at, "expected the name of a parameter");
        KT_TRY(kt_jinja_node_new(p, KT_NODE_PARAMETER, p->at, &parameter));
        parameter->name =
            (kt_jinja_string){.data = p->at->text, .size = p->at->size, .all_trusted = true};
        KT_TRY(kt_jinja_symbol(p, p->at->text, p->at->size, &parameter->symbol));
        p->at++;
        if (kt_jinja_is_op(p->at, "=")) {
            p->at++;
            with_default = true;
            KT_TRY(kt_jinja_parse_expression(p, &parameter->children));
        } else if (with_default) {
            return kt_jinja_syntax(p, p->at, "a parameter without default after one with");
        }
        kt_jinja_node_add(macro, &last, parameter);
    }
    return kt_jinja_expect_op(p, ")");
}

static kt_status macro_body(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node *macro,
                            const char *name, const char *end) {
    uint32_t unused;
    int loops = p->loops;
    kt_status st;

    KT_TRY(kt_jinja_symbol(p, "caller", 6, &unused));
    KT_TRY(kt_jinja_symbol(p, "varargs", 7, &unused));
    KT_TRY(kt_jinja_symbol(p, "kwargs", 6, &unused));
    p->loops = 0;
    st = whole_body(p, from, name, end, &macro->body);
    p->loops = loops;
    return st;
}

static kt_status parse_macro(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    KT_TRY(kt_jinja_node_new(p, KT_NODE_MACRO, from, out));
    if (p->at->type != KT_TOK_NAME)
        return kt_jinja_syntax(p, p->at, "expected the name of the macro");
    (*out)->name = (kt_jinja_string){.data = p->at->text, .size = p->at->size, .all_trusted = true};
    KT_TRY(kt_jinja_symbol(p, p->at->text, p->at->size, &(*out)->symbol));
    p->at++;
    KT_TRY(parameters(p, *out));
    return macro_body(p, from, *out, "macro", "endmacro");
}

static kt_status parse_call(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    kt_jinja_node **last, *part, *macro;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_CALL_BLOCK, from, out));
    last = &(*out)->children;
    KT_TRY(kt_jinja_node_new(p, KT_NODE_MACRO, from, &macro));
    macro->name = *KT_JINJA_LITERAL("caller");
    if (kt_jinja_is_op(p->at, "(")) KT_TRY(parameters(p, macro));
    KT_TRY(kt_jinja_parse_expression(p, &part));
    if (part->kind != KT_NODE_CALL) return kt_jinja_syntax(p, from, "expected the call of a macro");
    kt_jinja_node_add(*out, &last, part);
    KT_TRY(macro_body(p, from, macro, "call", "endcall"));
    kt_jinja_node_add(*out, &last, macro);
    return KT_OK;
}

static kt_status parse_filter(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    kt_jinja_node *part;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_FILTER_BLOCK, from, out));
    KT_TRY(kt_jinja_node_new(p, KT_NODE_BODY, from, &part));
    KT_TRY(kt_jinja_parse_filters(p, part, &(*out)->children));
    return whole_body(p, from, "filter", "endfilter", &(*out)->body);
}

static kt_status parse_with(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    kt_jinja_node **last, *part;

    KT_TRY(kt_jinja_node_new(p, KT_NODE_WITH, from, out));
    last = &(*out)->children;
    while (p->at->type != KT_TOK_BLOCK_END) {
        if ((*out)->children) KT_TRY(kt_jinja_expect_op(p, ","));
        KT_TRY(kt_jinja_parse_target(p, false, &part));
        kt_jinja_node_add(*out, &last, part);
        KT_TRY(kt_jinja_expect_op(p, "="));
        KT_TRY(kt_jinja_parse_expression(p, &part));
        kt_jinja_node_add(*out, &last, part);
    }
    return whole_body(p, from, "with", "endwith", &(*out)->body);
}

static kt_status parse_generation(kt_jinja_parser *p, const kt_jinja_token *from,
                                  kt_jinja_node **out) {
    return scoped(p, from, "generation", "endgeneration", out);
}

/* A template that no other one extends: its blocks are where they stand. */
static kt_status parse_block(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    if (p->at->type != KT_TOK_NAME)
        return kt_jinja_syntax(p, p->at, "expected the name of the block");
    p->at++;
    return scoped(p, from, "block", "endblock", out);
}

static kt_status leave_loop(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_kind kind,
                            kt_jinja_node **out) {
    if (p->loops == 0)
        return kt_jinja_syntax(p, from, "'%.*s' outside of a loop", (int)from->size, from->text);
    KT_TRY(kt_jinja_node_new(p, kind, from, out));
    return end_tag(p);
}

static kt_status parse_break(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    return leave_loop(p, from, KT_NODE_BREAK, out);
}

static kt_status parse_continue(kt_jinja_parser *p, const kt_jinja_token *from,
                                kt_jinja_node **out) {
    return leave_loop(p, from, KT_NODE_CONTINUE, out);
}

static kt_status parse_do(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    KT_TRY(kt_jinja_node_new(p, KT_NODE_DO, from, out));
    KT_TRY(kt_jinja_parse_tuple(p, false, &(*out)->children));
    return end_tag(p);
}

static kt_status refuse(kt_jinja_parser *p, const kt_jinja_token *from, kt_jinja_node **out) {
    (void)out;
    return kt_jinja_syntax(p, from, "'%.*s' is not supported: a chat template stands alone",
                           (int)from->size, from->text);
}

static const struct {
    const char *name;
    parse_fn *parse;
} tags[] = {{"if", parse_if},
            {"for", parse_for},
            {"set", parse_set},
            {"macro", parse_macro},
            {"call", parse_call},
            {"filter", parse_filter},
            {"with", parse_with},
            {"generation", parse_generation},
            {"block", parse_block},
            {"break", parse_break},
            {"continue", parse_continue},
            {"do", parse_do},
            {"include", refuse},
            {"import", refuse},
            {"from", refuse},
            {"extends", refuse},
            {"autoescape", refuse},
            {"trans", refuse}};

/* ---- lists of statements ---- */

static kt_status unknown_tag(kt_jinja_parser *p, const block *b) {
    const kt_jinja_token *t = p->at;
    int n = (int)(t->size < 40 ? t->size : 40);

    if (t->type != KT_TOK_NAME) return kt_jinja_syntax(p, t, "expected the name of a tag");
    if (b->ends[0])
        return kt_jinja_syntax(
            p, t, "unknown tag '%.*s'; the '%s' of line %u, column %u, waits for '%s'%s", n,
            t->text, b->name, b->from->line, b->from->column, b->ends[0],
            b->ends[1] ? " and the like" : "");
    return kt_jinja_syntax(p, t, "unknown tag '%.*s'", n, t->text);
}

static kt_status tag(kt_jinja_parser *p, const block *b, kt_jinja_node **out) {
    const kt_jinja_token *from = p->at;
    size_t i = 0;

    while (i < sizeof tags / sizeof *tags && !kt_jinja_is_name(from, tags[i].name)) i++;
    if (i == sizeof tags / sizeof *tags) return unknown_tag(p, b);
    p->at++;
    if (++p->depth > 100) return kt_jinja_syntax(p, from, "nested deeper than 100 blocks");
    KT_TRY(tags[i].parse(p, from, out));
    p->depth--;
    return KT_OK;
}

static bool ends_block(const kt_jinja_parser *p, const block *b) {
    for (size_t i = 0; i < 4 && b->ends[i]; i++)
        if (kt_jinja_is_name(p->at, b->ends[i])) return true;
    return false;
}

static kt_status data(kt_jinja_parser *p, kt_jinja_node **out) {
    kt_jinja_string *s = kt_arena_alloc(&p->t->arena, sizeof *s, _Alignof(kt_jinja_string));

    if (!s) return kt_fail(p->err, KT_E_NOMEM, "%.200s: no memory for the template", p->t->name);
    *s = (kt_jinja_string){.data = p->at->text, .size = p->at->size, .all_trusted = true};
    KT_TRY(kt_jinja_node_new(p, KT_NODE_TEXT, p->at, out));
    (*out)->value = (kt_jinja_value){.type = KT_JINJA_STRING, .as.string = s};
    p->at++;
    return KT_OK;
}

static kt_status output(kt_jinja_parser *p, kt_jinja_node **out) {
    KT_TRY(kt_jinja_node_new(p, KT_NODE_OUTPUT, p->at++, out));
    KT_TRY(kt_jinja_parse_tuple(p, false, &(*out)->children));
    if (p->at->type != KT_TOK_VAR_END)
        return kt_jinja_syntax(p, p->at, "unexpected '%.*s', expected the end of the tag",
                               (int)(p->at->size < 40 ? p->at->size : 40), p->at->text);
    p->at++;
    return KT_OK;
}

/* Until one of b's tags, whose name p then stands on; of the whole template until its end. */
static kt_status statements(kt_jinja_parser *p, const block *b, kt_jinja_node **out) {
    kt_jinja_node **last = out, *node;

    *out = NULL;
    for (;;) {
        switch (p->at->type) {
        case KT_TOK_END:
            if (!b->ends[0]) return KT_OK;
            return kt_jinja_syntax(
                p, p->at,
                "unexpected end of the template: the '%s' of line %u, column %u, waits for '%s'",
                b->name, b->from->line, b->from->column,
                b->ends[2]   ? b->ends[2]
                : b->ends[1] ? b->ends[1]
                             : b->ends[0]);
        case KT_TOK_DATA: KT_TRY(data(p, &node)); break;
        case KT_TOK_VAR_BEGIN: KT_TRY(output(p, &node)); break;
        default:
            p->at++;
            if (ends_block(p, b)) return KT_OK;
            KT_TRY(tag(p, b, &node));
            break;
        }
        *last = node;
        last = &node->next;
    }
}

kt_status kt_jinja_parse(kt_template *t, kt_err *err) {
    const block whole = {{NULL}, NULL, NULL};
    kt_jinja_parser p = {.t = t, .err = err};
    kt_jinja_token *tokens;

    KT_TRY(kt_jinja_lex(t, &tokens, err));
    p.at = tokens;
    return statements(&p, &whole, &t->body);
}
