/* Templates as trees, and their reader. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JINJA_NODE_H
#define KT_RUNTIME_JINJA_NODE_H

#include "runtime/chat/jinja.h"

typedef enum kt_jinja_kind {
    /* expressions; `children` are the operands */
    KT_NODE_CONST, /* value */
    KT_NODE_NAME,  /* symbol */
    KT_NODE_LIST,
    KT_NODE_TUPLE,
    KT_NODE_DICT,   /* key, value, key, value, ... */
    KT_NODE_ATTR,   /* children: object; name */
    KT_NODE_ITEM,   /* object, key */
    KT_NODE_SLICE,  /* object, from, to, step; NONE constants where left out */
    KT_NODE_CALL,   /* callee; args */
    KT_NODE_FILTER, /* input; builtin, name, args */
    KT_NODE_TEST,   /* input; builtin, name, args */
    KT_NODE_NOT,
    KT_NODE_NEGATE,
    KT_NODE_PLUS,
    KT_NODE_CHAIN,   /* first, then operands with the op in front of each: + - * / // % ** */
    KT_NODE_COMPARE, /* the same with == != < <= > >= in, not in */
    KT_NODE_CONCAT,  /* ~ */
    KT_NODE_AND,
    KT_NODE_OR,
    KT_NODE_COND, /* condition, yes, no (may be missing) */
    /* statements; `body` are their statements */
    KT_NODE_TEXT,      /* value */
    KT_NODE_OUTPUT,    /* children: one expression */
    KT_NODE_IF,        /* children: branches (KT_NODE_BRANCH), the last perhaps without condition */
    KT_NODE_BRANCH,    /* condition or nothing; body */
    KT_NODE_FOR,       /* target, iterable, filter or nothing; body, otherwise */
    KT_NODE_SET,       /* target, expression */
    KT_NODE_SET_BLOCK, /* target, filter chain over KT_NODE_BODY or nothing; body */
    KT_NODE_MACRO,     /* symbol, name; children: parameters (KT_NODE_PARAMETER); body */
    KT_NODE_PARAMETER, /* symbol, name; default or nothing */
    KT_NODE_CALL_BLOCK,   /* call, a KT_NODE_MACRO */
    KT_NODE_FILTER_BLOCK, /* filter chain over KT_NODE_BODY; body */
    KT_NODE_BODY,         /* what a block has captured */
    KT_NODE_WITH,         /* target, value, target, value, ...; body */
    KT_NODE_SCOPE,        /* body */
    KT_NODE_BREAK,
    KT_NODE_CONTINUE,
    KT_NODE_DO /* expression */
} kt_jinja_kind;

typedef enum kt_jinja_op {
    KT_OP_NONE,
    KT_OP_ADD,
    KT_OP_SUB,
    KT_OP_MUL,
    KT_OP_DIV,
    KT_OP_FLOORDIV,
    KT_OP_MOD,
    KT_OP_POW,
    KT_OP_EQ,
    KT_OP_NE,
    KT_OP_LT,
    KT_OP_LE,
    KT_OP_GT,
    KT_OP_GE,
    KT_OP_IN,
    KT_OP_NOT_IN
} kt_jinja_op;

/* Arguments as written. */
typedef enum kt_jinja_star {
    KT_STAR_NONE,
    KT_STAR_NAMED, /* name=value */
    KT_STAR_LIST,  /* *value */
    KT_STAR_DICT   /* **value */
} kt_jinja_star;

struct kt_jinja_node {
    kt_jinja_kind kind;
    kt_jinja_op op;     /* in front of this operand */
    kt_jinja_star star; /* of this argument */
    uint32_t line, column;
    uint32_t symbol;
    int height;        /* of the tree below */
    bool is_recursive; /* FOR */
    bool is_method;    /* ATTR: dictionaries have a method of this name */
    uint64_t hash;     /* ATTR: of the name */
    kt_jinja_string name;
    kt_jinja_value value;
    const kt_jinja_builtin *builtin;
    kt_jinja_node *next; /* sibling */
    kt_jinja_node *children, *args, *body, *otherwise;
};

typedef struct kt_jinja_name {
    const char *text;
    size_t size;
} kt_jinja_name;

/* Names that macros define when the template mentions them: varargs, kwargs, caller. */
typedef enum kt_jinja_rest {
    KT_REST_VALUES,
    KT_REST_NAMED,
    KT_REST_CALLER,
    KT_RESTS
} kt_jinja_rest;

struct kt_template {
    kt_arena arena; /* everything below */
    char *name;
    char *source; /* with line ends as \n */
    size_t source_size;
    kt_jinja_node *body;
    kt_jinja_name *symbols; /* names of variables */
    uint32_t n_symbols, symbol_capacity;
    uint32_t rest[KT_RESTS]; /* 1 + symbol, or 0 */
};

typedef enum kt_jinja_token_type {
    KT_TOK_END,
    KT_TOK_DATA,
    KT_TOK_VAR_BEGIN,
    KT_TOK_VAR_END,
    KT_TOK_BLOCK_BEGIN,
    KT_TOK_BLOCK_END,
    KT_TOK_NAME,
    KT_TOK_STRING,
    KT_TOK_INT,
    KT_TOK_FLOAT,
    KT_TOK_OP /* text is the operator */
} kt_jinja_token_type;

typedef struct kt_jinja_token {
    kt_jinja_token_type type;
    uint32_t line, column;
    const char *text; /* of a string: decoded */
    size_t size;
} kt_jinja_token;

/* All tokens of t->source, ending with KT_TOK_END, in the template's arena. */
kt_status kt_jinja_lex(kt_template *t, kt_jinja_token **out, kt_err *err);

/* The reader of expressions and statements, over the tokens. */
typedef struct kt_jinja_parser {
    kt_template *t;
    const kt_jinja_token *at;
    int depth;
    int loops; /* that break and continue may leave */
    kt_err *err;
} kt_jinja_parser;

kt_status kt_jinja_syntax(const kt_jinja_parser *p, const kt_jinja_token *at, const char *format,
                          ...) __attribute__((format(printf, 3, 4)));
bool kt_jinja_is_op(const kt_jinja_token *t, const char *op);
bool kt_jinja_is_name(const kt_jinja_token *t, const char *name);
kt_status kt_jinja_expect_op(kt_jinja_parser *p, const char *op);
kt_status kt_jinja_node_new(kt_jinja_parser *p, kt_jinja_kind kind, const kt_jinja_token *at,
                            kt_jinja_node **out);
/* Put a node at the end of a list, which *last follows; `parent` grows with it. */
void kt_jinja_node_add(kt_jinja_node *parent, kt_jinja_node ***last, kt_jinja_node *child);
kt_status kt_jinja_check_height(const kt_jinja_parser *p, const kt_jinja_node *node);
kt_status kt_jinja_symbol(kt_jinja_parser *p, const char *name, size_t size, uint32_t *out);

kt_status kt_jinja_parse_expression(kt_jinja_parser *p, kt_jinja_node **out);
/* Values with commas between are a tuple; without_if leaves `if` to the caller (loops). */
kt_status kt_jinja_parse_tuple(kt_jinja_parser *p, bool without_if, kt_jinja_node **out);
/* A name, a tuple of targets, or name.attribute where allowed. */
kt_status kt_jinja_parse_target(kt_jinja_parser *p, bool with_attribute, kt_jinja_node **out);
/* "name" or "name(args)" of one filter after another, over `input`. */
kt_status kt_jinja_parse_filters(kt_jinja_parser *p, kt_jinja_node *input, kt_jinja_node **out);
kt_status kt_jinja_parse_postfix(kt_jinja_parser *p, kt_jinja_node *node, kt_jinja_node **out);
kt_status kt_jinja_parse_primary(kt_jinja_parser *p, kt_jinja_node **out);

/* The whole template. */
kt_status kt_jinja_parse(kt_template *t, kt_err *err);

#endif
