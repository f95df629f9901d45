/* GBNF: the BNF of llama.cpp's users. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "runtime/serve/grammar/grammar_impl.h"
#include "runtime/serve/grammar/schema_rules.h"

enum { MOST_TEXT = 1 << 20, MOST_NESTED = 200, MOST_REPEAT = 100000 };

/* A rule by name; where it was met first, for messages. */
typedef struct named_rule {
    const char *name;
    size_t size;
    const char *met;
    bool is_symbol;
} named_rule;

typedef struct gbnf {
    const char *begin, *at, *end;
    const kt_vocabulary *vocabulary;
    kt_rules *rules;
    named_rule *named; /* [rules->n_rules], by rule */
    size_t named_room;
    int32_t *table; /* hash of names: rule or -1 */
    size_t table_size;
    int depth;
    kt_err *err;
} gbnf;

/* ---- messages ---- */

static kt_status refuse(const gbnf *g, const char *at, const char *what) {
    size_t line = 1, column = 1;

    for (const char *p = g->begin; p < at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)*p & 0xc0) != 0x80) {
            column++;
        }
    }
    return kt_fail(g->err, KT_E_INVALID, "grammar: %zu:%zu: %s", line, column, what);
}

static kt_status refuse_found(const gbnf *g, const char *expected) {
    char what[160];
    unsigned char c = g->at < g->end ? (unsigned char)*g->at : 0;

    if (g->at == g->end)
        snprintf(what, sizeof what, "the text ends, expected %s", expected);
    else if (c == '\n' || c == '\r')
        snprintf(what, sizeof what, "the line ends, expected %s", expected);
    else if (c > ' ' && c < 0x7f)
        snprintf(what, sizeof what, "found '%c', expected %s", c, expected);
    else
        snprintf(what, sizeof what, "found byte 0x%02x, expected %s", c, expected);
    return refuse(g, g->at, what);
}

static kt_status refuse_name(const gbnf *g, const char *at, const char *before, const char *name,
                             size_t size, const char *after) {
    char what[200];

    snprintf(what, sizeof what, "%s '%.*s%s' %s", before, size > 80 ? 80 : (int)size, name,
             size > 80 ? "..." : "", after);
    return refuse(g, at, what);
}

/* ---- names ---- */

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t hash_name(const char *name, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

static bool grow_names(gbnf *g) {
    size_t size = g->table_size ? g->table_size * 2 : 128;
    int32_t *table = malloc(size * sizeof *table);
    named_rule *named = table ? realloc(g->named, size * sizeof *named) : NULL;

    if (!named) {
        free(table);
        return false;
    }
    g->named = named;
    free(g->table);
    g->table = table;
    g->table_size = size;
    memset(table, 0xff, size * sizeof *table);
    for (size_t i = 0; i < g->named_room; i++) {
        size_t at = hash_name(named[i].name, named[i].size) & (size - 1);
        if (!named[i].name) continue;
        while (table[at] >= 0) at = (at + 1) & (size - 1);
        table[at] = (int32_t)i;
    }
    return true;
}

/* The rule of that name; a new one when it is met for the first time. */
static kt_status find_rule(gbnf *g, const char *name, size_t size, int32_t *rule) {
    size_t at;

    while (g->rules->n_rules * 2 + 2 >= g->table_size)
        if (!grow_names(g)) return kt_fail(g->err, KT_E_NOMEM, "grammar: no memory for its rules");
    at = hash_name(name, size) & (g->table_size - 1);
    for (; g->table[at] >= 0; at = (at + 1) & (g->table_size - 1)) {
        const named_rule *n = &g->named[g->table[at]];
        *rule = g->table[at];
        if (n->size == size && memcmp(n->name, name, size) == 0) return KT_OK;
    }
    *rule = kt_rules_add(g->rules, name, size);
    if (*rule < 0) return kt_fail(g->err, KT_E_NOMEM, "grammar: no memory for its rules");
    for (; g->named_room < (size_t)*rule; g->named_room++) /* rules that a schema brought along */
        g->named[g->named_room] = (named_rule){.name = NULL};
    g->named[g->named_room++] = (named_rule){name, size, name, false};
    g->table[at] = *rule;
    return KT_OK;
}

/* ---- characters ---- */

static void skip_space(gbnf *g, bool lines) {
    while (g->at < g->end) {
        char c = *g->at;
        if (c == '#')
            while (g->at < g->end && *g->at != '\n' && *g->at != '\r') g->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            g->at++;
        else
            return;
    }
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static kt_status read_hex(gbnf *g, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, g->at++) {
        int digit = g->at < g->end ? hex_digit(*g->at) : -1;
        if (digit < 0) return refuse_found(g, "a hexadecimal digit of the escape");
        *out = *out * 16 + (uint32_t)digit;
    }
    if (*out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000))
        return refuse(g, g->at - digits, "the escape is no Unicode character");
    return KT_OK;
}

static kt_status read_escape(gbnf *g, uint32_t *out) {
    static const char names[] = "trn\\\"[]-^", values[] = "\t\r\n\\\"[]-^";
    const char *found;

    if (++g->at == g->end) return refuse_found(g, "an escaped character");
    found = *g->at ? strchr(names, *g->at) : NULL;
    if (found) {
        g->at++;
        *out = (unsigned char)values[found - names];
        return KT_OK;
    }
    switch (*g->at++) {
    case 'x': return read_hex(g, 2, out);
    case 'u': return read_hex(g, 4, out);
    case 'U': return read_hex(g, 8, out);
    default:
        return refuse(g, g->at - 2,
                      "unknown escape; there are \\x \\u \\U \\t \\r \\n \\\\ "
                      "\\\" \\[ \\] \\- \\^");
    }
}

/* One character of a literal or a class. */
static kt_status read_char(gbnf *g, uint32_t *out) {
    const unsigned char *p = (const unsigned char *)g->at;
    int n;

    if (*g->at == '\\') return read_escape(g, out);
    n = kt_utf8_length(p, (const unsigned char *)g->end);
    if (n == 0) return refuse_found(g, "UTF-8");
    *out = n == 1 ? p[0] : p[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) *out = *out << 6 | (p[i] & 0x3fu);
    g->at += n;
    return KT_OK;
}

static kt_status read_literal(gbnf *g, kt_expr *out) {
    const char *opening = g->at++;
    size_t room = 0, n = 0;
    char *text = NULL;
    kt_status st = KT_OK;

    while (st == KT_OK && g->at < g->end && *g->at != '"') {
        uint32_t c = 0;
        if (n + 4 > room) {
            char *larger = realloc(text, room = room * 2 + 64);
            if (!larger) {
                st = kt_fail(g->err, KT_E_NOMEM, "grammar: no memory for a literal");
                break;
            }
            text = larger;
        }
        st = read_char(g, &c);
        if (st == KT_OK) n += (size_t)kt_utf8_put(text + n, c);
    }
    if (st == KT_OK && g->at == g->end) st = refuse(g, opening, "the literal does not end");
    if (st == KT_OK) {
        g->at++;
        *out = kt_rules_text(g->rules, text, n);
    }
    free(text);
    return st;
}

static kt_status read_class(gbnf *g, kt_expr *out) {
    const char *opening = g->at++;
    kt_char_set set = {.n = 0};
    bool negated = g->at < g->end && *g->at == '^';

    g->at += negated;
    while (g->at < g->end && *g->at != ']') {
        uint32_t first = 0, last;
        const char *from = g->at;
        KT_TRY(read_char(g, &first));
        last = first;
        if (g->end - g->at >= 2 && g->at[0] == '-' && g->at[1] != ']') {
            g->at++;
            KT_TRY(read_char(g, &last));
        }
        if (last < first) return refuse(g, from, "the range ends before it begins");
        kt_char_set_add(&set, first, last);
    }
    if (g->at == g->end) return refuse(g, opening, "the character class does not end");
    g->at++;
    kt_char_set_sort(&set);
    if (negated) kt_char_set_negate(&set);
    if (set.overflow) return refuse(g, opening, "the character class has too many ranges");
    if (set.n == 0) return refuse(g, opening, "the character class is empty");
    *out = kt_rules_chars(g->rules, &set);
    return KT_OK;
}

/* <[ID]> or <TEXT>: a special token. */
static kt_status read_token(gbnf *g, kt_expr *out) {
    const char *opening = g->at++, *close;
    size_t size;
    int32_t id = 0;

    close = memchr(g->at, '>', (size_t)(g->end - g->at));
    if (!close || memchr(g->at, '\n', (size_t)(close - g->at)))
        return refuse(g, opening, "the token does not end, expected '>'");
    if (!g->vocabulary) return refuse(g, opening, "tokens need a vocabulary, and there is none");
    size = (size_t)(close - g->at);
    if (size >= 3 && g->at[0] == '[' && close[-1] == ']') {
        for (const char *p = g->at + 1; p < close - 1; p++) {
            if (*p < '0' || *p > '9' || id >= 1 << 24)
                return refuse(g, opening, "the token's id is no number of the vocabulary");
            id = id * 10 + (*p - '0');
        }
    } else {
        id = kt_vocabulary_find_special(g->vocabulary, opening, size + 2);
        if (id < 0)
            return refuse_name(g, opening, "token", opening, size + 2,
                               "is no special token of the vocabulary");
    }
    if (id >= g->vocabulary->n_tokens || !(g->vocabulary->special[id / 64] >> id % 64 & 1))
        return refuse_name(g, opening, "token", opening, size + 2,
                           "is no special token of the vocabulary; write its text as a literal");
    g->at = close + 1;
    *out = kt_rules_token(g->rules, id);
    return KT_OK;
}

/* ---- expressions ---- */

static kt_status read_choice(gbnf *g, kt_expr *out);

static kt_status read_group(gbnf *g, kt_expr *out) {
    const char *opening = g->at++;

    if (++g->depth > MOST_NESTED) return refuse(g, opening, "groups are nested over 200 deep");
    KT_TRY(read_choice(g, out));
    if (g->at == g->end || *g->at != ')') return refuse_found(g, "')' or more of the group");
    g->at++;
    g->depth--;
    return KT_OK;
}

static kt_status read_call(gbnf *g, kt_expr *out) {
    const char *name = g->at;
    int32_t rule;

    while (g->at < g->end && is_word(*g->at)) g->at++;
    KT_TRY(find_rule(g, name, (size_t)(g->at - name), &rule));
    *out = kt_rules_call(g->rules, rule);
    return KT_OK;
}

static kt_status read_number(gbnf *g, int32_t *out) {
    const char *from = g->at;

    *out = 0;
    for (; g->at < g->end && *g->at >= '0' && *g->at <= '9'; g->at++) {
        *out = *out * 10 + (*g->at - '0');
        if (*out > MOST_REPEAT) return refuse(g, from, "repeated over 100000 times");
    }
    return KT_OK;
}

static bool is_digit(const gbnf *g) {
    return g->at < g->end && *g->at >= '0' && *g->at <= '9';
}

/* {m}, {m,}, {m,n} or {,n}; the brace is at g->at. */
static kt_status read_counts(gbnf *g, int32_t *min, int32_t *max) {
    const char *opening = g->at++;

    skip_space(g, g->depth > 0);
    *min = 0;
    if (!is_digit(g) && (g->at == g->end || *g->at != ',')) return refuse_found(g, "a number");
    KT_TRY(read_number(g, min));
    *max = *min;
    skip_space(g, g->depth > 0);
    if (g->at < g->end && *g->at == ',') {
        g->at++;
        skip_space(g, g->depth > 0);
        *max = -1;
        if (is_digit(g)) KT_TRY(read_number(g, max));
        skip_space(g, g->depth > 0);
    }
    if (g->at == g->end || *g->at != '}') return refuse_found(g, "'}' after the counts");
    g->at++;
    if (*max >= 0 && *max < *min) return refuse(g, opening, "the most is less than the least");
    return KT_OK;
}

static kt_status read_repeats(gbnf *g, kt_expr *e) {
    for (;;) {
        int32_t min = 0, max = -1;
        char c = g->at < g->end ? *g->at : 0;
        if (c != '*' && c != '+' && c != '?' && c != '{') return KT_OK;
        if (c == '{') {
            KT_TRY(read_counts(g, &min, &max));
        } else {
            g->at++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        }
        *e = kt_rules_repeat(g->rules, *e, min, max);
        skip_space(g, g->depth > 0);
    }
}

/* One item with its repetitions; *more is false where the sequence ends. */
static kt_status read_item(gbnf *g, kt_expr *out, bool *more) {
    static const kt_char_set any = {.range = {{0, 0xd7ff}, {0xe000, 0x10ffff}}, .n = 2};
    kt_status st = KT_OK;
    char c;

    skip_space(g, g->depth > 0);
    c = g->at < g->end ? *g->at : 0;
    *more = true;
    if (c == '"') {
        st = read_literal(g, out);
    } else if (c == '[') {
        st = read_class(g, out);
    } else if (c == '(') {
        st = read_group(g, out);
    } else if (c == '<') {
        st = read_token(g, out);
    } else if (c == '!') {
        st = refuse(g, g->at, "'!<token>' (any token but one) is not supported");
    } else if (c == '.') {
        g->at++;
        *out = kt_rules_chars(g->rules, &any);
    } else if (is_word(c)) {
        st = read_call(g, out);
    } else {
        *more = false;
    }
    if (st != KT_OK || !*more) return st;
    skip_space(g, g->depth > 0);
    return read_repeats(g, out);
}

static kt_status read_sequence(gbnf *g, kt_expr *out) {
    kt_expr_list items = {NULL, 0, 0};
    kt_status st;
    bool more = true;

    do {
        kt_expr item = 0;
        st = read_item(g, &item, &more);
        if (st == KT_OK && more) kt_expr_list_add(g->rules, &items, item);
    } while (st == KT_OK && more);
    if (st == KT_OK) *out = kt_rules_sequence(g->rules, items.item, items.n);
    free(items.item);
    return st;
}

/* Sequences with '|' between them; a '|' may also begin the next line. */
static kt_status read_choice(gbnf *g, kt_expr *out) {
    kt_expr_list items = {NULL, 0, 0};
    kt_status st;

    for (;;) {
        kt_expr item = 0;
        const char *line;
        st = read_sequence(g, &item);
        if (st != KT_OK) break;
        kt_expr_list_add(g->rules, &items, item);
        line = g->at;
        skip_space(g, true);
        if (g->at == g->end || *g->at != '|') {
            g->at = line;
            break;
        }
        g->at++;
        skip_space(g, true);
    }
    if (st == KT_OK) *out = kt_rules_choice(g->rules, items.item, items.n);
    free(items.item);
    return st;
}

/* ---- rules ---- */

static kt_status read_rule(gbnf *g) {
    const char *name = g->at;
    size_t size;
    int32_t rule;
    kt_expr body = 0;

    while (g->at < g->end && is_word(*g->at)) g->at++;
    size = (size_t)(g->at - name);
    if (size == 0) return refuse_found(g, "the name of a rule");
    skip_space(g, false);
    if (g->end - g->at < 3 || memcmp(g->at, "::=", 3) != 0)
        return refuse_found(g, "'::=' after the name of a rule");
    g->at += 3;
    KT_TRY(find_rule(g, name, size, &rule));
    if (g->named[rule].is_symbol)
        return refuse_name(g, name, "rule", name, size,
                           "is given from outside and cannot be defined");
    if (g->rules->rule[rule].is_defined)
        return refuse_name(g, name, "rule", name, size, "is defined a second time");
    skip_space(g, true);
    KT_TRY(read_choice(g, &body));
    if (g->at < g->end && *g->at != '\n' && *g->at != '\r')
        return refuse_found(g, "more of the rule or the end of the line");
    kt_rules_define(g->rules, rule, body);
    return KT_OK;
}

static kt_status read_text(gbnf *g) {
    for (skip_space(g, true); g->at < g->end; skip_space(g, true)) KT_TRY(read_rule(g));
    if (g->rules->failed == KT_OK && !g->rules->rule[0].is_defined)
        return kt_fail(g->err, KT_E_INVALID, "grammar: there is no rule 'root'");
    for (size_t i = 0; i < g->named_room && g->rules->failed == KT_OK; i++)
        if (g->named[i].name && !g->rules->rule[i].is_defined)
            return refuse_name(g, g->named[i].met, "rule", g->named[i].name, g->named[i].size,
                               "is not defined");
    return KT_OK;
}

static kt_status add_symbols(gbnf *g, const kt_grammar_symbol *symbols, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t size = strlen(symbols[i].name);
        int32_t rule;
        KT_TRY(find_rule(g, symbols[i].name, size, &rule));
        if (rule == 0 || g->named[rule].is_symbol)
            return kt_fail(g->err, KT_E_INVALID,
                           "grammar: symbol '%.80s' is given twice, or 'root'", symbols[i].name);
        g->named[rule].is_symbol = true;
        KT_TRY(kt_schema_rules(g->rules, rule, symbols[i].schema, g->err));
    }
    return KT_OK;
}

kt_status kt_grammar_from_gbnf(const kt_vocabulary *vocabulary, const char *text, size_t size,
                               const kt_grammar_symbol *symbols, size_t n_symbols, kt_grammar **out,
                               kt_err *err) {
    kt_rules rules = {.failed = KT_OK};
    gbnf g = {.begin = text,
              .at = text,
              .end = text + size,
              .vocabulary = vocabulary,
              .rules = &rules,
              .err = err};
    int32_t root;
    kt_status st;

    *out = NULL;
    if (size > MOST_TEXT)
        return kt_fail(err, KT_E_UNSUPPORTED, "grammar: %zu bytes, at most %d", size,
                       (int)MOST_TEXT);
    st = find_rule(&g, "root", 4, &root);
    if (st == KT_OK) st = add_symbols(&g, symbols, n_symbols);
    if (st == KT_OK) st = read_text(&g);
    if (st == KT_OK) st = kt_grammar_from_rules(vocabulary, &rules, out, err);
    free(g.named);
    free(g.table);
    kt_rules_deinit(&rules);
    return st;
}
