/* What can stand behind `is`. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/jinja_node.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

#define TEST(name_)                                                                   \
    static kt_status is_##name_(kt_jinja_run *r, const kt_jinja_value *v,             \
                                const kt_jinja_value *arg, const kt_jinja_args *args, \
                                kt_jinja_value *out)

static kt_status say(kt_jinja_value *out, bool truth) {
    *out = kt_jinja_bool(truth);
    return KT_OK;
}

/* A test that looks at nothing but the value. */
#define PLAIN(name_, condition)         \
    TEST(name_) {                       \
        (void)r, (void)arg, (void)args; \
        return say(out, condition);     \
    }

static bool is_list(const kt_jinja_value *v) {
    return v->type == KT_JINJA_LIST;
}

PLAIN(defined, v->type != KT_JINJA_UNDEFINED)
PLAIN(undefined, v->type == KT_JINJA_UNDEFINED)
PLAIN(none, v->type == KT_JINJA_NONE)
PLAIN(boolean, v->type == KT_JINJA_BOOL)
PLAIN(true_, v->type == KT_JINJA_BOOL && v->as.truth)
PLAIN(false_, v->type == KT_JINJA_BOOL && !v->as.truth)
PLAIN(integer, v->type == KT_JINJA_INT || v->type == KT_JINJA_BIG)
PLAIN(float_, v->type == KT_JINJA_FLOAT)
PLAIN(number, kt_jinja_is_number(v) || v->type == KT_JINJA_BIG)
PLAIN(string, v->type == KT_JINJA_STRING)
PLAIN(mapping, v->type == KT_JINJA_DICT)
PLAIN(sequence, v->type == KT_JINJA_STRING || v->type == KT_JINJA_DICT ||
                    v->type == KT_JINJA_UNDEFINED ||
                    (is_list(v) && v->as.list->flavour <= KT_JINJA_RANGE))
PLAIN(iterable, v->type == KT_JINJA_STRING || v->type == KT_JINJA_DICT || is_list(v) ||
                    v->type == KT_JINJA_UNDEFINED || v->type == KT_JINJA_LOOP)
PLAIN(callable, v->type == KT_JINJA_MACRO || v->type == KT_JINJA_BUILTIN ||
                    v->type == KT_JINJA_JOINER || v->type == KT_JINJA_LOOP ||
                    v->type == KT_JINJA_UNDEFINED)
PLAIN(escaped, v->type == KT_JINJA_STRING && v->as.string->is_markup)
PLAIN(filter, v->type == KT_JINJA_STRING &&
                  kt_jinja_find_filter(v->as.string->data, v->as.string->size) != NULL)
PLAIN(test, v->type == KT_JINJA_STRING &&
                kt_jinja_find_test(v->as.string->data, v->as.string->size) != NULL)

static kt_status remainder_is(kt_jinja_run *r, const kt_jinja_value *v, int64_t by, int64_t want,
                              kt_jinja_value *out) {
    const kt_jinja_value divisor = kt_jinja_int(by);
    kt_jinja_value rest;

    KT_TRY(kt_jinja_binary(r, KT_OP_MOD, v, &divisor, &rest));
    return say(out, kt_jinja_is_number(&rest) && kt_jinja_number(&rest) == (double)want);
}

TEST(even) {
    (void)arg, (void)args;
    return remainder_is(r, v, 2, 0, out);
}

TEST(odd) {
    (void)arg, (void)args;
    return remainder_is(r, v, 2, 1, out);
}

TEST(divisibleby) {
    const kt_jinja_value zero = kt_jinja_int(0);
    kt_jinja_value rest;
    bool same;

    (void)args;
    KT_TRY(kt_jinja_binary(r, KT_OP_MOD, v, &arg[0], &rest));
    KT_TRY(kt_jinja_equal(r, &rest, &zero, &same));
    return say(out, same);
}

/* Letters of one case, and at least one. */
static kt_status cased(kt_jinja_run *r, const kt_jinja_value *v, bool upper, kt_jinja_value *out) {
    const kt_jinja_string *s = NULL;
    bool any = false;
    uint32_t c;

    KT_TRY(kt_jinja_to_str(r, v, &s));
    for (size_t i = 0; i < s->size;) {
        int n = kt_utf8_next(s->data + i, s->size - i, &c);
        if (kt_unicode_is_upper(c) ? !upper : upper && kt_unicode_is_lower(c))
            return say(out, false);
        any = any || kt_unicode_is_upper(c) || kt_unicode_is_lower(c);
        i += n > 0 ? (size_t)n : 1;
    }
    return say(out, any);
}

TEST(lower) {
    (void)arg, (void)args;
    return cased(r, v, false, out);
}

TEST(upper) {
    (void)arg, (void)args;
    return cased(r, v, true, out);
}

TEST(in) {
    bool found;

    (void)args;
    KT_TRY(kt_jinja_contains(r, &arg[0], v, &found));
    return say(out, found);
}

TEST(eq) {
    bool same;

    (void)args;
    KT_TRY(kt_jinja_equal(r, v, &arg[0], &same));
    return say(out, same);
}

TEST(ne) {
    bool same;

    (void)args;
    KT_TRY(kt_jinja_equal(r, v, &arg[0], &same));
    return say(out, !same);
}

TEST(sameas) {
    bool same = v->type == arg[0].type;

    (void)args;
    if (same && v->type >= KT_JINJA_LIST) return say(out, v->as.list == arg[0].as.list);
    if (same) KT_TRY(kt_jinja_equal(r, v, &arg[0], &same));
    return say(out, same);
}

TEST(lt) {
    int order;

    (void)args;
    KT_TRY(kt_jinja_compare(r, v, &arg[0], "<", &order));
    return say(out, order == -1);
}

TEST(gt) {
    int order;

    (void)args;
    KT_TRY(kt_jinja_compare(r, v, &arg[0], ">", &order));
    return say(out, order == 1);
}

TEST(le) {
    int order;

    (void)args;
    KT_TRY(kt_jinja_compare(r, v, &arg[0], "<=", &order));
    return say(out, order == -1 || order == 0);
}

TEST(ge) {
    int order;

    (void)args;
    KT_TRY(kt_jinja_compare(r, v, &arg[0], ">=", &order));
    return say(out, order == 1 || order == 0);
}

#define OTHER .n_required = 1, .parameters = {"other"}

const kt_jinja_builtin kt_jinja_tests[] = {
    {.name = "defined", .run = is_defined},
    {.name = "undefined", .run = is_undefined},
    {.name = "none", .run = is_none},
    {.name = "boolean", .run = is_boolean},
    {.name = "true", .run = is_true_},
    {.name = "false", .run = is_false_},
    {.name = "integer", .run = is_integer},
    {.name = "float", .run = is_float_},
    {.name = "number", .run = is_number},
    {.name = "string", .run = is_string},
    {.name = "mapping", .run = is_mapping},
    {.name = "sequence", .run = is_sequence},
    {.name = "iterable", .run = is_iterable},
    {.name = "callable", .run = is_callable},
    {.name = "escaped", .run = is_escaped},
    {.name = "filter", .run = is_filter},
    {.name = "test", .run = is_test},
    {.name = "even", .run = is_even},
    {.name = "odd", .run = is_odd},
    {.name = "lower", .run = is_lower},
    {.name = "upper", .run = is_upper},
    {.name = "divisibleby", .run = is_divisibleby, .n_required = 1, .parameters = {"num"}},
    {.name = "in", .run = is_in, .n_required = 1, .parameters = {"seq"}},
    {.name = "sameas", .run = is_sameas, OTHER},
    {.name = "eq", .run = is_eq, OTHER},
    {.name = "equalto", .run = is_eq, OTHER},
    {.name = "==", .run = is_eq, OTHER},
    {.name = "ne", .run = is_ne, OTHER},
    {.name = "!=", .run = is_ne, OTHER},
    {.name = "lt", .run = is_lt, OTHER},
    {.name = "lessthan", .run = is_lt, OTHER},
    {.name = "<", .run = is_lt, OTHER},
    {.name = "gt", .run = is_gt, OTHER},
    {.name = "greaterthan", .run = is_gt, OTHER},
    {.name = ">", .run = is_gt, OTHER},
    {.name = "le", .run = is_le, OTHER},
    {.name = "<=", .run = is_le, OTHER},
    {.name = "ge", .run = is_ge, OTHER},
    {.name = ">=", .run = is_ge, OTHER},
    {.name = NULL}};
