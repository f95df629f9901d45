/* Calls whose parameters are marked one by one: strings are streamed as they come, other values are
 * collected and written as what their schema says. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/parser_impl.h"

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Text inside a call: it comes out when the call is over, or ends it when there is too much. */
void kt_parser_put_aside(kt_parser *p, const char *bytes, size_t size) {
    if (kt_parser_keep(p, &p->aside, bytes, size, KT_PARSER_ASIDE) || p->no_memory) return;
    kt_parser_spoil(p);
    kt_parser_prose(p, bytes, size);
}

/* The raw start of a parameter turned out to be none. */
static void set_aside(kt_parser *p) {
    p->state = KT_AT_PARAMS;
    kt_parser_put_aside(p, p->value.at, p->value.size);
    p->value.size = 0;
}

void kt_parser_put_escaped(kt_parser *p, const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t plain = i;
        char out[8];
        while (plain < n && (unsigned char)bytes[plain] >= 0x20 && bytes[plain] != '"' &&
               bytes[plain] != '\\')
            plain++;
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, bytes + i, plain - i);
        i = plain;
        if (i == n) return;
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, out,
                       kt_json_escape((unsigned char)bytes[i++], out));
    }
}

size_t kt_parser_run_params(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (!p->begun) {
        if (is_space(*bytes) && kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD)) return 1;
        kt_parser_spoil(p);
        return 0;
    }
    if (p->aside.size || !is_space(*bytes)) kt_parser_put_aside(p, bytes, 1);
    return 1;
}

void kt_parser_param_begin(kt_parser *p) {
    p->value.size = 0;
    kt_parser_keep(p, &p->value, p->mark[KT_MARK_PARAM_BEGIN].text,
                   p->mark[KT_MARK_PARAM_BEGIN].size, KT_PARSER_HELD);
    p->n_key = 0;
    p->types = 0;
    p->state = KT_AT_KEY;
}

size_t kt_parser_run_key(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (*bytes == '\n' || *bytes == '<' || p->n_key == KT_CALL_NAME_BYTES) {
        set_aside(p);
        return 0;
    }
    p->key[p->n_key++] = *bytes;
    kt_parser_keep(p, &p->value, bytes, 1, KT_PARSER_HELD);
    return 1;
}

/* KEY" string="true: what follows the key's quote types the value. */
static kt_value_types read_attribute(const char *text, size_t n) {
    static const char word[] = "string=";

    while (n && is_space(*text)) text++, n--;
    if (n < sizeof word || memcmp(text, word, sizeof word - 1) != 0) return 0;
    text += sizeof word - 1;
    n -= sizeof word - 1;
    if (*text == '"' || *text == '\'') text++, n--;
    if (n >= 4 && memcmp(text, "true", 4) == 0) return 1u << KT_JSON_STRING;
    if (n >= 5 && memcmp(text, "false", 5) == 0) return ~(1u << KT_JSON_STRING);
    return 0;
}

/* Take white space and quotes from the key; what the schema or the attribute says about its value.
 * */
static void read_key(kt_parser *p) {
    char *key = p->key, *close;
    size_t n = p->n_key;

    while (n && is_space(key[n - 1])) n--;
    while (n && is_space(*key)) key++, n--;
    if (p->calls->quoted && n >= 2 && (*key == '"' || *key == '\'')) {
        close = memchr(key + 1, *key, n - 1);
        if (close) {
            if (p->calls->string_attribute)
                p->types = read_attribute(close + 1, (size_t)(key + n - close - 1));
            key++;
            n = (size_t)(close - key);
        }
    }
    memmove(p->key, key, n);
    p->n_key = n;
}

void kt_parser_key_end(kt_parser *p) {
    kt_parser_keep(p, &p->value, p->mark[KT_MARK_KEY_END].text, p->mark[KT_MARK_KEY_END].size,
                   KT_PARSER_HELD);
    read_key(p);
    if (p->n_key == 0)
        set_aside(p);
    else if (p->mark[KT_MARK_VALUE_BEGIN].size)
        p->state = KT_AT_BETWEEN;
    else
        kt_parser_value_begin(p);
}

size_t kt_parser_run_between(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (is_space(*bytes) && kt_parser_keep(p, &p->value, bytes, 1, KT_PARSER_HELD)) return 1;
    set_aside(p);
    return 0;
}

/* FNV-1a: two keys of one call that share 64 bits do not happen by chance. */
static bool is_new_key(kt_parser *p) {
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < p->n_key; i++) h = (h ^ (unsigned char)p->key[i]) * 0x100000001b3u;
    for (int i = 0; i < p->n_keys; i++)
        if (p->keys[i] == h) return false;
    if (p->n_keys == KT_CALL_PARAMS) return false;
    p->keys[p->n_keys++] = h;
    return true;
}

void kt_parser_value_begin(kt_parser *p) {
    const kt_json *schema = kt_json_get_n(p->properties, p->key, p->n_key);

    p->state = KT_AT_VALUE;
    p->value_began = false;
    p->newline_held = false;
    if (!is_new_key(p)) { /* a JSON object has each key once */
        const kt_mark m = KT_MARK_VALUE_BEGIN;
        kt_parser_keep(p, &p->value, p->mark[m].text, p->mark[m].size, KT_PARSER_HELD);
        p->value_kind = KT_VALUE_ASIDE;
        kt_parser_put_aside(p, p->value.at, p->value.size);
        p->value.size = 0;
        return;
    }
    p->value.size = 0;
    kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, p->n_keys == 1 ? "{\"" : ", \"",
                   p->n_keys == 1 ? 2 : 3);
    kt_parser_put_escaped(p, p->key, p->n_key);
    kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, "\": ", 3);
    if (!p->types) p->types = kt_schema_types(schema);
    p->value_kind = KT_VALUE_TYPED;
    if (p->types == 1u << KT_JSON_STRING ||
        (!p->types && !p->calls->unknown_is_json && !p->calls->string_attribute)) {
        p->value_kind = KT_VALUE_STRING;
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, "\"", 1);
    }
}

static void string_bytes(kt_parser *p, const char *bytes, size_t n) {
    const bool trims = p->calls->trims_newline;

    if (!p->value_began && trims && *bytes == '\n') bytes++, n--;
    p->value_began = true;
    if (n == 0) return;
    if (p->newline_held) kt_parser_put_escaped(p, "\n", 1);
    p->newline_held = trims && bytes[n - 1] == '\n';
    kt_parser_put_escaped(p, bytes, n - p->newline_held);
}

size_t kt_parser_run_value(kt_parser *p, const char *bytes, size_t n) {
    switch (p->value_kind) {
    case KT_VALUE_STRING: string_bytes(p, bytes, n); break;
    case KT_VALUE_ASIDE: /* the state may change: a byte at a time */
        kt_parser_put_aside(p, bytes, 1);
        return 1;
    case KT_VALUE_TYPED:
        if (n > KT_PARSER_OUT) n = KT_PARSER_OUT;
        for (size_t i = 0; i < n; i++) {
            if (kt_parser_keep(p, &p->value, bytes + i, 1, KT_PARSER_HELD)) continue;
            /* too long for anything but a string */
            kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, "\"", 1);
            p->value_kind = KT_VALUE_STRING;
            string_bytes(p, p->value.at, p->value.size);
            p->value.size = 0;
            return i;
        }
    }
    return n;
}

void kt_parser_value_end(kt_parser *p) {
    const kt_mark end = KT_MARK_VALUE_END;
    const bool any_json = p->calls->unknown_is_json || p->calls->string_attribute;
    const char *raw = p->value.at;
    size_t n = p->value.size, size;
    char *text;

    p->state = KT_AT_PARAMS;
    if (p->calls->trims_newline && n && raw[0] == '\n') raw++, n--;
    if (p->calls->trims_newline && n && raw[n - 1] == '\n') n--;
    switch (p->value_kind) {
    case KT_VALUE_STRING: kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, "\"", 1); break;
    case KT_VALUE_ASIDE: kt_parser_put_aside(p, p->mark[end].text, p->mark[end].size); break;
    case KT_VALUE_TYPED:
        text = kt_value_to_json(raw, n, p->types, any_json, &size);
        if (text)
            kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, text, size);
        else
            p->no_memory = true;
        free(text);
    }
    p->value.size = 0;
}

void kt_parser_params_end(kt_parser *p) {
    if (p->state == KT_AT_VALUE && p->value_kind != KT_VALUE_ASIDE) kt_parser_value_end(p);
    kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, p->n_keys ? "}" : "{}", p->n_keys ? 1 : 2);
}
