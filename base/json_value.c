/* Looking at parsed JSON. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/json.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json_tree.h"

const kt_json *kt_json_root(const kt_json_doc *doc) {
    return doc ? &doc->root : NULL;
}

kt_json_type kt_json_type_of(const kt_json *value) {
    return value ? value->type : KT_JSON_NULL;
}

const char *kt_json_type_name(kt_json_type type) {
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    return (size_t)type < sizeof names / sizeof *names ? names[type] : "unknown";
}

static bool is(const kt_json *value, kt_json_type type) {
    return value && value->type == type;
}

size_t kt_json_length(const kt_json *value) {
    return is(value, KT_JSON_ARRAY) || is(value, KT_JSON_OBJECT) ? value->length : 0;
}

const kt_json *kt_json_at(const kt_json *array, size_t i) {
    return is(array, KT_JSON_ARRAY) && i < array->length ? &array->as.items[i] : NULL;
}

const kt_json *kt_json_get(const kt_json *object, const char *key) {
    return kt_json_get_n(object, key, strlen(key));
}

static bool has_key(const kt_json_member_slot *m, const char *key, size_t size) {
    return m->key_size == size && memcmp(m->key, key, size) == 0;
}

const kt_json *kt_json_get_n(const kt_json *object, const char *key, size_t key_size) {
    const kt_json_object *o;
    size_t slot;

    if (!is(object, KT_JSON_OBJECT)) return NULL;
    o = object->as.object;
    if (!o->table) {
        for (size_t i = 0; i < object->length; i++)
            if (has_key(&o->members[i], key, key_size)) return &o->members[i].value;
        return NULL;
    }
    slot = kt_json_hash(o->seed, key, key_size) & o->table_mask;
    for (; o->table[slot]; slot = (slot + 1) & o->table_mask) {
        const kt_json_member_slot *m = &o->members[o->table[slot] - 1];
        if (has_key(m, key, key_size)) return &m->value;
    }
    return NULL;
}

const kt_json *kt_json_member(const kt_json *object, size_t i, const char **key, size_t *key_size) {
    const kt_json_member_slot *m;

    if (!is(object, KT_JSON_OBJECT) || i >= object->length) return NULL;
    m = &object->as.object->members[i];
    if (key) *key = m->key;
    if (key_size) *key_size = m->key_size;
    return &m->value;
}

const char *kt_json_string(const kt_json *value, size_t *size) {
    bool ok = is(value, KT_JSON_STRING);
    if (size) *size = ok ? value->length : 0;
    return ok ? value->as.text : NULL;
}

const char *kt_json_text(const kt_json *object, const char *key) {
    const char *text = kt_json_string(kt_json_get(object, key), NULL);
    return text ? text : "";
}

const char *kt_json_lexeme(const kt_json *number) {
    return is(number, KT_JSON_NUMBER) ? number->as.text : NULL;
}

/* The exact value of a lexeme, digits * 10^exponent, when the digits without surrounding zeros fit
 * 64 bits; false otherwise. */
typedef struct decimal {
    uint64_t digits;
    int64_t exponent;
    bool negative;
} decimal;

static bool read_decimal(const char *s, decimal *d) {
    int64_t zeros = 0; /* zeros seen since the last other digit, not yet taken in */
    int64_t written = 0;
    bool fraction = false;

    *d = (decimal){0};
    if (*s == '-') {
        d->negative = true;
        s++;
    }
    for (; *s && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') {
            fraction = true;
            continue;
        }
        if (fraction) d->exponent--;
        if (*s == '0') {
            zeros += d->digits != 0;
            continue;
        }
        for (; zeros >= 0; zeros--) {
            uint64_t digit = zeros ? 0 : (uint64_t)(*s - '0');
            if (__builtin_mul_overflow(d->digits, 10u, &d->digits)) return false;
            if (__builtin_add_overflow(d->digits, digit, &d->digits)) return false;
        }
        zeros = 0;
    }
    d->exponent += zeros;
    if (*s) {
        s++;
        bool minus = *s == '-';
        if (*s == '-' || *s == '+') s++;
        for (; *s; s++)
            if (written < 1000000000) written = written * 10 + (*s - '0');
        d->exponent += minus ? -written : written;
    }
    return true;
}

static bool exact_int(const kt_json *value, int64_t *out) {
    uint64_t limit = INT64_MAX;
    decimal d;

    if (!is(value, KT_JSON_NUMBER) || !read_decimal(value->as.text, &d)) return false;
    if (d.digits == 0) {
        *out = 0;
        return true;
    }
    if (d.exponent < 0 || d.exponent > 19) return false;
    for (; d.exponent > 0; d.exponent--)
        if (__builtin_mul_overflow(d.digits, 10u, &d.digits)) return false;
    if (d.digits > limit + d.negative) return false;
    *out = d.negative ? (int64_t)(0 - d.digits) : (int64_t)d.digits;
    return true;
}

bool kt_json_is_integer(const kt_json *value) {
    int64_t unused;
    return exact_int(value, &unused);
}

bool kt_json_bool(const kt_json *value, bool fallback) {
    return is(value, KT_JSON_BOOL) ? value->truth : fallback;
}

int64_t kt_json_int(const kt_json *value, int64_t fallback) {
    int64_t v;
    return exact_int(value, &v) ? v : fallback;
}

/* strtod follows the locale of the host program, where the point may be a comma. */
static double read_double(const char *text) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double v;

    if (!c) return strtod(text, NULL);
    v = strtod_l(text, NULL, c);
    freelocale(c);
    return v;
}

/* Digits below 2^53 and powers of ten up to 22 are exact doubles, so that one multiplication or
 * division rounds correctly (Clinger 1990); everything else goes the long way. */
static double to_double(const char *lexeme) {
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    decimal d;
    double v;

    if (!read_decimal(lexeme, &d) || d.digits >> 53 || d.exponent < -22 || d.exponent > 22)
        return read_double(lexeme);
    v = (double)d.digits;
    v = d.exponent < 0 ? v / power[-d.exponent] : v * power[d.exponent];
    return d.negative ? -v : v;
}

double kt_json_double(const kt_json *value, double fallback) {
    double v;

    if (!is(value, KT_JSON_NUMBER)) return fallback;
    v = to_double(value->as.text);
    return isfinite(v) ? v : fallback;
}

static const char *article(kt_json_type type) {
    static const char *const articles[] = {"", "a ", "a ", "a ", "an ", "an "};
    return articles[type];
}

static kt_status find(const kt_json *object, const char *key, const char *where, kt_json_type type,
                      const char *expected, const kt_json **out, kt_err *err) {
    if (!is(object, KT_JSON_OBJECT))
        return kt_fail(err, KT_E_FORMAT, "%s: found %s%s, expected an object with '%s'", where,
                       article(kt_json_type_of(object)), kt_json_type_name(kt_json_type_of(object)),
                       key);
    *out = kt_json_get(object, key);
    if (!*out)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is missing, expected %s", where, key, expected);
    if ((*out)->type != type)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %s%s, expected %s", where, key,
                       article((*out)->type), kt_json_type_name((*out)->type), expected);
    return KT_OK;
}

kt_status kt_json_need_int(const kt_json *object, const char *key, int64_t min, int64_t max,
                           const char *where, int64_t *out, kt_err *err) {
    const kt_json *value = NULL;
    int64_t v;

    KT_TRY(find(object, key, where, KT_JSON_NUMBER, "an integer", &value, err));
    if (!exact_int(value, &v))
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %.40s, expected an integer", where, key,
                       value->as.text);
    if (v < min || v > max)
        return kt_fail(err, KT_E_FORMAT,
                       "%s: '%s' is %" PRId64 ", expected %" PRId64 " to %" PRId64, where, key, v,
                       min, max);
    *out = v;
    return KT_OK;
}

kt_status kt_json_need_double(const kt_json *object, const char *key, const char *where,
                              double *out, kt_err *err) {
    const kt_json *value = NULL;
    double v;

    KT_TRY(find(object, key, where, KT_JSON_NUMBER, "a number", &value, err));
    v = to_double(value->as.text);
    if (!isfinite(v))
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %.40s, beyond the range of a double", where,
                       key, value->as.text);
    *out = v;
    return KT_OK;
}

kt_status kt_json_need_string(const kt_json *object, const char *key, const char *where,
                              const char **out, kt_err *err) {
    const kt_json *value = NULL;

    KT_TRY(find(object, key, where, KT_JSON_STRING, "a string", &value, err));
    *out = value->as.text;
    return KT_OK;
}
