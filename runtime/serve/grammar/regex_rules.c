/* Regular expressions of JSON Schema's `pattern` and of its formats.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "runtime/serve/grammar/json_rules.h"

enum { MOST_NESTED = 100, MOST_REPEAT = 10000 };

typedef struct regex {
    kt_json_rules *json;
    const char *begin, *at, *end;
    int depth;
    kt_err *err;
} regex;

static kt_status refuse(const regex *x, const char *at, const char *what) {
    return kt_fail(x->err, KT_E_UNSUPPORTED, "pattern, character %zu: %s",
                   (size_t)(at - x->begin) + 1, what);
}

/* ---- characters ---- */

static void add_digits(kt_char_set *s) {
    kt_char_set_add(s, '0', '9');
}

static void add_words(kt_char_set *s) {
    add_digits(s);
    kt_char_set_add(s, 'A', 'Z');
    kt_char_set_add(s, '_', '_');
    kt_char_set_add(s, 'a', 'z');
}

static void add_spaces(kt_char_set *s) {
    static const kt_char_range spaces[] = {
        {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        kt_char_set_add(s, spaces[i].first, spaces[i].last);
}

/* \d \D \w \W \s \S added to the set; false for other letters. */
static bool add_named(kt_char_set *s, char name) {
    kt_char_set set = {.n = 0};
    char small = name | 0x20;

    if (small == 'd')
        add_digits(&set);
    else if (small == 'w')
        add_words(&set);
    else if (small == 's')
        add_spaces(&set);
    else
        return false;
    kt_char_set_sort(&set);
    if (name != small) kt_char_set_negate(&set);
    for (int i = 0; i < set.n; i++) kt_char_set_add(s, set.range[i].first, set.range[i].last);
    return true;
}

static bool read_hex(regex *x, int digits, uint32_t *out) {
    char text[9] = {0};

    if (x->end - x->at < digits) return false;
    memcpy(text, x->at, (size_t)digits);
    if (strspn(text, "0123456789abcdefABCDEF") != (size_t)digits) return false;
    *out = (uint32_t)strtoul(text, NULL, 16);
    x->at += digits;
    return true;
}

/* \uXXXX, two of them for a pair of surrogates, or \u{...}; x->at is behind the 'u'. */
static kt_status read_unicode(regex *x, uint32_t *out) {
    const char *from = x->at - 2, *close;
    uint32_t low;
    bool ok;

    if (x->at < x->end && *x->at == '{') {
        x->at++;
        close = memchr(x->at, '}', (size_t)(x->end - x->at));
        ok = close && close > x->at && close - x->at <= 6 && read_hex(x, (int)(close - x->at), out);
        x->at += ok;
    } else {
        ok = read_hex(x, 4, out);
        if (ok && *out >= 0xd800 && *out < 0xdc00 && x->end - x->at >= 6 && x->at[0] == '\\' &&
            x->at[1] == 'u') {
            x->at += 2;
            ok = read_hex(x, 4, &low) && low >= 0xdc00 && low < 0xe000;
            if (ok) *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (!ok || *out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000))
        return refuse(x, from, "\\u does not name a character");
    return KT_OK;
}

/* A character, escaped or not; x->at is at it, and not at the end. */
static kt_status read_char(regex *x, uint32_t *out) {
    static const char names[] = "tnvfr", values[] = "\t\n\v\f\r";
    const unsigned char *p = (const unsigned char *)x->at;
    const char *from = x->at, *found;
    int n;

    if (*x->at != '\\') {
        n = kt_utf8_length(p, (const unsigned char *)x->end);
        if (n == 0) return refuse(x, from, "it is not UTF-8");
        *out = n == 1 ? p[0] : p[0] & (0xffu >> (n + 1));
        for (int i = 1; i < n; i++) *out = *out << 6 | (p[i] & 0x3fu);
        x->at += n;
        return KT_OK;
    }
    if (++x->at == x->end) return refuse(x, from, "nothing follows '\\'");
    found = *x->at ? strchr(names, *x->at) : NULL;
    *out = (unsigned char)*x->at++;
    if (found) {
        *out = (unsigned char)values[found - names];
        return KT_OK;
    }
    if (*out == 'u') return read_unicode(x, out);
    if (*out == 'x') return read_hex(x, 2, out) ? KT_OK : refuse(x, from, "\\x needs two digits");
    if (*out == '0' && (x->at == x->end || *x->at < '0' || *x->at > '9')) {
        *out = 0;
        return KT_OK;
    }
    if (*out >= 0x80 || (*out >= '0' && *out <= '9') || (*out >= 'A' && *out <= 'Z') ||
        (*out >= 'a' && *out <= 'z'))
        return refuse(x, from, "this escape is not supported");
    return KT_OK;
}

static kt_status read_class(regex *x, kt_expr *out) {
    const char *opening = x->at++;
    kt_char_set set = {.n = 0};
    bool negated = x->at < x->end && *x->at == '^';

    x->at += negated;
    while (x->at < x->end && *x->at != ']') {
        const char *from = x->at;
        uint32_t first = 0, last;
        if (x->end - x->at >= 2 && *x->at == '\\' && add_named(&set, x->at[1])) {
            x->at += 2;
            continue;
        }
        if (x->end - x->at >= 2 && memcmp(x->at, "\\b", 2) == 0)
            return refuse(x, from, "\\b is not supported");
        KT_TRY(read_char(x, &first));
        last = first;
        if (x->end - x->at >= 2 && *x->at == '-' && x->at[1] != ']') {
            x->at++;
            if (x->end - x->at >= 2 && *x->at == '\\' && strchr("dDwWsS", x->at[1]))
                return refuse(x, from, "a range ends in a class");
            KT_TRY(read_char(x, &last));
        }
        if (last < first) return refuse(x, from, "the range ends before it begins");
        kt_char_set_add(&set, first, last);
    }
    if (x->at == x->end) return refuse(x, opening, "the class does not end");
    x->at++;
    kt_char_set_sort(&set);
    if (negated) kt_char_set_negate(&set);
    if (set.overflow) return refuse(x, opening, "the class has too many ranges");
    *out = kt_json_char_of(x->json, &set);
    return KT_OK;
}

static kt_expr any_but_lines(regex *x) {
    kt_char_set set = {.range = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}, .n = 3};
    kt_char_set_negate(&set);
    return kt_json_char_of(x->json, &set);
}

/* ---- expressions ---- */

static kt_status read_choice(regex *x, kt_expr *out);

static kt_status read_group(regex *x, kt_expr *out) {
    const char *opening = x->at++;

    if (++x->depth > MOST_NESTED) return refuse(x, opening, "groups are nested too deep");
    if (x->end - x->at >= 2 && *x->at == '?') {
        if (x->at[1] == ':') {
            x->at += 2;
        } else {
            const char *close = memchr(x->at, '>', (size_t)(x->end - x->at));
            bool named = x->at[1] == '<' && close && x->at[2] != '=' && x->at[2] != '!';
            if (!named) return refuse(x, opening, "look-around is not supported");
            x->at = close + 1;
        }
    }
    KT_TRY(read_choice(x, out));
    if (x->at == x->end) return refuse(x, opening, "the group does not end");
    x->at++;
    x->depth--;
    return KT_OK;
}

static bool read_number(regex *x, int32_t *out) {
    const char *from = x->at;

    for (*out = 0; x->at < x->end && *x->at >= '0' && *x->at <= '9' && *out <= MOST_REPEAT; x->at++)
        *out = *out * 10 + (*x->at - '0');
    return x->at > from;
}

/* {m}, {m,} or {m,n} at x->at; false when it is not such, and then a brace is a character. */
static bool read_counts(regex *x, int32_t *min, int32_t *max) {
    const char *from = x->at++;
    bool ok = read_number(x, min);

    *max = *min;
    if (ok && x->at < x->end && *x->at == ',') {
        x->at++;
        *max = -1;
        if (x->at < x->end && *x->at != '}') ok = read_number(x, max);
    }
    ok = ok && x->at < x->end && *x->at == '}';
    x->at = ok ? x->at + 1 : from;
    return ok;
}

static kt_status read_repeats(regex *x, kt_expr *e) {
    const char *from = x->at;
    int32_t min = 0, max = -1;
    char c = x->at < x->end ? *x->at : 0;

    if (c == '{') {
        if (!read_counts(x, &min, &max)) return refuse(x, from, "'{' without counts");
    } else if (c == '*' || c == '+' || c == '?') {
        min = c == '+';
        max = c == '?' ? 1 : -1;
        x->at++;
    } else {
        return KT_OK;
    }
    if (min > MOST_REPEAT || max > MOST_REPEAT) return refuse(x, from, "over 10000 repetitions");
    if (max >= 0 && max < min) return refuse(x, from, "the most is less than the least");
    if (x->at < x->end && *x->at == '?') x->at++; /* lazy: the same texts */
    if (x->at < x->end && strchr("*+?", *x->at)) return refuse(x, x->at, "nothing to repeat");
    *e = kt_rules_repeat(x->json->rules, *e, min, max);
    return KT_OK;
}

static kt_status read_item(regex *x, kt_expr *out) {
    kt_char_set set = {.n = 0};
    uint32_t c = 0;

    switch (*x->at) {
    case '(': return read_group(x, out);
    case '[': return read_class(x, out);
    case '.':
        x->at++;
        *out = any_but_lines(x);
        return KT_OK;
    case '^':
    case '$': return refuse(x, x->at, "an anchor inside of the pattern is not supported");
    case '*':
    case '+':
    case '?':
    case '{': return refuse(x, x->at, "nothing to repeat");
    }
    if (x->end - x->at >= 2 && *x->at == '\\' && add_named(&set, x->at[1])) {
        x->at += 2;
        kt_char_set_sort(&set);
    } else {
        KT_TRY(read_char(x, &c));
        kt_char_set_add(&set, c, c);
    }
    *out = kt_json_char_of(x->json, &set);
    return KT_OK;
}

/* A sequence. At the outermost level it may be anchored; where it is not, anything may stand. */
static kt_status read_sequence(regex *x, kt_expr *out) {
    kt_rules *r = x->json->rules;
    kt_expr_list items = {NULL, 0, 0};
    kt_status st = KT_OK;
    bool outside = x->depth == 0, ends = false;
    kt_expr any = outside ? kt_rules_repeat(r, kt_json_char(x->json), 0, -1) : 0;

    if (outside && x->at < x->end && *x->at == '^')
        x->at++;
    else if (outside)
        kt_expr_list_add(r, &items, any);
    while (st == KT_OK && x->at < x->end && *x->at != '|' && *x->at != ')') {
        kt_expr item = 0;
        ends = outside && *x->at == '$' && (x->at + 1 == x->end || x->at[1] == '|');
        if (ends) {
            x->at++;
            break;
        }
        st = read_item(x, &item);
        if (st == KT_OK) st = read_repeats(x, &item);
        kt_expr_list_add(r, &items, item);
    }
    if (st == KT_OK && outside && x->at < x->end && *x->at == ')')
        st = refuse(x, x->at, "')' without its '('");
    if (outside && !ends) kt_expr_list_add(r, &items, any);
    if (st == KT_OK) *out = kt_rules_sequence(r, items.item, items.n);
    free(items.item);
    return st;
}

static kt_status read_choice(regex *x, kt_expr *out) {
    kt_expr_list items = {NULL, 0, 0};
    kt_status st;

    for (;;) {
        kt_expr item = 0;
        st = read_sequence(x, &item);
        if (st != KT_OK) break;
        kt_expr_list_add(x->json->rules, &items, item);
        if (x->at == x->end || *x->at != '|') break;
        x->at++;
    }
    if (st == KT_OK) *out = kt_rules_choice(x->json->rules, items.item, items.n);
    free(items.item);
    return st;
}

kt_status kt_json_pattern(kt_json_rules *j, const char *pattern, size_t size, kt_expr *out,
                          kt_err *err) {
    regex x = {.json = j, .begin = pattern, .at = pattern, .end = pattern + size, .err = err};
    return read_choice(&x, out);
}

/* ---- formats ---- */

#define MONTH_DAY                                                               \
    "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|" \
    "02-(0[1-9]|1\\d|2[0-8]))"
#define LEAP_DAY "((\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define DATE "(\\d{4}-" MONTH_DAY "|" LEAP_DAY ")"
#define TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H16 "[0-9A-Fa-f]{1,4}"
#define DAYS "\\d{1,9}D"
#define HOURS "T(\\d{1,9}H(\\d{1,9}M)?(\\d{1,9}S)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S)"

/* RFC 3339 without leap seconds; four-digit years; calendars are right to the day. */
static const struct {
    const char *format, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(\\d{1,9}W|(\\d{1,9}Y(\\d{1,9}M(" DAYS ")?)?|\\d{1,9}M(" DAYS ")?|" DAYS
                 ")(" HOURS ")?|" HOURS ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16
             "){1,2}|(" H16 ":){1,4}(:" H16 "){1,3}|(" H16 ":){1,3}(:" H16 "){1,4}|(" H16
             ":){1,2}(:" H16 "){1,5}|" H16 ":(:" H16 "){1,6}|:(:" H16 "){1,7}|::)$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,31}){0,2}@" LABEL "(\\." LABEL "){1,2}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]+$"},
};

const char *kt_json_format_pattern(const char *format) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0) return formats[i].pattern;
    return NULL;
}
