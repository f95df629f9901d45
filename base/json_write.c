/* Writing JSON. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

void kt_json_writer_deinit(kt_json_writer *w) {
    free(w->text);
    memset(w, 0, sizeof *w);
}

/* Append bytes, always leaving room for the final NUL. */
static void put(kt_json_writer *w, const char *s, size_t size) {
    size_t capacity = w->capacity ? w->capacity : 256;
    char *larger;

    if (w->failed) return;
    if (size > SIZE_MAX / 2 - w->size - 1) {
        w->failed = 1;
        return;
    }
    while (capacity < w->size + size + 1) capacity *= 2;
    if (capacity != w->capacity) {
        larger = realloc(w->text, capacity);
        if (!larger) {
            w->failed = 1;
            return;
        }
        w->text = larger;
        w->capacity = capacity;
    }
    if (size) memcpy(w->text + w->size, s, size);
    w->size += size;
    w->text[w->size] = '\0';
}

/* Is the inside of the container that was opened at this depth written on one line? */
static int on_one_line(const kt_json_writer *w, int depth) {
    uint64_t outer = depth < 63 ? ((uint64_t)2 << depth) - 1 : UINT64_MAX;
    return w->indent == 0 || (w->line_at_depth & outer) != 0;
}

static void new_line(kt_json_writer *w) {
    static const char spaces[] = "                ";
    size_t left = (size_t)w->depth * (size_t)w->indent;

    put(w, "\n", 1);
    while (left) {
        size_t n = left < sizeof spaces - 1 ? left : sizeof spaces - 1;
        put(w, spaces, n);
        left -= n;
    }
}

static int inside_object(const kt_json_writer *w) {
    int d = w->depth - 1;
    return d >= 0 && (w->object_at_depth[d / 64] >> (d % 64) & 1);
}

/* Comma and white space before a key or an array's element. */
static void separate(kt_json_writer *w) {
    if (w->need_comma) put(w, ",", 1);
    if (w->depth == 0) return;
    if (!on_one_line(w, w->depth - 1))
        new_line(w);
    else if (w->need_comma && w->indent)
        put(w, " ", 1);
}

/* What goes before any value; a value in an object without key, or a second root, is misuse. */
static void begin_value(kt_json_writer *w) {
    if (w->after_key) {
        w->after_key = 0;
    } else if (inside_object(w) || (w->depth == 0 && w->size > 0)) {
        w->failed = 1;
    } else {
        separate(w);
    }
    w->need_comma = 1;
}

static void begin_container(kt_json_writer *w, int object) {
    int d = w->depth;

    begin_value(w);
    if (d >= KT_JSON_WRITER_DEPTH) w->failed = 1;
    put(w, object ? "{" : "[", 1);
    if (w->failed) return;
    w->object_at_depth[d / 64] &= ~((uint64_t)1 << (d % 64));
    w->object_at_depth[d / 64] |= (uint64_t)object << (d % 64);
    w->depth++;
    w->need_comma = 0;
}

static void end_container(kt_json_writer *w, int object) {
    if (w->depth == 0 || w->after_key || inside_object(w) != object) w->failed = 1;
    if (w->failed) return;
    w->depth--;
    if (w->need_comma && !on_one_line(w, w->depth)) new_line(w);
    put(w, object ? "}" : "]", 1);
    w->need_comma = 1;
}

void kt_json_begin_object(kt_json_writer *w) {
    begin_container(w, 1);
}

void kt_json_end_object(kt_json_writer *w) {
    end_container(w, 1);
}

void kt_json_begin_array(kt_json_writer *w) {
    begin_container(w, 0);
}

void kt_json_end_array(kt_json_writer *w) {
    end_container(w, 0);
}

static void put_escaped(kt_json_writer *w, unsigned char c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *found = c ? strchr(from, c) : NULL;
    char text[8];

    if (found)
        snprintf(text, sizeof text, "\\%c", to[found - from]);
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    put(w, text, strlen(text));
}

static void put_quoted(kt_json_writer *w, const char *s, size_t size) {
    const unsigned char *p = (const unsigned char *)s;
    const unsigned char *end = p + size;
    const unsigned char *plain = p; /* start of the bytes that can be copied as they are */

    put(w, "\"", 1);
    while (p < end) {
        int n = kt_utf8_length(p, end);
        if (n > 1 || (n == 1 && *p >= 0x20 && *p != '"' && *p != '\\')) {
            p += n;
            continue;
        }
        put(w, (const char *)plain, (size_t)(p - plain));
        if (n == 0)
            put(w, "\xef\xbf\xbd", 3); /* U+FFFD for each byte that belongs to no character */
        else
            put_escaped(w, *p);
        plain = ++p;
    }
    put(w, (const char *)plain, (size_t)(p - plain));
    put(w, "\"", 1);
}

void kt_json_key(kt_json_writer *w, const char *key) {
    kt_json_key_n(w, key, strlen(key));
}

void kt_json_key_n(kt_json_writer *w, const char *key, size_t size) {
    if (!inside_object(w) || w->after_key) w->failed = 1;
    if (w->failed) return;
    separate(w);
    put_quoted(w, key, size);
    put(w, ": ", w->indent ? 2 : 1);
    w->after_key = 1;
}

void kt_json_put_string(kt_json_writer *w, const char *s) {
    if (s)
        kt_json_put_string_n(w, s, strlen(s));
    else
        kt_json_put_null(w);
}

void kt_json_put_string_n(kt_json_writer *w, const char *s, size_t size) {
    begin_value(w);
    put_quoted(w, s ? s : "", s ? size : 0);
}

void kt_json_put_raw(kt_json_writer *w, const char *json, size_t size) {
    begin_value(w);
    put(w, json, size);
}

void kt_json_put_int(kt_json_writer *w, int64_t v) {
    char text[24];
    kt_json_put_raw(w, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v));
}

/* Digits and exponent of %.*e, whatever the locale puts for the point: v = 0.d1d2d3... * 10^point. */
typedef struct digits {
    uint64_t value; /* d1d2d3... as a number of `count` digits */
    int count;
    int point;
} digits;

static digits round_to(double v, int count) {
    char text[64];
    digits d = {0, count, 0};
    const char *p = text;

    snprintf(text, sizeof text, "%.*e", count - 1, v);
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') d.value = d.value * 10 + (uint64_t)(*p - '0');
    d.point = (*p ? (int)strtol(p + 1, NULL, 10) : 0) + 1;
    return d;
}

static int reads_back(digits d, double v) {
    char text[64];
    snprintf(text, sizeof text, "%" PRIu64 "e%d", d.value, d.point - d.count);
    return strtod(text, NULL) == v;
}

/* The fewest digits that identify v > 0; among those the nearest to v. A decimal of up to
 * 15 digits survives the trip through a normal double, so that rounding to 15 shows it with zeros
 * behind and fewer need not be tried. Below a power of two the doubles lie twice as dense, so that
 * the nearest decimal may fall outside while the next one up is inside. */
static digits shortest(double v) {
    int count = v < 0x1p-1022 ? 1 : 15;
    digits d;

    for (;; count++) {
        d = round_to(v, count);
        if (count == 17 || reads_back(d, v)) break;
        d.value++;
        if (reads_back(d, v)) break;
    }
    while (d.count > 1 && d.value % 10 == 0) {
        d.value /= 10;
        d.count--;
    }
    return d;
}

/* Fixed notation for 1e-4 <= |v| < 1e16, as Python's repr. */
static void format_digits(digits d, char *out, size_t size, int negative) {
    const char *sign = negative ? "-" : "";
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, d.value);
    if (d.point > 16 || d.point < -3)
        snprintf(out, size, "%s%c%s%se%s%02d", sign, text[0], d.count > 1 ? "." : "", text + 1,
                 d.point > 0 ? "+" : "-", abs(d.point - 1));
    else if (d.point <= 0)
        snprintf(out, size, "%s0.%.*s%s", sign, -d.point, "0000", text);
    else if (d.point >= d.count)
        snprintf(out, size, "%s%s%.*s.0", sign, text, d.point - d.count, "0000000000000000");
    else
        snprintf(out, size, "%s%.*s.%s", sign, d.point, text, text + d.point);
}

void kt_json_put_double(kt_json_writer *w, double v) {
    char text[64];

    if (!isfinite(v)) {
        kt_json_put_null(w);
        return;
    }
    if (v == 0)
        snprintf(text, sizeof text, "%s", signbit(v) ? "-0.0" : "0.0");
    else
        format_digits(shortest(fabs(v)), text, sizeof text, v < 0);
    kt_json_put_raw(w, text, strlen(text));
}

void kt_json_put_fixed(kt_json_writer *w, double v, int decimals) {
    char text[352]; /* 309 digits of DBL_MAX, sign, point, 20 decimals */
    char clean[352];
    size_t n = 0;

    if (!isfinite(v)) {
        kt_json_put_null(w);
        return;
    }
    snprintf(text, sizeof text, "%.*f", decimals < 0 ? 0 : decimals > 20 ? 20 : decimals, v);
    for (const char *p = text; *p; p++) {
        if (*p == '-' || (*p >= '0' && *p <= '9'))
            clean[n++] = *p;
        else if (n == 0 || clean[n - 1] != '.')
            clean[n++] = '.'; /* the locale's point, of one byte or several */
    }
    kt_json_put_raw(w, clean, n);
}

void kt_json_put_bool(kt_json_writer *w, bool v) {
    kt_json_put_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void kt_json_put_null(kt_json_writer *w) {
    kt_json_put_raw(w, "null", 4);
}

/* Recursion ends with the writer's own depth limit. */
void kt_json_put_value(kt_json_writer *w, const kt_json *value) {
    kt_json_type type = kt_json_type_of(value);
    size_t size;
    const char *text;

    if (w->failed) return;
    switch (type) {
    case KT_JSON_NULL: kt_json_put_null(w); return;
    case KT_JSON_BOOL: kt_json_put_bool(w, kt_json_bool(value, false)); return;
    case KT_JSON_NUMBER:
        text = kt_json_lexeme(value);
        kt_json_put_raw(w, text, strlen(text));
        return;
    case KT_JSON_STRING:
        text = kt_json_string(value, &size);
        kt_json_put_string_n(w, text, size);
        return;
    case KT_JSON_ARRAY:
        kt_json_begin_array(w);
        for (size_t i = 0; i < kt_json_length(value); i++)
            kt_json_put_value(w, kt_json_at(value, i));
        kt_json_end_array(w);
        return;
    case KT_JSON_OBJECT:
        kt_json_begin_object(w);
        for (size_t i = 0; i < kt_json_length(value); i++) {
            const kt_json *member = kt_json_member(value, i, &text, &size);
            kt_json_key_n(w, text, size);
            kt_json_put_value(w, member);
        }
        kt_json_end_object(w);
        return;
    }
}

/* --- members --- */

void kt_json_add_string(kt_json_writer *w, const char *key, const char *s) {
    kt_json_key(w, key);
    kt_json_put_string(w, s);
}

void kt_json_add_int(kt_json_writer *w, const char *key, int64_t v) {
    kt_json_key(w, key);
    kt_json_put_int(w, v);
}

void kt_json_add_double(kt_json_writer *w, const char *key, double v) {
    kt_json_key(w, key);
    kt_json_put_double(w, v);
}

void kt_json_add_fixed(kt_json_writer *w, const char *key, double v, int decimals) {
    kt_json_key(w, key);
    kt_json_put_fixed(w, v, decimals);
}

void kt_json_add_bool(kt_json_writer *w, const char *key, bool v) {
    kt_json_key(w, key);
    kt_json_put_bool(w, v);
}

void kt_json_add_null(kt_json_writer *w, const char *key) {
    kt_json_key(w, key);
    kt_json_put_null(w);
}

/* --- the text --- */

const char *kt_json_writer_text(const kt_json_writer *w, size_t *size) {
    int ok = !w->failed && w->depth == 0 && !w->after_key && w->size > 0;

    if (size) *size = ok ? w->size : 0;
    return ok ? w->text : NULL;
}

void kt_json_writer_print(kt_json_writer *w, FILE *to) {
    if (kt_json_writer_text(w, NULL)) fprintf(to, "%s\n", kt_json_writer_text(w, NULL));
    kt_json_writer_deinit(w);
}
