/* Exact JSON: keeps number lexemes and key order, refuses what RFC 8259 refuses.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_JSON_H
#define KT_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kt/status.h"

typedef enum kt_json_type {
    KT_JSON_NULL,
    KT_JSON_BOOL,
    KT_JSON_NUMBER,
    KT_JSON_STRING,
    KT_JSON_ARRAY,
    KT_JSON_OBJECT
} kt_json_type;

typedef struct kt_json kt_json;         /* one value; lives as long as its document */
typedef struct kt_json_doc kt_json_doc; /* owns all values of one text */

typedef struct kt_json_limits {
    size_t max_bytes;  /* 0 = 1 GiB */
    int max_depth;     /* 0 = 256 */
    size_t max_values; /* and members together; 0 = as many as max_bytes holds. A value takes some
                          72 bytes, so "0,0,0" is 36 times as large in memory */
} kt_json_limits;

/* Parse size bytes of text (need not be NUL-terminated; is not kept). Refuses: trailing text, bad
 * UTF-8, lone surrogate escapes, control characters in strings, duplicate keys, leading zeros,
 * NaN/Infinity, too deep, too large. The message holds line and column. limits may be NULL. */
kt_status kt_json_parse(const char *text, size_t size, const kt_json_limits *limits,
                        kt_json_doc **out, kt_err *err);
void kt_json_destroy(kt_json_doc *doc);
const kt_json *kt_json_root(const kt_json_doc *doc);

/* All accessors take NULL and values of another type, and then give the neutral answer. */
kt_json_type kt_json_type_of(const kt_json *value); /* NULL -> KT_JSON_NULL */
const char *kt_json_type_name(kt_json_type type);
size_t kt_json_length(const kt_json *value);               /* elements or members */
const kt_json *kt_json_at(const kt_json *array, size_t i); /* NULL when out of range */
const kt_json *kt_json_get(const kt_json *object, const char *key);
const kt_json *kt_json_get_n(const kt_json *object, const char *key, size_t key_size);
/* Member i in source order; key is NUL-terminated, *key_size its length (may hold NULs). */
const kt_json *kt_json_member(const kt_json *object, size_t i, const char **key, size_t *key_size);
const char *kt_json_string(const kt_json *value, size_t *size); /* NULL if not a string; UTF-8 */
/* The string of a member; "" when it is missing or of another type. */
const char *kt_json_text(const kt_json *object, const char *key);
const char *kt_json_lexeme(const kt_json *number); /* the digits as written, or NULL */
/* The value, not the spelling, decides: 1e3 and 1.0 are integers, 1.5 and 1e30 fit none. */
bool kt_json_is_integer(const kt_json *value); /* fits int64 without rounding */
bool kt_json_bool(const kt_json *value, bool fallback);
int64_t kt_json_int(const kt_json *value, int64_t fallback);
double kt_json_double(const kt_json *value,
                      double fallback); /* fallback also beyond double's range */

/* Typed lookup that explains: "<where>: 'key' is a string, expected an integer". Fails with
 * KT_E_FORMAT when missing or of another type. where names the file or object. */
kt_status kt_json_need_int(const kt_json *object, const char *key, int64_t min, int64_t max,
                           const char *where, int64_t *out, kt_err *err);
kt_status kt_json_need_double(const kt_json *object, const char *key, const char *where,
                              double *out, kt_err *err);
kt_status kt_json_need_string(const kt_json *object, const char *key, const char *where,
                              const char **out, kt_err *err);

#define KT_JSON_WRITER_DEPTH 256

/* Writer: a growing text. Zero-initialise (indent and line_at_depth may be set); free with
 * kt_json_writer_deinit. Errors (memory, misuse such as a value without its key) stick and show in
 * kt_json_writer_text. Commas and indentation are the writer's. Strings that are not UTF-8 get
 * U+FFFD where they are malformed, so the text always is JSON. */
typedef struct kt_json_writer {
    char *text;
    size_t size, capacity;
    int depth;
    int indent; /* 0 = one line without spaces, else spaces per level */
    int need_comma, after_key, failed;
    uint64_t line_at_depth; /* bit d: containers at depth d (0 = the root) and all inside them are
                               written on one line */
    uint64_t object_at_depth[KT_JSON_WRITER_DEPTH / 64];
} kt_json_writer;

void kt_json_writer_deinit(kt_json_writer *w);
void kt_json_begin_object(kt_json_writer *w);
void kt_json_end_object(kt_json_writer *w);
void kt_json_begin_array(kt_json_writer *w);
void kt_json_end_array(kt_json_writer *w);
void kt_json_key(kt_json_writer *w, const char *key);
void kt_json_key_n(kt_json_writer *w, const char *key, size_t size);
void kt_json_put_string(kt_json_writer *w, const char *s); /* NULL writes null */
void kt_json_put_string_n(kt_json_writer *w, const char *s, size_t size);
void kt_json_put_int(kt_json_writer *w, int64_t v);
/* The shortest digits that read back equal, in the form of Python's repr ("1.0", "1e-05"); JSON has
 * no NaN or infinity: they are written as null. put_fixed is printf's %.*f (0 <= decimals <= 20).
 */
void kt_json_put_double(kt_json_writer *w, double v);
void kt_json_put_fixed(kt_json_writer *w, double v, int decimals);
void kt_json_put_bool(kt_json_writer *w, bool v);
void kt_json_put_null(kt_json_writer *w);
void kt_json_put_raw(kt_json_writer *w, const char *json, size_t size); /* one value, not checked */
void kt_json_put_value(kt_json_writer *w, const kt_json *value);        /* lexemes and order kept */
/* A member: key and value. */
void kt_json_add_string(kt_json_writer *w, const char *key, const char *s);
void kt_json_add_int(kt_json_writer *w, const char *key, int64_t v);
void kt_json_add_double(kt_json_writer *w, const char *key, double v);
void kt_json_add_fixed(kt_json_writer *w, const char *key, double v, int decimals);
void kt_json_add_bool(kt_json_writer *w, const char *key, bool v);
void kt_json_add_null(kt_json_writer *w, const char *key);
/* NUL-terminated text, or NULL after an error; stays owned by the writer. */
const char *kt_json_writer_text(const kt_json_writer *w, size_t *size);
/* The text and a line's end to a stream, nothing after an error; then kt_json_writer_deinit. */
void kt_json_writer_print(kt_json_writer *w, FILE *to);

#endif
