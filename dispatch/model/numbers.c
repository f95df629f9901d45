/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/numbers.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

enum { MAX_KEY = 128 };

/* The spelling that is present, or the first one, and its value (NULL = absent). */
static const kt_json *find_json(const kt_json *object, const char *spellings, char key[MAX_KEY]) {
    const char *at = spellings;
    char first[MAX_KEY] = "";

    while (*at) {
        size_t size = strcspn(at, "|");
        const kt_json *v;
        snprintf(key, MAX_KEY, "%.*s", (int)size, at);
        if (!*first) memcpy(first, key, MAX_KEY);
        v = kt_json_get(object, key);
        if (kt_json_type_of(v) != KT_JSON_NULL) return v;
        at += size + (at[size] == '|');
    }
    memcpy(key, first, MAX_KEY);
    return NULL;
}

static void put(const kt_number *n, double value, void *out) {
    char *at = (char *)out + n->at;
    const int64_t integer = (int64_t)value;
    const bool truth = value != 0;

    if (n->type == KT_NUMBER_INT) memcpy(at, &integer, sizeof integer);
    if (n->type == KT_NUMBER_DOUBLE) memcpy(at, &value, sizeof value);
    if (n->type == KT_NUMBER_BOOL) memcpy(at, &truth, sizeof truth);
}

static kt_status check(const kt_number *n, const char *where, const char *key, double value,
                       kt_err *err) {
    if (value >= n->least && value <= n->most) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: '%s' is %g, expected %g to %g", where, key, value,
                   n->least, n->most);
}

static kt_status read_json(const kt_config_source *s, const kt_number *n, void *out, kt_err *err) {
    char key[MAX_KEY] = "";
    const kt_json *holder = s->json, *v = find_json(holder, n->json, key);
    int64_t integer;
    double value;

    if (!v && s->outer) {
        v = find_json(s->outer, n->json, key);
        if (v) holder = s->outer;
    }
    if (!v && n->fallback != KT_NUMBER_NEEDED) {
        put(n, n->fallback, out);
        return KT_OK;
    }
    switch (n->type) {
    case KT_NUMBER_INT:
        KT_TRY(kt_json_need_int(holder, key, (int64_t)n->least, (int64_t)n->most, s->where,
                                &integer, err));
        memcpy((char *)out + n->at, &integer, sizeof integer);
        return KT_OK;
    case KT_NUMBER_DOUBLE:
        KT_TRY(kt_json_need_double(holder, key, s->where, &value, err));
        KT_TRY(check(n, s->where, key, value, err));
        break;
    default:
        if (kt_json_type_of(v) != KT_JSON_BOOL)
            return kt_fail(err, KT_E_FORMAT, "%.200s: '%s' is %s, expected true or false", s->where,
                           key, kt_json_type_name(kt_json_type_of(v)));
        value = kt_json_bool(v, false);
    }
    put(n, value, out);
    return KT_OK;
}

static const kt_gguf_value *find_gguf(const kt_config_source *s, const char *name,
                                      char key[MAX_KEY]) {
    snprintf(key, MAX_KEY, "%.60s.%s", s->arch, name);
    return kt_gguf_find(s->gguf, key);
}

double kt_config_gguf_number(const kt_config_source *s, const char *name, double fallback) {
    char key[MAX_KEY];
    const kt_gguf_value *v = find_gguf(s, name, key);

    /* An array holds one number per layer; the first stands for all (families look at the
     * others). */
    if (v && v->type == KT_GGUF_ARRAY && v->count > 0 &&
        (v->element_type == KT_GGUF_I32 || v->element_type == KT_GGUF_U32))
        return kt_gguf_i32(v, 0);
    return kt_gguf_double(s->gguf, key, fallback);
}

static kt_status read_gguf(const kt_config_source *s, const kt_number *n, void *out, kt_err *err) {
    char key[MAX_KEY];
    double value;

    if (!n->gguf) {
        put(n, n->fallback == KT_NUMBER_NEEDED ? 0 : n->fallback, out);
        return KT_OK;
    }
    if (!find_gguf(s, n->gguf, key)) {
        if (n->fallback == KT_NUMBER_NEEDED)
            return kt_fail(err, KT_E_FORMAT, "%.200s: no '%s'", s->where, key);
        put(n, n->fallback, out);
        return KT_OK;
    }
    value = kt_config_gguf_number(s, n->gguf, n->least - 1);
    KT_TRY(check(n, s->where, key, value, err));
    put(n, value, out);
    return KT_OK;
}

kt_status kt_numbers_read(const kt_config_source *source, const kt_number *table, size_t count,
                          void *out, kt_err *err) {
    for (size_t i = 0; i < count; i++)
        KT_TRY(source->json ? read_json(source, &table[i], out, err)
                            : read_gguf(source, &table[i], out, err));
    return KT_OK;
}
