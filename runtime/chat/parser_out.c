/* A parser's output: bytes joined to events of whole characters.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/chat/parser_impl.h"

/* Bytes at p (at least one) that begin a character which they do not complete (Unicode, "maximal
 * subpart"): 0 when the first begins none. */
static size_t begun_character(const unsigned char *p, size_t left) {
    size_t whole = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4, n = 1;
    unsigned char low = 0x80, high = 0xbf; /* range of the second byte */

    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    if (p[0] == 0xe0) low = 0xa0;
    if (p[0] == 0xed) high = 0x9f;
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f;
    while (n < whole && n < left && p[n] >= low && p[n] <= high) {
        n++;
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

static void send(kt_parser *p, const char *text, size_t size) {
    kt_event e = {.kind = p->out_kind, .tool = -1, .text = text, .size = size};

    if (e.kind == KT_EVENT_TOOL_ARGUMENTS) e.tool = p->n_calls - 1;
    if (size) p->sink(p->sink_arg, &e);
}

/* Send what is whole; each longest begun but broken character becomes one U+FFFD. */
void kt_parser_flush(kt_parser *p, bool is_end) {
    char clean[3 * KT_PARSER_OUT + 32];
    const unsigned char *at = (const unsigned char *)p->out, *end = at + p->n_out;
    size_t n = 0;

    while (at < end) {
        int length = kt_utf8_length(at, end);
        size_t begun;
        if (length) {
            memcpy(clean + n, at, (size_t)length);
            n += (size_t)length;
            at += length;
            continue;
        }
        begun = begun_character(at, (size_t)(end - at));
        if (begun == (size_t)(end - at) && !is_end) break;
        memcpy(clean + n, "\xef\xbf\xbd", 3);
        n += 3;
        at += begun ? begun : 1;
    }
    clean[n] = 0;
    send(p, clean, n);
    p->n_out = (size_t)(end - at);
    memmove(p->out, at, p->n_out);
}

void kt_parser_text(kt_parser *p, kt_event_kind kind, const char *bytes, size_t size) {
    if (size == 0) return;
    if (kind != p->out_kind) {
        kt_parser_flush(p, true);
        p->out_kind = kind;
    }
    while (size) {
        size_t part = KT_PARSER_OUT - p->n_out;
        if (part > size) part = size;
        memcpy(p->out + p->n_out, bytes, part);
        p->n_out += part;
        bytes += part;
        size -= part;
        if (p->n_out == KT_PARSER_OUT) kt_parser_flush(p, false);
    }
}

void kt_parser_call_event(kt_parser *p, kt_event_kind kind, bool is_cut) {
    kt_event e = {.kind = kind, .tool = p->n_calls - 1};

    kt_parser_flush(p, true);
    if (kind == KT_EVENT_TOOL_BEGIN) {
        e.text = p->name;
        e.size = p->n_name;
        e.as.call.id = p->id;
    }
    e.as.call.is_cut = is_cut;
    p->sink(p->sink_arg, &e);
}

bool kt_parser_keep(kt_parser *p, kt_parser_bytes *b, const char *bytes, size_t size,
                    size_t limit) {
    if (size > limit || b->size > limit - size) return false;
    if (b->size + size > b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 256;
        char *grown;
        while (capacity < b->size + size) capacity *= 2;
        grown = realloc(b->at, capacity);
        if (!grown) {
            p->no_memory = true;
            return false;
        }
        b->at = grown;
        b->capacity = capacity;
    }
    if (size) memcpy(b->at + b->size, bytes, size);
    b->size += size;
    return true;
}
