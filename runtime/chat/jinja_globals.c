/* Functions that every template has. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "runtime/chat/jinja.h"

#define GLOBAL(name_)                                                                   \
    static kt_status call_##name_(kt_jinja_run *r, const kt_jinja_value *self,          \
                                  const kt_jinja_value *arg, const kt_jinja_args *args, \
                                  kt_jinja_value *out)

GLOBAL(raise_exception) {
    const kt_jinja_string *s = NULL;

    (void)self, (void)args, (void)out;
    KT_TRY(kt_jinja_to_str(r, &arg[0], &s));
    return kt_jinja_fail(r, KT_E_INVALID, "%.*s", (int)(s->size < 300 ? s->size : 300), s->data);
}

/* The text is the program's, not a user's. */
GLOBAL(strftime_now) {
    time_t now = (time_t)r->now;
    kt_jinja_builder b = {0};
    char format[256], text[1024];
    struct tm tm;
    size_t n;
    kt_status st;

    (void)self, (void)args;
    if (arg[0].type != KT_JINJA_STRING)
        return kt_jinja_fail(r, KT_E_INVALID, "the format of strftime_now is a %s, expected a str",
                             kt_jinja_type_name(&arg[0]));
    if (arg[0].as.string->size >= sizeof format)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "the format of strftime_now is too long");
    memcpy(format, arg[0].as.string->data, arg[0].as.string->size);
    format[arg[0].as.string->size] = '\0';
    if (!gmtime_r(&now, &tm))
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "the clock is out of range");
    n = strftime(text, sizeof text, format, &tm);
    st = kt_jinja_put(r, &b, text, n, true);
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, out);
    kt_jinja_builder_deinit(&b);
    return st;
}

GLOBAL(range) {
    int64_t bound[3] = {0, 0, 1};
    int n = 0;

    (void)self, (void)args;
    for (; n < 3 && arg[n].type != KT_JINJA_UNSET; n++) {
        if (arg[n].type == KT_JINJA_UNDEFINED) return kt_jinja_fail_undefined(r, &arg[n]);
        if (arg[n].type != KT_JINJA_INT && arg[n].type != KT_JINJA_BOOL)
            return kt_jinja_fail(r, KT_E_INVALID, "'%s' object cannot be interpreted as an integer",
                                 kt_jinja_type_name(&arg[n]));
        bound[n] = arg[n].type == KT_JINJA_BOOL ? arg[n].as.truth : arg[n].as.integer;
    }
    if (n == 1) {
        bound[1] = bound[0];
        bound[0] = 0;
    }
    if (bound[2] == 0) return kt_jinja_fail(r, KT_E_INVALID, "range() arg 3 must not be zero");
    KT_TRY(kt_jinja_new_list(r, KT_JINJA_RANGE, 0, out));
    for (int64_t i = bound[0]; bound[2] > 0 ? i < bound[1] : i > bound[1];) {
        const kt_jinja_value v = kt_jinja_int(i);
        if (out->as.list->size == 100000) /* as Jinja's sandbox has it */
            return kt_jinja_fail(r, KT_E_UNSUPPORTED, "range too big, at most 100000 items");
        KT_TRY(kt_jinja_spend(r, 1));
        KT_TRY(kt_jinja_append(r, out->as.list, &v));
        if (__builtin_add_overflow(i, bound[2], &i)) break;
    }
    return KT_OK;
}

/* Members of a dictionary, then named arguments: dict(...) and namespace(...). */
static kt_status members(kt_jinja_run *r, const kt_jinja_args *args, kt_jinja_value *out) {
    kt_jinja_list pairs, pair;

    KT_TRY(kt_jinja_new_dict(r, 0, out));
    if (args->n_positional > 1)
        return kt_jinja_fail(r, KT_E_INVALID, "expected at most 1 argument, found %zu",
                             args->n_positional);
    if (args->n_positional && args->values[0].type == KT_JINJA_DICT) {
        const kt_jinja_dict *d = args->values[0].as.dict;
        for (size_t i = 0; i < d->size; i++)
            KT_TRY(kt_jinja_set(r, out->as.dict, &d->entries[i].key, &d->entries[i].value));
    } else if (args->n_positional) {
        KT_TRY(kt_jinja_iterate(r, &args->values[0], &pairs));
        for (size_t i = 0; i < pairs.size; i++) {
            KT_TRY(kt_jinja_iterate(r, &pairs.items[i], &pair));
            if (pair.size != 2)
                return kt_jinja_fail(r, KT_E_INVALID, "element %zu has %zu items, expected 2", i,
                                     pair.size);
            KT_TRY(kt_jinja_set(r, out->as.dict, &pair.items[0], &pair.items[1]));
        }
    }
    for (size_t i = 0; i < args->n_named; i++) {
        kt_jinja_value key;
        KT_TRY(kt_jinja_string_of(r, args->names[i].data, args->names[i].size, true, &key));
        KT_TRY(kt_jinja_set(r, out->as.dict, &key, &args->values[args->n_positional + i]));
    }
    return KT_OK;
}

GLOBAL(dict) {
    (void)self, (void)arg;
    return members(r, args, out);
}

GLOBAL(namespace) {
    (void)self, (void)arg;
    KT_TRY(members(r, args, out));
    out->type = KT_JINJA_NAMESPACE;
    return KT_OK;
}

static kt_status new_cycle(kt_jinja_run *r, kt_jinja_type type, const kt_jinja_value *items,
                           size_t n, kt_jinja_value *out) {
    void *memory;

    KT_TRY(kt_jinja_alloc(r, 1, sizeof *out->as.cycle, &memory));
    out->type = type;
    out->as.cycle = memory;
    for (size_t i = 0; i < n; i++) KT_TRY(kt_jinja_append(r, &out->as.cycle->items, &items[i]));
    return KT_OK;
}

GLOBAL(cycler) {
    (void)self, (void)arg;
    if (args->n_positional == 0)
        return kt_jinja_fail(r, KT_E_INVALID, "at least one item has to be provided");
    return new_cycle(r, KT_JINJA_CYCLER, args->values, args->n_positional, out);
}

GLOBAL(joiner) {
    kt_jinja_value separator = kt_jinja_text(KT_JINJA_LITERAL(", "));

    (void)self, (void)args;
    if (arg[0].type != KT_JINJA_UNSET) separator = arg[0];
    if (separator.type == KT_JINJA_STRING)
        KT_TRY(kt_jinja_string_of(r, separator.as.string->data, separator.as.string->size,
                                  separator.as.string->all_trusted, &separator));
    return new_cycle(r, KT_JINJA_JOINER, &separator, 1, out);
}

const kt_jinja_builtin kt_jinja_globals[] = {
    {.name = "raise_exception",
     .run = call_raise_exception,
     .n_required = 1,
     .parameters = {"message"}},
    {.name = "strftime_now", .run = call_strftime_now, .n_required = 1, .parameters = {"format"}},
    {.name = "range", .run = call_range, .n_required = 1, .parameters = {"start", "stop", "step"}},
    {.name = "dict", .run = call_dict, .takes_any = true},
    {.name = "namespace", .run = call_namespace, .takes_any = true},
    {.name = "cycler", .run = call_cycler, .takes_any = true},
    {.name = "joiner", .run = call_joiner, .parameters = {"sep"}},
    {.name = NULL}};
