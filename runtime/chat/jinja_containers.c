/* Methods of lists and dictionaries. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/jinja.h"

#define METHOD(name_)                                                                     \
    static kt_status method_##name_(kt_jinja_run *r, const kt_jinja_value *self,          \
                                    const kt_jinja_value *arg, const kt_jinja_args *args, \
                                    kt_jinja_value *out)

/* ---- lists ---- */

/* A tuple has the same table of methods, but cannot change. */
static kt_status changeable(kt_jinja_run *r, const kt_jinja_value *self) {
    if (self->as.list->flavour == KT_JINJA_PLAIN) return KT_OK;
    return kt_jinja_fail(r, KT_E_INVALID, "a %s cannot be changed", kt_jinja_type_name(self));
}

METHOD(append) {
    (void)args;
    KT_TRY(changeable(r, self));
    *out = kt_jinja_none();
    return kt_jinja_append(r, self->as.list, &arg[0]);
}

METHOD(extend) {
    kt_jinja_list items;

    (void)args;
    KT_TRY(changeable(r, self));
    KT_TRY(kt_jinja_iterate(r, &arg[0], &items));
    KT_TRY(kt_jinja_spend(r, items.size));
    for (size_t i = 0; i < items.size; i++)
        KT_TRY(kt_jinja_append(r, self->as.list, &items.items[i]));
    *out = kt_jinja_none();
    return KT_OK;
}

/* The place that an index means, or -1. */
static int64_t place(const kt_jinja_list *l, const kt_jinja_value *index, int64_t if_unset) {
    int64_t n = (int64_t)l->size, i = if_unset;

    if (index->type == KT_JINJA_INT) i = index->as.integer;
    if (i < 0) i += n;
    return i >= 0 && i < n ? i : -1;
}

METHOD(list_pop) {
    kt_jinja_list *l = self->as.list;
    int64_t i = place(l, &arg[0], -1);

    (void)args;
    KT_TRY(changeable(r, self));
    if (i < 0) return kt_jinja_fail(r, KT_E_INVALID, "pop index out of range");
    *out = l->items[i];
    memmove(&l->items[i], &l->items[i + 1], (l->size - (size_t)i - 1) * sizeof *l->items);
    l->size--;
    return KT_OK;
}

METHOD(insert) {
    kt_jinja_list *l = self->as.list;
    int64_t n = (int64_t)l->size, i = arg[0].type == KT_JINJA_INT ? arg[0].as.integer : 0;

    (void)args;
    KT_TRY(changeable(r, self));
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    if (i > n) i = n;
    KT_TRY(kt_jinja_append(r, l, &arg[1]));
    memmove(&l->items[i + 1], &l->items[i], (size_t)(n - i) * sizeof *l->items);
    l->items[i] = arg[1];
    *out = kt_jinja_none();
    return KT_OK;
}

METHOD(list_index) {
    const kt_jinja_list *l = self->as.list;
    bool same;

    (void)args;
    for (size_t i = 0; i < l->size; i++) {
        KT_TRY(kt_jinja_equal(r, &l->items[i], &arg[0], &same));
        *out = kt_jinja_int((int64_t)i);
        if (same) return KT_OK;
    }
    return kt_jinja_fail(r, KT_E_INVALID, "the value is not in the list");
}

METHOD(list_count) {
    const kt_jinja_list *l = self->as.list;
    bool same;

    (void)args;
    *out = kt_jinja_int(0);
    for (size_t i = 0; i < l->size; i++) {
        KT_TRY(kt_jinja_equal(r, &l->items[i], &arg[0], &same));
        out->as.integer += same;
    }
    return KT_OK;
}

METHOD(reverse) {
    kt_jinja_list *l = self->as.list;

    (void)arg, (void)args;
    KT_TRY(changeable(r, self));
    for (size_t i = 0; i < l->size / 2; i++) {
        kt_jinja_value other = l->items[i];
        l->items[i] = l->items[l->size - 1 - i];
        l->items[l->size - 1 - i] = other;
    }
    *out = kt_jinja_none();
    return KT_OK;
}

METHOD(list_copy) {
    (void)arg, (void)args;
    KT_TRY(kt_jinja_new_list(r, self->as.list->flavour, self->as.list->size, out));
    for (size_t i = 0; i < self->as.list->size; i++)
        KT_TRY(kt_jinja_append(r, out->as.list, &self->as.list->items[i]));
    return KT_OK;
}

METHOD(list_clear) {
    (void)arg, (void)args;
    KT_TRY(changeable(r, self));
    self->as.list->size = 0;
    *out = kt_jinja_none();
    return KT_OK;
}

const kt_jinja_builtin kt_jinja_list_methods[] = {
    {.name = "append",
     .run = method_append,
     .changes = true,
     .n_required = 1,
     .parameters = {"object"}},
    {.name = "extend",
     .run = method_extend,
     .changes = true,
     .n_required = 1,
     .parameters = {"iterable"}},
    {.name = "pop", .run = method_list_pop, .parameters = {"index"}},
    {.name = "insert",
     .run = method_insert,
     .changes = true,
     .n_required = 2,
     .parameters = {"index", "object"}},
    {.name = "index", .run = method_list_index, .n_required = 1, .parameters = {"value"}},
    {.name = "count", .run = method_list_count, .n_required = 1, .parameters = {"value"}},
    {.name = "reverse", .run = method_reverse, .changes = true},
    {.name = "copy", .run = method_list_copy},
    {.name = "clear", .run = method_list_clear},
    {.name = NULL}};

/* ---- dictionaries ---- */

METHOD(keys) {
    (void)arg, (void)args;
    return kt_jinja_view(r, self->as.dict, KT_JINJA_KEYS, out);
}

METHOD(values) {
    (void)arg, (void)args;
    return kt_jinja_view(r, self->as.dict, KT_JINJA_VALUES, out);
}

METHOD(items) {
    (void)arg, (void)args;
    return kt_jinja_view(r, self->as.dict, KT_JINJA_ITEMS, out);
}

METHOD(get) {
    const kt_jinja_entry *e = kt_jinja_get(self->as.dict, &arg[0]);

    (void)r, (void)args;
    *out = e ? e->value : arg[1].type == KT_JINJA_UNSET ? kt_jinja_none() : arg[1];
    return KT_OK;
}

METHOD(dict_pop) {
    kt_jinja_entry *e = kt_jinja_get(self->as.dict, &arg[0]);

    (void)args;
    if (!e && arg[1].type == KT_JINJA_UNSET)
        return kt_jinja_fail(r, KT_E_INVALID, "the dict has no such key to pop");
    *out = e ? e->value : arg[1];
    KT_TRY(kt_jinja_spend(r, self->as.dict->size / 8));
    if (e) kt_jinja_remove(self->as.dict, e);
    return KT_OK;
}

METHOD(setdefault) {
    const kt_jinja_entry *e = kt_jinja_get(self->as.dict, &arg[0]);

    (void)args;
    *out = e ? e->value : arg[1].type == KT_JINJA_UNSET ? kt_jinja_none() : arg[1];
    return e ? KT_OK : kt_jinja_set(r, self->as.dict, &arg[0], out);
}

METHOD(update) {
    (void)arg;
    if (args->n_positional > 1 ||
        (args->n_positional == 1 && args->values[0].type != KT_JINJA_DICT))
        return kt_jinja_fail(r, KT_E_INVALID, "update takes a mapping and named values");
    for (size_t i = 0; args->n_positional && i < args->values[0].as.dict->size; i++) {
        const kt_jinja_entry e = args->values[0].as.dict->entries[i];
        KT_TRY(kt_jinja_set(r, self->as.dict, &e.key, &e.value));
    }
    for (size_t i = 0; i < args->n_named; i++) {
        kt_jinja_value key;
        KT_TRY(kt_jinja_string_of(r, args->names[i].data, args->names[i].size, true, &key));
        KT_TRY(kt_jinja_set(r, self->as.dict, &key, &args->values[args->n_positional + i]));
    }
    *out = kt_jinja_none();
    return KT_OK;
}

METHOD(dict_copy) {
    (void)arg, (void)args;
    KT_TRY(kt_jinja_new_dict(r, self->as.dict->size, out));
    for (size_t i = 0; i < self->as.dict->size; i++)
        KT_TRY(kt_jinja_set(r, out->as.dict, &self->as.dict->entries[i].key,
                            &self->as.dict->entries[i].value));
    return KT_OK;
}

const kt_jinja_builtin kt_jinja_dict_methods[] = {
    {.name = "keys", .run = method_keys},
    {.name = "values", .run = method_values},
    {.name = "items", .run = method_items},
    {.name = "get", .run = method_get, .n_required = 1, .parameters = {"key", "default"}},
    {.name = "pop", .run = method_dict_pop, .n_required = 1, .parameters = {"key", "default"}},
    {.name = "setdefault",
     .run = method_setdefault,
     .changes = true,
     .n_required = 1,
     .parameters = {"key", "default"}},
    {.name = "update", .run = method_update, .changes = true, .takes_any = true},
    {.name = "copy", .run = method_dict_copy},
    {.name = NULL}};
