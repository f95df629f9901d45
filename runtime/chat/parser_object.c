/* Calls that are one JSON object, {"name": ..., "arguments": {...}}, with its members in any order.
 * Arguments that come before the name are kept until it is known. Also arguments that are a string
 * of JSON, in either notation: models do that where their history showed it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/parser_impl.h"

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool key_is(const kt_parser *p, const char *word) {
    return strlen(word) == p->n_key && memcmp(p->key, word, p->n_key) == 0;
}

/* Arguments as they come: to the reader, or kept while the call has no name. */
static bool put_arguments(kt_parser *p, const char *text, size_t n) {
    if (!p->begun) return kt_parser_keep(p, &p->value, text, n, KT_PARSER_HELD);
    kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, text, n);
    return true;
}

static bool push_arguments(kt_parser *p, const char *text, size_t n, kt_json_step *last) {
    char out[KT_JSON_STREAM_OUT];
    size_t size;

    *last = KT_JSON_MORE;
    for (size_t i = 0; i < n; i++) {
        if (*last == KT_JSON_WHOLE) {
            if (!is_space(text[i])) return false;
            continue;
        }
        *last = kt_json_stream_push(&p->json, (unsigned char)text[i], out, &size);
        if (*last == KT_JSON_BAD || *last == KT_JSON_PAST || !put_arguments(p, out, size))
            return false;
    }
    return true;
}

static bool name_known(kt_parser *p) {
    bool early = p->has_arguments;

    if (!kt_parser_name_ok(p->name, p->n_name)) return false;
    kt_parser_begin_call(p);
    if (early) kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, p->value.at, p->value.size);
    p->value.size = 0;
    return true;
}

static bool name_byte(kt_parser *p, char c) {
    if (c == '"') {
        p->place = KT_OBJECT_AFTER;
        return name_known(p);
    }
    if (c == '\\' || (unsigned char)c < 0x20 || p->n_name == KT_CALL_NAME_BYTES) return false;
    p->name[p->n_name++] = c;
    return true;
}

static bool key_byte(kt_parser *p, char c) {
    if (c == '"') {
        p->place = KT_OBJECT_COLON;
        return true;
    }
    if ((unsigned char)c < 0x20 || p->n_key == KT_CALL_NAME_BYTES) return false;
    p->key[p->n_key++] = c;
    return true;
}

/* The string that holds the arguments, read as JSON. */
static bool string_done(kt_parser *p) {
    kt_json_doc *doc = NULL;
    const char *text;
    size_t n = 0;
    kt_json_step last = KT_JSON_MORE;
    bool good = false;
    kt_status st = kt_json_parse(p->value.at, p->value.size, NULL, &doc, NULL);

    if (st == KT_E_NOMEM) p->no_memory = true;
    if (st != KT_OK) return false;
    text = kt_json_string(kt_json_root(doc), &n);
    p->value.size = 0;
    p->place = KT_OBJECT_AFTER;
    while (n && is_space(*text)) text++, n--;
    if (!p->begun && p->calls->body == KT_CALL_ARGUMENTS && (n == 0 || *text == '{'))
        kt_parser_begin_call(p);
    if (n == 0) {
        good = true; /* no arguments */
    } else if (*text == '{') {
        p->has_arguments = true;
        good = push_arguments(p, text, n, &last);
    }
    kt_json_destroy(doc);
    if (good && p->calls->body == KT_CALL_ARGUMENTS) {
        kt_parser_end_call(p, last != KT_JSON_WHOLE && n > 0);
        p->state = KT_AT_END;
    }
    return good;
}

static bool value_begins(kt_parser *p, char c) {
    bool is_arguments = key_is(p, "arguments") || key_is(p, "parameters");

    memset(&p->other, 0, sizeof p->other);
    p->place = KT_OBJECT_OTHER;
    if (key_is(p, "name") && !p->begun) {
        p->place = KT_OBJECT_NAME;
        p->n_name = 0;
        return c == '"';
    }
    if (!is_arguments || p->has_arguments || c == 'n') return true;
    if (c == '{') {
        p->place = KT_OBJECT_ARGUMENTS;
        p->has_arguments = true;
        return true;
    }
    p->place = KT_OBJECT_STRING;
    return c == '"';
}

static bool other_byte(kt_parser *p, char c, bool *taken) {
    char out[KT_JSON_STREAM_OUT];
    size_t n;
    kt_json_step step = kt_json_stream_push(&p->other, (unsigned char)c, out, &n);

    if (step == KT_JSON_BAD) return false;
    if (p->place == KT_OBJECT_STRING) {
        if (!kt_parser_keep(p, &p->value, out, n, KT_PARSER_HELD)) return false;
        return step == KT_JSON_WHOLE ? string_done(p) : true;
    }
    if (step != KT_JSON_MORE) p->place = KT_OBJECT_AFTER;
    *taken = step != KT_JSON_PAST;
    return true;
}

static bool arguments_byte(kt_parser *p, char c) {
    kt_json_step last;

    if (!push_arguments(p, &c, 1, &last)) return false;
    if (last == KT_JSON_WHOLE) p->place = KT_OBJECT_AFTER;
    return true;
}

static bool between_byte(kt_parser *p, char c) {
    switch (p->place) {
    case KT_OBJECT_OPEN: p->place = KT_OBJECT_KEY_OR_END; return c == '{';
    case KT_OBJECT_COLON: p->place = KT_OBJECT_VALUE; return c == ':';
    case KT_OBJECT_AFTER:
        if (c == ',') {
            p->place = KT_OBJECT_KEY_OR_END;
            return true;
        }
        break;
    default:
        if (c == '"') {
            p->n_key = 0;
            p->place = KT_OBJECT_KEY;
            return true;
        }
    }
    if (c != '}' || !p->begun) return false;
    kt_parser_end_call(p, false);
    p->state = KT_AT_END;
    return true;
}

/* Read one byte; false when no call goes on like that. *taken: not to be looked at again. */
static bool object_byte(kt_parser *p, char c, bool *taken) {
    *taken = true;
    switch (p->place) {
    case KT_OBJECT_KEY: return key_byte(p, c);
    case KT_OBJECT_NAME: return name_byte(p, c);
    case KT_OBJECT_ARGUMENTS: return arguments_byte(p, c);
    case KT_OBJECT_STRING:
    case KT_OBJECT_OTHER: return other_byte(p, c, taken);
    default: break;
    }
    if (is_space(c)) return true;
    if (p->place != KT_OBJECT_VALUE) return between_byte(p, c);
    if (!value_begins(p, c)) return false;
    *taken = p->place == KT_OBJECT_NAME;
    return true;
}

size_t kt_parser_run_object(kt_parser *p, const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        bool taken = true, was_begun = p->begun;
        if (p->begun && p->place == KT_OBJECT_ARGUMENTS) {
            size_t plain = kt_json_stream_plain(&p->json, bytes + i, n - i);
            kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, bytes + i, plain);
            i += plain;
            if (plain) continue;
        }
        if (!object_byte(p, bytes[i], &taken)) {
            kt_parser_spoil(p);
            return i;
        }
        if (taken && !was_begun && !p->begun && p->state == KT_AT_OBJECT &&
            !kt_parser_keep(p, &p->held, bytes + i, 1, KT_PARSER_HELD)) {
            kt_parser_spoil(p);
            return i;
        }
        i += taken;
        if (p->state != KT_AT_OBJECT) return i;
    }
    return n;
}
