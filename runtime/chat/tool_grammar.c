/* The strings of a family's descriptor as GBNF rules. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/chat/tool_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "runtime/chat/calls.h"
#include "runtime/chat/channels.h"
#include "runtime/chat/json_stream.h"
#include "runtime/chat/parser_impl.h"
#include "runtime/chat/reasoning.h"

typedef struct writer {
    const kt_tool_grammar_options *o;
    const kt_calls *c;
    FILE *to;
    kt_tool_grammar *g;
    bool has_until[2]; /* the rules that read up to the end of reasoning, of a value */
    bool no_memory, needs_any;
} writer;

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void put_char(writer *w, char c, const char *also) {
    if (c == '\n')
        fputs("\\n", w->to);
    else if (c == '\t')
        fputs("\\t", w->to);
    else if (c == '\r')
        fputs("\\r", w->to);
    else if (c && (c == '\\' || strchr(also, c)))
        fprintf(w->to, "\\%c", c);
    else
        fputc(c, w->to);
}

static void put_literal(writer *w, const char *text, size_t n) {
    if (n == 0) return;
    fputs(" \"", w->to);
    for (size_t i = 0; i < n; i++) put_char(w, text[i], "\"");
    fputc('"', w->to);
}

static int32_t special_id(const writer *w, const char *text, size_t n) {
    char exact[KT_MARK_BYTES + 1];

    if (!w->o->special_token || n == 0 || n >= sizeof exact) return -1;
    memcpy(exact, text, n);
    exact[n] = 0;
    return w->o->special_token(w->o->special_arg, exact);
}

/* The family's special token inside a mark, or NULL: it has to be a token there as well. */
static const char *find_part(const writer *w, const char *text, size_t n, int32_t *id) {
    const char *part = w->c->part;

    *id = part ? special_id(w, part, strlen(part)) : -1;
    return *id >= 0 ? memmem(text, n, part, strlen(part)) : NULL;
}

/* A mark without white space: as a token where it is one, else as text around the one inside. */
static void put_core(writer *w, const char *text, size_t n) {
    int32_t id = special_id(w, text, n);
    const char *part;
    size_t before;

    if (n == 0) return;
    if (id >= 0) {
        fprintf(w->to, " <[%d]>", (int)id);
        return;
    }
    part = find_part(w, text, n, &id);
    if (!part) {
        put_literal(w, text, n);
        return;
    }
    before = (size_t)(part - text);
    put_literal(w, text, before);
    fprintf(w->to, " <[%d]>", (int)id);
    before += strlen(w->c->part);
    put_literal(w, text + before, n - before);
}

/* A mark with its white space. lead: also with the white space before it. */
static void put_mark(writer *w, const char *text, bool lead) {
    size_t n = text ? strlen(text) : 0, from = 0, to = n;

    while (from < to && is_space(text[from])) from++;
    while (to > from && is_space(text[to - 1])) to--;
    if (lead) put_literal(w, text, from);
    put_core(w, text + from, to - from);
    put_literal(w, text + to, n - to);
}

/* Put the name of the rule k (0: reasoning, 1: a value) for text up to the end of `mark`, which is
 * not in it earlier. The mark's first character does not come again in any mark, so a failed match
 * goes on from its start. */
static void put_until(writer *w, FILE *rules, int k, const char *mark, size_t n) {
    FILE *to = w->to;
    int at = 0;
    int32_t id = special_id(w, mark, n);
    const unsigned char *p = (const unsigned char *)mark, *end = p + n;

    fprintf(to, " until-%d-0", k);
    if (w->has_until[k]) return;
    w->has_until[k] = true;
    w->to = rules;
    if (id >= 0 || find_part(w, mark, n, &id)) { /* text cannot spell it */
        fprintf(rules, "until-%d-0 ::= [^\\x00]*", k);
        put_core(w, mark, n);
        fputc('\n', rules);
        w->to = to;
        return;
    }
    while (p < end) {
        int size = kt_utf8_length(p, end);
        fprintf(rules, "until-%d-%d ::=", k, at);
        put_literal(w, (const char *)p, (size_t)size);
        if (p + size < end) fprintf(rules, " until-%d-%d", k, at + 1);
        if (at) {
            fputs(" |", rules);
            put_literal(w, mark, 1);
            fprintf(rules, " until-%d-1", k);
        }
        fputs(" | [^", rules);
        for (int i = 0; i < size; i++) put_char(w, (char)p[i], "]^-");
        if (at) put_char(w, mark[0], "]^-");
        fprintf(rules, "] until-%d-0\n", k);
        p += size;
        at++;
    }
    w->to = to;
}

/* A symbol for a schema; any JSON object or value where there is none. */
static void put_schema(writer *w, const kt_json *schema, bool is_object, int function,
                       size_t param) {
    const size_t bytes = 48; /* two numbers */
    kt_grammar_symbol *grown;
    char *name;

    if (!schema) {
        fputs(is_object ? " any-object" : " any-value", w->to);
        w->needs_any = true;
        return;
    }
    grown = realloc(w->g->symbols, (w->g->n_symbols + 1) * sizeof *grown);
    if (grown) w->g->symbols = grown;
    name = grown ? malloc(bytes) : NULL;
    if (!name) {
        w->no_memory = true;
        return;
    }
    if (is_object)
        snprintf(name, bytes, "args-%d", function);
    else
        snprintf(name, bytes, "arg-%d-%zu", function, param);
    fprintf(w->to, " %s", name);
    w->g->symbols[w->g->n_symbols++] = (kt_grammar_symbol){name, schema};
}

static bool is_required(const kt_json *parameters, const char *key, size_t n) {
    const kt_json *list = kt_json_get(parameters, "required");

    for (size_t i = 0; i < kt_json_length(list); i++) {
        size_t size = 0;
        const char *text = kt_json_string(kt_json_at(list, i), &size);
        if (text && size == n && memcmp(text, key, n) == 0) return true;
    }
    return false;
}

static void put_name(writer *w, const char *name, size_t n) {
    if (w->c->quoted) fputs(" \"\\\"\"", w->to);
    put_literal(w, name, n);
    if (w->c->quoted) fputs(" \"\\\"\"", w->to);
}

/* A list of strings as alternatives; false when the schema is none. */
static bool put_enum(writer *w, const kt_json *schema) {
    const kt_json *list = kt_json_get(schema, "enum");
    size_t n = kt_json_length(list), size = 0;

    for (size_t i = 0; i < n; i++)
        if (!kt_json_string(kt_json_at(list, i), &size) || size == 0) return false;
    if (n == 0) return false;
    fputs(" (", w->to);
    for (size_t i = 0; i < n; i++) {
        const char *text = kt_json_string(kt_json_at(list, i), &size);
        if (i) fputs(" |", w->to);
        put_literal(w, text, size);
    }
    fputs(" )", w->to);
    return true;
}

/* "</" is followed by the key. */
static void put_tag_end(writer *w, const char *key, size_t n) {
    put_literal(w, key, n);
    put_mark(w, w->c->key_end, true);
}

static void put_value_end(writer *w, const char *key, size_t n) {
    put_mark(w, w->c->value_end, true);
    if (w->c->tree) put_tag_end(w, key, n);
}

static void put_param(writer *w, FILE *rules, const kt_json *schema, const char *key, size_t n,
                      int function, size_t param) {
    const kt_value_types types = kt_schema_types(schema), string = 1u << KT_JSON_STRING;
    const char *end = w->c->value_end, *tail;
    bool is_text = (types & string) || (!types && !w->c->unknown_is_json);
    size_t size;

    put_mark(w, w->c->param_begin, true);
    w->c->tree ? put_literal(w, key, n) : put_name(w, key, n);
    if (w->c->string_attribute)
        fprintf(w->to, " \" string=\\\"%s\\\"\"", is_text ? "true" : "false");
    put_mark(w, w->c->key_end, true);
    if (w->c->value_begin) put_mark(w, w->c->value_begin, true);
    if (!is_text) {
        put_schema(w, schema, false, function, param);
        put_value_end(w, key, n);
        return;
    }
    if (put_enum(w, schema)) {
        put_value_end(w, key, n);
        return;
    }
    while (is_space(*end)) end++;
    size = strlen(end);
    while (is_space(end[size - 1])) size--;
    tail = end + size;
    put_until(w, rules, 1, end, size);
    put_literal(w, tail, strlen(tail));
    if (w->c->tree) put_tag_end(w, key, n);
}

static void put_params(writer *w, FILE *rules, const kt_json *function, int number) {
    const kt_json *parameters = kt_json_get(function, "parameters");
    const kt_json *properties = kt_json_get(parameters, "properties");

    for (size_t i = 0; i < kt_json_length(properties); i++) {
        const char *key;
        size_t n;
        const kt_json *schema = kt_json_member(properties, i, &key, &n);
        bool required = is_required(parameters, key, n);
        fputs(required ? "" : " (", w->to);
        put_param(w, rules, schema, key, n, number, i);
        fputs(required ? "" : " )?", w->to);
    }
}

static void put_object(writer *w, const char *name, size_t n) {
    fputs(" \"{\\\"name\\\": \\\"\"", w->to);
    fputs(" \"", w->to);
    for (size_t i = 0; i < n; i++) {
        char out[8];
        size_t size = kt_json_escape((unsigned char)name[i], out);
        for (size_t k = 0; k < size; k++) put_char(w, out[k], "\"");
    }
    fputc('"', w->to);
    fputs(" \"\\\", \\\"arguments\\\": \"", w->to);
}

/* A call as a message: the recipient comes before the channel or behind it. Nothing follows the
 * arguments, so that the mark at their end may be one that ends the answer. */
static void put_channel_call(writer *w, const kt_json *function, const char *name, size_t n,
                             int number) {
    const kt_channels *c = w->c->channels;

    for (int behind = 0; behind < 2; behind++) {
        fputs(behind ? " |" : " (", w->to);
        if (behind) put_core(w, c->channel, strlen(c->channel));
        if (behind) put_literal(w, c->calling, strlen(c->calling));
        put_literal(w, " to=", 4);
        put_literal(w, c->recipients, strlen(c->recipients));
        put_literal(w, name, n);
        if (!behind) put_core(w, c->channel, strlen(c->channel));
        if (!behind) put_literal(w, c->calling, strlen(c->calling));
    }
    fputs(" ) ( \" \"?", w->to);
    put_core(w, c->constrain, strlen(c->constrain));
    put_literal(w, c->type, strlen(c->type));
    fputs(" | \" \"", w->to);
    put_literal(w, c->type, strlen(c->type));
    fputs(" )?", w->to);
    put_core(w, c->message, strlen(c->message));
    put_schema(w, kt_json_get(function, "parameters"), true, number, 0);
    fputc('\n', w->to);
}

/* The prompt ends inside of a header; one message of reasoning may come first. */
static void put_channel_root(writer *w, FILE *rules) {
    const kt_channels *c = w->c->channels;

    fputs("root ::= (", w->to);
    put_core(w, c->channel, strlen(c->channel));
    put_literal(w, c->reasoning, strlen(c->reasoning));
    put_core(w, c->message, strlen(c->message));
    put_until(w, rules, 0, c->end, strlen(c->end));
    put_core(w, c->start, strlen(c->start));
    put_literal(w, c->role, strlen(c->role));
    fputs(" )? call\n", w->to);
}

static kt_status put_call(writer *w, FILE *rules, const kt_json *function, int number,
                          kt_err *err) {
    const kt_calls *c = w->c;
    size_t n = 0;
    const char *name = kt_json_string(kt_json_get(function, "name"), &n);

    if (!name || n == 0)
        return kt_fail(err, KT_E_INVALID, "tools: function %d has no name", number);
    fprintf(w->to, "call-%d ::=", number);
    if (c->channels) {
        put_channel_call(w, function, name, n, number);
        return KT_OK;
    }
    put_mark(w, c->call_begin, false);
    if (c->body == KT_CALL_OBJECT) {
        put_object(w, name, n);
    } else {
        put_literal(w, c->head_prefix, c->head_prefix ? strlen(c->head_prefix) : 0);
        put_mark(w, c->prefix_end, true);
        if (c->ids == KT_CALL_ID_KIMI) fputs(" \"functions.\"", w->to);
        put_name(w, name, n);
        if (c->ids == KT_CALL_ID_KIMI) fputs(" \":\" [0-9]+", w->to);
        put_mark(w, c->name_end, true);
    }
    if (c->body == KT_CALL_PARAMETERS)
        put_params(w, rules, function, number);
    else
        put_schema(w, kt_json_get(function, "parameters"), true, number, 0);
    if (c->body == KT_CALL_OBJECT) fputs(" \"}\"", w->to);
    put_mark(w, c->arguments_end, true);
    put_mark(w, c->call_end, true);
    fputc('\n', w->to);
    return KT_OK;
}

static void put_root(writer *w, FILE *rules) {
    const kt_calls *c = w->c;
    const kt_reasoning *r = w->o->choice.reasoning;
    const char *between = c->between ? c->between : "";
    const bool reasons = r && !r->stays_in_text;

    fputs("root ::=", w->to);
    if (reasons && !w->o->starts_in_reasoning) {
        fputs(" (", w->to);
        put_mark(w, r->begin, true);
    }
    if (reasons) put_until(w, rules, 0, r->end, strlen(r->end));
    if (reasons && !w->o->starts_in_reasoning) fputs(" )?", w->to);
    fputs(" \"\\n\"? \"\\n\"?", w->to);
    if (c->section_begin && !c->one_call) put_mark(w, c->section_begin, false);
    fputs(" call", w->to);
    if (w->o->parallel) {
        fputs(" (", w->to);
        put_literal(w, between, strlen(between));
        if (!c->section_begin && is_space(*c->call_begin)) put_literal(w, c->call_begin, 1);
        fputs(" call )*", w->to);
    }
    if (c->section_begin && !c->one_call) put_mark(w, c->section_end, true);
    fputc('\n', w->to);
}

/* call ::= one of the functions, in a section of its own where the family writes so. */
static void put_any_call(writer *w, int n_functions) {
    fputs("call ::=", w->to);
    if (w->c->one_call) put_mark(w, w->c->section_begin, false);
    fputs(" (", w->to);
    for (int i = 0; i < n_functions; i++) fprintf(w->to, "%s call-%d", i ? " |" : "", i);
    fputs(" )", w->to);
    if (w->c->one_call) put_mark(w, w->c->section_end, true);
    fputc('\n', w->to);
}

static const char any_rules[] =
    "any-object ::= \"{\" ws ( member ( \",\" ws member )* )? \"}\"\n"
    "member ::= string ws \":\" ws any-value ws\n"
    "any-value ::= any-object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "array ::= \"[\" ws ( any-value ws ( \",\" ws any-value ws )* )? \"]\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" hex hex hex "
    "hex ) )* "
    "\"\\\"\"\n"
    "hex ::= [0-9a-fA-F]\n"
    "number ::= \"-\"? ( \"0\" | [1-9] [0-9]* ) ( \".\" [0-9]+ )? ( [eE] [-+]? [0-9]+ )?\n"
    "ws ::= ( \" \" | \"\\n\" [ \\t]{0,20} )?\n"; /* no more: a model may love white space */

static kt_status write_all(writer *w, FILE *rules, kt_err *err) {
    const kt_tool_grammar_options *o = w->o;
    int n = 0;

    if (w->c->channels)
        put_channel_root(w, rules);
    else
        put_root(w, rules);
    for (size_t i = 0; i < kt_json_length(o->tools); i++) {
        const kt_json *tool = kt_json_at(o->tools, i), *function = kt_json_get(tool, "function");
        if (!function) function = tool;
        if (o->named && strcmp(kt_json_text(function, "name"), o->named) != 0) continue;
        KT_TRY(put_call(w, rules, function, n++, err));
    }
    if (n == 0)
        return kt_fail(err, KT_E_INVALID, "tool_choice: no function '%s' among the %zu tools",
                       o->named ? o->named : "", kt_json_length(o->tools));
    put_any_call(w, n);
    if (w->needs_any) fputs(any_rules, w->to);
    return KT_OK;
}

void kt_tool_grammar_destroy(kt_tool_grammar *g) {
    char *name;

    for (size_t i = 0; i < g->n_symbols; i++) {
        memcpy(&name, &g->symbols[i].name, sizeof name); /* ours: put_schema made it */
        free(name);
    }
    free(g->symbols);
    free(g->text);
    memset(g, 0, sizeof *g);
}

/* Two streams, since rules for texts up to a mark come up inside other rules. */
static kt_status write_grammar(writer *w, char **rules_text, kt_err *err) {
    size_t rules_size = 0;
    FILE *rules = open_memstream(rules_text, &rules_size);
    kt_status st = KT_OK;

    w->to = open_memstream(&w->g->text, &w->g->size);
    if (rules && w->to)
        st = write_all(w, rules, err);
    else
        w->no_memory = true;
    if (rules && fclose(rules) != 0) w->no_memory = true;
    if (w->to && *rules_text && !w->no_memory) fputs(*rules_text, w->to);
    if (w->to && (ferror(w->to) || fclose(w->to) != 0)) w->no_memory = true;
    if (st == KT_OK && w->no_memory)
        st = kt_fail(err, KT_E_NOMEM, "no memory for the grammar of the tools");
    return st;
}

kt_status kt_tool_grammar_create(const kt_tool_grammar_options *o, kt_tool_grammar *out,
                                 kt_err *err) {
    kt_tool_grammar g = {0};
    writer w = {.o = o, .c = o->choice.calls, .g = &g};
    char *rules = NULL;
    kt_status st;

    memset(out, 0, sizeof *out);
    if (!w.c)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "tool_choice: this model has no known notation for tool calls "
                       "(--tool-parser names one)");
    if (!kt_json_length(o->tools))
        return kt_fail(err, KT_E_INVALID, "tool_choice: there are no tools");
    st = write_grammar(&w, &rules, err);
    free(rules);
    if (st == KT_OK)
        *out = g;
    else
        kt_tool_grammar_destroy(&g);
    return st;
}
