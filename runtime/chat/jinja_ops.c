/* What can be done with values: arithmetic, members, slices, calls of builtins.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/chat/jinja_node.h"

/* ---- arithmetic ---- */

static const char *const op_texts[] = {"",   "+",  "-", "*",  "/", "//", "%",  "**",
                                       "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static kt_status refuse(kt_jinja_run *r, int op, const kt_jinja_value *a, const kt_jinja_value *b) {
    if (a->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, a);
    if (b->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, b);
    if (op == KT_OP_ADD && a->type == KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "can only concatenate str (not \"%s\") to str",
                             kt_jinja_type_name(b));
    return kt_jinja_fail(r, KT_E_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                         op_texts[op], kt_jinja_type_name(a), kt_jinja_type_name(b));
}

static kt_status overflow(kt_jinja_run *r) {
    return kt_jinja_fail(r, KT_E_UNSUPPORTED, "this integer is beyond 64 bits");
}

static int64_t integer(const kt_jinja_value *v) {
    return v->type == KT_JINJA_BOOL ? v->as.truth : v->as.integer;
}

static kt_status power(kt_jinja_run *r, int64_t a, int64_t b, kt_jinja_value *out) {
    int64_t result = 1;

    if (b < 0) {
        if (a == 0)
            return kt_jinja_fail(r, KT_E_INVALID, "0.0 cannot be raised to a negative power");
        *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = pow((double)a, (double)b)};
        return KT_OK;
    }
    for (; b > 0; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result)) return overflow(r);
        if (b > 1 && __builtin_mul_overflow(a, a, &a)) return overflow(r);
    }
    *out = kt_jinja_int(result);
    return KT_OK;
}

static kt_status integers(kt_jinja_run *r, int op, int64_t a, int64_t b, kt_jinja_value *out) {
    int64_t v = 0;
    bool over = false;

    if ((op == KT_OP_DIV || op == KT_OP_FLOORDIV || op == KT_OP_MOD) && b == 0)
        return kt_jinja_fail(r, KT_E_INVALID, "division by zero");
    switch (op) {
    case KT_OP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case KT_OP_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case KT_OP_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case KT_OP_DIV:
        *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = (double)a / (double)b};
        return KT_OK;
    case KT_OP_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        if (!over) v = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case KT_OP_MOD:
        if (b != -1) v = a % b;
        if (v != 0 && (v < 0) != (b < 0)) v += b;
        break;
    default: return power(r, a, b, out);
    }
    if (over) return overflow(r);
    *out = kt_jinja_int(v);
    return KT_OK;
}

static kt_status reals(kt_jinja_run *r, int op, double a, double b, kt_jinja_value *out) {
    double v = 0;

    if ((op == KT_OP_DIV || op == KT_OP_FLOORDIV || op == KT_OP_MOD) && b == 0)
        return kt_jinja_fail(r, KT_E_INVALID, "division by zero");
    switch (op) {
    case KT_OP_ADD: v = a + b; break;
    case KT_OP_SUB: v = a - b; break;
    case KT_OP_MUL: v = a * b; break;
    case KT_OP_DIV: v = a / b; break;
    case KT_OP_FLOORDIV: v = floor(a / b); break;
    case KT_OP_MOD:
        v = fmod(a, b);
        if (v != 0 && (v < 0) != (b < 0)) v += b;
        break;
    default: v = pow(a, b); break;
    }
    *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = v};
    return KT_OK;
}

/* A string or list, several times. */
static kt_status repeat(kt_jinja_run *r, const kt_jinja_value *of, int64_t times,
                        kt_jinja_value *out) {
    kt_jinja_builder b = {0};
    kt_status st = KT_OK;

    if (of->type == KT_JINJA_STRING) {
        for (int64_t i = 0; st == KT_OK && i < times && of->as.string->size; i++) {
            st = kt_jinja_spend(r, 1);
            if (st == KT_OK) st = kt_jinja_put_string(r, &b, of->as.string);
        }
        if (st == KT_OK) st = kt_jinja_build(r, &b, of->as.string->is_markup, out);
        kt_jinja_builder_deinit(&b);
        return st;
    }
    KT_TRY(kt_jinja_new_list(r, of->as.list->flavour, 0, out));
    for (int64_t i = 0; i < times && of->as.list->size; i++)
        for (size_t k = 0; k < of->as.list->size; k++) {
            KT_TRY(kt_jinja_spend(r, 1));
            KT_TRY(kt_jinja_append(r, out->as.list, &of->as.list->items[k]));
        }
    return KT_OK;
}

static bool is_plain_list(const kt_jinja_value *v) {
    return v->type == KT_JINJA_LIST && v->as.list->flavour <= KT_JINJA_TUPLE;
}

static bool repeats(const kt_jinja_value *v) {
    return v->type == KT_JINJA_STRING || is_plain_list(v);
}

static bool is_int(const kt_jinja_value *v) {
    return v->type == KT_JINJA_INT || v->type == KT_JINJA_BOOL;
}

static kt_status escaped(kt_jinja_run *r, const kt_jinja_string *s, const kt_jinja_string **out) {
    kt_jinja_builder b = {0};
    kt_jinja_value v = {0};
    kt_status st;

    *out = s;
    if (s->is_markup) return KT_OK;
    st = kt_jinja_put_escaped(r, &b, s);
    if (st == KT_OK) st = kt_jinja_build(r, &b, true, &v);
    if (st == KT_OK) *out = v.as.string;
    kt_jinja_builder_deinit(&b);
    return st;
}

static kt_status add(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                     kt_jinja_value *out) {
    if (a->type == KT_JINJA_STRING && b->type == KT_JINJA_STRING) {
        const kt_jinja_string *x = a->as.string, *y = b->as.string;
        if (x->is_markup != y->is_markup) {
            KT_TRY(escaped(r, x, &x));
            KT_TRY(escaped(r, y, &y));
        }
        return kt_jinja_join2(r, x, y, out);
    }
    if (is_plain_list(a) && is_plain_list(b) && a->as.list->flavour == b->as.list->flavour) {
        const kt_jinja_list *x = a->as.list, *y = b->as.list;
        KT_TRY(kt_jinja_spend(r, x->size + y->size));
        KT_TRY(kt_jinja_new_list(r, x->flavour, x->size + y->size, out));
        for (size_t i = 0; i < x->size; i++) KT_TRY(kt_jinja_append(r, out->as.list, &x->items[i]));
        for (size_t i = 0; i < y->size; i++) KT_TRY(kt_jinja_append(r, out->as.list, &y->items[i]));
        return KT_OK;
    }
    return refuse(r, KT_OP_ADD, a, b);
}

kt_status kt_jinja_binary(kt_jinja_run *r, int op, const kt_jinja_value *a, const kt_jinja_value *b,
                          kt_jinja_value *out) {
    if (kt_jinja_is_number(a) && kt_jinja_is_number(b)) {
        if (is_int(a) && is_int(b)) return integers(r, op, integer(a), integer(b), out);
        return reals(r, op, kt_jinja_number(a), kt_jinja_number(b), out);
    }
    if (op == KT_OP_ADD) return add(r, a, b, out);
    if (op == KT_OP_MUL && repeats(a) && is_int(b)) return repeat(r, a, integer(b), out);
    if (op == KT_OP_MUL && repeats(b) && is_int(a)) return repeat(r, b, integer(a), out);
    if (op == KT_OP_MOD && a->type == KT_JINJA_STRING)
        return kt_jinja_format(r, a->as.string, b, out);
    return refuse(r, op, a, b);
}

/* ---- "%s and %d" % values ---- */

typedef struct formatter {
    kt_jinja_run *r;
    kt_jinja_builder b;
    const kt_jinja_string *format;
    const kt_jinja_value *values; /* a tuple, a dictionary for "%(name)s", or one value */
    bool many;                    /* a tuple */
    size_t next, n;
} formatter;

/* "(name)" at *at: the member of that name, or NULL. */
static const kt_jinja_value *format_named(formatter *f, size_t *at) {
    const kt_jinja_string *s = f->format;
    const kt_jinja_entry *e = NULL;
    size_t close;

    if (*at >= s->size || s->data[*at] != '(' || f->values->type != KT_JINJA_DICT) return NULL;
    close = kt_jinja_find(s, *at, ")", 1);
    if (close != SIZE_MAX)
        e = kt_jinja_get_text(f->values->as.dict, s->data + *at + 1, close - *at - 1);
    *at = close == SIZE_MAX ? s->size : close + 1;
    f->next = f->n = 1;
    return e ? &e->value : NULL;
}

/* One value, as the flags, width and precision in `flags` and the letter say. */
static kt_status format_value(formatter *f, const char *flags, size_t n, char letter,
                              const kt_jinja_value *v) {
    char spec[24], text[512];

    if (letter == 's' && n == 0) return kt_jinja_put_str(f->r, &f->b, v);
    if (letter == 'r' && n == 0) return kt_jinja_put_repr(f->r, &f->b, v);
    if (kt_jinja_is_number(v) && letter && strchr("dix", letter)) {
        snprintf(spec, sizeof spec, "%%%.*s%s", (int)n, flags, letter == 'x' ? "llx" : "lld");
        snprintf(text, sizeof text, spec,
                 is_int(v) ? (long long)integer(v) : (long long)v->as.real);
    } else if (kt_jinja_is_number(v) && letter && strchr("feg", letter)) {
        snprintf(spec, sizeof spec, "%%%.*s%c", (int)n, flags, letter);
        snprintf(text, sizeof text, spec, kt_jinja_number(v));
    } else {
        return kt_jinja_fail(f->r, KT_E_INVALID, "format '%%%.*s%c' does not fit a %s", (int)n,
                             flags, letter, kt_jinja_type_name(v));
    }
    return kt_jinja_put(f->r, &f->b, text, strlen(text), true);
}

/* The conversion behind the '%' in front of *at. */
static kt_status format_one(formatter *f, size_t *at) {
    const kt_jinja_string *s = f->format;
    const kt_jinja_value *v = format_named(f, at);
    size_t flags = *at;

    while (*at < s->size && s->data[*at] && strchr("-+ #0123456789.", s->data[*at])) ++*at;
    if (*at >= s->size || *at - flags > 12)
        return kt_jinja_fail(f->r, KT_E_INVALID, "incomplete format");
    ++*at;
    if (s->data[*at - 1] == '%') return kt_jinja_put_part(f->r, &f->b, s, *at - 1, *at);
    if (!v && f->next < f->n)
        v = f->many ? &f->values->as.list->items[f->next++] : (f->next++, f->values);
    if (!v) return kt_jinja_fail(f->r, KT_E_INVALID, "not enough arguments for format string");
    return format_value(f, s->data + flags, *at - 1 - flags, s->data[*at - 1], v);
}

kt_status kt_jinja_format(kt_jinja_run *r, const kt_jinja_string *format,
                          const kt_jinja_value *values, kt_jinja_value *out) {
    formatter f = {.r = r, .format = format, .values = values, .n = 1};
    size_t at = 0;
    kt_status st = KT_OK;

    f.many = values->type == KT_JINJA_LIST && values->as.list->flavour == KT_JINJA_TUPLE;
    if (f.many) f.n = values->as.list->size;
    while (st == KT_OK && at < format->size) {
        size_t found = kt_jinja_find(format, at, "%", 1);
        if (found == SIZE_MAX) found = format->size;
        st = kt_jinja_put_part(r, &f.b, format, at, found);
        at = found + 1;
        if (st == KT_OK && found < format->size) st = format_one(&f, &at);
    }
    if (st == KT_OK && f.many && f.next < f.n)
        st = kt_jinja_fail(r, KT_E_INVALID, "not all arguments converted during string formatting");
    if (st == KT_OK) st = kt_jinja_build(r, &f.b, format->is_markup, out);
    kt_jinja_builder_deinit(&f.b);
    return st;
}

/* ---- members ---- */

const kt_jinja_builtin *kt_jinja_method(const kt_jinja_value *of, const char *name, size_t size) {
    switch (of->type) {
    case KT_JINJA_STRING: return kt_jinja_find_builtin(kt_jinja_string_methods, name, size);
    case KT_JINJA_DICT: return kt_jinja_find_builtin(kt_jinja_dict_methods, name, size);
    case KT_JINJA_LIST:
        return of->as.list->flavour <= KT_JINJA_TUPLE
                   ? kt_jinja_find_builtin(kt_jinja_list_methods, name, size)
                   : NULL;
    default: return NULL;
    }
}

static bool named(const char *name, size_t size, const char *what) {
    return size && *name == *what && strlen(what) == size && memcmp(name, what, size) == 0;
}

bool kt_jinja_is_dict_method(const char *name, size_t size) {
    return kt_jinja_find_builtin(kt_jinja_dict_methods, name, size) != NULL;
}

/* In the order of the values below. */
static const char *const loop_numbers[] = {"index",  "index0", "revindex", "revindex0",
                                           "length", "depth",  "depth0"};

static kt_status loop_attribute(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                                size_t size, kt_jinja_value *out) {
    const kt_jinja_loop *l = of->as.loop;
    const int64_t i = (int64_t)l->index, n = (int64_t)l->size;
    const int64_t numbers[] = {i + 1, i, n - i, n - i - 1, n, l->depth, l->depth - 1};

    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (named(name, size, loop_numbers[k])) {
            *out = kt_jinja_int(numbers[k]);
            return KT_OK;
        }
    if (named(name, size, "first") || named(name, size, "last")) {
        *out = kt_jinja_bool(*name == 'f' ? i == 0 : i + 1 == n);
        return KT_OK;
    }
    if (named(name, size, "previtem") && i > 0) {
        *out = l->items[i - 1];
        return KT_OK;
    }
    if (named(name, size, "nextitem") && i + 1 < n) {
        *out = l->items[i + 1];
        return KT_OK;
    }
    return kt_jinja_missing_member(r, of, name, size, 0, out);
}

static kt_status macro_attribute(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                                 size_t size, kt_jinja_value *out) {
    const kt_jinja_node *m = of->as.macro->node;

    if (named(name, size, "name")) {
        *out = kt_jinja_text(&m->name);
        return KT_OK;
    }
    if (!named(name, size, "arguments")) return kt_jinja_missing_member(r, of, name, size, 0, out);
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 0, out));
    for (const kt_jinja_node *p = m->children; p; p = p->next) {
        const kt_jinja_value text = kt_jinja_text(&p->name);
        KT_TRY(kt_jinja_append(r, out->as.list, &text));
    }
    return KT_OK;
}

static kt_status bind_method(kt_jinja_run *r, const kt_jinja_value *of,
                             const kt_jinja_builtin *method, kt_jinja_value *out) {
    kt_jinja_bound *bound;
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *bound, &memory));
    bound = memory;
    *bound = (kt_jinja_bound){method, *of, kt_jinja_type_name(of)};
    *out = (kt_jinja_value){.type = KT_JINJA_BUILTIN, .as.bound = bound};
    return KT_OK;
}

/* a.b: attributes and methods come before members. */
kt_status kt_jinja_attribute(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                             size_t size, kt_jinja_value *out) {
    const kt_jinja_builtin *method = kt_jinja_method(of, name, size);
    const kt_jinja_entry *e = NULL;

    if (of->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, of);
    if (method) return bind_method(r, of, method, out);
    if (of->type == KT_JINJA_LOOP) return loop_attribute(r, of, name, size, out);
    if (of->type == KT_JINJA_MACRO) return macro_attribute(r, of, name, size, out);
    if (of->type == KT_JINJA_CYCLER && named(name, size, "current")) {
        *out = of->as.cycle->items.items[of->as.cycle->at % of->as.cycle->items.size];
        return KT_OK;
    }
    if (of->type == KT_JINJA_DICT || of->type == KT_JINJA_NAMESPACE)
        e = kt_jinja_get_text(of->as.dict, name, size);
    if (!e) return kt_jinja_missing_member(r, of, name, size, 0, out);
    *out = e->value;
    return KT_OK;
}

static kt_status element(kt_jinja_run *r, const kt_jinja_value *of, int64_t i,
                         kt_jinja_value *out) {
    const kt_jinja_string *s;
    int64_t n;
    size_t begin, end;

    if (of->type == KT_JINJA_LIST) {
        n = (int64_t)of->as.list->size;
        if (i >= -n && i < n) {
            *out = of->as.list->items[i < 0 ? i + n : i];
            return KT_OK;
        }
        return kt_jinja_missing_member(r, of, NULL, 0, i, out);
    }
    s = of->as.string;
    KT_TRY(kt_jinja_spend(r, s->size / 64));
    if (i < 0) i += (int64_t)kt_jinja_char_count(s->data, s->size);
    begin = i < 0 || (uint64_t)i >= s->size ? s->size
                                            : kt_jinja_char_offset(s->data, s->size, (size_t)i);
    if (begin == s->size) return kt_jinja_missing_member(r, of, NULL, 0, i, out);
    end = begin + kt_jinja_char_offset(s->data + begin, s->size - begin, 1);
    return kt_jinja_part(r, s, begin, end, out);
}

/* a[b]: members come before attributes. */
kt_status kt_jinja_item(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_value *key,
                        kt_jinja_value *out) {
    const kt_jinja_entry *e;

    if (of->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, of);
    if (is_int(key) && (of->type == KT_JINJA_STRING ||
                        (of->type == KT_JINJA_LIST && of->as.list->flavour <= KT_JINJA_RANGE)))
        return element(r, of, integer(key), out);
    if (of->type == KT_JINJA_DICT) {
        e = kt_jinja_get(of->as.dict, key);
        if (e) {
            *out = e->value;
            return KT_OK;
        }
    }
    if (key->type == KT_JINJA_STRING)
        return kt_jinja_attribute(r, of, key->as.string->data, key->as.string->size, out);
    return kt_jinja_missing_member(r, of, NULL, 0, is_int(key) ? integer(key) : 0, out);
}

/* A bound of a slice, clipped as Python does for `n` elements. */
static kt_status slice_bound(kt_jinja_run *r, const kt_jinja_value *v, int64_t n, int64_t step,
                             int64_t if_none, int64_t *out) {
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;

    *out = if_none;
    if (v->type == KT_JINJA_NONE) return KT_OK;
    if (!is_int(v))
        return kt_jinja_fail(r, KT_E_INVALID, "slice indices must be integers or None, not %s",
                             kt_jinja_type_name(v));
    *out = integer(v);
    if (*out < 0) *out += n;
    if (*out < low) *out = low;
    if (*out > high) *out = high;
    return KT_OK;
}

static kt_status slice_string(kt_jinja_run *r, const kt_jinja_string *s, int64_t from, int64_t to,
                              int64_t step, kt_jinja_value *out) {
    const kt_jinja_value text = kt_jinja_text(s);
    kt_jinja_builder b = {0};
    kt_jinja_list chars;
    kt_status st = KT_OK;

    if (step == 1) {
        size_t begin = kt_jinja_char_offset(s->data, s->size, (size_t)from), end = begin;
        if (to > from)
            end += kt_jinja_char_offset(s->data + begin, s->size - begin, (size_t)(to - from));
        return kt_jinja_part(r, s, begin, end, out);
    }
    KT_TRY(kt_jinja_iterate(r, &text, &chars));
    for (int64_t i = from; st == KT_OK && (step > 0 ? i < to : i > to); i += step)
        st = kt_jinja_put_string(r, &b, chars.items[i].as.string);
    if (st == KT_OK) st = kt_jinja_build(r, &b, s->is_markup, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

kt_status kt_jinja_slice(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_value *from,
                         const kt_jinja_value *to, const kt_jinja_value *step,
                         kt_jinja_value *out) {
    int64_t n, begin, end, by = step->type == KT_JINJA_NONE ? 1 : is_int(step) ? integer(step) : 0;
    bool is_list = of->type == KT_JINJA_LIST && of->as.list->flavour <= KT_JINJA_RANGE;

    if (of->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, of);
    if (!is_list && of->type != KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "a '%s' object has no slices",
                             kt_jinja_type_name(of));
    if (by == 0) return kt_jinja_fail(r, KT_E_INVALID, "the step of a slice is not a number or 0");
    KT_TRY(kt_jinja_length(r, of, &n));
    if (by > n) by = n + 1; /* no step beyond the ends can overflow */
    if (by < -n) by = -n - 1;
    KT_TRY(slice_bound(r, from, n, by, by < 0 ? n - 1 : 0, &begin));
    KT_TRY(slice_bound(r, to, n, by, by < 0 ? -1 : n, &end));
    if (!is_list) return slice_string(r, of->as.string, begin, end, by, out);
    KT_TRY(kt_jinja_new_list(r, of->as.list->flavour, 0, out));
    for (int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(kt_jinja_append(r, out->as.list, &of->as.list->items[i]));
    }
    return KT_OK;
}

/* ---- calls of builtins ---- */

const kt_jinja_builtin *kt_jinja_find_builtin(const kt_jinja_builtin *table, const char *name,
                                              size_t size) {
    for (; table->name; table++)
        if (named(name, size, table->name)) return table;
    return NULL;
}

const kt_jinja_builtin *kt_jinja_find_filter(const char *name, size_t size) {
    const kt_jinja_builtin *b = kt_jinja_find_builtin(kt_jinja_text_filters, name, size);
    return b ? b : kt_jinja_find_builtin(kt_jinja_list_filters, name, size);
}

const kt_jinja_builtin *kt_jinja_find_test(const char *name, size_t size) {
    return kt_jinja_find_builtin(kt_jinja_tests, name, size);
}

static int parameter_of(const kt_jinja_builtin *b, const kt_jinja_string *name) {
    for (int i = 0; i < KT_JINJA_MAX_PARAMETERS && b->parameters[i]; i++)
        if (named(name->data, name->size, b->parameters[i])) return i;
    return -1;
}

kt_status kt_jinja_invoke(kt_jinja_run *r, const kt_jinja_builtin *b, const char *what,
                          const kt_jinja_value *self, const kt_jinja_args *args,
                          kt_jinja_value *out) {
    kt_jinja_value arg[KT_JINJA_MAX_PARAMETERS] = {{.type = KT_JINJA_UNSET}};
    int n = 0;

    if (b->changes) kt_jinja_keep(r);
    if (b->takes_any) return b->run(r, self, NULL, args, out);
    while (n < KT_JINJA_MAX_PARAMETERS && b->parameters[n]) n++;
    if (args->n_positional > (size_t)n)
        return kt_jinja_fail(r, KT_E_INVALID, "%s '%s' takes at most %d arguments, found %zu", what,
                             b->name, n, args->n_positional);
    for (size_t i = 0; i < args->n_positional; i++) arg[i] = args->values[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const kt_jinja_string *name = &args->names[i];
        int k = parameter_of(b, name);
        if (k < 0 || arg[k].type != KT_JINJA_UNSET)
            return kt_jinja_fail(r, KT_E_INVALID, "%s '%s': %s argument '%.*s'", what, b->name,
                                 k < 0 ? "unknown" : "twice the",
                                 (int)(name->size < 60 ? name->size : 60), name->data);
        arg[k] = args->values[args->n_positional + i];
    }
    for (int i = 0; i < b->n_required; i++)
        if (arg[i].type == KT_JINJA_UNSET)
            return kt_jinja_fail(r, KT_E_INVALID, "%s '%s': argument '%s' is missing", what,
                                 b->name, b->parameters[i]);
    return b->run(r, self, arg, args, out);
}
