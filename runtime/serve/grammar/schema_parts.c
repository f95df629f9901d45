/* What a schema refers to, which types it allows, and what of it is supported at all.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/schema_impl.h"

enum { MOST_REFERENCES = 64, MOST_COMPARISONS = 1000000 };

kt_status kt_schema_refuse(const kt_schema *s, kt_status status, const char *format, ...) {
    char what[KT_ERR_SIZE / 2];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return kt_fail(s->err, status, "schema: %s: %s", s->path, what);
}

kt_status kt_schema_spend(kt_schema *s, size_t comparisons) {
    if (comparisons <= MOST_COMPARISONS - s->spent) {
        s->spent += comparisons;
        return KT_OK;
    }
    return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                            "'enum' or 'oneOf' is too long: over %d comparisons of its values",
                            (int)MOST_COMPARISONS);
}

/* ---- keywords ---- */

/* Those that are held to, and those that say nothing about which values are valid. */
static const char *const known[] = {"type",
                                    "enum",
                                    "const",
                                    "properties",
                                    "required",
                                    "items",
                                    "prefixItems",
                                    "minItems",
                                    "maxItems",
                                    "additionalProperties",
                                    "minLength",
                                    "maxLength",
                                    "pattern",
                                    "format",
                                    "minimum",
                                    "maximum",
                                    "anyOf",
                                    "oneOf",
                                    "allOf",
                                    "exclusiveMinimum",
                                    "$ref",
                                    "$defs",
                                    "definitions",
                                    "minProperties",
                                    "exclusiveMaximum",
                                    "$schema",
                                    "$id",
                                    "id",
                                    "$comment",
                                    "maxProperties",
                                    "title",
                                    "description",
                                    "default",
                                    "examples",
                                    "example",
                                    "deprecated",
                                    "readOnly",
                                    "writeOnly",
                                    "discriminator",
                                    "externalDocs",
                                    "nullable",
                                    "$anchor",
                                    "contentSchema",
                                    "contentEncoding",
                                    "contentMediaType"};

static bool is_empty_object(const kt_json *v) {
    return kt_json_type_of(v) == KT_JSON_OBJECT && kt_json_length(v) == 0;
}

static kt_status check_keywords(const kt_schema *s, const kt_json *schema) {
    for (size_t i = 0; i < kt_json_length(schema); i++) {
        const char *key;
        size_t size, k = 0;
        const kt_json *value = kt_json_member(schema, i, &key, &size);
        while (k < sizeof known / sizeof *known && strcmp(known[k], key) != 0) k++;
        if (k < sizeof known / sizeof *known || strncmp(key, "x-", 2) == 0) continue;
        if (strcmp(key, "patternProperties") == 0 && is_empty_object(value)) continue;
        if (strcmp(key, "uniqueItems") == 0 && !kt_json_bool(value, true)) continue;
        return kt_schema_refuse(s, KT_E_UNSUPPORTED, "keyword '%.60s' is not supported", key);
    }
    return KT_OK;
}

/* ---- references ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a JSON pointer, with ~0, ~1 and %XX undone, into out; false when it is too long. */
static bool read_step(const char **at, char *out, size_t room, size_t *size) {
    const char *p = *at;
    size_t n = 0;

    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1')) {
            c = *++p == '0' ? '~' : '/';
        } else if (c == '%' && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
            c = (char)(hex_digit(p[1]) * 16 + hex_digit(p[2]));
            p += 2;
        }
        if (n == room) return false;
        out[n++] = c;
    }
    *at = p;
    *size = n;
    return true;
}

static const kt_json *step_into(const kt_json *from, const char *key, size_t size) {
    size_t index = 0;

    if (kt_json_type_of(from) != KT_JSON_ARRAY) return kt_json_get_n(from, key, size);
    if (size == 0 || size > 6) return NULL;
    for (size_t i = 0; i < size; i++) {
        if (key[i] < '0' || key[i] > '9') return NULL;
        index = index * 10 + (size_t)(key[i] - '0');
    }
    return kt_json_at(from, index);
}

static kt_status follow(const kt_schema *s, const kt_json *reference, const kt_json **out) {
    const char *text = kt_json_string(reference, NULL), *at;
    const kt_json *to = s->root;

    if (!text) return kt_schema_refuse(s, KT_E_INVALID, "'$ref' is no string");
    if (*text != '#' || (text[1] && text[1] != '/'))
        return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                "'$ref' is '%.80s', expected '#' or '#/' and a JSON pointer", text);
    for (at = text + 1; *at == '/' && to;) {
        char key[256];
        size_t size;
        at++;
        to = read_step(&at, key, sizeof key, &size) ? step_into(to, key, size) : NULL;
    }
    if (!to) return kt_schema_refuse(s, KT_E_INVALID, "'$ref': there is no '%.120s'", text);
    *out = to;
    return KT_OK;
}

/* ---- parts ---- */

/* What led from one $ref or allOf to the next. */
typedef struct led_by {
    const struct led_by *before;
    const kt_json *schema;
    int depth;
} led_by;

static kt_status refuse_circle(const kt_schema *s) {
    return kt_schema_refuse(s, KT_E_INVALID,
                            "'$ref', 'allOf', 'anyOf' or 'oneOf' comes back to itself without a "
                            "value between");
}

static kt_status add_part(const kt_schema *s, kt_conjunction *c, const kt_json *schema,
                          const led_by *before) {
    const kt_json *reference = kt_json_get(schema, "$ref"), *all = kt_json_get(schema, "allOf");
    kt_json_type type = kt_json_type_of(schema);
    const led_by here = {before, schema, before ? before->depth + 1 : 0};

    if (!schema || (type != KT_JSON_OBJECT && type != KT_JSON_BOOL))
        return kt_schema_refuse(s, KT_E_INVALID, "a schema is a %s, expected an object",
                                kt_json_type_name(type));
    for (const led_by *b = before; b; b = b->before)
        if (b->schema == schema || here.depth > MOST_REFERENCES) return refuse_circle(s);
    for (int i = 0; i < c->n; i++)
        if (c->part[i].schema == schema) return c->part[i].split ? refuse_circle(s) : KT_OK;
    if (c->n == KT_SCHEMA_PARTS)
        return kt_schema_refuse(s, KT_E_UNSUPPORTED, "over %d schemas hold at once",
                                (int)KT_SCHEMA_PARTS);
    KT_TRY(check_keywords(s, schema));
    c->part[c->n++] = (kt_schema_part){schema, 0};
    if (reference) {
        KT_TRY(follow(s, reference, &schema));
        KT_TRY(add_part(s, c, schema, &here));
    }
    if (!all) return KT_OK;
    if (kt_json_type_of(all) != KT_JSON_ARRAY)
        return kt_schema_refuse(s, KT_E_INVALID, "'allOf' is no array");
    for (size_t i = 0; i < kt_json_length(all); i++)
        KT_TRY(add_part(s, c, kt_json_at(all, i), &here));
    return KT_OK;
}

kt_status kt_schema_add(kt_schema *s, kt_conjunction *c, const kt_json *schema) {
    return add_part(s, c, schema, NULL);
}

/* ---- types ---- */

static int type_named(const char *name) {
    static const struct {
        const char *name;
        int types;
    } types[] = {{"null", KT_TYPE_NULL},     {"boolean", KT_TYPE_BOOLEAN},
                 {"object", KT_TYPE_OBJECT}, {"array", KT_TYPE_ARRAY},
                 {"number", KT_TYPE_NUMBER}, {"integer", KT_TYPE_INTEGER},
                 {"string", KT_TYPE_STRING}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].types;
    return 0;
}

/* Without `type`, keywords of a type mean that type: the usual intention, and a part of what is
 * valid. */
static int implied_types(const kt_json *schema) {
    static const struct {
        const char *keyword;
        int types;
    } implied[] = {{"properties", KT_TYPE_OBJECT},
                   {"required", KT_TYPE_OBJECT},
                   {"additionalProperties", KT_TYPE_OBJECT},
                   {"minProperties", KT_TYPE_OBJECT},
                   {"maxProperties", KT_TYPE_OBJECT},
                   {"items", KT_TYPE_ARRAY},
                   {"prefixItems", KT_TYPE_ARRAY},
                   {"minItems", KT_TYPE_ARRAY},
                   {"maxItems", KT_TYPE_ARRAY},
                   {"minLength", KT_TYPE_STRING},
                   {"maxLength", KT_TYPE_STRING},
                   {"pattern", KT_TYPE_STRING},
                   {"format", KT_TYPE_STRING},
                   {"minimum", KT_TYPE_NUMBER},
                   {"maximum", KT_TYPE_NUMBER},
                   {"exclusiveMinimum", KT_TYPE_NUMBER},
                   {"exclusiveMaximum", KT_TYPE_NUMBER}};
    int types = 0;

    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++)
        if (kt_json_get(schema, implied[i].keyword)) types |= implied[i].types;
    return types ? types : KT_TYPE_ANY;
}

int kt_schema_part_types(const kt_json *schema) {
    const kt_json *type = kt_json_get(schema, "type");
    int types = 0;

    if (!type) return implied_types(schema);
    types = type_named(kt_json_string(type, NULL));
    for (size_t i = 0; i < kt_json_length(type); i++)
        types |= type_named(kt_json_string(kt_json_at(type, i), NULL));
    if (kt_json_bool(kt_json_get(schema, "nullable"), false)) types |= KT_TYPE_NULL;
    return types;
}

static kt_status check_types(const kt_schema *s, const kt_json *schema) {
    const kt_json *type = kt_json_get(schema, "type");

    if (!type || type_named(kt_json_string(type, NULL))) return KT_OK;
    if (kt_json_type_of(type) != KT_JSON_ARRAY || kt_json_length(type) == 0)
        return kt_schema_refuse(s, KT_E_INVALID, "'type' names no type of JSON");
    for (size_t i = 0; i < kt_json_length(type); i++)
        if (!type_named(kt_json_string(kt_json_at(type, i), NULL)))
            return kt_schema_refuse(s, KT_E_INVALID, "'type' names no type of JSON");
    return KT_OK;
}

/* Formats of numbers bind integers or say how a number is stored; those of strings are patterns. */
static kt_status check_format(const kt_schema *s, const kt_json *schema, int types) {
    static const char *const numeric[] = {"int32", "int64", "float", "double"};
    const char *format = kt_json_text(schema, "format");

    if (!kt_json_get(schema, "format") || (types & KT_TYPE_STRING)) return KT_OK;
    for (size_t i = 0; i < sizeof numeric / sizeof *numeric; i++)
        if ((types & KT_TYPE_NUMBER) && strcmp(numeric[i], format) == 0) return KT_OK;
    return kt_schema_refuse(s, KT_E_UNSUPPORTED, "format '%.40s' is not supported for this type",
                            format);
}

kt_status kt_schema_type_mask(kt_schema *s, const kt_conjunction *c, int *types) {
    *types = KT_TYPE_ANY;
    for (int i = 0; i < c->n; i++) {
        KT_TRY(check_types(s, c->part[i].schema));
        *types &= kt_schema_part_types(c->part[i].schema);
    }
    for (int i = 0; i < c->n; i++) KT_TRY(check_format(s, c->part[i].schema, *types));
    return KT_OK;
}

/* ---- values ---- */

bool kt_schema_equal(const kt_json *a, const kt_json *b) {
    kt_json_type type = kt_json_type_of(a);
    const char *x, *y, *key;
    size_t n = kt_json_length(a), m, size;

    if (type != kt_json_type_of(b)) return false;
    switch (type) {
    case KT_JSON_NULL: return true;
    case KT_JSON_BOOL: return kt_json_bool(a, false) == kt_json_bool(b, false);
    case KT_JSON_NUMBER:
        if (kt_json_is_integer(a) && kt_json_is_integer(b))
            return kt_json_int(a, 0) == kt_json_int(b, 0);
        return kt_json_double(a, 0) == kt_json_double(b, 0);
    case KT_JSON_STRING:
        x = kt_json_string(a, &n);
        y = kt_json_string(b, &m);
        return n == m && memcmp(x, y, n) == 0;
    case KT_JSON_ARRAY:
        if (n != kt_json_length(b)) return false;
        for (size_t i = 0; i < n; i++)
            if (!kt_schema_equal(kt_json_at(a, i), kt_json_at(b, i))) return false;
        return true;
    case KT_JSON_OBJECT:
        if (n != kt_json_length(b)) return false;
        for (size_t i = 0; i < n; i++) {
            const kt_json *value = kt_json_member(a, i, &key, &size);
            const kt_json *other = kt_json_get_n(b, key, size);
            if (!other || !kt_schema_equal(value, other)) return false;
        }
        return true;
    }
    return false;
}
