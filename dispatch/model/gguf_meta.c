/* GGUF metadata, version 2 and 3, little-endian:
 *   "GGUF" | u32 version | u64 tensors | u64 values | values...
 *   value: string key | u32 type | payload      string: u64 length | bytes
 *   array: u32 element type | u64 count | elements
 * The cursor never passes the end: each read says first how much it needs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/gguf_meta.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { max_values = 1 << 20, max_key = 1 << 16 };

static const struct {
    const char *name;
    size_t bytes; /* 0 = not of fixed size */
} types[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
             {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
             {"u64", 8}, {"i64", 8}, {"f64", 8}};

const char *kt_gguf_type_name(kt_gguf_type type) {
    return (size_t)type < sizeof types / sizeof *types ? types[type].name : "unknown";
}

typedef struct cursor {
    const uint8_t *begin, *at, *end;
} cursor;

static kt_status need(const cursor *c, uint64_t n, const char *what, kt_err *err) {
    uint64_t left = (uint64_t)(c->end - c->at);

    if (n <= left) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s at byte %zu needs %llu bytes, the file has %llu left",
                   what, (size_t)(c->at - c->begin), (unsigned long long)n,
                   (unsigned long long)left);
}

static uint64_t little(const uint8_t *p, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = bytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static kt_status read_u32(cursor *c, const char *what, uint32_t *out, kt_err *err) {
    KT_TRY(need(c, 4, what, err));
    *out = (uint32_t)little(c->at, 4);
    c->at += 4;
    return KT_OK;
}

static kt_status read_u64(cursor *c, const char *what, uint64_t *out, kt_err *err) {
    KT_TRY(need(c, 8, what, err));
    *out = little(c->at, 8);
    c->at += 8;
    return KT_OK;
}

static kt_status skip_string(cursor *c, const char *what, const uint8_t **data, uint64_t *n,
                             kt_err *err) {
    KT_TRY(read_u64(c, what, n, err));
    KT_TRY(need(c, *n, what, err));
    *data = c->at;
    c->at += *n;
    return KT_OK;
}

static kt_status read_type(cursor *c, const char *what, kt_gguf_type *out, kt_err *err) {
    uint32_t type;

    KT_TRY(read_u32(c, what, &type, err));
    if (type >= sizeof types / sizeof *types) {
        return kt_fail(err, KT_E_FORMAT, "%s at byte %zu: unknown type %u", what,
                       (size_t)(c->at - c->begin) - 4, type);
    }
    *out = (kt_gguf_type)type;
    return KT_OK;
}

static kt_status read_array(cursor *c, kt_gguf_value *v, kt_err *err) {
    KT_TRY(read_type(c, "an array", &v->element_type, err));
    KT_TRY(read_u64(c, "an array", &v->count, err));
    v->data = c->at;
    if (v->element_type == KT_GGUF_ARRAY) {
        return kt_fail(err, KT_E_UNSUPPORTED, "'%.*s' is an array of arrays", (int)v->key_size,
                       v->key);
    }
    if (v->element_type == KT_GGUF_STRING) {
        KT_TRY(need(c, v->count > UINT64_MAX / 8 ? UINT64_MAX : v->count * 8, "an array of strings",
                    err));
        for (uint64_t i = 0; i < v->count; i++) {
            const uint8_t *data;
            uint64_t n;
            KT_TRY(skip_string(c, "a string of an array", &data, &n, err));
        }
        return KT_OK;
    }
    if (v->count > SIZE_MAX / 8) return need(c, UINT64_MAX, "an array", err);
    KT_TRY(need(c, v->count * types[v->element_type].bytes, "an array", err));
    c->at += v->count * types[v->element_type].bytes;
    return KT_OK;
}

static kt_status read_value(cursor *c, kt_gguf_value *v, kt_err *err) {
    const uint8_t *key;
    uint64_t n_key;

    KT_TRY(skip_string(c, "a key", &key, &n_key, err));
    if (n_key == 0 || n_key > max_key) {
        return kt_fail(err, KT_E_FORMAT, "a key of %llu bytes, expected 1 to %d",
                       (unsigned long long)n_key, max_key);
    }
    v->key = (const char *)key;
    v->key_size = (size_t)n_key;
    KT_TRY(read_type(c, "a value", &v->type, err));
    if (v->type == KT_GGUF_ARRAY) return read_array(c, v, err);
    if (v->type == KT_GGUF_STRING) return skip_string(c, "a string", &v->data, &v->count, err);
    v->count = 1;
    KT_TRY(need(c, types[v->type].bytes, "a value", err));
    v->data = c->at;
    c->at += types[v->type].bytes;
    return KT_OK;
}

static int by_key(const void *a, const void *b) {
    const kt_gguf_value *x = *(const kt_gguf_value *const *)a,
                        *y = *(const kt_gguf_value *const *)b;
    size_t n = x->key_size < y->key_size ? x->key_size : y->key_size;
    int order = memcmp(x->key, y->key, n);

    return order ? order : (x->key_size > y->key_size) - (x->key_size < y->key_size);
}

static kt_status check_duplicates(const kt_gguf_meta *m, kt_err *err) {
    const kt_gguf_value **sorted = malloc((m->n_values + 1) * sizeof *sorted);
    kt_status st = KT_OK;

    if (!sorted) return kt_fail(err, KT_E_NOMEM, "no memory for %zu keys", m->n_values);
    for (size_t i = 0; i < m->n_values; i++) sorted[i] = &m->values[i];
    qsort(sorted, m->n_values, sizeof *sorted, by_key);
    for (size_t i = 1; i < m->n_values && st == KT_OK; i++) {
        if (by_key(&sorted[i - 1], &sorted[i]) != 0) continue;
        st = kt_fail(err, KT_E_FORMAT, "key '%.*s' occurs twice", (int)sorted[i]->key_size,
                     sorted[i]->key);
    }
    free(sorted);
    return st;
}

static kt_status read_header(cursor *c, kt_gguf_meta *m, uint64_t *n_values, kt_err *err) {
    KT_TRY(need(c, 4, "the magic", err));
    if (memcmp(c->at, "GGUF", 4) != 0) return kt_fail(err, KT_E_FORMAT, "not a GGUF file");
    c->at += 4;
    KT_TRY(read_u32(c, "the version", &m->version, err));
    if (m->version != 2 && m->version != 3) {
        return kt_fail(err, KT_E_UNSUPPORTED, "GGUF version %u, expected 2 or 3%s", m->version,
                       m->version == 0x02000000 || m->version == 0x03000000 ? " (a big-endian file)"
                                                                            : "");
    }
    KT_TRY(read_u64(c, "the number of tensors", &m->n_tensors, err));
    KT_TRY(read_u64(c, "the number of values", n_values, err));
    if (*n_values > max_values) {
        return kt_fail(err, KT_E_FORMAT, "%llu metadata values, at most %d are plausible",
                       (unsigned long long)*n_values, max_values);
    }
    /* key length, one byte, type, one byte: what the smallest value takes */
    return need(c, *n_values * 14, "the metadata", err);
}

kt_status kt_gguf_meta_init(kt_gguf_meta *out, const uint8_t *bytes, size_t n_bytes, kt_err *err) {
    cursor c = {bytes, bytes, n_bytes ? bytes + n_bytes : bytes}; /* an empty file is NULL */
    kt_gguf_meta m = {.bytes = bytes, .n_bytes = n_bytes};
    uint64_t n_values = 0;
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(read_header(&c, &m, &n_values, err));
    m.values = calloc((size_t)n_values + 1, sizeof *m.values);
    if (!m.values) return kt_fail(err, KT_E_NOMEM, "no memory for the metadata");
    for (st = KT_OK; st == KT_OK && m.n_values < n_values;) {
        st = read_value(&c, &m.values[m.n_values], err);
        if (st == KT_OK) m.n_values++;
    }
    if (st == KT_OK) st = check_duplicates(&m, err);
    if (st != KT_OK) {
        free(m.values);
        return st;
    }
    m.tensors_offset = (size_t)(c.at - c.begin);
    *out = m;
    return KT_OK;
}

void kt_gguf_meta_deinit(kt_gguf_meta *meta) {
    free(meta->values);
    memset(meta, 0, sizeof *meta);
}

const kt_gguf_value *kt_gguf_find(const kt_gguf_meta *meta, const char *key) {
    size_t n = strlen(key);

    for (size_t i = 0; i < meta->n_values; i++) {
        const kt_gguf_value *v = &meta->values[i];
        if (v->key_size == n && memcmp(v->key, key, n) == 0) return v;
    }
    return NULL;
}

static kt_status need_type(const kt_gguf_meta *meta, const char *key, kt_gguf_type type,
                           const kt_gguf_value **out, kt_err *err) {
    *out = kt_gguf_find(meta, key);
    if (!*out) return kt_fail(err, KT_E_FORMAT, "metadata '%s' is missing", key);
    if ((*out)->type == type) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "metadata '%s' is of type %s, expected %s", key,
                   kt_gguf_type_name((*out)->type), kt_gguf_type_name(type));
}

kt_status kt_gguf_need_string(const kt_gguf_meta *meta, const char *key, const char **out,
                              size_t *size, kt_err *err) {
    const kt_gguf_value *v;

    KT_TRY(need_type(meta, key, KT_GGUF_STRING, &v, err));
    *out = (const char *)v->data;
    *size = (size_t)v->count;
    return KT_OK;
}

kt_status kt_gguf_need_array(const kt_gguf_meta *meta, const char *key, kt_gguf_type element_type,
                             const kt_gguf_value **out, kt_err *err) {
    KT_TRY(need_type(meta, key, KT_GGUF_ARRAY, out, err));
    if ((*out)->element_type == element_type) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "metadata '%s' is an array of %s, expected %s", key,
                   kt_gguf_type_name((*out)->element_type), kt_gguf_type_name(element_type));
}

int64_t kt_gguf_int(const kt_gguf_meta *meta, const char *key, int64_t fallback) {
    const kt_gguf_value *v = kt_gguf_find(meta, key);
    uint64_t u;

    if (!v) return fallback;
    switch (v->type) {
    case KT_GGUF_U8:
    case KT_GGUF_U16:
    case KT_GGUF_U32:
    case KT_GGUF_BOOL: return (int64_t)little(v->data, types[v->type].bytes);
    case KT_GGUF_I8: return (int8_t)v->data[0];
    case KT_GGUF_I16: return (int16_t)little(v->data, 2);
    case KT_GGUF_I32: return (int32_t)little(v->data, 4);
    case KT_GGUF_I64: return (int64_t)little(v->data, 8);
    case KT_GGUF_U64: u = little(v->data, 8); return u > INT64_MAX ? fallback : (int64_t)u;
    default: return fallback;
    }
}

double kt_gguf_double(const kt_gguf_meta *meta, const char *key, double fallback) {
    const kt_gguf_value *v = kt_gguf_find(meta, key);
    uint64_t bits;
    uint32_t bits32;
    double d;
    float f;

    if (!v) return fallback;
    if (v->type == KT_GGUF_F32) {
        bits32 = (uint32_t)little(v->data, 4);
        memcpy(&f, &bits32, sizeof f);
        return (double)f;
    }
    if (v->type == KT_GGUF_F64) {
        bits = little(v->data, 8);
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    if (v->type == KT_GGUF_STRING || v->type == KT_GGUF_ARRAY) return fallback;
    if (v->type == KT_GGUF_U64) return (double)little(v->data, 8);
    return (double)kt_gguf_int(meta, key, 0);
}

const char *kt_gguf_next_string(const uint8_t **at, size_t *size) {
    const char *s = (const char *)*at + 8;

    *size = (size_t)little(*at, 8);
    *at += 8 + *size;
    return s;
}

int32_t kt_gguf_i32(const kt_gguf_value *array, uint64_t i) {
    return (int32_t)little(array->data + i * 4, 4);
}
