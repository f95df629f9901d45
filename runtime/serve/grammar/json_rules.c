/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/json_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kt_expr range(kt_rules *r, uint32_t first, uint32_t last) {
    kt_char_set set = {.range = {{first, last}}, .n = 1};
    return kt_rules_chars(r, &set);
}

static kt_expr hex(kt_rules *r, const char *digits) { /* of these hexadecimal digits */
    kt_char_set set = {.n = 0};

    for (; *digits; digits++) {
        uint32_t c = (unsigned char)*digits;
        kt_char_set_add(&set, c, c);
        if (c >= 'a') kt_char_set_add(&set, c - 32, c - 32);
    }
    kt_char_set_sort(&set);
    return kt_rules_chars(r, &set);
}

static kt_expr join(kt_rules *r, kt_expr a, kt_expr b, kt_expr c) {
    return kt_rules_pair(r, kt_rules_pair(r, a, b), c);
}

/* \uXXXX: no surrogates but pairs of a high and a low one. */
static kt_expr unicode_escape(kt_rules *r) {
    kt_expr any = hex(r, "0123456789abcdef");
    kt_expr two = kt_rules_pair(r, any, any), three = kt_rules_pair(r, two, any);
    kt_expr usual = kt_rules_pair(r, hex(r, "0123456789abcef"), three);
    kt_expr low_d = join(r, hex(r, "d"), hex(r, "01234567"), two);
    kt_expr high = join(r, hex(r, "d"), hex(r, "89ab"), two);
    kt_expr low = join(r, hex(r, "d"), hex(r, "cdef"), two);
    kt_expr pair = join(r, high, kt_rules_literal(r, "\\u"), low);
    kt_expr all[3] = {usual, low_d, pair};

    return kt_rules_pair(r, kt_rules_literal(r, "u"), kt_rules_choice(r, all, 3));
}

static kt_expr plain_char(kt_rules *r) {
    kt_char_set set = {.range = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, .n = 3};
    kt_char_set_negate(&set);
    return kt_rules_chars(r, &set);
}

kt_expr kt_json_char(kt_json_rules *j) {
    kt_rules *r = j->rules;
    kt_char_set names = {.n = 0};
    kt_expr escaped;

    for (const char *p = "\"\\/bfnrt"; *p; p++)
        kt_char_set_add(&names, (unsigned char)*p, (unsigned char)*p);
    kt_char_set_sort(&names);
    escaped = kt_rules_either(r, kt_rules_chars(r, &names), unicode_escape(r));
    return kt_rules_either(r, plain_char(r), kt_rules_pair(r, kt_rules_literal(r, "\\"), escaped));
}

kt_expr kt_json_char_of(kt_json_rules *j, const kt_char_set *sorted) {
    static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    kt_rules *r = j->rules;
    kt_char_set plain = *sorted;
    kt_expr all[40];
    size_t n = 0;

    kt_char_set_remove(&plain, 0, 0x1f);
    kt_char_set_remove(&plain, '"', '"');
    kt_char_set_remove(&plain, '\\', '\\');
    if (plain.n) all[n++] = kt_rules_chars(r, &plain);
    for (uint32_t c = 0; c <= '\\'; c++) {
        const char *name = c ? strchr(names, (int)c) : NULL;
        char text[8];
        if ((c > 0x1f && c != '"' && c != '\\') || !kt_char_set_has(sorted, c)) continue;
        if (name)
            snprintf(text, sizeof text, "\\%c", letters[name - names]);
        else
            snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        all[n++] = kt_rules_literal(r, text);
    }
    return kt_rules_choice(r, all, n);
}

kt_expr kt_json_constant(kt_json_rules *j, const kt_json *value) {
    kt_json_writer w = {.text = NULL};
    const char *text;
    kt_expr e = 0;
    size_t size;

    kt_json_put_value(&w, value);
    text = kt_json_writer_text(&w, &size);
    if (text)
        e = kt_rules_text(j->rules, text, size);
    else
        j->rules->failed = KT_E_NOMEM;
    kt_json_writer_deinit(&w);
    return e;
}

static kt_expr space(kt_json_rules *j) {
    return kt_rules_call(j->rules, j->space);
}

kt_expr kt_json_comma(kt_json_rules *j, kt_expr item) {
    return join(j->rules, kt_rules_literal(j->rules, ","), space(j), item);
}

kt_expr kt_json_items(kt_json_rules *j, kt_expr item, int32_t min, int32_t max) {
    kt_rules *r = j->rules;
    kt_expr more = kt_rules_repeat(r, kt_json_comma(j, item), min - 1, max < 0 ? -1 : max - 1);
    return kt_rules_pair(r, item, more);
}

kt_expr kt_json_list(kt_json_rules *j, const char *open, kt_expr items, const char *close,
                     bool may_be_empty) {
    kt_rules *r = j->rules;
    kt_expr inside = kt_rules_pair(r, items, space(j));

    if (may_be_empty) inside = kt_rules_optional(r, inside);
    return kt_rules_pair(r, join(r, kt_rules_literal(r, open), space(j), inside),
                         kt_rules_literal(r, close));
}

kt_expr kt_json_pair(kt_json_rules *j, kt_expr key, kt_expr value) {
    kt_rules *r = j->rules;
    return kt_rules_pair(r, join(r, key, kt_rules_literal(r, ":"), space(j)), value);
}

/* ---- keys that are none of some names ---- */

static int by_text(const void *a, const void *b) {
    const kt_json_name *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* Bytes of the character at text[at]. */
static size_t char_size(const char *text, size_t at) {
    unsigned char c = (unsigned char)text[at];
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static uint32_t char_at(const char *text, size_t at) {
    size_t n = char_size(text, at);
    uint32_t c = (unsigned char)text[at];

    if (n > 1) c &= 0xffu >> (n + 1);
    for (size_t i = 1; i < n; i++) c = c << 6 | ((unsigned char)text[at + i] & 0x3fu);
    return c;
}

/* What may follow the first `at` bytes, which the n names share, up to the closing quote: a rule
 * for each such beginning, so that long names do not nest. */
static kt_expr other_rest(kt_json_rules *j, const kt_json_name *names, size_t n, size_t at,
                          kt_expr any, int depth) {
    kt_rules *r = j->rules;
    kt_char_set others = {.range = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, .n = 3};
    kt_expr_list all = {NULL, 0, 0};
    bool is_name = n > 0 && names[0].size == at;
    kt_expr e;

    if (depth > 200 && r->failed == KT_OK) r->failed = KT_E_UNSUPPORTED;
    if (r->failed != KT_OK) return 0;
    for (size_t i = is_name, end; i < n; i = end) {
        size_t size = char_size(names[i].text, at);
        uint32_t c = char_at(names[i].text, at);
        for (end = i + 1; end < n && names[end].size >= at + size &&
                          memcmp(names[end].text + at, names[i].text + at, size) == 0;)
            end++;
        kt_char_set_add(&others, c, c);
        if (c <= 0x1f || c == '"' || c == '\\') continue; /* such keys are not written at all */
        e = other_rest(j, names + i, end - i, at + size, any, depth + 1);
        kt_expr_list_add(r, &all, kt_rules_pair(r, kt_rules_text(r, names[i].text + at, size), e));
    }
    kt_char_set_sort(&others);
    kt_char_set_negate(&others);
    kt_expr_list_add(r, &all, kt_rules_pair(r, kt_rules_chars(r, &others), any));
    if (!is_name) kt_expr_list_add(r, &all, kt_rules_literal(r, "\""));
    e = kt_rules_choice(r, all.item, all.n);
    free(all.item);
    return e;
}

kt_expr kt_json_other_key(kt_json_rules *j, kt_json_name *names, size_t n) {
    kt_rules *r = j->rules;
    kt_expr any = kt_rules_repeat(r, plain_char(r), 0, -1), rest;
    int32_t tail = kt_rules_add(r, "key", 3);

    kt_rules_define(r, tail, kt_rules_pair(r, any, kt_rules_literal(r, "\"")));
    if (n > 1) qsort(names, n, sizeof *names, by_text);
    rest = other_rest(j, names, n, 0, kt_rules_call(r, tail), 0);
    return kt_rules_pair(r, kt_rules_literal(r, "\""), rest);
}

/* ---- shared rules ---- */

static kt_expr digits(kt_rules *r, int32_t min, int32_t max) {
    return kt_rules_repeat(r, range(r, '0', '9'), min, max);
}

static kt_expr whole_number(kt_rules *r, int32_t more_digits) {
    kt_expr large = kt_rules_pair(r, range(r, '1', '9'), digits(r, 0, more_digits));
    return kt_rules_pair(r, kt_rules_optional(r, kt_rules_literal(r, "-")),
                         kt_rules_either(r, kt_rules_literal(r, "0"), large));
}

static kt_expr any_number(kt_rules *r) {
    static const kt_char_set e = {.range = {{'E', 'E'}, {'e', 'e'}}, .n = 2};
    static const kt_char_set sign = {.range = {{'+', '+'}, {'-', '-'}}, .n = 2};
    kt_expr fraction = kt_rules_pair(r, kt_rules_literal(r, "."), digits(r, 1, 16));
    kt_expr exponent = join(r, kt_rules_chars(r, &e),
                            kt_rules_optional(r, kt_rules_chars(r, &sign)), digits(r, 1, 2));

    return join(r, whole_number(r, 15), kt_rules_optional(r, fraction),
                kt_rules_optional(r, exponent));
}

static kt_expr any_space(kt_rules *r) {
    static const kt_char_set indent = {.range = {{'\t', '\t'}, {' ', ' '}}, .n = 2};
    kt_expr line = kt_rules_pair(r, kt_rules_literal(r, "\n"),
                                 kt_rules_repeat(r, kt_rules_chars(r, &indent), 0, 20));
    return kt_rules_optional(r, kt_rules_either(r, kt_rules_literal(r, " "), line));
}

static int32_t add(kt_rules *r, const char *name) {
    return kt_rules_add(r, name, strlen(name));
}

void kt_json_rules_define(kt_json_rules *j, kt_rules *r) {
    kt_expr quote = kt_rules_literal(r, "\""), string, value, pair, kinds[6];

    *j = (kt_json_rules){r,
                         add(r, "space"),
                         add(r, "string"),
                         add(r, "number"),
                         add(r, "integer"),
                         add(r, "boolean"),
                         add(r, "value"),
                         add(r, "object"),
                         add(r, "array")};
    kt_rules_define(r, j->space, any_space(r));
    string = kt_rules_repeat(r, kt_json_char(j), 0, -1);
    kt_rules_define(r, j->string, join(r, quote, string, quote));
    kt_rules_define(r, j->number, any_number(r));
    kt_rules_define(r, j->integer, whole_number(r, 17));
    kt_rules_define(r, j->boolean,
                    kt_rules_either(r, kt_rules_literal(r, "true"), kt_rules_literal(r, "false")));
    kinds[0] = kt_rules_call(r, j->object);
    kinds[1] = kt_rules_call(r, j->array);
    kinds[2] = kt_rules_call(r, j->string);
    kinds[3] = kt_rules_call(r, j->number);
    kinds[4] = kt_rules_call(r, j->boolean);
    kinds[5] = kt_rules_literal(r, "null");
    value = kt_rules_call(r, j->value);
    pair = kt_json_pair(j, kinds[2], value);
    kt_rules_define(r, j->value, kt_rules_choice(r, kinds, 6));
    kt_rules_define(r, j->object, kt_json_list(j, "{", kt_json_items(j, pair, 1, -1), "}", true));
    kt_rules_define(r, j->array, kt_json_list(j, "[", kt_json_items(j, value, 1, -1), "]", true));
}
