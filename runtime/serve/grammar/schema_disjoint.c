/* oneOf is anyOf where no value obeys two branches, so that has to be plain.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/schema_impl.h"

enum { MOST_DEPTH = 4 };

static const kt_json *only_value(const kt_json *schema, size_t i) {
    const kt_json *list = kt_json_get(schema, "enum");
    return list ? kt_json_at(list, i) : i == 0 ? kt_json_get(schema, "const") : NULL;
}

static size_t count_values(const kt_json *schema) {
    const kt_json *list = kt_json_get(schema, "enum");
    return list ? kt_json_length(list) : 1;
}

static bool values_differ(const kt_json *a, const kt_json *b) {
    if (!only_value(a, 0) || !only_value(b, 0)) return false;
    for (size_t i = 0; only_value(a, i); i++)
        for (size_t k = 0; only_value(b, k); k++)
            if (kt_schema_equal(only_value(a, i), only_value(b, k))) return false;
    return true;
}

static int value_types(const kt_json *schema) {
    int types = 0;

    for (size_t i = 0; only_value(schema, i); i++) {
        switch (kt_json_type_of(only_value(schema, i))) {
        case KT_JSON_NULL: types |= KT_TYPE_NULL; break;
        case KT_JSON_BOOL: types |= KT_TYPE_BOOLEAN; break;
        case KT_JSON_NUMBER: types |= KT_TYPE_NUMBER; break;
        case KT_JSON_STRING: types |= KT_TYPE_STRING; break;
        case KT_JSON_ARRAY: types |= KT_TYPE_ARRAY; break;
        case KT_JSON_OBJECT: types |= KT_TYPE_OBJECT; break;
        }
    }
    return types ? types : KT_TYPE_ANY;
}

static int types_of(const kt_conjunction *c) {
    int types = KT_TYPE_ANY;

    for (int i = 0; i < c->n; i++)
        types &= kt_schema_part_types(c->part[i].schema) & value_types(c->part[i].schema);
    return types;
}

static bool requires(const kt_conjunction *c, const char *name, size_t size) {
    for (int i = 0; i < c->n; i++) {
        const kt_json *required = kt_json_get(c->part[i].schema, "required");
        for (size_t k = 0; k < kt_json_length(required); k++) {
            size_t n;
            const char *text = kt_json_string(kt_json_at(required, k), &n);
            if (text && n == size && memcmp(text, name, n) == 0) return true;
        }
    }
    return false;
}

static kt_status disjoint(kt_schema *s, const kt_json *a, const kt_json *b, int depth, bool *out);

/* Is there a property that one has to have and the other, if it has it, with a value that
 * differs? */
static kt_status properties_differ(kt_schema *s, const kt_conjunction *x, const kt_conjunction *y,
                                   int depth, bool *out) {
    for (int i = 0; i < x->n && !*out; i++) {
        const kt_json *mine = kt_json_get(x->part[i].schema, "properties");
        for (size_t k = 0; k < kt_json_length(mine) && !*out; k++) {
            const char *name;
            size_t size;
            const kt_json *value = kt_json_member(mine, k, &name, &size);
            if (!requires(x, name, size) && !requires(y, name, size)) continue;
            for (int j = 0; j < y->n && !*out; j++) {
                const kt_json *theirs = kt_json_get(y->part[j].schema, "properties");
                theirs = kt_json_get_n(theirs, name, size);
                if (theirs) KT_TRY(disjoint(s, value, theirs, depth + 1, out));
            }
        }
    }
    return KT_OK;
}

static kt_status disjoint(kt_schema *s, const kt_json *a, const kt_json *b, int depth, bool *out) {
    kt_conjunction x = {.n = 0}, y = {.n = 0};
    int both;

    *out = false;
    if (depth > MOST_DEPTH) return KT_OK;
    KT_TRY(kt_schema_spend(s, 10)); /* as much work as so many comparisons of values */
    KT_TRY(kt_schema_add(s, &x, a));
    KT_TRY(kt_schema_add(s, &y, b));
    both = types_of(&x) & types_of(&y);
    *out = both == 0;
    for (int i = 0; i < x.n && !*out; i++)
        for (int k = 0; k < y.n && !*out; k++) {
            const kt_json *mine = x.part[i].schema, *theirs = y.part[k].schema;
            size_t n = count_values(theirs);
            for (size_t all = count_values(mine); all > 0; all--) KT_TRY(kt_schema_spend(s, n));
            *out = values_differ(mine, theirs);
        }
    if (!*out && (both & ~KT_TYPE_OBJECT) == 0) return properties_differ(s, &x, &y, depth, out);
    return KT_OK;
}

kt_status kt_schema_disjoint(kt_schema *s, const kt_json *a, const kt_json *b, bool *out) {
    return disjoint(s, a, b, 0, out);
}
