/* Values written as plain text, by the types that a tool's schema allows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/parser_impl.h"

const kt_json *kt_tool_find(const kt_json *tools, const char *name, size_t n) {
    for (size_t i = 0; i < kt_json_length(tools); i++) {
        const kt_json *tool = kt_json_at(tools, i), *function = kt_json_get(tool, "function");
        size_t size = 0;
        const char *text;
        if (!function) function = tool; /* the newer form has no wrapper */
        text = kt_json_string(kt_json_get(function, "name"), &size);
        if (text && size == n && memcmp(text, name, n) == 0) return function;
    }
    return NULL;
}

const kt_json *kt_tool_properties(const kt_json *function) {
    return kt_json_get(kt_json_get(function, "parameters"), "properties");
}

static kt_value_types type_named(const kt_json *name) {
    static const struct {
        const char *name;
        kt_value_types types;
    } known[] = {{"string", 1u << KT_JSON_STRING}, {"integer", 1u << KT_JSON_NUMBER},
                 {"number", 1u << KT_JSON_NUMBER}, {"boolean", 1u << KT_JSON_BOOL},
                 {"object", 1u << KT_JSON_OBJECT}, {"array", 1u << KT_JSON_ARRAY},
                 {"null", 1u << KT_JSON_NULL},     {"str", 1u << KT_JSON_STRING},
                 {"text", 1u << KT_JSON_STRING},   {"int", 1u << KT_JSON_NUMBER},
                 {"float", 1u << KT_JSON_NUMBER},  {"bool", 1u << KT_JSON_BOOL},
                 {"dict", 1u << KT_JSON_OBJECT},   {"list", 1u << KT_JSON_ARRAY}};
    const char *text = kt_json_string(name, NULL);

    for (size_t i = 0; text && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, text) == 0) return known[i].types;
    return 0;
}

/* Types of a schema at most `depth` alternatives deep; 0 = anything. */
static kt_value_types types_within(const kt_json *schema, int depth) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    const kt_json *type = kt_json_get(schema, "type"), *list;
    kt_value_types types = 0;

    if (kt_json_type_of(type) == KT_JSON_STRING) return type_named(type);
    for (size_t i = 0; i < kt_json_length(type); i++) types |= type_named(kt_json_at(type, i));
    if (types) return types;
    list = kt_json_get(schema, "enum");
    for (size_t i = 0; i < kt_json_length(list); i++)
        types |= 1u << kt_json_type_of(kt_json_at(list, i));
    if (types) return types;
    if (kt_json_get(schema, "const")) return 1u << kt_json_type_of(kt_json_get(schema, "const"));
    for (size_t u = 0; u < 2 && depth > 0; u++) {
        list = kt_json_get(schema, unions[u]);
        for (size_t i = 0; i < kt_json_length(list); i++) {
            kt_value_types one = types_within(kt_json_at(list, i), depth - 1);
            if (!one) return 0;
            types |= one;
        }
    }
    return types;
}

kt_value_types kt_schema_types(const kt_json *schema) {
    return types_within(schema, 4);
}

/* ---- Python literals ---- */

typedef struct text_out {
    char *at;
    size_t size, capacity;
} text_out;

static void put(text_out *o, const char *bytes, size_t n) {
    if (o->size + n > o->capacity) return;
    memcpy(o->at + o->size, bytes, n);
    o->size += n;
}

/* A string in single or double quotes from text[0] on as a JSON string; returns the bytes read, 0
 * when it does not end. */
static size_t python_string(const char *text, size_t n, text_out *o) {
    size_t i = 1;

    put(o, "\"", 1);
    while (i < n && text[i] != text[0]) {
        char out[8];
        if (text[i] == '\\' && i + 1 < n) {
            if (text[i + 1] == '\'')
                put(o, "'", 1);
            else
                put(o, text + i, 2);
            i += 2;
            continue;
        }
        put(o, out, kt_json_escape((unsigned char)text[i++], out));
    }
    put(o, "\"", 1);
    return i < n ? i + 1 : 0;
}

static size_t word_length(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && ((text[i] | 32) >= 'a' && (text[i] | 32) <= 'z')) i++;
    return i;
}

/* Python's repr of lists, dicts, tuples, numbers, strings, True, False, None as JSON text; what is
 * none of these comes out as no JSON. */
static bool python_to_json(const char *text, size_t n, text_out *o) {
    static const struct {
        const char *python, *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};

    for (size_t i = 0; i < n;) {
        size_t size = word_length(text + i, n - i);
        if (text[i] == '"' || text[i] == '\'') {
            size = python_string(text + i, n - i, o);
            if (!size) return false;
        } else if (size) {
            const char *json = NULL;
            for (size_t w = 0; w < 3; w++)
                if (strlen(words[w].python) == size && !memcmp(words[w].python, text + i, size))
                    json = words[w].json;
            if (json)
                put(o, json, strlen(json));
            else
                put(o, text + i, size);
        } else {
            size = 1;
            put(o, text[i] == '(' ? "[" : text[i] == ')' ? "]" : text + i, 1);
        }
        i += size;
    }
    return true;
}

/* ---- a value ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Is the text JSON of a type that may stand here? *no_memory: nobody knows. */
static bool fits(const char *text, size_t n, kt_value_types types, bool *no_memory) {
    kt_json_doc *doc = NULL;
    kt_json_type type;
    bool good;
    kt_status st = kt_json_parse(text, n, NULL, &doc, NULL);

    if (st == KT_E_NOMEM) *no_memory = true;
    if (st != KT_OK) return false;
    type = kt_json_type_of(kt_json_root(doc));
    /* where strings are allowed, another type counts only if it is allowed as well */
    good = !types || (types >> type & 1) || !(types >> KT_JSON_STRING & 1);
    kt_json_destroy(doc);
    return good;
}

static char *as_string(const char *text, size_t n, size_t *size) {
    char *out = malloc(6 * n + 3);
    size_t at = 1;

    if (!out) return NULL;
    out[0] = '"';
    for (size_t i = 0; i < n; i++) at += kt_json_escape((unsigned char)text[i], out + at);
    out[at++] = '"';
    *size = at;
    return out;
}

char *kt_value_to_json(const char *text, size_t n, kt_value_types types, bool any_json,
                       size_t *size) {
    const char *bare = text;
    size_t n_bare = n;
    text_out o = {0};
    bool no_memory = false;

    if (!types && !any_json) return as_string(text, n, size);
    while (n_bare && is_space(bare[n_bare - 1])) n_bare--;
    while (n_bare && is_space(*bare)) bare++, n_bare--;
    if (n_bare == 0) return as_string(text, n, size);
    o.capacity = 6 * n_bare + 16;
    o.at = malloc(o.capacity);
    if (!o.at) return NULL;
    if (fits(bare, n_bare, types, &no_memory)) {
        put(&o, bare, n_bare);
    } else if (no_memory || !types || !python_to_json(bare, n_bare, &o) ||
               !fits(o.at, o.size, types, &no_memory)) {
        free(o.at);
        return no_memory ? NULL : as_string(text, n, size);
    }
    *size = o.size;
    return o.at;
}
