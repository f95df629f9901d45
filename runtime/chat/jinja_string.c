/* Strings of templates. Each knows which of its bytes the template wrote; whatever makes a string
 * from others carries that along. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>

#include "runtime/chat/jinja.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

enum { IN_PLACE_BYTES = 256 }; /* longer sums leave room to be added to */

/* Room in which a string grows: "ns.text = ns.text + x" in a loop stays linear. */
typedef struct kt_jinja_buffer {
    char *data;
    size_t size, capacity;
    kt_trusted_span *spans;
    size_t n_spans, span_capacity;
} kt_jinja_buffer;

/* ---- builders ---- */

void kt_jinja_builder_deinit(kt_jinja_builder *b) {
    free(b->text.data);
    free(b->spans);
    memset(b, 0, sizeof *b);
}

static kt_status put_span(kt_jinja_run *r, kt_jinja_builder *b, size_t begin, size_t end) {
    void *data = b->spans;
    kt_status st;

    if (begin == end) return KT_OK;
    if (b->n_spans && b->spans[b->n_spans - 1].end == begin) {
        b->spans[b->n_spans - 1].end = end;
        return KT_OK;
    }
    st = kt_grow(&data, b->n_spans, &b->span_capacity, 1, sizeof *b->spans, NULL);
    b->spans = data;
    if (st != KT_OK) return kt_jinja_fail(r, KT_E_NOMEM, "no memory for the rendering");
    b->spans[b->n_spans++] = (kt_trusted_span){begin, end};
    return KT_OK;
}

static kt_status put_bytes(kt_jinja_run *r, kt_jinja_builder *b, const char *s, size_t n) {
    size_t most = b == r->out ? r->limits.output_bytes : r->limits.memory_bytes;

    KT_TRY(kt_jinja_spend(r, n / 64));
    if (n > most || b->text.size > most - n)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "the text is longer than %zu bytes", most);
    if (kt_text_append(&b->text, s, n, NULL) != KT_OK)
        return kt_jinja_fail(r, KT_E_NOMEM, "no memory for the rendering");
    return KT_OK;
}

kt_status kt_jinja_put(kt_jinja_run *r, kt_jinja_builder *b, const char *s, size_t n,
                       bool trusted) {
    KT_TRY(put_bytes(r, b, s, n));
    return trusted ? put_span(r, b, b->text.size - n, b->text.size) : KT_OK;
}

/* The first span that ends behind `at`: spans are ascending. */
static size_t span_behind(const kt_jinja_string *s, size_t at) {
    size_t low = 0, high = s->n_spans;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->spans[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

kt_status kt_jinja_put_part(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s,
                            size_t begin, size_t end) {
    size_t at = b->text.size;

    if (s->all_trusted || s->n_spans == 0)
        return kt_jinja_put(r, b, s->data + begin, end - begin, s->all_trusted);
    KT_TRY(put_bytes(r, b, s->data + begin, end - begin));
    for (size_t i = span_behind(s, begin); i < s->n_spans && s->spans[i].begin < end; i++) {
        size_t from = s->spans[i].begin > begin ? s->spans[i].begin : begin;
        size_t to = s->spans[i].end < end ? s->spans[i].end : end;
        KT_TRY(put_span(r, b, at + from - begin, at + to - begin));
    }
    return KT_OK;
}

kt_status kt_jinja_put_string(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s) {
    return kt_jinja_put_part(r, b, s, 0, s->size);
}

kt_status kt_jinja_put_escaped(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t plain = 0;

    if (s->is_markup) return kt_jinja_put_string(r, b, s);
    for (size_t i = 0; i < s->size; i++) {
        const char *found = s->data[i] ? strchr(from, s->data[i]) : NULL;
        if (!found) continue;
        KT_TRY(kt_jinja_put_part(r, b, s, plain, i));
        KT_TRY(kt_jinja_put(r, b, to[found - from], strlen(to[found - from]),
                            kt_jinja_trusted_at(s, i)));
        plain = i + 1;
    }
    return kt_jinja_put_part(r, b, s, plain, s->size);
}

/* ---- values ---- */

static kt_status new_string(kt_jinja_run *r, kt_jinja_string **out, kt_jinja_value *value) {
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof **out, &memory));
    *out = memory;
    value->type = KT_JINJA_STRING;
    value->as.string = memory;
    return KT_OK;
}

kt_status kt_jinja_build(kt_jinja_run *r, kt_jinja_builder *b, bool is_markup,
                         kt_jinja_value *out) {
    kt_jinja_string *s;
    void *data, *spans = NULL;
    size_t n = b->text.size;
    bool all = b->n_spans == 1 && b->spans[0].begin == 0 && b->spans[0].end == n;

    KT_TRY(kt_jinja_alloc(r, n + 1, 1, &data));
    if (n) memcpy(data, b->text.data, n);
    if (!all && b->n_spans) {
        KT_TRY(kt_jinja_alloc(r, b->n_spans, sizeof *b->spans, &spans));
        memcpy(spans, b->spans, b->n_spans * sizeof *b->spans);
    }
    KT_TRY(new_string(r, &s, out));
    *s = (kt_jinja_string){.data = data,
                           .size = n,
                           .spans = spans,
                           .n_spans = spans ? b->n_spans : 0,
                           .all_trusted = all || n == 0,
                           .is_markup = is_markup};
    b->text.size = 0;
    b->n_spans = 0;
    return KT_OK;
}

kt_status kt_jinja_string_of(kt_jinja_run *r, const char *data, size_t n, bool trusted,
                             kt_jinja_value *out) {
    kt_jinja_string *s;

    KT_TRY(new_string(r, &s, out));
    *s = (kt_jinja_string){.data = data, .size = n, .all_trusted = trusted || n == 0};
    return KT_OK;
}

kt_status kt_jinja_part(kt_jinja_run *r, const kt_jinja_string *of, size_t begin, size_t end,
                        kt_jinja_value *out) {
    kt_jinja_string *s;
    kt_trusted_span *spans;
    void *memory;
    size_t first, n;

    if (begin == 0 && end == of->size) {
        *out = (kt_jinja_value){.type = KT_JINJA_STRING, .as.string = of};
        return KT_OK;
    }
    KT_TRY(new_string(r, &s, out));
    *s = (kt_jinja_string){.data = of->data + begin,
                           .size = end - begin,
                           .all_trusted = of->all_trusted || begin == end,
                           .is_markup = of->is_markup};
    if (s->all_trusted || of->n_spans == 0) return KT_OK;
    first = n = span_behind(of, begin);
    while (n < of->n_spans && of->spans[n].begin < end) n++;
    n -= first;
    if (n == 0) return KT_OK;
    KT_TRY(kt_jinja_alloc(r, n, sizeof *spans, &memory));
    spans = memory;
    for (size_t i = 0; i < n; i++) {
        const kt_trusted_span *from = &of->spans[first + i];
        spans[i].begin = from->begin > begin ? from->begin - begin : 0;
        spans[i].end = (from->end < end ? from->end : end) - begin;
    }
    s->spans = spans;
    s->n_spans = n;
    s->all_trusted = n == 1 && spans[0].begin == 0 && spans[0].end == s->size;
    return KT_OK;
}

/* ---- sums ---- */

static size_t span_count(const kt_jinja_string *s) {
    return s->all_trusted ? (s->size > 0) : s->n_spans;
}

/* Add s to a buffer that has room for it. */
static void extend(kt_jinja_buffer *b, const kt_jinja_string *s) {
    const kt_trusted_span all = {0, s->size};
    const kt_trusted_span *spans = s->all_trusted ? &all : s->spans;

    memcpy(b->data + b->size, s->data, s->size);
    for (size_t i = 0; i < span_count(s) && spans[i].begin < s->size; i++) {
        size_t begin = b->size + spans[i].begin;
        size_t end = b->size + (spans[i].end < s->size ? spans[i].end : s->size);
        if (b->n_spans && b->spans[b->n_spans - 1].end == begin)
            b->spans[b->n_spans - 1].end = end;
        else
            b->spans[b->n_spans++] = (kt_trusted_span){begin, end};
    }
    b->size += s->size;
}

static bool has_room(const kt_jinja_string *a, const kt_jinja_string *b) {
    const kt_jinja_buffer *at = a->buffer;

    return at && a->size == at->size && a->n_spans == at->n_spans &&
           at->capacity - at->size >= b->size && at->span_capacity - at->n_spans >= span_count(b);
}

static kt_status new_buffer(kt_jinja_run *r, const kt_jinja_string *a, const kt_jinja_string *b,
                            kt_jinja_buffer **out) {
    size_t n = a->size + b->size, spans = span_count(a) + span_count(b) + 1;
    bool may_grow = n >= IN_PLACE_BYTES;
    void *memory;

    KT_TRY(kt_jinja_spend(r, a->size / 64));
    KT_TRY(kt_jinja_alloc(r, 1, sizeof **out, &memory));
    *out = memory;
    (*out)->capacity = may_grow ? 2 * n : n;
    (*out)->span_capacity = may_grow ? 2 * spans : spans;
    KT_TRY(kt_jinja_alloc(r, (*out)->capacity + 1, 1, &memory));
    (*out)->data = memory;
    KT_TRY(kt_jinja_alloc(r, (*out)->span_capacity, sizeof(kt_trusted_span), &memory));
    (*out)->spans = memory;
    extend(*out, a);
    return KT_OK;
}

kt_status kt_jinja_join2(kt_jinja_run *r, const kt_jinja_string *a, const kt_jinja_string *b,
                         kt_jinja_value *out) {
    kt_jinja_buffer *buffer = a->buffer;
    kt_jinja_string *s;

    KT_TRY(kt_jinja_spend(r, b->size / 64));
    KT_TRY(new_string(r, &s, out));
    if (a->size == 0 || b->size == 0) {
        *s = a->size == 0 ? *b : *a;
        return KT_OK;
    }
    if (!has_room(a, b)) KT_TRY(new_buffer(r, a, b, &buffer));
    extend(buffer, b);
    *s = (kt_jinja_string){.data = buffer->data,
                           .size = buffer->size,
                           .spans = buffer->spans,
                           .n_spans = buffer->n_spans,
                           .buffer = buffer,
                           .is_markup = a->is_markup};
    return KT_OK;
}

/* ---- looking at strings ---- */

bool kt_jinja_trusted_at(const kt_jinja_string *s, size_t at) {
    size_t i;

    if (s->all_trusted) return true;
    i = span_behind(s, at);
    return i < s->n_spans && s->spans[i].begin <= at;
}

bool kt_jinja_same_text(const kt_jinja_string *a, const kt_jinja_string *b) {
    return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

size_t kt_jinja_char_count(const char *s, size_t n) {
    size_t count = 0;

    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

size_t kt_jinja_char_offset(const char *s, size_t n, size_t i) {
    size_t at = 0;

    for (; i && at < n; i--) do
            at++;
        while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

size_t kt_jinja_find(const kt_jinja_string *s, size_t from, const char *what, size_t n) {
    const char *found;

    if (from > s->size || n > s->size - from) return SIZE_MAX;
    if (n == 0) return from;
    found = memmem(s->data + from, s->size - from, what, n);
    return found ? (size_t)(found - s->data) : SIZE_MAX;
}

static bool ends_line(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

size_t kt_jinja_line_end(const kt_jinja_string *s, size_t at, size_t *next) {
    for (size_t n; at < s->size; at += n) {
        uint32_t c = 0;
        const int got = kt_utf8_next(s->data + at, s->size - at, &c);
        n = got > 0 ? (size_t)got : 1;
        if (!ends_line(c)) continue;
        if (c == '\r' && at + 1 < s->size && s->data[at + 1] == '\n') n = 2;
        *next = at + n;
        return at;
    }
    return *next = s->size;
}

kt_status kt_jinja_replace(kt_jinja_run *r, const kt_jinja_string *s, const kt_jinja_string *old,
                           const kt_jinja_string *with, int64_t count, kt_jinja_value *out) {
    kt_jinja_builder b = {0};
    size_t at = 0;
    kt_status st = kt_jinja_spend(r, s->size / 64);

    while (st == KT_OK && count != 0) {
        size_t found = kt_jinja_find(s, at, old->data, old->size), end;
        if (found == SIZE_MAX) break;
        end = found + old->size;
        if (old->size == 0) { /* in front of every character, and at the end */
            st = kt_jinja_put_string(r, &b, with);
            if (at == s->size) break;
            end = at + kt_jinja_char_offset(s->data + at, s->size - at, 1);
            if (st == KT_OK) st = kt_jinja_put_part(r, &b, s, at, end);
        } else {
            st = kt_jinja_put_part(r, &b, s, at, found);
            if (st == KT_OK) st = kt_jinja_put_string(r, &b, with);
        }
        at = end;
        count--;
    }
    if (st == KT_OK && at == 0 && b.text.size == 0) {
        *out = kt_jinja_text(s);
    } else {
        if (st == KT_OK && at < s->size) st = kt_jinja_put_part(r, &b, s, at, s->size);
        if (st == KT_OK) st = kt_jinja_build(r, &b, s->is_markup, out);
    }
    kt_jinja_builder_deinit(&b);
    return st;
}

/* Does the character of n bytes belong to the set (NULL = white space)? */
static bool in_set(const kt_jinja_string *set, const char *c, size_t n) {
    uint32_t cp;

    if (!set) return kt_utf8_next(c, n, &cp) > 0 && kt_unicode_is_space(cp);
    return memmem(set->data, set->size, c, n) != NULL;
}

kt_status kt_jinja_strip(kt_jinja_run *r, const kt_jinja_string *s, const kt_jinja_string *set,
                         bool left, bool right, kt_jinja_value *out) {
    size_t begin = 0, end = s->size, n;

    while (left && begin < end) {
        n = kt_jinja_char_offset(s->data + begin, end - begin, 1);
        if (!in_set(set, s->data + begin, n)) break;
        begin += n;
    }
    while (right && end > begin) {
        n = 1;
        while (n < end - begin && ((unsigned char)s->data[end - n] & 0xc0) == 0x80) n++;
        if (!in_set(set, s->data + end - n, n)) break;
        end -= n;
    }
    return kt_jinja_part(r, s, begin, end, out);
}
