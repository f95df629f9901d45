/* Values of templates: making them, comparing them, going over them, as Python does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "runtime/chat/jinja.h"

enum { LINEAR = 8 };

kt_jinja_value kt_jinja_none(void) {
    return (kt_jinja_value){.type = KT_JINJA_NONE};
}

kt_jinja_value kt_jinja_bool(bool truth) {
    return (kt_jinja_value){.type = KT_JINJA_BOOL, .as.truth = truth};
}

kt_jinja_value kt_jinja_int(int64_t integer) {
    return (kt_jinja_value){.type = KT_JINJA_INT, .as.integer = integer};
}

kt_jinja_value kt_jinja_undefined(void) {
    return (kt_jinja_value){.type = KT_JINJA_UNDEFINED};
}

kt_jinja_value kt_jinja_text(const kt_jinja_string *s) {
    return (kt_jinja_value){.type = KT_JINJA_STRING, .as.string = s};
}

const char *kt_jinja_type_name(const kt_jinja_value *v) {
    static const char *const flavours[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
    switch (v->type) {
    case KT_JINJA_UNSET:
    case KT_JINJA_UNDEFINED: return "Undefined";
    case KT_JINJA_NONE: return "NoneType";
    case KT_JINJA_BOOL: return "bool";
    case KT_JINJA_INT:
    case KT_JINJA_BIG: return "int";
    case KT_JINJA_FLOAT: return "float";
    case KT_JINJA_STRING: return v->as.string->is_markup ? "Markup" : "str";
    case KT_JINJA_LIST: return flavours[v->as.list->flavour];
    case KT_JINJA_DICT: return "dict";
    case KT_JINJA_NAMESPACE: return "Namespace";
    case KT_JINJA_MACRO: return "Macro";
    case KT_JINJA_LOOP: return "LoopContext";
    case KT_JINJA_BUILTIN: return "function";
    case KT_JINJA_CYCLER: return "Cycler";
    case KT_JINJA_JOINER: return "Joiner";
    }
    return "object";
}

/* ---- what is not there ---- */

static kt_status missing(kt_jinja_run *r, const kt_jinja_missing *m, kt_jinja_value *out) {
    void *copy;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *m, &copy));
    memcpy(copy, m, sizeof *m);
    *out = (kt_jinja_value){.type = KT_JINJA_UNDEFINED, .as.missing = copy};
    return KT_OK;
}

kt_status kt_jinja_missing_variable(kt_jinja_run *r, const char *name, size_t size,
                                    kt_jinja_value *out) {
    return missing(r, &(kt_jinja_missing){.name = name, .name_size = size}, out);
}

kt_status kt_jinja_missing_member(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                                  size_t size, int64_t index, kt_jinja_value *out) {
    if (of->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, of);
    return missing(
        r,
        &(kt_jinja_missing){
            .of = kt_jinja_type_name(of), .name = name, .name_size = size, .index = index},
        out);
}

kt_status kt_jinja_fail_undefined(const kt_jinja_run *r, const kt_jinja_value *v) {
    const kt_jinja_missing *m = v->as.missing;
    int n = m ? (int)(m->name_size < 100 ? m->name_size : 100) : 0;

    if (!m) return kt_jinja_fail(r, KT_E_INVALID, "this value is undefined");
    if (!m->of) return kt_jinja_fail(r, KT_E_INVALID, "'%.*s' is undefined", n, m->name);
    if (!m->name)
        return kt_jinja_fail(r, KT_E_INVALID, "%s object has no element %lld", m->of,
                             (long long)m->index);
    return kt_jinja_fail(r, KT_E_INVALID, "'%s object' has no attribute '%.*s'", m->of, n, m->name);
}

/* ---- lists ---- */

kt_status kt_jinja_new_list(kt_jinja_run *r, kt_jinja_flavour flavour, size_t capacity,
                            kt_jinja_value *out) {
    kt_jinja_list *list;
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *list, &memory));
    list = memory;
    list->flavour = flavour;
    if (capacity) {
        KT_TRY(kt_jinja_alloc(r, capacity, sizeof *list->items, &memory));
        list->items = memory;
        list->capacity = capacity;
    }
    *out = (kt_jinja_value){.type = KT_JINJA_LIST, .as.list = list};
    return KT_OK;
}

kt_status kt_jinja_append(kt_jinja_run *r, kt_jinja_list *list, const kt_jinja_value *item) {
    if (list->size == list->capacity) {
        size_t more = list->capacity ? list->capacity * 2 : 8;
        void *memory;
        KT_TRY(kt_jinja_alloc(r, more, sizeof *list->items, &memory));
        if (list->size) memcpy(memory, list->items, list->size * sizeof *list->items);
        list->items = memory;
        list->capacity = more;
    }
    list->items[list->size++] = *item;
    return KT_OK;
}

/* ---- dictionaries ---- */

kt_status kt_jinja_new_dict(kt_jinja_run *r, size_t capacity, kt_jinja_value *out) {
    kt_jinja_dict *d;
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *d, &memory));
    d = memory;
    if (capacity) {
        KT_TRY(kt_jinja_alloc(r, capacity, sizeof *d->entries, &memory));
        d->entries = memory;
        d->capacity = capacity;
    }
    *out = (kt_jinja_value){.type = KT_JINJA_DICT, .as.dict = d};
    return KT_OK;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return h ^ h >> 29;
}

/* Keys that are equal have equal hashes; numbers may be equal across types, and tuples are rare. */
static uint64_t hash_of(const kt_jinja_value *key) {
    return key->type == KT_JINJA_STRING ? hash_bytes(key->as.string->data, key->as.string->size)
                                        : 1;
}

static bool same_key(const kt_jinja_value *a, const kt_jinja_value *b) {
    bool same = false;

    if (a->type == KT_JINJA_STRING)
        return b->type == KT_JINJA_STRING && kt_jinja_same_text(a->as.string, b->as.string);
    if (kt_jinja_is_number(a) && kt_jinja_is_number(b)) {
        if (a->type == KT_JINJA_FLOAT || b->type == KT_JINJA_FLOAT)
            return kt_jinja_number(a) == kt_jinja_number(b);
        return (a->type == KT_JINJA_BOOL ? a->as.truth : a->as.integer) ==
               (b->type == KT_JINJA_BOOL ? b->as.truth : b->as.integer);
    }
    if (a->type != b->type || a->type != KT_JINJA_LIST) return a->type == b->type;
    if (a->as.list->size != b->as.list->size) return false;
    same = true;
    for (size_t i = 0; same && i < a->as.list->size; i++)
        same = same_key(&a->as.list->items[i], &b->as.list->items[i]);
    return same;
}

static bool can_be_key(const kt_jinja_value *v) {
    if (v->type == KT_JINJA_NONE || v->type == KT_JINJA_STRING || kt_jinja_is_number(v))
        return true;
    if (v->type != KT_JINJA_LIST || v->as.list->flavour != KT_JINJA_TUPLE) return false;
    for (size_t i = 0; i < v->as.list->size; i++) /* no tuple in a tuple: nothing needs it */
        if (v->as.list->items[i].type == KT_JINJA_LIST || !can_be_key(&v->as.list->items[i]))
            return false;
    return true;
}

static kt_jinja_entry *find(const kt_jinja_dict *d, const kt_jinja_value *key, uint64_t hash) {
    if (!d->slots) {
        for (size_t i = 0; i < d->size; i++)
            if (d->entries[i].hash == hash && same_key(&d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    for (size_t slot = hash & d->slot_mask; d->slots[slot]; slot = (slot + 1) & d->slot_mask) {
        kt_jinja_entry *e = &d->entries[d->slots[slot] - 1];
        if (e->hash == hash && same_key(&e->key, key)) return e;
    }
    return NULL;
}

kt_jinja_entry *kt_jinja_get(const kt_jinja_dict *d, const kt_jinja_value *key) {
    return can_be_key(key) ? find(d, key, hash_of(key)) : NULL;
}

kt_jinja_entry *kt_jinja_get_text(const kt_jinja_dict *d, const char *key, size_t size) {
    const kt_jinja_string s = {.data = key, .size = size};
    const kt_jinja_value v = kt_jinja_text(&s);
    return kt_jinja_get(d, &v);
}

uint64_t kt_jinja_hash(const kt_jinja_string *key) {
    return hash_bytes(key->data, key->size);
}

kt_jinja_entry *kt_jinja_get_hashed(const kt_jinja_dict *d, const kt_jinja_string *key,
                                    uint64_t hash) {
    const kt_jinja_value v = kt_jinja_text(key);
    return find(d, &v, hash);
}

static void fill_slots(kt_jinja_dict *d) {
    memset(d->slots, 0, (d->slot_mask + 1) * sizeof *d->slots);
    for (size_t i = 0; i < d->size; i++) {
        size_t slot = d->entries[i].hash & d->slot_mask;
        while (d->slots[slot]) slot = (slot + 1) & d->slot_mask;
        d->slots[slot] = (uint32_t)i + 1;
    }
}

static kt_status make_room(kt_jinja_run *r, kt_jinja_dict *d) {
    size_t more = d->capacity ? d->capacity * 2 : 4;
    void *memory;

    if (d->size < d->capacity) return KT_OK;
    if (more > UINT32_MAX / 4) return kt_jinja_fail(r, KT_E_UNSUPPORTED, "too many members");
    KT_TRY(kt_jinja_alloc(r, more, sizeof *d->entries, &memory));
    if (d->size) memcpy(memory, d->entries, d->size * sizeof *d->entries);
    d->entries = memory;
    d->capacity = more;
    return KT_OK;
}

/* Twice as many slots as entries may come, a power of two. */
static kt_status make_slots(kt_jinja_run *r, kt_jinja_dict *d) {
    size_t n = 32;
    void *memory;

    if (d->size <= LINEAR || (d->slots && d->size * 2 <= d->slot_mask + 1)) return KT_OK;
    while (n < d->capacity * 2) n *= 2;
    KT_TRY(kt_jinja_alloc(r, n, sizeof *d->slots, &memory));
    d->slots = memory;
    d->slot_mask = n - 1;
    fill_slots(d);
    return KT_OK;
}

kt_status kt_jinja_set(kt_jinja_run *r, kt_jinja_dict *d, const kt_jinja_value *key,
                       const kt_jinja_value *value) {
    uint64_t hash = hash_of(key);
    kt_jinja_entry *e;
    size_t slot;

    if (!can_be_key(key))
        return kt_jinja_fail(r, KT_E_INVALID, "unhashable type: '%s'", kt_jinja_type_name(key));
    e = find(d, key, hash);
    if (e) {
        e->value = *value;
        return KT_OK;
    }
    KT_TRY(make_room(r, d));
    d->entries[d->size++] = (kt_jinja_entry){*key, *value, hash};
    if (!d->slots || d->size * 2 > d->slot_mask + 1) return make_slots(r, d);
    for (slot = hash & d->slot_mask; d->slots[slot];) slot = (slot + 1) & d->slot_mask;
    d->slots[slot] = (uint32_t)d->size;
    return KT_OK;
}

void kt_jinja_remove(kt_jinja_dict *d, kt_jinja_entry *entry) {
    size_t behind = d->size - (size_t)(entry - d->entries) - 1;

    memmove(entry, entry + 1, behind * sizeof *entry);
    d->size--;
    if (d->slots) fill_slots(d);
}

kt_status kt_jinja_view(kt_jinja_run *r, const kt_jinja_dict *d, kt_jinja_flavour flavour,
                        kt_jinja_value *out) {
    KT_TRY(kt_jinja_spend(r, d->size));
    KT_TRY(kt_jinja_new_list(r, flavour, d->size, out));
    for (size_t i = 0; i < d->size; i++) {
        kt_jinja_value item = flavour == KT_JINJA_VALUES ? d->entries[i].value : d->entries[i].key;
        if (flavour == KT_JINJA_ITEMS || flavour == KT_JINJA_GENERATOR) {
            KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 2, &item));
            KT_TRY(kt_jinja_append(r, item.as.list, &d->entries[i].key));
            KT_TRY(kt_jinja_append(r, item.as.list, &d->entries[i].value));
        }
        KT_TRY(kt_jinja_append(r, out->as.list, &item));
    }
    return KT_OK;
}

/* ---- truth, order, membership ---- */

bool kt_jinja_is_number(const kt_jinja_value *v) {
    return v->type == KT_JINJA_BOOL || v->type == KT_JINJA_INT || v->type == KT_JINJA_FLOAT;
}

double kt_jinja_number(const kt_jinja_value *v) {
    return v->type == KT_JINJA_FLOAT ? v->as.real
           : v->type == KT_JINJA_INT ? (double)v->as.integer
                                     : (double)v->as.truth;
}

bool kt_jinja_truth(const kt_jinja_value *v) {
    switch (v->type) {
    case KT_JINJA_UNSET:
    case KT_JINJA_UNDEFINED:
    case KT_JINJA_NONE: return false;
    case KT_JINJA_BOOL: return v->as.truth;
    case KT_JINJA_INT: return v->as.integer != 0;
    case KT_JINJA_FLOAT: return v->as.real != 0;
    case KT_JINJA_STRING: return v->as.string->size > 0;
    case KT_JINJA_LIST: return v->as.list->size > 0 || v->as.list->flavour == KT_JINJA_GENERATOR;
    case KT_JINJA_DICT: return v->as.dict->size > 0;
    default: return true;
    }
}

static bool is_sequence(const kt_jinja_value *a, const kt_jinja_value *b) {
    return a->type == KT_JINJA_LIST && b->type == KT_JINJA_LIST &&
           a->as.list->flavour == b->as.list->flavour;
}

static kt_status equal_items(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                             bool *out) {
    const kt_jinja_list *x, *y;

    if (a->type == KT_JINJA_LIST) {
        x = a->as.list;
        y = b->as.list;
        *out = x->size == y->size;
        for (size_t i = 0; *out && i < x->size; i++)
            KT_TRY(kt_jinja_equal(r, &x->items[i], &y->items[i], out));
        return KT_OK;
    }
    *out = a->as.dict->size == b->as.dict->size;
    for (size_t i = 0; *out && i < a->as.dict->size; i++) {
        const kt_jinja_entry *e = &a->as.dict->entries[i];
        const kt_jinja_entry *other = kt_jinja_get(b->as.dict, &e->key);
        *out = other != NULL;
        if (other) KT_TRY(kt_jinja_equal(r, &e->value, &other->value, out));
    }
    return KT_OK;
}

kt_status kt_jinja_equal(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                         bool *out) {
    kt_status st;

    *out = false;
    if (kt_jinja_is_number(a) && kt_jinja_is_number(b)) {
        *out = same_key(a, b);
        return KT_OK;
    }
    if (a->type != b->type) return KT_OK;
    switch (a->type) {
    case KT_JINJA_STRING:
    case KT_JINJA_BIG: *out = kt_jinja_same_text(a->as.string, b->as.string); return KT_OK;
    case KT_JINJA_UNSET:
    case KT_JINJA_UNDEFINED:
    case KT_JINJA_NONE: *out = true; return KT_OK;
    case KT_JINJA_LIST:
        if (!is_sequence(a, b)) return KT_OK;
        break;
    case KT_JINJA_DICT: break;
    default: *out = a->as.list == b->as.list; return KT_OK; /* the same object */
    }
    KT_TRY(kt_jinja_spend(r, 1));
    KT_TRY(kt_jinja_enter(r));
    st = equal_items(r, a, b, out);
    r->depth--;
    return st;
}

static int sign(int64_t difference) {
    return (difference > 0) - (difference < 0);
}

static int compare_numbers(const kt_jinja_value *a, const kt_jinja_value *b) {
    double x, y;

    if (a->type == KT_JINJA_INT && b->type == KT_JINJA_INT)
        return (a->as.integer > b->as.integer) - (a->as.integer < b->as.integer);
    x = kt_jinja_number(a);
    y = kt_jinja_number(b);
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static kt_status compare_lists(kt_jinja_run *r, const kt_jinja_list *a, const kt_jinja_list *b,
                               const char *op, int *out) {
    for (size_t i = 0; i < a->size && i < b->size; i++) {
        bool same;
        KT_TRY(kt_jinja_equal(r, &a->items[i], &b->items[i], &same));
        if (!same) return kt_jinja_compare(r, &a->items[i], &b->items[i], op, out);
    }
    *out = (a->size > b->size) - (a->size < b->size);
    return KT_OK;
}

kt_status kt_jinja_compare(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                           const char *op, int *out) {
    kt_status st;

    if (kt_jinja_is_number(a) && kt_jinja_is_number(b)) {
        *out = compare_numbers(a, b);
        return KT_OK;
    }
    if (a->type == KT_JINJA_STRING && b->type == KT_JINJA_STRING) {
        const kt_jinja_string *x = a->as.string, *y = b->as.string;
        int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
        *out = order ? sign(order) : (x->size > y->size) - (x->size < y->size);
        return KT_OK;
    }
    if (is_sequence(a, b) && a->as.list->flavour <= KT_JINJA_TUPLE) {
        KT_TRY(kt_jinja_enter(r));
        st = compare_lists(r, a->as.list, b->as.list, op, out);
        r->depth--;
        return st;
    }
    if (a->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, a);
    if (b->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, b);
    return kt_jinja_fail(r, KT_E_INVALID, "'%s' not supported between instances of '%s' and '%s'",
                         op, kt_jinja_type_name(a), kt_jinja_type_name(b));
}

kt_status kt_jinja_contains(kt_jinja_run *r, const kt_jinja_value *in, const kt_jinja_value *item,
                            bool *out) {
    kt_jinja_list items;

    *out = false;
    if (in->type == KT_JINJA_UNDEFINED) return KT_OK;
    if (in->type == KT_JINJA_STRING) {
        if (item->type != KT_JINJA_STRING)
            return kt_jinja_fail(r, KT_E_INVALID,
                                 "'in <string>' requires string as left operand, not %s",
                                 kt_jinja_type_name(item));
        KT_TRY(kt_jinja_spend(r, in->as.string->size / 64));
        *out = kt_jinja_find(in->as.string, 0, item->as.string->data, item->as.string->size) !=
               SIZE_MAX;
        return KT_OK;
    }
    if (in->type == KT_JINJA_DICT) {
        if (!can_be_key(item))
            return kt_jinja_fail(r, KT_E_INVALID, "unhashable type: '%s'",
                                 kt_jinja_type_name(item));
        *out = kt_jinja_get(in->as.dict, item) != NULL;
        return KT_OK;
    }
    if (in->type != KT_JINJA_LIST)
        return kt_jinja_fail(r, KT_E_INVALID, "argument of type '%s' is not iterable",
                             kt_jinja_type_name(in));
    KT_TRY(kt_jinja_iterate(r, in, &items));
    KT_TRY(kt_jinja_spend(r, items.size));
    for (size_t i = 0; !*out && i < items.size; i++)
        KT_TRY(kt_jinja_equal(r, &items.items[i], item, out));
    return KT_OK;
}

kt_status kt_jinja_length(kt_jinja_run *r, const kt_jinja_value *v, int64_t *out) {
    *out = 0;
    switch (v->type) {
    case KT_JINJA_UNDEFINED: return KT_OK;
    case KT_JINJA_STRING:
        *out = (int64_t)kt_jinja_char_count(v->as.string->data, v->as.string->size);
        return kt_jinja_spend(r, v->as.string->size / 64);
    case KT_JINJA_DICT: *out = (int64_t)v->as.dict->size; return KT_OK;
    case KT_JINJA_LOOP: *out = (int64_t)v->as.loop->size; return KT_OK;
    case KT_JINJA_LIST:
        if (v->as.list->flavour == KT_JINJA_GENERATOR) break;
        *out = (int64_t)v->as.list->size;
        return KT_OK;
    default: break;
    }
    return kt_jinja_fail(r, KT_E_INVALID, "object of type '%s' has no len()",
                         kt_jinja_type_name(v));
}

static kt_status characters(kt_jinja_run *r, const kt_jinja_string *s, kt_jinja_list *out) {
    kt_jinja_value list, c;

    KT_TRY(kt_jinja_spend(r, s->size));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, kt_jinja_char_count(s->data, s->size), &list));
    for (size_t i = 0, end; i < s->size; i = end) {
        end = i + kt_jinja_char_offset(s->data + i, s->size - i, 1);
        KT_TRY(kt_jinja_part(r, s, i, end, &c));
        KT_TRY(kt_jinja_append(r, list.as.list, &c));
    }
    *out = *list.as.list;
    return KT_OK;
}

kt_status kt_jinja_iterate(kt_jinja_run *r, const kt_jinja_value *v, kt_jinja_list *out) {
    kt_jinja_value list;

    memset(out, 0, sizeof *out);
    switch (v->type) {
    case KT_JINJA_UNDEFINED: return KT_OK;
    case KT_JINJA_LIST: *out = *v->as.list; return KT_OK;
    case KT_JINJA_STRING: return characters(r, v->as.string, out);
    case KT_JINJA_DICT:
        KT_TRY(kt_jinja_view(r, v->as.dict, KT_JINJA_KEYS, &list));
        *out = *list.as.list;
        return KT_OK;
    default:
        return kt_jinja_fail(r, KT_E_INVALID, "'%s' object is not iterable", kt_jinja_type_name(v));
    }
}

/* Merge sort: stable, and n log n whatever the order. */
static kt_status merge(kt_jinja_run *r, kt_jinja_value *keys, kt_jinja_value *items,
                       kt_jinja_value *spare, size_t n, bool reverse) {
    size_t half = n / 2, i = 0, j = half, k = 0;

    if (n < 2) return KT_OK;
    KT_TRY(kt_jinja_spend(r, n));
    KT_TRY(merge(r, keys, items, spare, half, reverse));
    KT_TRY(merge(r, keys + half, items + half, spare, n - half, reverse));
    while (i < half || j < n) {
        int order = 0;
        size_t from;
        if (i < half && j < n) {
            KT_TRY(kt_jinja_compare(r, &keys[j], &keys[i], "<", &order));
            order = order == 2 ? 0 : reverse ? -order : order;
        }
        from = j >= n || (i < half && order >= 0) ? i++ : j++;
        spare[k] = keys[from];
        spare[n + k++] = items[from];
    }
    memcpy(keys, spare, n * sizeof *keys);
    memcpy(items, spare + n, n * sizeof *items);
    return KT_OK;
}

kt_status kt_jinja_sort(kt_jinja_run *r, kt_jinja_value *keys, kt_jinja_value *items, size_t n,
                        bool reverse) {
    void *spare;

    KT_TRY(kt_jinja_alloc(r, 2 * n + 1, sizeof(kt_jinja_value), &spare));
    return merge(r, keys, items, spare, n, reverse);
}

/* ---- from JSON ---- */

/* Only a program chooses among these, so that a template may make control tokens of them. */
static bool is_role(const char *s, size_t n) {
    static const char *const roles[] = {"user",      "assistant", "system", "tool",
                                        "developer", "function",  "ipython"};

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (n == strlen(roles[i]) && memcmp(s, roles[i], n) == 0) return true;
    return false;
}

static kt_status number(kt_jinja_run *r, const kt_json *json, kt_jinja_value *out) {
    const char *text = kt_json_lexeme(json);

    if (strpbrk(text, ".eE")) {
        *out = (kt_jinja_value){.type = KT_JINJA_FLOAT, .as.real = kt_json_double(json, INFINITY)};
        if (isinf(out->as.real) && text[0] == '-') out->as.real = -INFINITY;
        return KT_OK;
    }
    *out = kt_jinja_int(kt_json_int(json, 0));
    if (kt_json_is_integer(json)) return KT_OK;
    KT_TRY(kt_jinja_string_of(r, text, strlen(text), true, out));
    out->type = KT_JINJA_BIG;
    return KT_OK;
}

/* A member's name; one that was met before is the same string. */
static kt_status key_of(kt_jinja_run *r, const char *key, size_t size, kt_jinja_value *out) {
    const size_t first = size ? (unsigned char)*key : 0;
    const kt_jinja_string **kept =
        r->keys ? &r->keys[(size * 31 + first) % KT_JINJA_KEYS_KEPT] : NULL;

    if (kept && *kept && (*kept)->size == size && memcmp((*kept)->data, key, size) == 0) {
        *out = kt_jinja_text(*kept);
        return KT_OK;
    }
    KT_TRY(kt_jinja_string_of(r, key, size, false, out));
    if (kept) *kept = out->as.string;
    return KT_OK;
}

static kt_status object(kt_jinja_run *r, const kt_json *json, kt_jinja_value *out) {
    KT_TRY(kt_jinja_new_dict(r, kt_json_length(json), out));
    for (size_t i = 0; i < kt_json_length(json); i++) {
        const char *key, *text;
        size_t key_size, size;
        const kt_json *member = kt_json_member(json, i, &key, &key_size);
        kt_jinja_value name, value;
        bool trusted = false;
        KT_TRY(key_of(r, key, key_size, &name));
        text = kt_json_string(member, &size);
        if (text && key_size == 4 && memcmp(key, "role", 4) == 0) trusted = is_role(text, size);
        KT_TRY(kt_jinja_from_json(r, member, trusted, &value));
        KT_TRY(kt_jinja_set(r, out->as.dict, &name, &value));
    }
    return KT_OK;
}

kt_status kt_jinja_from_json(kt_jinja_run *r, const kt_json *json, bool trusted,
                             kt_jinja_value *out) {
    const char *text;
    size_t size;
    kt_jinja_value item;

    KT_TRY(kt_jinja_spend(r, 1));
    switch (kt_json_type_of(json)) {
    case KT_JSON_NULL: *out = kt_jinja_none(); return KT_OK;
    case KT_JSON_BOOL: *out = kt_jinja_bool(kt_json_bool(json, false)); return KT_OK;
    case KT_JSON_NUMBER: return number(r, json, out);
    case KT_JSON_STRING:
        text = kt_json_string(json, &size);
        return kt_jinja_string_of(r, text, size, trusted, out);
    case KT_JSON_ARRAY:
        KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, kt_json_length(json), out));
        for (size_t i = 0; i < kt_json_length(json); i++) {
            KT_TRY(kt_jinja_from_json(r, kt_json_at(json, i), false, &item));
            KT_TRY(kt_jinja_append(r, out->as.list, &item));
        }
        return KT_OK;
    case KT_JSON_OBJECT: return object(r, json, out);
    }
    return KT_OK;
}
