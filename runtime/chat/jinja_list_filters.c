/* Filters on lists and dictionaries. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/jinja_node.h"

#define FILTER(name_)                                                                 \
    static kt_status do_##name_(kt_jinja_run *r, const kt_jinja_value *v,             \
                                const kt_jinja_value *arg, const kt_jinja_args *args, \
                                kt_jinja_value *out)

static bool given(const kt_jinja_value *arg) {
    return arg->type != KT_JINJA_UNSET && arg->type != KT_JINJA_NONE;
}

/* ---- attributes by path: "function.name", "0" ---- */

static kt_status by_path(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_value *path,
                         kt_jinja_value *out) {
    const kt_jinja_string *s;
    size_t at = 0;

    *out = *of;
    if (path->type != KT_JINJA_STRING) return kt_jinja_item(r, of, path, out);
    for (s = path->as.string; at <= s->size;) {
        size_t end = kt_jinja_find(s, at, ".", 1);
        kt_jinja_value key, member;
        bool digits;
        if (end == SIZE_MAX) end = s->size;
        KT_TRY(kt_jinja_part(r, s, at, end, &key));
        digits = end > at;
        for (size_t i = at; i < end; i++)
            digits = digits && s->data[i] >= '0' && s->data[i] <= '9' && end - at < 18;
        if (digits) {
            int64_t index = 0;
            for (size_t i = at; i < end; i++) index = index * 10 + (s->data[i] - '0');
            key = kt_jinja_int(index);
        }
        KT_TRY(kt_jinja_item(r, out, &key, &member));
        *out = member;
        at = end + 1;
    }
    return KT_OK;
}

/* What items are ordered, counted or compared by: themselves or an attribute, strings in lower case
 * unless case counts. */
static kt_status key_of(kt_jinja_run *r, const kt_jinja_value *item, const kt_jinja_value *path,
                        bool case_sensitive, kt_jinja_value *out) {
    const kt_jinja_args none = {0};
    const kt_jinja_value v = *item;

    *out = v;
    if (given(path)) KT_TRY(by_path(r, &v, path, out));
    if (out->type == KT_JINJA_STRING && !case_sensitive) {
        const kt_jinja_value text = *out;
        return kt_jinja_invoke(r, kt_jinja_find_builtin(kt_jinja_string_methods, "lower", 5),
                               "method", &text, &none, out);
    }
    return KT_OK;
}

/* ---- ends ---- */

FILTER(first) {
    kt_jinja_list items;

    (void)arg, (void)args;
    KT_TRY(kt_jinja_iterate(r, v, &items));
    *out = items.size ? items.items[0] : kt_jinja_undefined();
    return KT_OK;
}

FILTER(last) {
    kt_jinja_list items;

    (void)arg, (void)args;
    KT_TRY(kt_jinja_iterate(r, v, &items));
    *out = items.size ? items.items[items.size - 1] : kt_jinja_undefined();
    return KT_OK;
}

FILTER(join) {
    const kt_jinja_string *separator = KT_JINJA_LITERAL("");
    kt_jinja_builder b = {0};
    kt_jinja_list items;
    kt_jinja_value item;
    kt_status st;

    (void)args;
    KT_TRY(kt_jinja_iterate(r, v, &items));
    if (arg[0].type != KT_JINJA_UNSET) KT_TRY(kt_jinja_to_str(r, &arg[0], &separator));
    st = KT_OK;
    for (size_t i = 0; st == KT_OK && i < items.size; i++) {
        if (i) st = kt_jinja_put_string(r, &b, separator);
        item = items.items[i];
        if (st == KT_OK && given(&arg[1])) st = by_path(r, &items.items[i], &arg[1], &item);
        if (st == KT_OK) st = kt_jinja_put_str(r, &b, &item);
    }
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

static kt_status copy_items(kt_jinja_run *r, const kt_jinja_value *v, kt_jinja_flavour flavour,
                            kt_jinja_value *out) {
    kt_jinja_list items;

    KT_TRY(kt_jinja_iterate(r, v, &items));
    KT_TRY(kt_jinja_spend(r, items.size));
    KT_TRY(kt_jinja_new_list(r, flavour, items.size, out));
    for (size_t i = 0; i < items.size; i++)
        KT_TRY(kt_jinja_append(r, out->as.list, &items.items[i]));
    return KT_OK;
}

FILTER(list) {
    (void)arg, (void)args;
    return copy_items(r, v, KT_JINJA_PLAIN, out);
}

FILTER(reverse) {
    const kt_jinja_value none = kt_jinja_none(), back = kt_jinja_int(-1);
    kt_jinja_list *l;

    (void)arg, (void)args;
    if (v->type == KT_JINJA_STRING) return kt_jinja_slice(r, v, &none, &none, &back, out);
    KT_TRY(copy_items(r, v, KT_JINJA_GENERATOR, out));
    l = out->as.list;
    for (size_t i = 0; i < l->size / 2; i++) {
        kt_jinja_value other = l->items[i];
        l->items[i] = l->items[l->size - 1 - i];
        l->items[l->size - 1 - i] = other;
    }
    return KT_OK;
}

FILTER(items) {
    (void)arg, (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_new_list(r, KT_JINJA_GENERATOR, 0, out);
    if (v->type != KT_JINJA_DICT)
        return kt_jinja_fail(r, KT_E_INVALID, "Can only get item pairs from a mapping.");
    return kt_jinja_view(r, v->as.dict, KT_JINJA_GENERATOR, out);
}

/* ---- order ---- */

/* As in the reference a list of one key, or of those of "a,b": equal ones need no order. */
static kt_status key_list(kt_jinja_run *r, const kt_jinja_value *item, const kt_jinja_value *paths,
                          bool case_sensitive, kt_jinja_value *out) {
    const kt_jinja_string *s = paths->type == KT_JINJA_STRING ? paths->as.string : NULL;
    kt_jinja_value path = *paths, key;

    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 1, out));
    for (size_t at = 0, end; !s || at <= s->size; at = end + 1) {
        end = s ? kt_jinja_find(s, at, ",", 1) : SIZE_MAX;
        if (s && end == SIZE_MAX) end = s->size;
        if (s) KT_TRY(kt_jinja_part(r, s, at, end, &path));
        KT_TRY(key_of(r, item, &path, case_sensitive, &key));
        KT_TRY(kt_jinja_append(r, out->as.list, &key));
        if (!s) break;
    }
    return KT_OK;
}

typedef kt_status key_fn(kt_jinja_run *r, const kt_jinja_value *item, const kt_jinja_value *path,
                         bool case_sensitive, kt_jinja_value *out);

static kt_status sorted(kt_jinja_run *r, const kt_jinja_value *v, key_fn *key,
                        const kt_jinja_value *path, bool case_sensitive, bool reverse,
                        kt_jinja_value *out) {
    kt_jinja_value *keys;
    void *memory;

    KT_TRY(copy_items(r, v, KT_JINJA_PLAIN, out));
    KT_TRY(kt_jinja_alloc(r, out->as.list->size + 1, sizeof *keys, &memory));
    keys = memory;
    for (size_t i = 0; i < out->as.list->size; i++)
        KT_TRY(key(r, &out->as.list->items[i], path, case_sensitive, &keys[i]));
    return kt_jinja_sort(r, keys, out->as.list->items, out->as.list->size, reverse);
}

FILTER(sort) {
    (void)args;
    return sorted(r, v, key_list, &arg[2], kt_jinja_truth(&arg[1]), kt_jinja_truth(&arg[0]), out);
}

FILTER(dictsort) {
    kt_jinja_value pairs;
    const kt_jinja_value by =
        kt_jinja_int(arg[1].type == KT_JINJA_STRING &&
                     kt_jinja_same_text(arg[1].as.string, KT_JINJA_LITERAL("value")));

    (void)args;
    if (v->type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, v);
    if (v->type != KT_JINJA_DICT)
        return kt_jinja_fail(r, KT_E_INVALID, "'%s object' has no attribute 'items'",
                             kt_jinja_type_name(v));
    KT_TRY(kt_jinja_view(r, v->as.dict, KT_JINJA_ITEMS, &pairs));
    return sorted(r, &pairs, key_of, &by, kt_jinja_truth(&arg[0]), kt_jinja_truth(&arg[2]), out);
}

/* The first of the least or greatest. */
static kt_status extreme(kt_jinja_run *r, const kt_jinja_value *v, const kt_jinja_value *arg,
                         int wanted, kt_jinja_value *out) {
    kt_jinja_list items;
    kt_jinja_value best, key;
    int order;

    KT_TRY(kt_jinja_iterate(r, v, &items));
    *out = kt_jinja_undefined();
    for (size_t i = 0; i < items.size; i++) {
        KT_TRY(key_of(r, &items.items[i], &arg[1], kt_jinja_truth(&arg[0]), &key));
        if (i) KT_TRY(kt_jinja_compare(r, &key, &best, wanted < 0 ? "<" : ">", &order));
        if (i && order != wanted) continue;
        best = key;
        *out = items.items[i];
    }
    return KT_OK;
}

FILTER(min) {
    (void)args;
    return extreme(r, v, arg, -1, out);
}

FILTER(max) {
    (void)args;
    return extreme(r, v, arg, 1, out);
}

FILTER(sum) {
    kt_jinja_list items;
    kt_jinja_value item, total = given(&arg[1]) ? arg[1] : kt_jinja_int(0);

    (void)args;
    KT_TRY(kt_jinja_iterate(r, v, &items));
    for (size_t i = 0; i < items.size; i++) {
        item = items.items[i];
        if (given(&arg[0])) KT_TRY(by_path(r, &items.items[i], &arg[0], &item));
        KT_TRY(kt_jinja_binary(r, KT_OP_ADD, &total, &item, out));
        total = *out;
    }
    *out = total;
    return KT_OK;
}

FILTER(unique) {
    kt_jinja_list items;
    kt_jinja_value seen, key;

    (void)args;
    KT_TRY(kt_jinja_iterate(r, v, &items));
    KT_TRY(kt_jinja_new_dict(r, 0, &seen));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < items.size; i++) {
        KT_TRY(key_of(r, &items.items[i], &arg[1], kt_jinja_truth(&arg[0]), &key));
        if (kt_jinja_get(seen.as.dict, &key)) continue;
        KT_TRY(kt_jinja_set(r, seen.as.dict, &key, &key));
        KT_TRY(kt_jinja_append(r, out->as.list, &items.items[i]));
    }
    return KT_OK;
}

FILTER(groupby) {
    kt_jinja_value order, group = {0}, pair, last = kt_jinja_none(), key;
    bool same = false;

    (void)args;
    KT_TRY(sorted(r, v, key_of, &arg[0], kt_jinja_truth(&arg[2]), false, &order));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, out));
    for (size_t i = 0; i < order.as.list->size; i++) {
        KT_TRY(key_of(r, &order.as.list->items[i], &arg[0], true, &key));
        if (key.type == KT_JINJA_UNDEFINED && given(&arg[1])) key = arg[1];
        if (i) KT_TRY(kt_jinja_equal(r, &key, &last, &same));
        last = key;
        if (!same || i == 0) {
            KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, &group));
            KT_TRY(kt_jinja_new_list(r, KT_JINJA_TUPLE, 2, &pair));
            KT_TRY(kt_jinja_append(r, pair.as.list, &key));
            KT_TRY(kt_jinja_append(r, pair.as.list, &group));
            KT_TRY(kt_jinja_append(r, out->as.list, &pair));
        }
        KT_TRY(kt_jinja_append(r, group.as.list, &order.as.list->items[i]));
    }
    return KT_OK;
}

FILTER(batch) {
    kt_jinja_list items;
    kt_jinja_value row = {0};
    int64_t n = arg[0].type == KT_JINJA_INT ? arg[0].as.integer : 0;

    (void)args;
    if (n < 1) return kt_jinja_fail(r, KT_E_INVALID, "batches of %lld items", (long long)n);
    KT_TRY(kt_jinja_iterate(r, v, &items));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < items.size; i++) {
        if (i % (size_t)n == 0) {
            KT_TRY(kt_jinja_new_list(r, KT_JINJA_PLAIN, 0, &row));
            KT_TRY(kt_jinja_append(r, out->as.list, &row));
        }
        KT_TRY(kt_jinja_append(r, row.as.list, &items.items[i]));
    }
    for (size_t i = items.size; given(&arg[1]) && i % (size_t)n; i++) {
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(kt_jinja_append(r, row.as.list, &arg[1]));
    }
    return KT_OK;
}

/* ---- map and select ---- */

static const kt_jinja_value *named(const kt_jinja_args *args, const char *name) {
    for (size_t i = 0; i < args->n_named; i++)
        if (args->names[i].size == strlen(name) &&
            memcmp(args->names[i].data, name, strlen(name)) == 0)
            return &args->values[args->n_positional + i];
    return NULL;
}

/* Of none and whatever else is false there are no items, also where it has none to give. */
static kt_status items_if_true(kt_jinja_run *r, const kt_jinja_value *v, kt_jinja_list *out) {
    *out = (kt_jinja_list){.size = 0};
    return kt_jinja_truth(v) ? kt_jinja_iterate(r, v, out) : KT_OK;
}

static kt_status map_one(kt_jinja_run *r, const kt_jinja_value *item, const kt_jinja_args *args,
                         kt_jinja_value *out) {
    const kt_jinja_value *attribute = named(args, "attribute"), *fallback = named(args, "default");
    const kt_jinja_builtin *filter;
    kt_jinja_args rest = *args;

    if (attribute) {
        KT_TRY(by_path(r, item, attribute, out));
        if (out->type == KT_JINJA_UNDEFINED && fallback) *out = *fallback;
        return KT_OK;
    }
    if (args->n_positional == 0 || args->values[0].type != KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "map requires a filter argument");
    filter = kt_jinja_find_filter(args->values[0].as.string->data, args->values[0].as.string->size);
    if (!filter)
        return kt_jinja_fail(r, KT_E_INVALID, "there is no filter '%.60s'",
                             args->values[0].as.string->data);
    rest.values++;
    rest.n_positional--;
    return kt_jinja_invoke(r, filter, "filter", item, &rest, out);
}

FILTER(map) {
    kt_jinja_list items;
    kt_jinja_value mapped;

    (void)arg;
    KT_TRY(items_if_true(r, v, &items));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_GENERATOR, items.size, out));
    for (size_t i = 0; i < items.size; i++) {
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(map_one(r, &items.items[i], args, &mapped));
        KT_TRY(kt_jinja_append(r, out->as.list, &mapped));
    }
    return KT_OK;
}

/* Items whose value (or attribute, with `by_attribute`) passes the test, or is true without one. */
static kt_status choose(kt_jinja_run *r, const kt_jinja_value *v, const kt_jinja_args *args,
                        bool by_attribute, bool keep, kt_jinja_value *out) {
    kt_jinja_args rest = *args;
    const kt_jinja_builtin *test = NULL;
    kt_jinja_list items;
    size_t skip = by_attribute;

    if (by_attribute && args->n_positional == 0)
        return kt_jinja_fail(r, KT_E_INVALID, "the name of the attribute is missing");
    if (args->n_positional > skip) {
        const kt_jinja_value *name = &args->values[skip];
        if (name->type == KT_JINJA_STRING)
            test = kt_jinja_find_test(name->as.string->data, name->as.string->size);
        if (!test)
            return kt_jinja_fail(r, KT_E_INVALID, "there is no such test (argument %zu)", skip + 1);
        rest.values += skip + 1;
        rest.n_positional -= skip + 1;
    }
    KT_TRY(items_if_true(r, v, &items));
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < items.size; i++) {
        kt_jinja_value value = items.items[i], answer;
        KT_TRY(kt_jinja_spend(r, 1));
        if (by_attribute) KT_TRY(by_path(r, &items.items[i], &args->values[0], &value));
        answer = value;
        if (test) KT_TRY(kt_jinja_invoke(r, test, "test", &value, &rest, &answer));
        if (kt_jinja_truth(&answer) == keep)
            KT_TRY(kt_jinja_append(r, out->as.list, &items.items[i]));
    }
    return KT_OK;
}

FILTER(select) {
    (void)arg;
    return choose(r, v, args, false, true, out);
}

FILTER(reject) {
    (void)arg;
    return choose(r, v, args, false, false, out);
}

FILTER(selectattr) {
    (void)arg;
    return choose(r, v, args, true, true, out);
}

FILTER(rejectattr) {
    (void)arg;
    return choose(r, v, args, true, false, out);
}

const kt_jinja_builtin kt_jinja_list_filters[] = {
    {.name = "first", .run = do_first},
    {.name = "last", .run = do_last},
    {.name = "join", .run = do_join, .parameters = {"d", "attribute"}},
    {.name = "list", .run = do_list},
    {.name = "reverse", .run = do_reverse},
    {.name = "items", .run = do_items},
    {.name = "sort", .run = do_sort, .parameters = {"reverse", "case_sensitive", "attribute"}},
    {.name = "dictsort", .run = do_dictsort, .parameters = {"case_sensitive", "by", "reverse"}},
    {.name = "min", .run = do_min, .parameters = {"case_sensitive", "attribute"}},
    {.name = "max", .run = do_max, .parameters = {"case_sensitive", "attribute"}},
    {.name = "sum", .run = do_sum, .parameters = {"attribute", "start"}},
    {.name = "unique", .run = do_unique, .parameters = {"case_sensitive", "attribute"}},
    {.name = "groupby",
     .run = do_groupby,
     .n_required = 1,
     .parameters = {"attribute", "default", "case_sensitive"}},
    {.name = "batch", .run = do_batch, .n_required = 1, .parameters = {"linecount", "fill_with"}},
    {.name = "map", .run = do_map, .takes_any = true},
    {.name = "select", .run = do_select, .takes_any = true},
    {.name = "reject", .run = do_reject, .takes_any = true},
    {.name = "selectattr", .run = do_selectattr, .takes_any = true},
    {.name = "rejectattr", .run = do_rejectattr, .takes_any = true},
    {.name = NULL}};
