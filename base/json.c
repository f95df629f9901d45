/* Reading JSON without recursion, in one pass.
 *
 * Every value gets a slot on one stack. A container's slot stays below those of its children; when
 * it closes, the children are copied into the arena as one array and their slots are given up.
 * Decoded strings and lexemes go to one buffer of the text's size: a string of n bytes took at
 * least n + 2 bytes of text and a number of n bytes is followed by a delimiter (or ends the text),
 * so text size + 1 holds them all with their NULs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json_tree.h"
#include "base/utf8.h"

static const size_t default_max_bytes = (size_t)1 << 30;
static const int default_max_depth = 256;

typedef struct frame {
    size_t self; /* the container's slot; its children follow */
    kt_json_type type;
} frame;

typedef struct parser {
    const unsigned char *begin, *at, *end;
    kt_json_doc *doc;
    char *out; /* where the next decoded text goes */
    kt_json_member_slot *slots;
    size_t n_slots, slot_capacity;
    frame *frames;
    size_t depth, frame_capacity, max_depth;
    size_t n_values, max_values;
    uint64_t seed;
    kt_err *err;
} parser;

/* "line:column: what", columns counted in characters. */
static kt_status fail_at(const parser *p, const unsigned char *at, const char *what) {
    size_t line = 1, column = 1;

    for (const unsigned char *q = p->begin; q < at; q++) {
        if (*q == '\n') {
            line++;
            column = 1;
        } else if ((*q & 0xc0) != 0x80) {
            column++;
        }
    }
    return kt_fail(p->err, KT_E_FORMAT, "%zu:%zu: %s", line, column, what);
}

static kt_status fail_expected(const parser *p, const char *expected) {
    char what[120];

    if (p->at == p->end)
        snprintf(what, sizeof what, "the text ends, expected %s", expected);
    else if (*p->at > ' ' && *p->at < 0x7f)
        snprintf(what, sizeof what, "found '%c', expected %s", *p->at, expected);
    else
        snprintf(what, sizeof what, "found byte 0x%02x, expected %s", *p->at, expected);
    return fail_at(p, p->at, what);
}

/* One more key or value; a container's are counted before they are made. */
static kt_status count_value(parser *p) {
    char what[60];

    if (p->n_values++ < p->max_values) return KT_OK;
    snprintf(what, sizeof what, "more than %zu values", p->max_values);
    return fail_at(p, p->at, what);
}

static kt_status fail_memory(const parser *p) {
    return kt_fail(p->err, KT_E_NOMEM, "no memory for %zu bytes of JSON",
                   (size_t)(p->end - p->begin));
}

/* Make room for one more item; false without memory. */
static bool grow(void **items, size_t *capacity, size_t used, size_t item_bytes) {
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *larger;

    if (used < *capacity) return true;
    larger = wanted <= SIZE_MAX / item_bytes ? realloc(*items, wanted * item_bytes) : NULL;
    if (!larger) return false;
    *items = larger;
    *capacity = wanted;
    return true;
}

static kt_json_member_slot *push_slot(parser *p) {
    void *slots = p->slots;
    bool ok = grow(&slots, &p->slot_capacity, p->n_slots, sizeof *p->slots);

    p->slots = slots;
    return ok ? memset(&p->slots[p->n_slots++], 0, sizeof *p->slots) : NULL;
}

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

/* Four hexadecimal digits at q, or -1. */
static int32_t hex4(const unsigned char *q, const unsigned char *end) {
    int32_t value = 0;

    if (end - q < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = q[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX, or a pair of them for a character beyond the basic plane; p->at is behind the 'u'. */
static kt_status read_unicode_escape(parser *p) {
    const unsigned char *escape = p->at - 2;
    int32_t c = hex4(p->at, p->end);
    int32_t low;

    if (c < 0) return fail_at(p, escape, "\\u needs four hexadecimal digits");
    p->at += 4;
    if (c >= 0xd800 && c < 0xdc00) {
        bool paired = p->end - p->at >= 2 && p->at[0] == '\\' && p->at[1] == 'u';
        low = paired ? hex4(p->at + 2, p->end) : -1;
        if (low < 0xdc00 || low > 0xdfff) return fail_at(p, escape, "lone surrogate escape");
        p->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c < 0xe000) {
        return fail_at(p, escape, "lone surrogate escape");
    }
    p->out += kt_utf8_put(p->out, (uint32_t)c);
    return KT_OK;
}

static kt_status read_escape(parser *p) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found;

    p->at++;
    if (p->at == p->end) return fail_expected(p, "an escaped character");
    if (*p->at == 'u') {
        p->at++;
        return read_unicode_escape(p);
    }
    found = *p->at ? strchr(names, *p->at) : NULL;
    if (!found) return fail_at(p, p->at - 1, "unknown escape");
    *p->out++ = values[found - names];
    p->at++;
    return KT_OK;
}

/* A string; p->at is at its opening quote. */
static kt_status read_string(parser *p, const char **text, size_t *size) {
    const unsigned char *open = p->at++;
    char *start = p->out;

    for (;;) {
        const unsigned char *plain = p->at;
        while (p->at < p->end && *p->at >= 0x20 && *p->at < 0x80 && *p->at != '"' && *p->at != '\\')
            p->at++;
        memcpy(p->out, plain, (size_t)(p->at - plain));
        p->out += p->at - plain;
        if (p->at == p->end) return fail_at(p, open, "string without closing quote");
        if (*p->at == '"') break;
        if (*p->at == '\\') {
            KT_TRY(read_escape(p));
        } else if (*p->at < 0x20) {
            return fail_at(p, p->at, "control character in a string");
        } else {
            int n = kt_utf8_length(p->at, p->end);
            if (n == 0) return fail_at(p, p->at, "malformed UTF-8");
            memcpy(p->out, p->at, (size_t)n);
            p->out += n;
            p->at += n;
        }
    }
    p->at++;
    *text = start;
    *size = (size_t)(p->out - start);
    *p->out++ = '\0';
    return KT_OK;
}

static bool skip_digits(parser *p) {
    const unsigned char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return p->at > start;
}

static bool skip_char(parser *p, char c) {
    if (p->at == p->end || *p->at != (unsigned char)c) return false;
    p->at++;
    return true;
}

static kt_status read_number(parser *p, kt_json *value) {
    const unsigned char *start = p->at;
    size_t size;

    skip_char(p, '-');
    if (skip_char(p, '0')) {
        if (p->at < p->end && *p->at >= '0' && *p->at <= '9')
            return fail_at(p, start, "number with a leading zero");
    } else if (!skip_digits(p)) {
        return fail_expected(p, "a digit");
    }
    if (skip_char(p, '.') && !skip_digits(p)) return fail_expected(p, "a digit after the point");
    if (skip_char(p, 'e') || skip_char(p, 'E')) {
        if (!skip_char(p, '+')) skip_char(p, '-');
        if (!skip_digits(p)) return fail_expected(p, "a digit of the exponent");
    }
    size = (size_t)(p->at - start);
    memcpy(p->out, start, size);
    p->out[size] = '\0';
    value->type = KT_JSON_NUMBER;
    value->length = size;
    value->as.text = p->out;
    p->out += size + 1;
    return KT_OK;
}

static kt_status read_word(parser *p, kt_json *value) {
    static const struct {
        const char *text;
        size_t size;
        kt_json_type type;
        bool truth;
    } words[] = {{"null", 4, KT_JSON_NULL, false},
                 {"true", 4, KT_JSON_BOOL, true},
                 {"false", 5, KT_JSON_BOOL, false}};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((size_t)(p->end - p->at) < words[i].size) continue;
        if (memcmp(p->at, words[i].text, words[i].size) != 0) continue;
        p->at += words[i].size;
        value->type = words[i].type;
        value->truth = words[i].truth;
        return KT_OK;
    }
    return fail_expected(p, "a value");
}

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Folded multiplication, eight bytes at a time. The seed is also the multiplier, so that a file
 * cannot be made to collide without knowing it. */
uint64_t kt_json_hash(uint64_t seed, const char *key, size_t size) {
    uint64_t h = seed ^ size;
    uint64_t word;

    for (; size >= 8; key += 8, size -= 8) {
        memcpy(&word, key, 8);
        h = mix(h ^ word, seed);
    }
    word = 0;
    memcpy(&word, key, size);
    return mix(h ^ word ^ 0x9e3779b97f4a7c15u, seed);
}

static bool same_key(const kt_json_member_slot *a, const kt_json_member_slot *b) {
    return a->key_size == b->key_size && memcmp(a->key, b->key, a->key_size) == 0;
}

static kt_status fail_duplicate(const parser *p, const kt_json_member_slot *m) {
    char what[120];
    snprintf(what, sizeof what, "object with two members '%.60s'", m->key);
    return fail_at(p, p->at - 1, what);
}

/* Fill the look-up table of a large object, refusing duplicates on the way. */
static kt_status build_table(parser *p, kt_json_object *object, size_t n) {
    size_t capacity = 16;
    uint32_t *table;

    while (capacity < 2 * n) capacity *= 2;
    if (capacity > (size_t)UINT32_MAX / 2) return fail_at(p, p->at - 1, "object too large");
    table = kt_arena_alloc(&p->doc->arena, capacity * sizeof *table, sizeof *table);
    if (!table) return fail_memory(p);
    for (size_t i = 0; i < n; i++) {
        const kt_json_member_slot *m = &object->members[i];
        size_t slot = kt_json_hash(p->seed, m->key, m->key_size) & (capacity - 1);
        for (; table[slot]; slot = (slot + 1) & (capacity - 1))
            if (same_key(&object->members[table[slot] - 1], m)) return fail_duplicate(p, m);
        table[slot] = (uint32_t)(i + 1);
    }
    object->table = table;
    object->table_mask = (uint32_t)(capacity - 1);
    object->seed = p->seed;
    return KT_OK;
}

static kt_status close_object(parser *p, kt_json_member_slot *slot, size_t n) {
    kt_json_object *object;
    kt_json_member_slot *members = NULL;

    object = kt_arena_alloc(&p->doc->arena, sizeof *object, sizeof(void *));
    if (n) members = kt_arena_alloc(&p->doc->arena, n * sizeof *members, sizeof(void *));
    if (!object || (n && !members)) return fail_memory(p);
    if (n) memcpy(members, slot + 1, n * sizeof *members);
    object->members = members;
    slot->value.as.object = object;
    if (n > KT_JSON_LINEAR) return build_table(p, object, n);
    for (size_t i = 1; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (same_key(&members[i], &members[j])) return fail_duplicate(p, &members[i]);
    return KT_OK;
}

static kt_status close_array(parser *p, kt_json_member_slot *slot, size_t n) {
    kt_json *items = NULL;

    if (n) items = kt_arena_alloc(&p->doc->arena, n * sizeof *items, sizeof(void *));
    if (n && !items) return fail_memory(p);
    for (size_t i = 0; i < n; i++) items[i] = slot[1 + i].value;
    slot->value.as.items = items;
    return KT_OK;
}

static kt_status close_container(parser *p) {
    frame f = p->frames[--p->depth];
    kt_json_member_slot *slot = &p->slots[f.self];
    size_t n = p->n_slots - f.self - 1;

    p->at++;
    p->n_slots = f.self + 1;
    slot->value.type = f.type;
    slot->value.length = n;
    return f.type == KT_JSON_OBJECT ? close_object(p, slot, n) : close_array(p, slot, n);
}

static bool inside_object(const parser *p) {
    return p->depth > 0 && p->frames[p->depth - 1].type == KT_JSON_OBJECT;
}

/* "key": pushes the member's slot; its value follows. */
static kt_status read_key(parser *p) {
    kt_json_member_slot *slot;

    skip_space(p);
    if (p->at == p->end || *p->at != '"') return fail_expected(p, "a key in quotes");
    KT_TRY(count_value(p));
    slot = push_slot(p);
    if (!slot) return fail_memory(p);
    KT_TRY(read_string(p, &slot->key, &slot->key_size));
    skip_space(p);
    if (!skip_char(p, ':')) return fail_expected(p, "':'");
    return KT_OK;
}

/* Enter a container; *complete when it is empty and therefore already closed. */
static kt_status open_container(parser *p, size_t self, bool *complete) {
    kt_json_type type = *p->at == '{' ? KT_JSON_OBJECT : KT_JSON_ARRAY;
    char close = type == KT_JSON_OBJECT ? '}' : ']';
    void *frames = p->frames;
    char what[60];
    bool ok;

    if (p->depth >= p->max_depth) {
        snprintf(what, sizeof what, "nested deeper than %zu levels", p->max_depth);
        return fail_at(p, p->at, what);
    }
    ok = grow(&frames, &p->frame_capacity, p->depth, sizeof *p->frames);
    p->frames = frames;
    if (!ok) return fail_memory(p);
    p->frames[p->depth].self = self;
    p->frames[p->depth++].type = type;
    p->at++;
    skip_space(p);
    *complete = p->at < p->end && *p->at == (unsigned char)close;
    if (*complete) return close_container(p);
    return type == KT_JSON_OBJECT ? read_key(p) : KT_OK;
}

/* A scalar, or the opening of a container. */
static kt_status read_value(parser *p, bool *complete) {
    kt_json_member_slot *slot;
    int c;

    skip_space(p);
    if (!inside_object(p)) KT_TRY(count_value(p));
    slot = inside_object(p) ? &p->slots[p->n_slots - 1] : push_slot(p);
    if (!slot) return fail_memory(p);
    *complete = true;
    if (p->at == p->end) return fail_expected(p, "a value");
    c = *p->at;
    if (c == '"') {
        slot->value.type = KT_JSON_STRING;
        return read_string(p, &slot->value.as.text, &slot->value.length);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(p, &slot->value);
    if (c == '{' || c == '[') return open_container(p, (size_t)(slot - p->slots), complete);
    return read_word(p, &slot->value);
}

/* After a complete value: close what ends here, up to the comma before the next value. */
static kt_status finish_value(parser *p) {
    while (p->depth > 0) {
        bool object = inside_object(p);
        skip_space(p);
        if (skip_char(p, ',')) return object ? read_key(p) : KT_OK;
        if (p->at == p->end || *p->at != (object ? '}' : ']'))
            return fail_expected(p, object ? "',' or '}'" : "',' or ']'");
        KT_TRY(close_container(p));
    }
    return KT_OK;
}

static kt_status parse(parser *p) {
    bool complete = false;

    do {
        KT_TRY(read_value(p, &complete));
        if (complete) KT_TRY(finish_value(p));
    } while (p->depth > 0);
    skip_space(p);
    if (p->at < p->end) return fail_expected(p, "the end of the text");
    p->doc->root = p->slots[0].value;
    return KT_OK;
}

kt_status kt_json_parse(const char *text, size_t size, const kt_json_limits *limits,
                        kt_json_doc **out, kt_err *err) {
    size_t max_bytes = limits && limits->max_bytes ? limits->max_bytes : default_max_bytes;
    int max_depth = limits && limits->max_depth > 0 ? limits->max_depth : default_max_depth;
    parser p = {.err = err, .max_depth = (size_t)max_depth};
    kt_json_doc *doc;
    kt_status st;

    *out = NULL;
    if (size > max_bytes)
        return kt_fail(err, KT_E_FORMAT, "JSON of %zu bytes, limit %zu", size, max_bytes);
    p.max_values = limits && limits->max_values ? limits->max_values : SIZE_MAX;
    p.begin = p.at = (const unsigned char *)(text ? text : "");
    p.end = p.begin + size;
    doc = calloc(1, sizeof *doc);
    if (doc) doc->texts = malloc(size + 1);
    if (!doc || !doc->texts) {
        st = fail_memory(&p);
        goto done;
    }
    p.doc = doc;
    p.out = doc->texts;
    p.seed = mix((uint64_t)(uintptr_t)doc ^ 0xd1b54a32d192ed03u, (uint64_t)kt_clock_ns() | 1) | 1;
    st = parse(&p);
    if (st != KT_OK) goto done;
    *out = doc;
    doc = NULL; /* now the caller's */
done:
    free(p.slots);
    free(p.frames);
    kt_json_destroy(doc);
    return st;
}

void kt_json_destroy(kt_json_doc *doc) {
    if (!doc) return;
    kt_arena_deinit(&doc->arena);
    free(doc->texts);
    free(doc);
}
