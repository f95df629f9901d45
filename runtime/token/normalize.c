/* Normal forms after UAX #15 on utf8proc's tables.
 *
 * utf8proc decomposes and composes well, but it orders combining marks by exchanging neighbours, which
 * a text of nothing but marks turns into quadratic time. So the order is made here, by a stable
 * merge sort of each run of marks, and utf8proc composes what is already in order.
 *
 * The text is cut in front of each ASCII character: those start anew and combine with nothing to
 * their left, so the parts are independent, and stretches of plain ASCII are copied as they are.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/normalize.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "runtime/token/utf8_scan.h"

typedef struct points {
    int32_t *data;
    size_t size, capacity;
} points;

static kt_status points_reserve(points *p, size_t more, kt_err *err) {
    void *data = p->data;
    kt_status st = kt_grow(&data, p->size, &p->capacity, more, sizeof *p->data, err);
    p->data = data;
    return st;
}

static int combining_class(int32_t cp) {
    return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

/* Stable merge sort by combining class; tmp has room for n. */
static void sort_marks(int32_t *v, size_t n, int32_t *tmp) {
    size_t half = n / 2, i = 0, j = half, k = 0;

    if (n < 2) return;
    sort_marks(v, half, tmp);
    sort_marks(v + half, n - half, tmp);
    if (combining_class(v[half - 1]) <= combining_class(v[half])) return;
    while (i < half && j < n) {
        tmp[k++] = combining_class(v[j]) < combining_class(v[i]) ? v[j++] : v[i++];
    }
    while (i < half) tmp[k++] = v[i++];
    memcpy(v, tmp, k * sizeof *v); /* what is left of the right half is in place */
}

static kt_status order_marks(points *p, points *scratch, kt_err *err) {
    for (size_t begin = 0, end; begin < p->size; begin = end) {
        end = begin + 1;
        if (combining_class(p->data[begin]) == 0) continue;
        while (end < p->size && combining_class(p->data[end]) != 0) end++;
        KT_TRY(points_reserve(scratch, end - begin, err));
        sort_marks(p->data + begin, end - begin, scratch->data);
    }
    return KT_OK;
}

static kt_status decompose(const char *s, size_t n, int options, points *p, kt_err *err) {
    size_t at = 0;

    p->size = 0;
    while (at < n) {
        uint32_t cp = 0;
        int boundary = 0;
        utf8proc_ssize_t room, got;
        at += (size_t)kt_utf8_next(s + at, n - at, &cp);
        KT_TRY(points_reserve(p, 32, err)); /* the longest decomposition has 18 */
        room = (utf8proc_ssize_t)(p->capacity - p->size);
        got = utf8proc_decompose_char((utf8proc_int32_t)cp, p->data + p->size, room,
                                      (utf8proc_option_t)options, &boundary);
        if (got < 0 || got > room) {
            return kt_fail(err, KT_E_INTERNAL, "U+%04X does not decompose: %s", cp,
                           utf8proc_errmsg(got));
        }
        p->size += (size_t)got;
    }
    return KT_OK;
}

static kt_status normalize_part(kt_normal_form form, const char *s, size_t n, points *p,
                                points *scratch, kt_text *out, kt_err *err) {
    const bool compat = form == KT_NORMAL_NFKC || form == KT_NORMAL_NFKD;
    const bool compose = form == KT_NORMAL_NFC || form == KT_NORMAL_NFKC;

    KT_TRY(decompose(s, n, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0), p,
                     err));
    KT_TRY(order_marks(p, scratch, err));
    if (compose) {
        utf8proc_ssize_t got =
            utf8proc_normalize_utf32(p->data, (utf8proc_ssize_t)p->size,
                                     (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        if (got < 0) return kt_fail(err, KT_E_INTERNAL, "compose: %s", utf8proc_errmsg(got));
        p->size = (size_t)got;
    }
    KT_TRY(kt_text_reserve(out, p->size * 4, err));
    for (size_t i = 0; i < p->size; i++) {
        out->size += (size_t)kt_utf8_put(out->data + out->size, (uint32_t)p->data[i]);
    }
    return KT_OK;
}

/* Everything below U+0300 is its own NFC; ASCII is its own everything. */
bool kt_normalize_is_plain(kt_normal_form form, const char *s, size_t n) {
    const unsigned char limit = form == KT_NORMAL_NFC ? 0xcc : 0x80;

    if (form == KT_NORMAL_NONE) return true;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] >= limit) return false;
    }
    return true;
}

/* End of the part at `begin`: after one ASCII character and all that are not ASCII, or before the
 * last character of a run of ASCII. */
static size_t part_end(const char *s, size_t n, size_t begin, bool *ascii) {
    size_t end = begin;

    while (end < n && !(s[end] & 0x80)) end++;
    *ascii = true;
    if (end == n) return end;
    if (end > begin + 1) return end - 1;
    *ascii = false;
    while (end < n && (s[end] & 0x80)) end++;
    return end;
}

kt_status kt_normalize(kt_normal_form form, const char *s, size_t n, kt_text *out, kt_err *err) {
    points p = {0}, scratch = {0};
    kt_status st = KT_OK;

    out->size = 0;
    if (kt_normalize_is_plain(form, s, n)) return kt_text_append(out, s, n, err);
    for (size_t begin = 0, end; st == KT_OK && begin < n; begin = end) {
        bool ascii;
        end = part_end(s, n, begin, &ascii);
        if (ascii || kt_normalize_is_plain(form, s + begin, end - begin)) {
            st = kt_text_append(out, s + begin, end - begin, err);
        } else {
            st = normalize_part(form, s + begin, end - begin, &p, &scratch, out, err);
        }
    }
    free(p.data);
    free(scratch.data);
    return st;
}
