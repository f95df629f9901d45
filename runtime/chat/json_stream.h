/* One JSON value, byte by byte: checks as it goes and passes on only what can still be completed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JSON_STREAM_H
#define KT_RUNTIME_JSON_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KT_JSON_STREAM_DEPTH = 256,
    KT_JSON_STREAM_OUT = 64, /* bytes that one push may write */
    KT_JSON_STREAM_TAIL = KT_JSON_STREAM_DEPTH + 32
};

typedef enum kt_json_step {
    KT_JSON_MORE,  /* taken; the value goes on */
    KT_JSON_WHOLE, /* taken; the value is complete */
    KT_JSON_PAST,  /* not taken: the value, a number, was complete before this byte */
    KT_JSON_BAD    /* not taken: no JSON goes on like that; the stream is unchanged */
} kt_json_step;

/* Zero-initialise. */
typedef struct kt_json_stream {
    uint8_t state, n_held, n_hex;
    bool is_key;    /* the string being read */
    bool has_comma; /* held starts with a comma */
    char held[16];  /* what may turn out to be incomplete: comma and space, literal, escape ... */
    uint16_t hex;   /* of the \u being read */
    uint16_t high;  /* surrogate waiting for its other half, or 0 */
    int depth;
    uint64_t is_object[KT_JSON_STREAM_DEPTH / 64]; /* bit d: the container at depth d + 1 */
} kt_json_stream;

/* Read one byte; *n bytes of output go to out[KT_JSON_STREAM_OUT]. All outputs together are the
 * value as it was written, but: raw control characters in strings are escaped, unknown escapes
 * stand for their character, half surrogates become U+FFFD, a comma before a closing bracket is
 * dropped, more than 15 white space characters after a comma are cut, True, False and None become
 * true, false and null. Bytes of strings that are not UTF-8 are passed on. */
kt_json_step kt_json_stream_push(kt_json_stream *s, unsigned char c, char *out, size_t *n);

/* What turns all output so far into a whole value: at most KT_JSON_STREAM_TAIL bytes. Of a number
 * what was written counts; a key without a value gets null. Nothing may be pushed afterwards. */
size_t kt_json_stream_complete(kt_json_stream *s, char *out);

/* Inside a string, where white space and marks are content. */
bool kt_json_stream_in_string(const kt_json_stream *s);

/* Number of bytes of text[0 .. n) that can be passed on unlooked-at: plain characters of a string.
 * */
size_t kt_json_stream_plain(const kt_json_stream *s, const char *text, size_t n);

/* Write the JSON escape of one byte of a string (1 to 6 bytes). */
size_t kt_json_escape(unsigned char c, char *out);

#endif
