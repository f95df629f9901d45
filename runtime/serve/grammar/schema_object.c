/* Objects, whose properties come in the order of the schema, and arrays.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/schema_impl.h"

enum { MOST_PROPERTIES = 2000, MOST_PREFIX = 200 };

/* ---- properties ---- */

typedef struct property {
    const char *name;
    size_t size;
    bool is_required;
    kt_expr pair; /* its name and value; 0 = it may not be there */
} property;

typedef struct properties {
    property *item;
    size_t n, room, *table, table_size; /* hash of names: index + 1 */
    bool has_others;                    /* properties that are not named may follow */
    kt_conjunction others;              /* and obey this */
} properties;

static void properties_deinit(properties *p) {
    free(p->item);
    free(p->table);
}

static size_t hash_name(const char *name, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

static kt_status find_property(kt_schema *s, properties *p, const char *name, size_t size,
                               property **out) {
    size_t at;

    if (!p->table) {
        p->table_size = 4 * MOST_PROPERTIES;
        p->table = calloc(p->table_size, sizeof *p->table);
        p->item = malloc(MOST_PROPERTIES * sizeof *p->item);
        if (!p->table || !p->item) return kt_fail(s->err, KT_E_NOMEM, "schema: no memory");
    }
    for (at = hash_name(name, size) % p->table_size; p->table[at]; at = (at + 1) % p->table_size) {
        property *found = &p->item[p->table[at] - 1];
        *out = found;
        if (found->size == size && memcmp(found->name, name, size) == 0) return KT_OK;
    }
    if (p->n == MOST_PROPERTIES)
        return kt_schema_refuse(s, KT_E_UNSUPPORTED, "over %d properties", (int)MOST_PROPERTIES);
    p->table[at] = p->n + 1;
    *out = &p->item[p->n++];
    **out = (property){name, size, false, 0};
    return KT_OK;
}

/* Names in the order in which they are met: first those with a schema, then those only required. */
static kt_status gather_names(kt_schema *s, const kt_conjunction *c, properties *p) {
    property *found;

    for (int i = 0; i < c->n; i++) {
        const kt_json *named = kt_json_get(c->part[i].schema, "properties");
        if (named && kt_json_type_of(named) != KT_JSON_OBJECT)
            return kt_schema_refuse(s, KT_E_INVALID, "'properties' is no object");
        for (size_t k = 0; k < kt_json_length(named); k++) {
            const char *name;
            size_t size;
            kt_json_member(named, k, &name, &size);
            KT_TRY(find_property(s, p, name, size, &found));
        }
    }
    for (int i = 0; i < c->n; i++) {
        const kt_json *required = kt_json_get(c->part[i].schema, "required");
        if (required && kt_json_type_of(required) != KT_JSON_ARRAY)
            return kt_schema_refuse(s, KT_E_INVALID, "'required' is no array of names");
        for (size_t k = 0; k < kt_json_length(required); k++) {
            size_t size;
            const char *name = kt_json_string(kt_json_at(required, k), &size);
            if (!name) return kt_schema_refuse(s, KT_E_INVALID, "'required' is no array of names");
            KT_TRY(find_property(s, p, name, size, &found));
            found->is_required = true;
        }
    }
    return KT_OK;
}

/* What a property has to obey: its schema in each part, or what the part says of others. *allowed
 * is false when some part forbids it. */
static kt_status gather_property(kt_schema *s, const kt_conjunction *c, const property *p,
                                 kt_conjunction *out, bool *allowed) {
    out->n = 0;
    *allowed = true;
    for (int i = 0; i < c->n; i++) {
        const kt_json *schema = c->part[i].schema, *named = kt_json_get(schema, "properties");
        const kt_json *mine = kt_json_get_n(named, p->name, p->size);
        if (!mine) mine = kt_json_get(schema, "additionalProperties");
        if (!mine) continue;
        if (kt_json_type_of(mine) == KT_JSON_BOOL && !kt_json_bool(mine, true)) *allowed = false;
        KT_TRY(kt_schema_add(s, out, mine));
    }
    if (p->is_required && !*allowed)
        return kt_schema_refuse(s, KT_E_INVALID, "property '%.60s' is required, but not allowed",
                                p->name);
    return KT_OK;
}

static kt_expr key_text(kt_schema *s, const property *p) {
    kt_json_writer w = {.text = NULL};
    const char *text;
    size_t size;
    kt_expr e = 0;

    kt_json_put_string_n(&w, p->name, p->size);
    text = kt_json_writer_text(&w, &size);
    if (text)
        e = kt_rules_text(s->json.rules, text, size);
    else
        s->json.rules->failed = KT_E_NOMEM;
    kt_json_writer_deinit(&w);
    return e;
}

static kt_status write_pairs(kt_schema *s, const kt_conjunction *c, properties *p) {
    for (size_t i = 0; i < p->n; i++) {
        kt_conjunction mine;
        char path[60];
        bool allowed;
        kt_expr value;
        KT_TRY(gather_property(s, c, &p->item[i], &mine, &allowed));
        if (!allowed) continue;
        snprintf(path, sizeof path, "/properties/%.40s", p->item[i].name);
        KT_TRY(kt_schema_call(s, &mine, path, &value));
        p->item[i].pair = kt_json_pair(&s->json, key_text(s, &p->item[i]), value);
    }
    return KT_OK;
}

/* Others may follow where a part asks for them, or where no part names any; never where one
 * forbids. */
static kt_status gather_others(kt_schema *s, const kt_conjunction *c, properties *p) {
    bool asked = false, named = false;

    p->has_others = true;
    for (int i = 0; i < c->n; i++) {
        const kt_json *schema = c->part[i].schema;
        const kt_json *others = kt_json_get(schema, "additionalProperties");
        named |= kt_json_get(schema, "properties") != NULL;
        if (!others) continue;
        asked = true;
        if (kt_json_type_of(others) == KT_JSON_BOOL && !kt_json_bool(others, true))
            p->has_others = false;
        KT_TRY(kt_schema_add(s, &p->others, others));
    }
    p->has_others &= asked || !named;
    return KT_OK;
}

/* ---- objects ---- */

/* A pair of a key that no property has. */
static kt_status other_pair(kt_schema *s, properties *p, kt_expr *out) {
    kt_json_name *names = calloc(p->n + 1, sizeof *names);
    kt_expr value;
    kt_status st;

    if (!names) return kt_fail(s->err, KT_E_NOMEM, "schema: no memory");
    for (size_t i = 0; i < p->n; i++) names[i] = (kt_json_name){p->item[i].name, p->item[i].size};
    st = kt_schema_call(s, &p->others, "/additionalProperties", &value);
    if (st == KT_OK)
        *out = kt_json_pair(&s->json,
                            p->n ? kt_json_other_key(&s->json, names, p->n)
                                 : kt_rules_call(s->json.rules, s->json.string),
                            value);
    free(names);
    return st;
}

/* Properties from item i on when something stands before them: each with its comma, in rules that
 * end in a call of the next, which costs no stack. */
static kt_expr rest_of_members(kt_schema *s, const properties *p, size_t from, kt_expr other,
                               kt_expr *first) {
    kt_rules *r = s->json.rules;
    kt_expr rest = other ? kt_rules_repeat(r, kt_json_comma(&s->json, other), 0, -1) : 0;
    kt_expr one = other ? kt_json_items(&s->json, other, 1, -1) : 0;
    kt_expr_list all = {NULL, 0, 0};
    bool needed = false;

    if (other) kt_expr_list_add(r, &all, one);
    for (size_t i = p->n; i-- > from;) {
        kt_expr pair = p->item[i].pair, with_comma;
        int32_t rule;
        if (!pair) continue;
        if (p->item[i].is_required) all.n = 0; /* nothing behind it may come first */
        needed |= p->item[i].is_required;
        rule = kt_rules_add(r, "rest of an object", 17);
        kt_rules_define(r, rule, rest);
        rest = kt_rules_call(r, rule);
        kt_expr_list_add(r, &all, kt_rules_pair(r, pair, rest));
        with_comma = kt_json_comma(&s->json, pair);
        if (!p->item[i].is_required) with_comma = kt_rules_optional(r, with_comma);
        rest = kt_rules_pair(r, with_comma, rest);
    }
    *first = all.n ? kt_rules_choice(r, all.item, all.n) : 0;
    free(all.item);
    return needed;
}

/* Counts of properties: of maps all, of others only those that hold anyway. */
static kt_status check_counts(kt_schema *s, const kt_conjunction *c, const properties *p,
                              int32_t *min, int32_t *max) {
    int32_t allowed = 0, required = 0;

    *min = 0;
    *max = -1;
    KT_TRY(kt_schema_count(s, c, "minProperties", false, min));
    KT_TRY(kt_schema_count(s, c, "maxProperties", true, max));
    for (size_t i = 0; i < p->n; i++) {
        allowed += p->item[i].pair != 0;
        required += p->item[i].is_required;
    }
    if (p->n == 0) return KT_OK;
    if (*min > required || (*max >= 0 && (p->has_others || *max < allowed)))
        return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                "'%s' beside named properties is not supported",
                                *min > required ? "minProperties" : "maxProperties");
    return KT_OK;
}

kt_status kt_schema_object(kt_schema *s, const kt_conjunction *c, kt_expr *out) {
    kt_rules *r = s->json.rules;
    properties p = {.item = NULL};
    kt_expr other = 0, members = 0;
    int32_t min, max;
    bool needed = false;
    kt_status st;

    *out = 0;
    st = gather_names(s, c, &p);
    if (st == KT_OK) st = gather_others(s, c, &p);
    if (st == KT_OK) st = write_pairs(s, c, &p);
    if (st == KT_OK) st = check_counts(s, c, &p, &min, &max);
    if (st == KT_OK && p.has_others) st = other_pair(s, &p, &other);
    if (st != KT_OK) goto done;
    if (p.n > 0) {
        needed = rest_of_members(s, &p, 0, other, &members);
    } else if (other && max != 0) {
        needed = min > 0;
        members = max >= 0 && max < min ? kt_rules_never(r)
                                        : kt_json_items(&s->json, other, min > 1 ? min : 1, max);
    } else if (min > 0) {
        needed = true;
        members = kt_rules_never(r);
    }
    *out = kt_json_list(&s->json, "{", members, "}", !needed);
    if (!members) *out = kt_json_list(&s->json, "{", 0, "}", false);
done:
    properties_deinit(&p);
    return st;
}

/* ---- arrays ---- */

/* Elements that have schemas of their own, and what the others obey. */
typedef struct elements {
    kt_expr prefix[MOST_PREFIX];
    size_t n_prefix;
    kt_expr other; /* 0 = none may follow */
} elements;

static const kt_json *prefix_of(const kt_json *schema) {
    const kt_json *items = kt_json_get(schema, "items");
    return kt_json_type_of(items) == KT_JSON_ARRAY ? items : kt_json_get(schema, "prefixItems");
}

/* What a part says of element i; NULL = nothing. */
static const kt_json *element_schema(const kt_json *schema, size_t i) {
    const kt_json *prefix = prefix_of(schema), *items = kt_json_get(schema, "items");

    if (i < kt_json_length(prefix)) return kt_json_at(prefix, i);
    return kt_json_type_of(items) == KT_JSON_ARRAY ? NULL : items;
}

static kt_status gather_elements(kt_schema *s, const kt_conjunction *c, elements *e) {
    bool closed = false;

    e->n_prefix = 0;
    for (int i = 0; i < c->n; i++) {
        const kt_json *schema = c->part[i].schema, *prefix = prefix_of(schema);
        if (prefix && kt_json_type_of(prefix) != KT_JSON_ARRAY)
            return kt_schema_refuse(s, KT_E_INVALID, "'prefixItems' is no array");
        if (kt_json_length(prefix) > MOST_PREFIX)
            return kt_schema_refuse(s, KT_E_UNSUPPORTED, "'prefixItems' has over %d schemas",
                                    (int)MOST_PREFIX);
        if (kt_json_length(prefix) > e->n_prefix) e->n_prefix = kt_json_length(prefix);
        closed |= prefix && !element_schema(schema, MOST_PREFIX);
    }
    for (size_t k = 0; k <= e->n_prefix; k++) {
        kt_conjunction mine = {.n = 0};
        char path[40];
        bool allowed = k < e->n_prefix || !closed;
        kt_expr value = 0;
        for (int i = 0; i < c->n; i++) {
            const kt_json *schema =
                element_schema(c->part[i].schema, k < e->n_prefix ? k : MOST_PREFIX);
            if (!schema) continue;
            if (kt_json_type_of(schema) == KT_JSON_BOOL && !kt_json_bool(schema, true))
                allowed = false;
            KT_TRY(kt_schema_add(s, &mine, schema));
        }
        snprintf(path, sizeof path, k < e->n_prefix ? "/prefixItems/%zu" : "/items", k);
        if (allowed) KT_TRY(kt_schema_call(s, &mine, path, &value));
        if (!allowed && k < e->n_prefix) { /* the array ends before */
            e->n_prefix = k;
            e->other = 0;
            return KT_OK;
        }
        if (k < e->n_prefix)
            e->prefix[k] = value;
        else
            e->other = value;
    }
    return KT_OK;
}

/* Elements from number i on, of which the first has no comma; at least min and at most max in
 * all. */
static kt_expr elements_text(kt_schema *s, const elements *e, int32_t min, int32_t max) {
    kt_rules *r = s->json.rules;
    int32_t n = (int32_t)e->n_prefix, most;
    kt_expr rest = 0;

    if (e->other && (max < 0 || max > n)) {
        int32_t least = min > n ? min - n : 0;
        most = max < 0 ? -1 : max - n;
        if (n == 0) return kt_json_items(&s->json, e->other, least > 0 ? least : 1, most);
        rest = kt_rules_repeat(r, kt_json_comma(&s->json, e->other), least, most);
    }
    for (int32_t i = max >= 0 && max < n ? max : n; i-- > 0;) {
        kt_expr item = i ? kt_json_comma(&s->json, e->prefix[i]) : e->prefix[i];
        rest = kt_rules_pair(r, item, rest);
        if (i >= min && i > 0) rest = kt_rules_optional(r, rest);
    }
    return rest;
}

kt_status kt_schema_array(kt_schema *s, const kt_conjunction *c, kt_expr *out) {
    elements e = {.n_prefix = 0};
    int32_t min = 0, max = -1, room;

    KT_TRY(kt_schema_count(s, c, "minItems", false, &min));
    KT_TRY(kt_schema_count(s, c, "maxItems", true, &max));
    KT_TRY(gather_elements(s, c, &e));
    room = e.other ? INT32_MAX : (int32_t)e.n_prefix;
    if (max >= 0 && max < room) room = max;
    if (min > room)
        *out = kt_rules_never(s->json.rules);
    else if (room == 0)
        *out = kt_json_list(&s->json, "[", 0, "]", false);
    else
        *out = kt_json_list(&s->json, "[", elements_text(s, &e, min, max), "]", min == 0);
    return KT_OK;
}
