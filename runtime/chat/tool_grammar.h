/* Grammars that force tool calls in a model's own notation. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TOOL_GRAMMAR_H
#define KT_RUNTIME_TOOL_GRAMMAR_H

#include "runtime/chat/parser.h"
#include "runtime/serve/grammar/grammar.h"

/* GBNF text and the symbols that it leaves to JSON schemas: the arguments of a function, or one of
 * its parameters. Both go to kt_grammar_from_gbnf. */
typedef struct kt_tool_grammar {
    char *text; /* owned */
    size_t size;
    kt_grammar_symbol
        *symbols; /* owned with their names; the schemas are borrowed from the tools */
    size_t n_symbols;
} kt_tool_grammar;

typedef struct kt_tool_grammar_options {
    kt_parser_choice choice;
    const kt_json *tools;     /* the request's "tools"; outlives the grammar's text */
    const char *named;        /* the one function that may be called, or NULL: any ("required") */
    bool parallel;            /* several calls may follow each other */
    bool starts_in_reasoning; /* reasoning comes first and is free up to its end mark */
    kt_special_token *special_token; /* NULL: every mark is written as text */
    const void *special_arg;
} kt_tool_grammar_options;

/* Write the grammar: reasoning if the model reasons, then one call or several, nothing else. Marks
 * that are special tokens are written as <[id]>. JSON arguments follow the function's schema;
 * marked parameters come in the schema's order, required ones always, strings free up to their end
 * mark, others by the parameter's schema. KT_E_INVALID: no tools, or none is called `named`;
 * KT_E_UNSUPPORTED: the model has no notation for calls. *out is zero then. */
kt_status kt_tool_grammar_create(const kt_tool_grammar_options *options, kt_tool_grammar *out,
                                 kt_err *err);
void kt_tool_grammar_destroy(kt_tool_grammar *g); /* the struct itself is the caller's */

#endif
