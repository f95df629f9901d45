/* Methods of strings, lists and dictionaries. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/utf8.h"
#include "runtime/chat/jinja_node.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

#define METHOD(name_)                                                                     \
    static kt_status method_##name_(kt_jinja_run *r, const kt_jinja_value *self,          \
                                    const kt_jinja_value *arg, const kt_jinja_args *args, \
                                    kt_jinja_value *out)

static bool given(const kt_jinja_value *arg) {
    return arg->type != KT_JINJA_UNSET && arg->type != KT_JINJA_NONE;
}

static kt_status text_of(kt_jinja_run *r, const kt_jinja_value *v, const kt_jinja_string **out) {
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    if (v->type != KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "expected a str, found a %s", kt_jinja_type_name(v));
    *out = v->as.string;
    return KT_OK;
}

static kt_status int_of(kt_jinja_run *r, const kt_jinja_value *v, int64_t if_unset, int64_t *out) {
    *out = if_unset;
    if (v->type == KT_JINJA_UNSET) return KT_OK;
    if (v->type != KT_JINJA_INT)
        return kt_jinja_fail(r, KT_E_INVALID, "expected an int, found a %s", kt_jinja_type_name(v));
    *out = v->as.integer;
    return KT_OK;
}

/* ---- strings: ends ---- */

static kt_status strip_by(kt_jinja_run *r, const kt_jinja_value *self, const kt_jinja_value *arg,
                          bool left, bool right, kt_jinja_value *out) {
    const kt_jinja_string *set = NULL;

    if (given(&arg[0])) KT_TRY(text_of(r, &arg[0], &set));
    return kt_jinja_strip(r, self->as.string, set, left, right, out);
}

METHOD(strip) {
    (void)args;
    return strip_by(r, self, arg, true, true, out);
}

METHOD(lstrip) {
    (void)args;
    return strip_by(r, self, arg, true, false, out);
}

METHOD(rstrip) {
    (void)args;
    return strip_by(r, self, arg, false, true, out);
}

static bool has_end(const kt_jinja_string *s, const kt_jinja_string *what, bool at_end) {
    return what->size <= s->size &&
           memcmp(s->data + (at_end ? s->size - what->size : 0), what->data, what->size) == 0;
}

/* One prefix, or a tuple of them. */
static kt_status ends(kt_jinja_run *r, const kt_jinja_value *self, const kt_jinja_value *arg,
                      bool at_end, kt_jinja_value *out) {
    const kt_jinja_value *first = arg;
    const kt_jinja_string *what = NULL;
    size_t n = 1;

    if (arg->type == KT_JINJA_LIST && arg->as.list->flavour == KT_JINJA_TUPLE) {
        first = arg->as.list->items;
        n = arg->as.list->size;
    }
    *out = kt_jinja_bool(false);
    for (size_t i = 0; i < n; i++) {
        KT_TRY(text_of(r, &first[i], &what));
        if (has_end(self->as.string, what, at_end)) *out = kt_jinja_bool(true);
    }
    return KT_OK;
}

METHOD(startswith) {
    (void)args;
    return ends(r, self, &arg[0], false, out);
}

METHOD(endswith) {
    (void)args;
    return ends(r, self, &arg[0], true, out);
}

METHOD(removeprefix) {
    const kt_jinja_string *s = self->as.string, *what = NULL;

    (void)args;
    KT_TRY(text_of(r, &arg[0], &what));
    return kt_jinja_part(r, s, has_end(s, what, false) ? what->size : 0, s->size, out);
}

METHOD(removesuffix) {
    const kt_jinja_string *s = self->as.string, *what = NULL;

    (void)args;
    KT_TRY(text_of(r, &arg[0], &what));
    return kt_jinja_part(r, s, 0, s->size - (has_end(s, what, true) ? what->size : 0), out);
}

/* ---- strings: parts ---- */

static kt_status add_part(kt_jinja_run *r, kt_jinja_value *list, const kt_jinja_string *s,
                          size_t begin, size_t end) {
    kt_jinja_value part;

    KT_TRY(kt_jinja_part(r, s, begin, end, &part));
    return kt_jinja_append(r, list->as.list, &part);
}

static size_t char_at(const kt_jinja_string *s, size_t at, bool *is_space) {
    uint32_t c = 0;
    int n = kt_utf8_next(s->data + at, s->size - at, &c);
    *is_space = n > 0 && kt_unicode_is_space(c);
    return n > 0 ? (size_t)n : 1;
}

/* At runs of white space, at most `most` times. */
static kt_status split_words(kt_jinja_run *r, const kt_jinja_string *s, int64_t most,
                             kt_jinja_value *out) {
    size_t at = 0, begin;
    bool space;

    for (;; most--) {
        while (at < s->size) {
            size_t n = char_at(s, at, &space);
            if (!space) break;
            at += n;
        }
        if (at >= s->size) return KT_OK;
        begin = at;
        if (most == 0) {
            kt_jinja_value tail;
            KT_TRY(kt_jinja_part(r, s, begin, s->size, &tail));
            KT_TRY(kt_jinja_strip(r, tail.as.string, NULL, false, true, &tail));
            return kt_jinja_append(r, out->as.list, &tail);
        }
        while (at < s->size) {
            size_t n = char_at(s, at, &space);
            if (space) break;
            at += n;
        }
        KT_TRY(add_part(r, out, s, begin, at));
    }
}

/* The last occurrence of `what` that ends at or before `end`, or SIZE_MAX. */
static size_t find_last(const kt_jinja_string *s, size_t end, const kt_jinja_string *what) {
    if (what->size > end) return SIZE_MAX;
    for (size_t i = end - what->size + 1; i-- > 0;)
        if (memcmp(s->data + i, what->data, what->size) == 0) return i;
    return SIZE_MAX;
}

static void reverse_list(kt_jinja_list *l) {
    for (size_t i = 0; i < l->size / 2; i++) {
        kt_jinja_value other = l->items[i];
        l->items[i] = l->items[l->size - 1 - i];
        l->items[l->size - 1 - i] = other;
    }
}

static kt_status split_by(kt_jinja_run *r, const kt_jinja_value *self, const kt_jinja_value *arg,
                          bool from_right, kt_jinja_value *out) {
    const kt_jinja_string *s = self->as.string, *by = NULL;
    size_t begin = 0, end = s->size;
    int64_t most;

    KT_TRY(kt_jinja_spend(r, s->size / 64));
    KT_TRY(int_of(r, &arg[1], -1, &most));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, out));
    if (!given(&arg[0]) && from_right && most >= 0)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "rsplit at white space with a limit");
    if (!given(&arg[0])) return split_words(r, s, most, out);
    KT_TRY(text_of(r, &arg[0], &by));
    if (by->size == 0) return kt_jinja_fail(r, KT_E_INVALID, "empty separator");
    for (; most != 0; most--) {
        size_t found =
            from_right ? find_last(s, end, by) : kt_jinja_find(s, begin, by->data, by->size);
        if (found == SIZE_MAX) break;
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(from_right ? add_part(r, out, s, found + by->size, end)
                          : add_part(r, out, s, begin, found));
        if (from_right)
            end = found;
        else
            begin = found + by->size;
    }
    KT_TRY(add_part(r, out, s, begin, end));
    if (from_right) reverse_list(out->as.list);
    return KT_OK;
}

METHOD(split) {
    (void)args;
    return split_by(r, self, arg, false, out);
}

METHOD(rsplit) {
    (void)args;
    return split_by(r, self, arg, true, out);
}

METHOD(splitlines) {
    const kt_jinja_string *s = self->as.string;
    bool keep = kt_jinja_truth(&arg[0]);

    (void)args;
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, out));
    for (size_t at = 0, next; at < s->size; at = next) {
        const size_t end = kt_jinja_line_end(s, at, &next);
        KT_TRY(add_part(r, out, s, at, keep ? next : end));
    }
    return KT_OK;
}

static kt_status partition_at(kt_jinja_run *r, const kt_jinja_value *self,
                              const kt_jinja_value *arg, bool from_right, kt_jinja_value *out) {
    const kt_jinja_string *s = self->as.string, *by = NULL;
    size_t found, behind;

    KT_TRY(text_of(r, &arg[0], &by));
    if (by->size == 0) return kt_jinja_fail(r, KT_E_INVALID, "empty separator");
    found = from_right ? find_last(s, s->size, by) : kt_jinja_find(s, 0, by->data, by->size);
    behind = found == SIZE_MAX ? 0 : found + by->size;
    if (found == SIZE_MAX) found = behind = from_right ? 0 : s->size;
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 3, out));
    KT_TRY(add_part(r, out, s, 0, found));
    KT_TRY(add_part(r, out, s, found, behind));
    return add_part(r, out, s, behind, s->size);
}

METHOD(partition) {
    (void)args;
    return partition_at(r, self, arg, false, out);
}

METHOD(rpartition) {
    (void)args;
    return partition_at(r, self, arg, true, out);
}

METHOD(replace) {
    const kt_jinja_string *old = NULL, *with = NULL;
    int64_t count;

    (void)args;
    KT_TRY(text_of(r, &arg[0], &old));
    KT_TRY(text_of(r, &arg[1], &with));
    KT_TRY(int_of(r, &arg[2], -1, &count));
    return kt_jinja_replace(r, self->as.string, old, with, count, out);
}

METHOD(join) {
    kt_jinja_builder b = {0};
    kt_jinja_list items;
    kt_status st = KT_OK;

    (void)args;
    KT_TRY(kt_jinja_iterate(r, &arg[0], &items));
    for (size_t i = 0; st == KT_OK && i < items.size; i++) {
        const kt_jinja_string *s = NULL;
        if (i) st = kt_jinja_put_string(r, &b, self->as.string);
        if (st == KT_OK) st = text_of(r, &items.items[i], &s);
        if (st == KT_OK) st = kt_jinja_put_string(r, &b, s);
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, self->as.string->is_markup, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

/* ---- strings: places ---- */

static kt_status place(kt_jinja_run *r, const kt_jinja_value *self, const kt_jinja_value *arg,
                       bool from_right, bool must, kt_jinja_value *out) {
    const kt_jinja_string *s = self->as.string, *what = NULL;
    int64_t n = (int64_t)kt_jinja_char_count(s->data, s->size), from, to;
    kt_jinja_string part = *s;
    size_t begin, found;

    KT_TRY(kt_jinja_spend(r, s->size / 64));
    KT_TRY(text_of(r, &arg[0], &what));
    KT_TRY(int_of(r, &arg[1], 0, &from));
    KT_TRY(int_of(r, &arg[2], n, &to));
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    if (to > n) to = n;
    *out = kt_jinja_int(-1);
    if (from <= to) {
        begin = kt_jinja_char_offset(s->data, s->size, (size_t)from);
        part.size = kt_jinja_char_offset(s->data, s->size, (size_t)to);
        found = from_right ? find_last(&part, part.size, what)
                           : kt_jinja_find(&part, begin, what->data, what->size);
        if (found != SIZE_MAX && found >= begin)
            *out = kt_jinja_int((int64_t)kt_jinja_char_count(s->data, found));
    }
    if (must && out->as.integer < 0) return kt_jinja_fail(r, KT_E_INVALID, "substring not found");
    return KT_OK;
}

METHOD(find) {
    (void)args;
    return place(r, self, arg, false, false, out);
}

METHOD(rfind) {
    (void)args;
    return place(r, self, arg, true, false, out);
}

METHOD(index_of) {
    (void)args;
    return place(r, self, arg, false, true, out);
}

METHOD(rindex_of) {
    (void)args;
    return place(r, self, arg, true, true, out);
}

METHOD(count) {
    const kt_jinja_string *s = self->as.string, *what = NULL;
    int64_t n = 0;

    (void)args;
    KT_TRY(text_of(r, &arg[0], &what));
    if (what->size == 0) n = (int64_t)kt_jinja_char_count(s->data, s->size) + 1;
    for (size_t at = 0;
         what->size && (at = kt_jinja_find(s, at, what->data, what->size)) != SIZE_MAX;
         at += what->size)
        n++;
    *out = kt_jinja_int(n);
    return KT_OK;
}

/* ---- strings: letters ---- */

typedef enum change { LOWER, UPPER, CAPITALIZE, TITLE, SWAP } change;

static kt_letter_case case_for(change how, uint32_t c, bool first, bool behind_letter) {
    switch (how) {
    case LOWER: return KT_CASE_LOWER;
    case UPPER: return KT_CASE_UPPER;
    case CAPITALIZE: return first ? KT_CASE_TITLE : KT_CASE_LOWER;
    case TITLE: return behind_letter ? KT_CASE_LOWER : KT_CASE_TITLE;
    case SWAP: return kt_unicode_is_upper(c) ? KT_CASE_LOWER : KT_CASE_UPPER;
    }
    return KT_CASE_LOWER;
}

static kt_status change_case(kt_jinja_run *r, const kt_jinja_string *s, change how,
                             kt_jinja_value *out) {
    kt_jinja_builder b = {0};
    bool behind_letter = false;
    kt_status st = KT_OK;

    for (size_t i = 0, n; st == KT_OK && i < s->size; i += n) {
        uint32_t c = 0, many[3];
        char text[16];
        size_t size = 0;
        int got = kt_utf8_next(s->data + i, s->size - i, &c), count;
        n = got > 0 ? (size_t)got : 1;
        count = kt_unicode_convert(c, case_for(how, c, i == 0, behind_letter), many);
        for (int k = 0; k < count; k++) size += (size_t)kt_utf8_put(text + size, many[k]);
        st = kt_jinja_put(r, &b, text, size, kt_jinja_trusted_at(s, i));
        behind_letter = kt_unicode_is_upper(c) || kt_unicode_is_lower(c);
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, s->is_markup, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

METHOD(lower) {
    (void)arg, (void)args;
    return change_case(r, self->as.string, LOWER, out);
}

METHOD(upper) {
    (void)arg, (void)args;
    return change_case(r, self->as.string, UPPER, out);
}

METHOD(capitalize) {
    (void)arg, (void)args;
    return change_case(r, self->as.string, CAPITALIZE, out);
}

METHOD(title) {
    (void)arg, (void)args;
    return change_case(r, self->as.string, TITLE, out);
}

METHOD(swapcase) {
    (void)arg, (void)args;
    return change_case(r, self->as.string, SWAP, out);
}

typedef bool class_fn(uint32_t c);

static bool is_alnum(uint32_t c) {
    return kt_unicode_is_alpha(c) || kt_unicode_is_digit(c);
}

/* Does every character belong, and is there one? */
static kt_status all_are(const kt_jinja_string *s, class_fn *belongs, kt_jinja_value *out) {
    bool all = s->size > 0;

    for (size_t i = 0; all && i < s->size;) {
        uint32_t c = 0;
        int n = kt_utf8_next(s->data + i, s->size - i, &c);
        all = belongs(c);
        i += n > 0 ? (size_t)n : 1;
    }
    *out = kt_jinja_bool(all);
    return KT_OK;
}

METHOD(isdigit) {
    (void)r, (void)arg, (void)args;
    return all_are(self->as.string, kt_unicode_is_digit, out);
}

METHOD(isalpha) {
    (void)r, (void)arg, (void)args;
    return all_are(self->as.string, kt_unicode_is_alpha, out);
}

METHOD(isalnum) {
    (void)r, (void)arg, (void)args;
    return all_are(self->as.string, is_alnum, out);
}

METHOD(isspace) {
    (void)r, (void)arg, (void)args;
    return all_are(self->as.string, kt_unicode_is_space, out);
}

static kt_status by_test(kt_jinja_run *r, const kt_jinja_value *self, const char *name,
                         kt_jinja_value *out) {
    const kt_jinja_args none = {0};
    return kt_jinja_invoke(r, kt_jinja_find_test(name, 5), "test", self, &none, out);
}

METHOD(islower) {
    (void)arg, (void)args;
    return by_test(r, self, "lower", out);
}

METHOD(isupper) {
    (void)arg, (void)args;
    return by_test(r, self, "upper", out);
}

/* ---- strings: format ---- */

/* The value of a field: "", "0", "name", each with .attribute or [key] behind. */
static kt_status field_value(kt_jinja_run *r, const kt_jinja_args *args, const char *s, size_t n,
                             size_t *next, kt_jinja_value *out) {
    size_t used = 0, index = 0;
    bool digits = true;

    while (used < n && s[used] != '.' && s[used] != '[') {
        digits = digits && s[used] >= '0' && s[used] <= '9' && used < 9;
        index = digits ? index * 10 + (size_t)(s[used] - '0') : 0;
        used++;
    }
    if (used == 0) index = (*next)++;
    *out = kt_jinja_undefined();
    if (digits && index >= args->n_positional)
        return kt_jinja_fail(r, KT_E_INVALID, "format: there is no argument %zu", index);
    if (digits) *out = args->values[index];
    for (size_t i = 0; !digits && i < args->n_named; i++)
        if (args->names[i].size == used && memcmp(args->names[i].data, s, used) == 0) {
            *out = args->values[args->n_positional + i];
            digits = true;
        }
    if (!digits)
        return kt_jinja_fail(r, KT_E_INVALID, "format: there is no argument '%.*s'",
                             (int)(used < 60 ? used : 60), s);
    if (used < n)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "format: only plain fields, found '%.*s'",
                             (int)(n < 60 ? n : 60), s);
    return KT_OK;
}

METHOD(format) {
    const kt_jinja_string *s = self->as.string;
    kt_jinja_builder b = {0};
    size_t next = 0;
    kt_status st = KT_OK;

    (void)arg;
    for (size_t i = 0; st == KT_OK && i < s->size;) {
        size_t plain = i, close;
        kt_jinja_value v;
        while (i < s->size && s->data[i] != '{' && s->data[i] != '}') i++;
        st = kt_jinja_put_part(r, &b, s, plain, i);
        if (st != KT_OK || i == s->size) break;
        if (i + 1 < s->size && s->data[i + 1] == s->data[i]) {
            st = kt_jinja_put_part(r, &b, s, i, i + 1);
            i += 2;
            continue;
        }
        close = kt_jinja_find(s, i, "}", 1);
        if (s->data[i] == '}' || close == SIZE_MAX)
            st = kt_jinja_fail(r, KT_E_INVALID, "single '%c' in format string", s->data[i]);
        if (st == KT_OK) st = field_value(r, args, s->data + i + 1, close - i - 1, &next, &v);
        if (st == KT_OK) st = kt_jinja_put_str(r, &b, &v);
        i = close + 1;
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, s->is_markup, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

const kt_jinja_builtin kt_jinja_string_methods[] = {
    {.name = "strip", .run = method_strip, .parameters = {"chars"}},
    {.name = "lstrip", .run = method_lstrip, .parameters = {"chars"}},
    {.name = "rstrip", .run = method_rstrip, .parameters = {"chars"}},
    {.name = "startswith", .run = method_startswith, .n_required = 1, .parameters = {"prefix"}},
    {.name = "endswith", .run = method_endswith, .n_required = 1, .parameters = {"suffix"}},
    {.name = "removeprefix", .run = method_removeprefix, .n_required = 1, .parameters = {"prefix"}},
    {.name = "removesuffix", .run = method_removesuffix, .n_required = 1, .parameters = {"suffix"}},
    {.name = "split", .run = method_split, .parameters = {"sep", "maxsplit"}},
    {.name = "rsplit", .run = method_rsplit, .parameters = {"sep", "maxsplit"}},
    {.name = "splitlines", .run = method_splitlines, .parameters = {"keepends"}},
    {.name = "partition", .run = method_partition, .n_required = 1, .parameters = {"sep"}},
    {.name = "rpartition", .run = method_rpartition, .n_required = 1, .parameters = {"sep"}},
    {.name = "replace",
     .run = method_replace,
     .n_required = 2,
     .parameters = {"old", "new", "count"}},
    {.name = "join", .run = method_join, .n_required = 1, .parameters = {"iterable"}},
    {.name = "find", .run = method_find, .n_required = 1, .parameters = {"sub", "start", "end"}},
    {.name = "rfind", .run = method_rfind, .n_required = 1, .parameters = {"sub", "start", "end"}},
    {.name = "index",
     .run = method_index_of,
     .n_required = 1,
     .parameters = {"sub", "start", "end"}},
    {.name = "rindex",
     .run = method_rindex_of,
     .n_required = 1,
     .parameters = {"sub", "start", "end"}},
    {.name = "count", .run = method_count, .n_required = 1, .parameters = {"sub"}},
    {.name = "lower", .run = method_lower},
    {.name = "casefold", .run = method_lower},
    {.name = "upper", .run = method_upper},
    {.name = "capitalize", .run = method_capitalize},
    {.name = "title", .run = method_title},
    {.name = "swapcase", .run = method_swapcase},
    {.name = "isdigit", .run = method_isdigit},
    {.name = "isdecimal", .run = method_isdigit},
    {.name = "isnumeric", .run = method_isdigit},
    {.name = "isalpha", .run = method_isalpha},
    {.name = "isalnum", .run = method_isalnum},
    {.name = "isspace", .run = method_isspace},
    {.name = "islower", .run = method_islower},
    {.name = "isupper", .run = method_isupper},
    {.name = "format", .run = method_format, .takes_any = true},
    {.name = NULL}};
