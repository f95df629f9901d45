/* Filters on text and numbers. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/chat/jinja.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

#define FILTER(name_)                                                                 \
    static kt_status do_##name_(kt_jinja_run *r, const kt_jinja_value *v,             \
                                const kt_jinja_value *arg, const kt_jinja_args *args, \
                                kt_jinja_value *out)

static bool given(const kt_jinja_value *arg) {
    return arg->type != KT_JINJA_UNSET && arg->type != KT_JINJA_NONE;
}

static kt_status need_string(kt_jinja_run *r, const kt_jinja_value *v, const char *what,
                             const kt_jinja_string **out) {
    if (v->type != KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "%s is a %s, expected a str", what,
                             kt_jinja_type_name(v));
    *out = v->as.string;
    return KT_OK;
}

static kt_status need_int(kt_jinja_run *r, const kt_jinja_value *v, const char *what,
                          int64_t *out) {
    if (v->type == KT_JINJA_UNSET) return KT_OK; /* keeps its default */
    if (v->type != KT_JINJA_INT && v->type != KT_JINJA_BOOL)
        return kt_jinja_fail(r, KT_E_INVALID, "%s is a %s, expected an int", what,
                             kt_jinja_type_name(v));
    *out = v->type == KT_JINJA_BOOL ? v->as.truth : v->as.integer;
    return KT_OK;
}

/* ---- JSON ---- */

static kt_status json_form(kt_jinja_run *r, const kt_jinja_value *arg, char spaces[64],
                           kt_jinja_string *indent, kt_jinja_json_form *form) {
    int64_t n = 0;

    form->ensure_ascii = kt_jinja_truth(&arg[0]);
    form->sort_keys = kt_jinja_truth(&arg[3]);
    form->indent = NULL;
    if (arg[1].type == KT_JINJA_STRING) {
        form->indent = arg[1].as.string;
    } else if (given(&arg[1])) {
        KT_TRY(need_int(r, &arg[1], "indent", &n));
        if (n > 63) return kt_jinja_fail(r, KT_E_UNSUPPORTED, "indent beyond 63");
        memset(spaces, ' ', 64);
        *indent =
            (kt_jinja_string){.data = spaces, .size = n > 0 ? (size_t)n : 0, .all_trusted = true};
        form->indent = indent;
    }
    if (!given(&arg[2])) return KT_OK;
    if (arg[2].type != KT_JINJA_LIST || arg[2].as.list->size != 2)
        return kt_jinja_fail(r, KT_E_INVALID, "separators are a %s, expected a pair of strings",
                             kt_jinja_type_name(&arg[2]));
    KT_TRY(need_string(r, &arg[2].as.list->items[0], "separator", &form->item));
    return need_string(r, &arg[2].as.list->items[1], "separator", &form->key);
}

FILTER(tojson) {
    kt_jinja_string indent, item = *KT_JINJA_LITERAL(", "), key = *KT_JINJA_LITERAL(": ");
    kt_jinja_json_form form = {.item = &item, .key = &key};
    kt_jinja_builder b = {0};
    char spaces[64];
    kt_status st;

    (void)args;
    if (given(&arg[1])) item = *KT_JINJA_LITERAL(",");
    KT_TRY(json_form(r, arg, spaces, &indent, &form));
    st = kt_jinja_put_json(r, &b, &form, v);
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

/* Values of a document refer to its text, so they are printed into the rendering's memory first. */
static kt_status own_texts(kt_jinja_run *r, kt_jinja_value *v) {
    if (v->type == KT_JINJA_STRING || v->type == KT_JINJA_BIG) {
        kt_jinja_type type = v->type;
        void *copy;
        const kt_jinja_string *s = v->as.string;
        KT_TRY(kt_jinja_alloc(r, s->size + 1, 1, &copy));
        memcpy(copy, s->data, s->size);
        KT_TRY(kt_jinja_string_of(r, copy, s->size, s->all_trusted, v));
        v->type = type;
    } else if (v->type == KT_JINJA_LIST) {
        for (size_t i = 0; i < v->as.list->size; i++) KT_TRY(own_texts(r, &v->as.list->items[i]));
    } else if (v->type == KT_JINJA_DICT) {
        for (size_t i = 0; i < v->as.dict->size; i++) {
            KT_TRY(own_texts(r, &v->as.dict->entries[i].key));
            KT_TRY(own_texts(r, &v->as.dict->entries[i].value));
        }
    }
    return KT_OK;
}

FILTER(from_json) {
    const kt_json_limits limits = {.max_depth = 100};
    const kt_jinja_string *s = NULL;
    kt_json_doc *doc;
    kt_err why = {KT_OK, ""};
    kt_status st;

    (void)arg, (void)args;
    KT_TRY(need_string(r, v, "what from_json reads", &s));
    st = kt_json_parse(s->data, s->size, &limits, &doc, &why);
    if (st == KT_E_NOMEM) return kt_jinja_fail(r, st, "no memory for the rendering");
    if (st != KT_OK) return kt_jinja_fail(r, KT_E_INVALID, "from_json: %s", why.message);
    st = kt_jinja_from_json(r, kt_json_root(doc), false, out);
    if (st == KT_OK) st = own_texts(r, out);
    kt_json_destroy(doc);
    return st;
}

/* ---- text ---- */

FILTER(string) {
    const kt_jinja_string *s = NULL;

    (void)arg, (void)args;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    *out = kt_jinja_text(s);
    return KT_OK;
}

static kt_status marked(kt_jinja_run *r, const kt_jinja_value *v, bool escape, bool again,
                        kt_jinja_value *out) {
    const kt_jinja_string *s = NULL;
    kt_jinja_string plain;
    kt_jinja_builder b = {0};
    kt_status st;

    KT_TRY(kt_jinja_to_str(r, v, &s));
    plain = *s;
    if (again) plain.is_markup = false;
    st = escape ? kt_jinja_put_escaped(r, &b, &plain) : kt_jinja_put_string(r, &b, &plain);
    if (st == KT_OK) st = kt_jinja_build(r, &b, true, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

FILTER(safe) {
    (void)arg, (void)args;
    return marked(r, v, false, false, out);
}

FILTER(escape) {
    (void)arg, (void)args;
    return marked(r, v, true, false, out);
}

FILTER(forceescape) {
    (void)arg, (void)args;
    return marked(r, v, true, true, out);
}

FILTER(trim) {
    const kt_jinja_string *s = NULL, *set = NULL;

    (void)args;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    if (given(&arg[0])) KT_TRY(need_string(r, &arg[0], "what to trim", &set));
    return kt_jinja_strip(r, s, set, true, true, out);
}

/* By a method of strings, after str(). */
static kt_status by_method(kt_jinja_run *r, const kt_jinja_value *v, const char *name,
                           const kt_jinja_args *args, kt_jinja_value *out) {
    const kt_jinja_builtin *method =
        kt_jinja_find_builtin(kt_jinja_string_methods, name, strlen(name));
    const kt_jinja_string *s = NULL;
    kt_jinja_value text;

    KT_TRY(kt_jinja_to_str(r, v, &s));
    text = kt_jinja_text(s);
    return kt_jinja_invoke(r, method, "method", &text, args, out);
}

FILTER(lower) {
    (void)arg;
    return by_method(r, v, "lower", args, out);
}

FILTER(upper) {
    (void)arg;
    return by_method(r, v, "upper", args, out);
}

FILTER(capitalize) {
    (void)arg;
    return by_method(r, v, "capitalize", args, out);
}

FILTER(replace) {
    const kt_jinja_string *s = NULL, *old = NULL, *with = NULL;
    int64_t count = -1;

    (void)args;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    KT_TRY(kt_jinja_to_str(r, &arg[0], &old));
    KT_TRY(kt_jinja_to_str(r, &arg[1], &with));
    if (given(&arg[2])) KT_TRY(need_int(r, &arg[2], "count", &count));
    return kt_jinja_replace(r, s, old, with, count, out);
}

/* Words begin behind white space and brackets; the rest of each is lower case. */
FILTER(title) {
    const kt_jinja_string *s = NULL;
    kt_jinja_builder b = {0};
    bool begins = true;
    kt_status st;

    (void)arg, (void)args;
    st = kt_jinja_to_str(r, v, &s);
    for (size_t i = 0, n; st == KT_OK && i < s->size; i += n) {
        uint32_t c = 0, many[3];
        char text[16];
        size_t size = 0;
        int got = kt_utf8_next(s->data + i, s->size - i, &c);
        int count = kt_unicode_convert(c, begins ? KT_CASE_UPPER : KT_CASE_LOWER, many);
        n = got > 0 ? (size_t)got : 1;
        for (int k = 0; k < count; k++) size += (size_t)kt_utf8_put(text + size, many[k]);
        st = kt_jinja_put(r, &b, text, size, kt_jinja_trusted_at(s, i));
        begins = kt_unicode_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

/* Lines but the first (unless `first`) get the indent; empty ones (unless `blank`) do not. */
FILTER(indent) {
    kt_jinja_string spaces = {.all_trusted = true};
    const kt_jinja_string *s = NULL, *pad = &spaces;
    bool first = kt_jinja_truth(&arg[1]), blank = kt_jinja_truth(&arg[2]);
    kt_jinja_builder b = {0};
    char text[256];
    int64_t width = 4;
    kt_status st;

    (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    KT_TRY(need_string(r, v, "what is indented", &s));
    if (arg[0].type == KT_JINJA_STRING) {
        pad = arg[0].as.string;
    } else {
        KT_TRY(need_int(r, &arg[0], "width", &width));
        if (width > 255) return kt_jinja_fail(r, KT_E_UNSUPPORTED, "indent beyond 255");
        memset(text, ' ', sizeof text);
        spaces.data = text;
        spaces.size = width > 0 ? (size_t)width : 0;
    }
    st = KT_OK;
    for (size_t at = 0, line = 0, end, next; st == KT_OK; line++, at = next) {
        end = kt_jinja_line_end(s, at, &next);
        if (line) st = kt_jinja_put(r, &b, "\n", 1, true);
        if (st == KT_OK && (line ? blank || end > at : first)) st = kt_jinja_put_string(r, &b, pad);
        if (st == KT_OK) st = kt_jinja_put_part(r, &b, s, at, end);
        if (next == end) break;
        if (next == s->size && s->data[next - 1] == '\r') break; /* the reference loses it */
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, s->is_markup, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

FILTER(format) {
    const kt_jinja_string *s = NULL;
    kt_jinja_value values;

    (void)arg;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, args->n_positional, &values));
    for (size_t i = 0; i < args->n_positional; i++)
        KT_TRY(kt_jinja_append(r, values.as.list, &args->values[i]));
    if (args->n_named) KT_TRY(kt_jinja_new_dict(r, 0, &values));
    for (size_t i = 0; i < args->n_named; i++) {
        const kt_jinja_value key = kt_jinja_text(&args->names[i]);
        KT_TRY(kt_jinja_set(r, values.as.dict, &key, &args->values[args->n_positional + i]));
    }
    return kt_jinja_format(r, s, &values, out);
}

FILTER(wordcount) {
    const kt_jinja_string *s = NULL;
    int64_t words = 0;
    bool inside = false;

    (void)arg, (void)args;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    KT_TRY(kt_jinja_spend(r, s->size / 64));
    for (size_t i = 0, n; i < s->size; i += n) {
        uint32_t c = 0;
        int got = kt_utf8_next(s->data + i, s->size - i, &c);
        bool word = c == '_' || kt_unicode_is_alpha(c) || kt_unicode_is_digit(c);
        n = got > 0 ? (size_t)got : 1;
        words += word && !inside;
        inside = word;
    }
    *out = kt_jinja_int(words);
    return KT_OK;
}

/* The first `length` characters, `end` being the last of them, of what is longer by the leeway. */
FILTER(truncate) {
    const kt_jinja_string *s = NULL, *end = KT_JINJA_LITERAL("...");
    int64_t length = 255, leeway = 5, n;
    bool killwords = kt_jinja_truth(&arg[1]);
    kt_jinja_value head;
    size_t cut, space;

    (void)args;
    KT_TRY(kt_jinja_to_str(r, v, &s));
    KT_TRY(need_int(r, &arg[0], "length", &length));
    if (given(&arg[2])) KT_TRY(need_string(r, &arg[2], "end", &end));
    if (given(&arg[3])) KT_TRY(need_int(r, &arg[3], "leeway", &leeway));
    n = (int64_t)kt_jinja_char_count(s->data, s->size);
    if (n <= length + leeway) {
        *out = kt_jinja_text(s);
        return KT_OK;
    }
    length -= (int64_t)kt_jinja_char_count(end->data, end->size);
    if (length < 0) return kt_jinja_fail(r, KT_E_INVALID, "expected length >= that of the end");
    cut = kt_jinja_char_offset(s->data, s->size, (size_t)length);
    for (space = cut; !killwords && space > 0 && s->data[space - 1] != ' ';) space--;
    if (!killwords && space > 0) cut = space - 1;
    KT_TRY(kt_jinja_part(r, s, 0, cut, &head));
    return kt_jinja_join2(r, head.as.string, end, out);
}

/* ---- numbers ---- */

static bool read_number(const kt_jinja_string *s, int base, bool is_float, kt_jinja_value *out) {
    char text[128];
    size_t n = s->size < sizeof text ? s->size : 0;
    char *end;

    memcpy(text, s->data, n);
    text[n] = '\0';
    while (n && kt_unicode_is_space((unsigned char)text[n - 1])) text[--n] = '\0';
    if (n == 0) return false;
    errno = 0;
    if (is_float) {
        if (strpbrk(text, "xXpP")) return false;
        *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = strtod(text, &end)};
        return *end == '\0' && end != text;
    }
    *out = kt_jinja_int(strtoll(text, &end, base));
    return *end == '\0' && end != text && errno == 0;
}

FILTER(int) {
    int64_t base = 10;
    kt_jinja_value real;

    (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    if (given(&arg[1])) KT_TRY(need_int(r, &arg[1], "base", &base));
    if (base != 0 && (base < 2 || base > 36))
        return kt_jinja_fail(r, KT_E_INVALID, "base is %lld, expected 2 to 36", (long long)base);
    *out = arg[0].type == KT_JINJA_UNSET ? kt_jinja_int(0) : arg[0];
    if (v->type == KT_JINJA_INT || v->type == KT_JINJA_BIG) *out = *v;
    if (v->type == KT_JINJA_BOOL) *out = kt_jinja_int(v->as.truth);
    real = *v;
    if (v->type == KT_JINJA_STRING) {
        kt_jinja_value whole;
        if (read_number(v->as.string, (int)base, false, &whole)) {
            *out = whole;
            return KT_OK;
        }
        if (!read_number(v->as.string, 10, true, &real)) return KT_OK;
    }
    if (real.type == KT_JINJA_FLOAT && fabs(real.as.real) < 9e18)
        *out = kt_jinja_int((int64_t)real.as.real);
    return KT_OK;
}

FILTER(float) {
    kt_jinja_value read;

    (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    *out = arg[0].type == KT_JINJA_UNSET ? (kt_jinja_value){.type = KT_JINJA_FLOAT} : arg[0];
    if (kt_jinja_is_number(v))
        *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = kt_jinja_number(v)};
    else if (v->type == KT_JINJA_STRING && read_number(v->as.string, 10, true, &read))
        *out = read;
    return KT_OK;
}

FILTER(abs) {
    (void)arg, (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    if (!kt_jinja_is_number(v))
        return kt_jinja_fail(r, KT_E_INVALID, "bad operand type for abs(): '%s'",
                             kt_jinja_type_name(v));
    *out = *v;
    if (v->type == KT_JINJA_FLOAT) out->as.real = fabs(v->as.real);
    if (v->type == KT_JINJA_BOOL) *out = kt_jinja_int(v->as.truth);
    if (v->type == KT_JINJA_INT && v->as.integer < 0 &&
        __builtin_sub_overflow(0, v->as.integer, &out->as.integer))
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "this integer is beyond 64 bits");
    return KT_OK;
}

/* Half to even, in decimal digits of the exact value: what printf does, and Python. */
FILTER(round) {
    const kt_jinja_string *method = KT_JINJA_LITERAL("common");
    int64_t precision = 0;
    double x, scale;
    char text[512];

    (void)args;
    if (given(&arg[0])) KT_TRY(need_int(r, &arg[0], "precision", &precision));
    if (given(&arg[1])) KT_TRY(need_string(r, &arg[1], "method", &method));
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    if (!kt_jinja_is_number(v) || precision < -15 || precision > 15)
        return kt_jinja_fail(r, KT_E_INVALID, "cannot round a %s to %lld digits",
                             kt_jinja_type_name(v), (long long)precision);
    x = kt_jinja_number(v);
    scale = pow(10, (double)precision);
    if (kt_jinja_same_text(method, KT_JINJA_LITERAL("ceil"))) {
        x = ceil(x * scale) / scale;
    } else if (kt_jinja_same_text(method, KT_JINJA_LITERAL("floor"))) {
        x = floor(x * scale) / scale;
    } else if (v->type != KT_JINJA_FLOAT && precision >= 0) {
        *out = kt_jinja_int((int64_t)x);
        return KT_OK;
    } else if (precision < 0) {
        x = nearbyint(x * scale) / scale;
    } else {
        snprintf(text, sizeof text, "%.*f", (int)precision, x);
        x = strtod(text, NULL);
    }
    *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = x};
    return KT_OK;
}

/* ---- both ---- */

FILTER(default) {
    bool empty = v->type == KT_JINJA_UNDEFINED || (kt_jinja_truth(&arg[1]) && !kt_jinja_truth(v));

    (void)args;
    *out = !empty ? *v : arg[0];
    return empty && arg[0].type == KT_JINJA_UNSET ? kt_jinja_string_of(r, "", 0, true, out) : KT_OK;
}

FILTER(length) {
    int64_t n;

    (void)arg, (void)args;
    KT_TRY(kt_jinja_length(r, v, &n));
    *out = kt_jinja_int(n);
    return KT_OK;
}

FILTER(attr) {
    const kt_jinja_string *name = NULL;

    (void)args;
    KT_TRY(need_string(r, &arg[0], "the attribute's name", &name));
    if (v->type == KT_JINJA_DICT && !kt_jinja_method(v, name->data, name->size))
        return kt_jinja_missing_member(r, v, name->data, name->size, 0, out);
    return kt_jinja_attribute(r, v, name->data, name->size, out);
}

const kt_jinja_builtin kt_jinja_text_filters[] = {
    {.name = "tojson",
     .run = do_tojson,
     .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "from_json", .run = do_from_json},
    {.name = "fromjson", .run = do_from_json},
    {.name = "string", .run = do_string},
    {.name = "safe", .run = do_safe},
    {.name = "escape", .run = do_escape},
    {.name = "e", .run = do_escape},
    {.name = "forceescape", .run = do_forceescape},
    {.name = "trim", .run = do_trim, .parameters = {"chars"}},
    {.name = "lower", .run = do_lower, .takes_any = true},
    {.name = "upper", .run = do_upper, .takes_any = true},
    {.name = "capitalize", .run = do_capitalize, .takes_any = true},
    {.name = "title", .run = do_title},
    {.name = "replace", .run = do_replace, .n_required = 2, .parameters = {"old", "new", "count"}},
    {.name = "indent", .run = do_indent, .parameters = {"width", "first", "blank"}},
    {.name = "format", .run = do_format, .takes_any = true},
    {.name = "wordcount", .run = do_wordcount},
    {.name = "truncate",
     .run = do_truncate,
     .parameters = {"length", "killwords", "end", "leeway"}},
    {.name = "int", .run = do_int, .parameters = {"default", "base"}},
    {.name = "float", .run = do_float, .parameters = {"default"}},
    {.name = "abs", .run = do_abs},
    {.name = "round", .run = do_round, .parameters = {"precision", "method"}},
    {.name = "default", .run = do_default, .parameters = {"default_value", "boolean"}},
    {.name = "d", .run = do_default, .parameters = {"default_value", "boolean"}},
    {.name = "length", .run = do_length},
    {.name = "count", .run = do_length},
    {.name = "attr", .run = do_attr, .n_required = 1, .parameters = {"name"}},
    {.name = NULL}};
