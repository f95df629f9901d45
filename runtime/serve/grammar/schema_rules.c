/* Conjunctions become rules one by one from a list, so that neither deep nor recursive schemas
 * recurse here. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/schema_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/grammar_impl.h"
#include "runtime/serve/grammar/schema_impl.h"

enum { MOST_JOBS = 20000, MOST_COUNT = 10000, LONGEST_PATH = 100 };

struct kt_schema_job {
    kt_conjunction conjunction;
    int32_t rule;
    uint32_t hash;
    char path[KT_SCHEMA_PATH];
};

/* ---- rules ---- */

static uint32_t hash_parts(const kt_conjunction *c) {
    uint64_t h = 0xcbf29ce484222325u;

    for (int i = 0; i < c->n; i++) {
        h = (h ^ (uintptr_t)c->part[i].schema) * 0x100000001b3u;
        h = (h ^ (uint64_t)c->part[i].split) * 0x100000001b3u;
    }
    return (uint32_t)(h ^ h >> 32);
}

static bool same_parts(const kt_conjunction *a, const kt_conjunction *b) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (a->part[i].schema != b->part[i].schema || a->part[i].split != b->part[i].split)
            return false;
    return true;
}

static bool grow_jobs(kt_schema *s) {
    size_t room = s->job_room ? s->job_room * 2 : 64;
    kt_schema_job *job = realloc(s->job, room * sizeof *job);
    uint32_t *table = calloc(room * 2, sizeof *table);

    if (job) s->job = job;
    if (!job || !table) {
        free(table);
        return false;
    }
    for (size_t i = 0; i < s->n_jobs; i++) {
        size_t at = job[i].hash & (room * 2 - 1);
        while (table[at]) at = (at + 1) & (room * 2 - 1);
        table[at] = (uint32_t)i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_size = room * 2;
    s->job_room = room;
    return true;
}

static kt_status add_job(kt_schema *s, const kt_conjunction *c, const char *path, int32_t rule) {
    uint32_t hash = hash_parts(c);
    kt_schema_job *job;
    size_t at;

    if (s->n_jobs >= MOST_JOBS)
        return kt_schema_refuse(s, KT_E_UNSUPPORTED, "over %d schemas and combinations of them",
                                (int)MOST_JOBS);
    if (s->n_jobs == s->job_room && !grow_jobs(s))
        return kt_fail(s->err, KT_E_NOMEM, "schema: no memory to translate it");
    job = &s->job[s->n_jobs++];
    job->conjunction = *c;
    job->hash = hash;
    job->rule = rule;
    if (strlen(s->path) + strlen(path) < LONGEST_PATH)
        snprintf(job->path, sizeof job->path, "%s%s", s->path, path);
    else
        snprintf(job->path, sizeof job->path, "...%s", path);
    for (at = hash & (s->table_size - 1); s->table[at];) at = (at + 1) & (s->table_size - 1);
    s->table[at] = (uint32_t)s->n_jobs;
    return KT_OK;
}

kt_status kt_schema_call(kt_schema *s, const kt_conjunction *c, const char *path, kt_expr *out) {
    uint32_t hash = hash_parts(c);
    char name[KT_RULE_NAME];
    int32_t rule;

    *out = 0;
    for (size_t at = s->table_size ? hash & (s->table_size - 1) : 0; s->table_size && s->table[at];
         at = (at + 1) & (s->table_size - 1)) {
        const kt_schema_job *job = &s->job[s->table[at] - 1];
        if (job->hash != hash || !same_parts(&job->conjunction, c)) continue;
        *out = kt_rules_call(s->json.rules, job->rule);
        return KT_OK;
    }
    snprintf(name, sizeof name, "%.40s%.20s", s->path, path);
    rule = kt_rules_add(s->json.rules, name, strlen(name));
    if (rule < 0) return KT_OK; /* shows when the automaton is built */
    *out = kt_rules_call(s->json.rules, rule);
    return add_job(s, c, path, rule);
}

/* ---- simple types ---- */

static kt_status number_text(kt_schema *s, const kt_conjunction *c, bool is_integer, kt_expr *out) {
    kt_number_range range = {.is_integer = is_integer};
    double min = -2147483648.0, max = 2147483647.0;

    for (int i = 0; i < c->n && is_integer; i++)
        if (strcmp(kt_json_text(c->part[i].schema, "format"), "int32") == 0)
            range = (kt_number_range){"-2147483648", "2147483647", false, false, true};
    for (int i = 0; i < c->n; i++) {
        static const char *const words[] = {"minimum", "exclusiveMinimum", "maximum",
                                            "exclusiveMaximum"};
        const kt_json *schema = c->part[i].schema;
        for (int k = 0; k < 4; k++) {
            const kt_json *bound = kt_json_get(schema, words[k]);
            const char *digits = kt_json_lexeme(bound);
            double value = kt_json_double(bound, 0);
            bool excluded = k & 1;
            if (!bound) continue;
            if (!digits)
                return kt_schema_refuse(s, KT_E_INVALID, "'%s' is a %s, expected a number",
                                        words[k], kt_json_type_name(kt_json_type_of(bound)));
            if (k < 2 && (!range.min || value > min || (value >= min && excluded))) {
                range.min = digits;
                range.min_excluded = excluded;
                min = value;
            }
            if (k >= 2 && (!range.max || value < max || (value <= max && excluded))) {
                range.max = digits;
                range.max_excluded = excluded;
                max = value;
            }
        }
    }
    *out = kt_rules_call(s->json.rules, is_integer ? s->json.integer : s->json.number);
    if (!range.min && !range.max) return KT_OK;
    if (kt_json_number_range(&s->json, &range, out, s->err) == KT_OK) return KT_OK;
    return kt_fail_prefix(s->err, KT_E_UNSUPPORTED, "schema: %s", s->path);
}

kt_status kt_schema_count(kt_schema *s, const kt_conjunction *c, const char *keyword, bool is_most,
                          int32_t *out) {
    bool found = false;

    for (int i = 0; i < c->n; i++) {
        const kt_json *v = kt_json_get(c->part[i].schema, keyword);
        int64_t n = kt_json_int(v, -1);
        if (!v) continue;
        if (!kt_json_is_integer(v) || n < 0)
            return kt_schema_refuse(s, KT_E_INVALID, "'%s' is no integer from 0 on", keyword);
        if (n > MOST_COUNT)
            return kt_schema_refuse(s, KT_E_UNSUPPORTED, "'%s' is %lld, at most %d is supported",
                                    keyword, (long long)n, (int)MOST_COUNT);
        if (!found || (is_most ? n < *out : n > *out)) *out = (int32_t)n;
        found = true;
    }
    return KT_OK;
}

/* The pattern or format of a string, which only one part may have. */
static kt_status find_pattern(kt_schema *s, const kt_conjunction *c, const char **pattern,
                              size_t *size) {
    *pattern = NULL;
    for (int i = 0; i < c->n; i++) {
        static const char *const words[] = {"pattern", "format"};
        for (int k = 0; k < 2; k++) {
            const kt_json *v = kt_json_get(c->part[i].schema, words[k]);
            size_t n;
            const char *text = kt_json_string(v, &n);
            if (!v) continue;
            if (!text || strlen(text) != n)
                return kt_schema_refuse(s, KT_E_INVALID, "'%s' is no string", words[k]);
            if (k == 1) text = kt_json_format_pattern(text);
            if (!text)
                return kt_schema_refuse(s, KT_E_UNSUPPORTED, "format '%.40s' is not supported",
                                        kt_json_string(v, NULL));
            if (*pattern && strcmp(*pattern, text) != 0)
                return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                        "several patterns or formats at once are not supported");
            *pattern = text;
            *size = strlen(text);
        }
    }
    return KT_OK;
}

static kt_status string_text(kt_schema *s, const kt_conjunction *c, kt_expr *out) {
    kt_rules *r = s->json.rules;
    const char *pattern;
    kt_expr inside, quote;
    int32_t min = 0, max = -1;
    size_t size = 0;

    KT_TRY(find_pattern(s, c, &pattern, &size));
    KT_TRY(kt_schema_count(s, c, "minLength", false, &min));
    KT_TRY(kt_schema_count(s, c, "maxLength", true, &max));
    *out = kt_rules_call(r, s->json.string);
    if (!pattern && min == 0 && max < 0) return KT_OK;
    if (pattern && (min > 0 || max >= 0))
        return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                "'pattern' or 'format' together with a length is not supported");
    if (max >= 0 && max < min) {
        *out = kt_rules_never(r);
        return KT_OK;
    }
    if (!pattern)
        inside = kt_rules_repeat(r, kt_json_char(&s->json), min, max);
    else if (kt_json_pattern(&s->json, pattern, size, &inside, s->err) != KT_OK)
        return kt_fail_prefix(s->err, KT_E_UNSUPPORTED, "schema: %s", s->path);
    quote = kt_rules_literal(r, "\"");
    *out = kt_rules_pair(r, kt_rules_pair(r, quote, inside), quote);
    return KT_OK;
}

/* ---- enum and const ---- */

/* The part with the values, or -1; values[0 ... n - 1] of the enum or the const. */
static int find_values(const kt_conjunction *c, int from) {
    for (int i = from; i < c->n; i++)
        if (kt_json_get(c->part[i].schema, "enum") || kt_json_get(c->part[i].schema, "const"))
            return i;
    return -1;
}

static bool is_listed(const kt_json *schema, const kt_json *value) {
    const kt_json *list = kt_json_get(schema, "enum"), *one = kt_json_get(schema, "const");
    bool found = !list;

    for (size_t i = 0; i < kt_json_length(list); i++)
        found |= kt_schema_equal(kt_json_at(list, i), value);
    return found && (!one || kt_schema_equal(one, value));
}

static int type_of(const kt_json *value) {
    switch (kt_json_type_of(value)) {
    case KT_JSON_NULL: return KT_TYPE_NULL;
    case KT_JSON_BOOL: return KT_TYPE_BOOLEAN;
    case KT_JSON_NUMBER: return kt_json_is_integer(value) ? KT_TYPE_INTEGER : KT_TYPE_FRACTION;
    case KT_JSON_STRING: return KT_TYPE_STRING;
    case KT_JSON_ARRAY: return KT_TYPE_ARRAY;
    case KT_JSON_OBJECT: return KT_TYPE_OBJECT;
    }
    return 0;
}

static kt_status refuse_beside_values(kt_schema *s, const kt_conjunction *c) {
    static const char *const words[] = {"minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "properties",
                                        "required",
                                        "items",
                                        "minItems",
                                        "additionalProperties",
                                        "prefixItems",
                                        "maxItems",
                                        "minProperties",
                                        "maxProperties"};

    for (int i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if (kt_json_get(c->part[i].schema, words[k]))
                return kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                        "'%s' beside 'enum' or 'const' is not supported", words[k]);
    return KT_OK;
}

static kt_status constant_text(kt_schema *s, const kt_conjunction *c, int part, int types,
                               kt_expr *out) {
    const kt_json *schema = c->part[part].schema, *list = kt_json_get(schema, "enum");
    const kt_json *one = kt_json_get(schema, "const");
    kt_rules *r = s->json.rules;
    kt_expr_list all = {NULL, 0, 0};
    size_t n = list ? kt_json_length(list) : 1;
    kt_status st = KT_OK;

    if (list && (kt_json_type_of(list) != KT_JSON_ARRAY || n == 0))
        return kt_schema_refuse(s, KT_E_INVALID, "'enum' is no array of one value or more");
    KT_TRY(refuse_beside_values(s, c));
    for (size_t i = 0; i < n && st == KT_OK; i++) {
        const kt_json *value = list ? kt_json_at(list, i) : one;
        bool fits = type_of(value) & types;
        /* Only the first part is known to hold it. */
        for (int k = find_values(c, list && one ? part : part + 1); fits && k >= 0;
             k = find_values(c, k + 1)) {
            size_t others = kt_json_length(kt_json_get(c->part[k].schema, "enum"));
            st = kt_schema_spend(s, others + 1);
            fits = st == KT_OK && is_listed(c->part[k].schema, value);
        }
        if (fits) kt_expr_list_add(r, &all, kt_json_constant(&s->json, value));
    }
    *out = kt_rules_choice(r, all.item, all.n);
    free(all.item);
    return st;
}

/* ---- one conjunction ---- */

/* c with the branches of a part's anyOf or oneOf, one after the other. */
static kt_status branch_text(kt_schema *s, const kt_conjunction *c, int part, int split,
                             kt_expr *out) {
    const char *keyword = split == KT_SPLIT_ANY_OF ? "anyOf" : "oneOf";
    const kt_json *list = kt_json_get(c->part[part].schema, keyword);
    kt_rules *r = s->json.rules;
    kt_expr_list all = {NULL, 0, 0};
    kt_status st = KT_OK;

    if (kt_json_type_of(list) != KT_JSON_ARRAY || kt_json_length(list) == 0)
        return kt_schema_refuse(s, KT_E_INVALID, "'%s' is no array of one schema or more", keyword);
    for (size_t i = 0; i < kt_json_length(list) && st == KT_OK; i++) {
        kt_conjunction branch = *c;
        char path[32];
        kt_expr e;
        for (size_t k = 0; k < i && split == KT_SPLIT_ONE_OF && st == KT_OK; k++) {
            bool disjoint;
            st = kt_schema_disjoint(s, kt_json_at(list, k), kt_json_at(list, i), &disjoint);
            if (st == KT_OK && !disjoint)
                st = kt_schema_refuse(s, KT_E_UNSUPPORTED,
                                      "'oneOf': a value may obey both /oneOf/%zu and /oneOf/%zu; "
                                      "use 'anyOf', or a constant property that differs",
                                      k, i);
        }
        branch.part[part].split |= split;
        snprintf(path, sizeof path, "/%s/%zu", keyword, i);
        if (st == KT_OK) st = kt_schema_add(s, &branch, kt_json_at(list, i));
        if (st == KT_OK) st = kt_schema_call(s, &branch, path, &e);
        if (st == KT_OK) kt_expr_list_add(r, &all, e);
    }
    if (st == KT_OK) *out = kt_rules_choice(r, all.item, all.n);
    free(all.item);
    return st;
}

static bool is_unlimited(const kt_conjunction *c) {
    for (int i = 0; i < c->n; i++) {
        const kt_json *schema = c->part[i].schema;
        if (kt_json_type_of(schema) == KT_JSON_BOOL && !kt_json_bool(schema, true)) return false;
        for (size_t k = 0; k < kt_json_length(schema); k++) {
            static const char *const limits[] = {"type",
                                                 "properties",
                                                 "required",
                                                 "items",
                                                 "minimum",
                                                 "maximum",
                                                 "minLength",
                                                 "maxLength",
                                                 "pattern",
                                                 "format",
                                                 "additionalProperties",
                                                 "exclusiveMinimum",
                                                 "exclusiveMaximum",
                                                 "prefixItems",
                                                 "minItems",
                                                 "maxItems",
                                                 "minProperties",
                                                 "maxProperties",
                                                 "nullable"};
            const char *key;
            kt_json_member(schema, k, &key, NULL);
            for (size_t l = 0; l < sizeof limits / sizeof *limits; l++)
                if (strcmp(key, limits[l]) == 0) return false;
        }
    }
    return true;
}

static kt_status typed_text(kt_schema *s, const kt_conjunction *c, int types, kt_expr *out) {
    kt_rules *r = s->json.rules;
    kt_expr all[6];
    size_t n = 0;

    if (types & KT_TYPE_OBJECT) KT_TRY(kt_schema_object(s, c, &all[n++]));
    if (types & KT_TYPE_ARRAY) KT_TRY(kt_schema_array(s, c, &all[n++]));
    if (types & KT_TYPE_STRING) KT_TRY(string_text(s, c, &all[n++]));
    if (types & KT_TYPE_NUMBER) KT_TRY(number_text(s, c, !(types & KT_TYPE_FRACTION), &all[n++]));
    if (types & KT_TYPE_BOOLEAN) all[n++] = kt_rules_call(r, s->json.boolean);
    if (types & KT_TYPE_NULL) all[n++] = kt_rules_literal(r, "null");
    *out = kt_rules_choice(r, all, n);
    return KT_OK;
}

static kt_status write_job(kt_schema *s, const kt_conjunction *c, kt_expr *out) {
    int types, values = find_values(c, 0);

    for (int i = 0; i < c->n; i++) {
        const kt_json *schema = c->part[i].schema;
        if (kt_json_type_of(schema) == KT_JSON_BOOL && !kt_json_bool(schema, true)) {
            *out = kt_rules_never(s->json.rules);
            return KT_OK;
        }
        if (kt_json_get(schema, "anyOf") && !(c->part[i].split & KT_SPLIT_ANY_OF))
            return branch_text(s, c, i, KT_SPLIT_ANY_OF, out);
        if (kt_json_get(schema, "oneOf") && !(c->part[i].split & KT_SPLIT_ONE_OF))
            return branch_text(s, c, i, KT_SPLIT_ONE_OF, out);
    }
    KT_TRY(kt_schema_type_mask(s, c, &types));
    if (values >= 0) return constant_text(s, c, values, types, out);
    if (is_unlimited(c)) {
        *out = kt_rules_call(s->json.rules, s->json.value);
        return KT_OK;
    }
    return typed_text(s, c, types, out);
}

kt_status kt_schema_rules(kt_rules *r, int32_t rule, const kt_json *schema, kt_err *err) {
    kt_schema s = {.root = schema, .path = "#", .err = err};
    kt_conjunction first = {.n = 0};
    kt_status st;

    kt_json_rules_define(&s.json, r);
    st = kt_schema_add(&s, &first, schema);
    if (st == KT_OK) st = add_job(&s, &first, "", rule);
    for (size_t i = 0; i < s.n_jobs && st == KT_OK; i++) { /* s.n_jobs grows */
        kt_conjunction c = s.job[i].conjunction;
        kt_expr body = 0;
        memcpy(s.path, s.job[i].path, sizeof s.path);
        st = write_job(&s, &c, &body);
        if (st == KT_OK) kt_rules_define(r, s.job[i].rule, body);
    }
    free(s.job);
    free(s.table);
    return st;
}

kt_status kt_grammar_from_schema(const kt_vocabulary *vocabulary, const kt_json *schema,
                                 kt_grammar **out, kt_err *err) {
    kt_rules rules = {.failed = KT_OK};
    int32_t root = kt_rules_add(&rules, "the schema", 10);
    kt_status st = kt_schema_rules(&rules, root, schema, err);

    *out = NULL;
    if (st == KT_OK) st = kt_grammar_from_rules(vocabulary, &rules, out, err);
    kt_rules_deinit(&rules);
    return st;
}

kt_status kt_grammar_json_object(const kt_vocabulary *vocabulary, kt_grammar **out, kt_err *err) {
    kt_rules rules = {.failed = KT_OK};
    int32_t root = kt_rules_add(&rules, "root", 4);
    kt_json_rules json;
    kt_status st;

    kt_json_rules_define(&json, &rules);
    kt_rules_define(&rules, root, kt_rules_call(&rules, json.object));
    st = kt_grammar_from_rules(vocabulary, &rules, out, err);
    kt_rules_deinit(&rules);
    return st;
}
