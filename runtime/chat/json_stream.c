/* A pushdown automaton of RFC 8259. What cannot be completed yet (a comma, the start of a literal
 * or escape, "1." or "-") is held, so that the output always is a prefix that complete() can end.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/json_stream.h"

#include <stdio.h>
#include <string.h>

enum {
    VALUE,      /* a value must follow: at the start, after a colon */
    FIRST_ITEM, /* after [ */
    FIRST_KEY,  /* after { */
    NEXT_ITEM,  /* after a comma in an array; it is held */
    NEXT_KEY,   /* after a comma in an object */
    COLON,      /* after a key */
    AFTER,      /* after a value inside a container */
    STRING,
    ESCAPE,     /* after a backslash in a string */
    HEX,        /* inside \uXXXX */
    LOW_ESCAPE, /* after a high surrogate: a backslash may follow */
    LOW_U,      /* and then a u */
    MINUS,
    ZERO,
    DIGITS,
    POINT, /* after a held point */
    FRACTION,
    EXPONENT, /* after a held e */
    SIGN,     /* after a held e+ */
    POWER,
    LITERAL,
    DONE
};

static bool is_space(unsigned char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_object(const kt_json_stream *s) {
    int d = s->depth - 1;
    return d >= 0 && (s->is_object[d / 64] >> (d % 64) & 1);
}

static void put(char *out, size_t *n, const char *bytes, size_t size) {
    memcpy(out + *n, bytes, size);
    *n += size;
}

static void release(kt_json_stream *s, char *out, size_t *n) {
    put(out, n, s->held, s->n_held);
    s->n_held = 0;
    s->has_comma = false;
}

static kt_json_step end_value(kt_json_stream *s) {
    s->state = s->depth ? AFTER : DONE;
    return s->depth ? KT_JSON_MORE : KT_JSON_WHOLE;
}

static kt_json_step close_container(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    if (s->depth == 0 || in_object(s) != (c == '}')) return KT_JSON_BAD;
    s->n_held = 0; /* a trailing comma */
    s->has_comma = false;
    put(out, n, (const char *)&c, 1);
    s->depth--;
    return end_value(s);
}

static kt_json_step open_container(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    uint64_t bit;

    if (s->depth == KT_JSON_STREAM_DEPTH) return KT_JSON_BAD;
    release(s, out, n);
    bit = (uint64_t)1 << (s->depth % 64);
    s->is_object[s->depth / 64] &= ~bit;
    if (c == '{') s->is_object[s->depth / 64] |= bit;
    s->depth++;
    put(out, n, (const char *)&c, 1);
    s->state = c == '{' ? FIRST_KEY : FIRST_ITEM;
    return KT_JSON_MORE;
}

static kt_json_step begin_string(kt_json_stream *s, bool is_key, char *out, size_t *n) {
    release(s, out, n);
    put(out, n, "\"", 1);
    s->is_key = is_key;
    s->state = STRING;
    return KT_JSON_MORE;
}

static kt_json_step begin_value(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    if (c == '"') return begin_string(s, false, out, n);
    if (c == '{' || c == '[') return open_container(s, c, out, n);
    if (c == '-') {
        release(s, out, n);
        s->held[s->n_held++] = '-';
        s->state = MINUS;
        return KT_JSON_MORE;
    }
    if (c >= '0' && c <= '9') {
        release(s, out, n);
        put(out, n, (const char *)&c, 1);
        s->state = c == '0' ? ZERO : DIGITS;
        return KT_JSON_MORE;
    }
    if (c && strchr("tfnTFN", c)) {
        release(s, out, n);
        s->held[s->n_held++] = (char)c;
        s->state = LITERAL;
        return KT_JSON_MORE;
    }
    return KT_JSON_BAD;
}

/* The JSON spelling of the literal that held begins, and the length at which it is whole. */
static const char *literal_of(const kt_json_stream *s, size_t *whole) {
    static const char *const spelled[] = {"true", "false", "null", "True", "False", "None"};
    static const char *const meant[] = {"true", "false", "null", "true", "false", "null"};

    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
        if (strncmp(spelled[i], s->held, s->n_held) == 0) {
            *whole = strlen(spelled[i]);
            return meant[i];
        }
    return NULL;
}

static kt_json_step go_on_literal(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    size_t whole = 0;
    const char *meant;

    s->held[s->n_held++] = (char)c;
    meant = c ? literal_of(s, &whole) : NULL;
    if (!meant) {
        s->n_held--;
        return KT_JSON_BAD;
    }
    if (s->n_held < whole) return KT_JSON_MORE;
    put(out, n, meant, strlen(meant));
    s->n_held = 0;
    return end_value(s);
}

/* What a number's state does with one more character; 0xff = the number ends before it. */
static uint8_t next_of_number(uint8_t state, unsigned char c) {
    bool digit = c >= '0' && c <= '9';

    switch (state) {
    case MINUS: return c == '0' ? ZERO : digit ? DIGITS : 0xff;
    case POINT:
    case FRACTION:
        if (digit) return FRACTION;
        return state == FRACTION && (c == 'e' || c == 'E') ? EXPONENT : 0xff;
    case EXPONENT:
        if (c == '+' || c == '-') return SIGN;
        return digit ? POWER : 0xff;
    case SIGN:
    case POWER: return digit ? POWER : 0xff;
    default:
        if (digit && state == DIGITS) return DIGITS;
        if (c == '.') return POINT;
        return c == 'e' || c == 'E' ? EXPONENT : 0xff;
    }
}

static bool is_whole_number(uint8_t state) {
    return state == ZERO || state == DIGITS || state == FRACTION || state == POWER;
}

static kt_json_step after_value(kt_json_stream *s, unsigned char c, char *out, size_t *n);

static kt_json_step go_on_number(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    uint8_t was = s->state, next = next_of_number(s->state, c);
    kt_json_step step;

    if (next == 0xff) {
        if (!is_whole_number(s->state) || (was == ZERO && c >= '0' && c <= '9')) return KT_JSON_BAD;
        if (s->depth == 0) {
            s->state = DONE;
            return KT_JSON_PAST;
        }
        s->state = AFTER;
        step = after_value(s, c, out, n);
        if (step == KT_JSON_BAD) s->state = was;
        return step;
    }
    if (is_whole_number(next)) {
        release(s, out, n);
        put(out, n, (const char *)&c, 1);
    } else {
        s->held[s->n_held++] = (char)c;
    }
    s->state = next;
    return KT_JSON_MORE;
}

static kt_json_step after_value(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    if (is_space(c)) {
        put(out, n, (const char *)&c, 1);
        return KT_JSON_MORE;
    }
    if (c == ',') {
        s->held[0] = ',';
        s->n_held = 1;
        s->has_comma = true;
        s->state = in_object(s) ? NEXT_KEY : NEXT_ITEM;
        return KT_JSON_MORE;
    }
    if (c == '}' || c == ']') return close_container(s, c, out, n);
    return KT_JSON_BAD;
}

size_t kt_json_escape(unsigned char c, char *out) {
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";

    for (size_t i = 0; i + 1 < sizeof names; i += 2)
        if ((unsigned char)names[i] == c) {
            out[0] = '\\';
            out[1] = names[i + 1];
            return 2;
        }
    if (c < 0x20) {
        char text[8];
        snprintf(text, sizeof text, "\\u%04x", c);
        memcpy(out, text, 6);
        return 6;
    }
    out[0] = (char)c;
    return 1;
}

static kt_json_step end_string(kt_json_stream *s, char *out, size_t *n) {
    put(out, n, "\"", 1);
    if (!s->is_key) return end_value(s);
    s->state = COLON;
    return KT_JSON_MORE;
}

/* A half surrogate that nothing completes. */
static void end_surrogate(kt_json_stream *s, char *out, size_t *n) {
    if (s->high) put(out, n, "\\ufffd", 6);
    s->high = 0;
    s->n_held = 0;
}

static kt_json_step string_byte(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    if (c == '"') return end_string(s, out, n);
    if (c == '\\') {
        s->state = ESCAPE;
        return KT_JSON_MORE;
    }
    *n += kt_json_escape(c, out + *n);
    return KT_JSON_MORE;
}

static kt_json_step escape_byte(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    s->state = STRING;
    if (c == 'u') {
        s->state = HEX;
        s->n_hex = 0;
        s->hex = 0;
        s->n_held = 0;
        return KT_JSON_MORE;
    }
    if (c && strchr("\"\\/bfnrt", c)) {
        out[(*n)++] = '\\';
        out[(*n)++] = (char)c;
    } else if (c == '\'') {
        out[(*n)++] = (char)c;
    } else { /* "\d": a backslash that was meant */
        put(out, n, "\\\\", 2);
        *n += kt_json_escape(c, out + *n);
    }
    return KT_JSON_MORE;
}

static void end_hex(kt_json_stream *s, char *out, size_t *n) {
    char text[16];
    bool is_low = s->hex >= 0xdc00 && s->hex < 0xe000;

    s->state = STRING;
    if (s->hex >= 0xd800 && s->hex < 0xdc00) {
        end_surrogate(s, out, n);
        s->high = s->hex;
        s->state = LOW_ESCAPE;
    } else if (is_low && s->high) {
        snprintf(text, sizeof text, "\\u%04x\\u%04x", s->high, s->hex);
        put(out, n, text, 12);
        s->high = 0;
    } else {
        end_surrogate(s, out, n);
        snprintf(text, sizeof text, "\\u%04x", is_low ? 0xfffdu : s->hex);
        put(out, n, text, 6);
    }
}

static kt_json_step hex_byte(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    int digit = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;

    if (digit < 0) { /* "\u12 ": the backslash was meant, what was read is text */
        end_surrogate(s, out, n);
        put(out, n, "\\\\u", 3);
        put(out, n, s->held, s->n_hex);
        s->state = STRING;
        return string_byte(s, c, out, n);
    }
    s->held[s->n_hex++] = (char)c;
    s->hex = (uint16_t)(s->hex << 4 | digit);
    if (s->n_hex == 4) end_hex(s, out, n);
    return KT_JSON_MORE;
}

static kt_json_step text_byte(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    switch (s->state) {
    case ESCAPE: return escape_byte(s, c, out, n);
    case HEX: return hex_byte(s, c, out, n);
    case LOW_ESCAPE:
        if (c == '\\') {
            s->state = LOW_U;
            return KT_JSON_MORE;
        }
        end_surrogate(s, out, n);
        s->state = STRING;
        return string_byte(s, c, out, n);
    case LOW_U:
        if (c != 'u') end_surrogate(s, out, n);
        return escape_byte(s, c, out, n);
    default: return string_byte(s, c, out, n);
    }
}

static kt_json_step between(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    if (is_space(c)) {
        if (!s->has_comma)
            put(out, n, (const char *)&c, 1);
        else if (s->n_held < sizeof s->held)
            s->held[s->n_held++] = (char)c;
        return KT_JSON_MORE;
    }
    switch (s->state) {
    case FIRST_KEY:
    case NEXT_KEY:
        if (c == '}') return close_container(s, c, out, n);
        return c == '"' ? begin_string(s, true, out, n) : KT_JSON_BAD;
    case COLON:
        if (c != ':') return KT_JSON_BAD;
        put(out, n, ":", 1);
        s->state = VALUE;
        return KT_JSON_MORE;
    case FIRST_ITEM:
    case NEXT_ITEM:
        if (c == ']') return close_container(s, c, out, n);
        return begin_value(s, c, out, n);
    default: return begin_value(s, c, out, n);
    }
}

kt_json_step kt_json_stream_push(kt_json_stream *s, unsigned char c, char *out, size_t *n) {
    *n = 0;
    if (s->state >= STRING && s->state <= LOW_U) return text_byte(s, c, out, n);
    if (s->state >= MINUS && s->state <= POWER) return go_on_number(s, c, out, n);
    if (s->state == LITERAL) return go_on_literal(s, c, out, n);
    if (s->state == AFTER) return after_value(s, c, out, n);
    if (s->state == DONE) return KT_JSON_PAST;
    return between(s, c, out, n);
}

static void complete_string(kt_json_stream *s, char *out, size_t *n) {
    end_surrogate(s, out, n);
    put(out, n, "\"", 1);
    if (s->is_key) put(out, n, ":null", 5);
}

size_t kt_json_stream_complete(kt_json_stream *s, char *out) {
    size_t n = 0, whole = 0;

    if (s->state >= STRING && s->state <= LOW_U)
        complete_string(s, out, &n);
    else if (s->state == VALUE || s->state == MINUS)
        put(out, &n, "null", 4);
    else if (s->state == COLON)
        put(out, &n, ":null", 5);
    else if (s->state == LITERAL) {
        const char *meant = literal_of(s, &whole);
        put(out, &n, meant, strlen(meant));
    }
    for (; s->depth; s->depth--) put(out, &n, in_object(s) ? "}" : "]", 1);
    s->state = DONE;
    return n;
}

bool kt_json_stream_in_string(const kt_json_stream *s) {
    return s->state >= STRING && s->state <= LOW_U;
}

size_t kt_json_stream_plain(const kt_json_stream *s, const char *text, size_t n) {
    size_t i = 0;

    if (s->state != STRING) return 0;
    while (i < n && (unsigned char)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\') i++;
    return i;
}
