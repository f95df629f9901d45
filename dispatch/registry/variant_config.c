/* Parameter values of a variant: listing, writing, reading, accepting.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/registry/registry.h"

kt_config kt_config_initial(const kt_variant *v) {
    kt_config c = {{0}};
    for (int32_t i = 0; i < v->n_params; i++) c.value[i] = v->params[i].initial;
    return c;
}

char *kt_config_format(const kt_variant *v, const kt_config *c, char *text, size_t text_bytes) {
    size_t used = 0;

    if (text_bytes) text[0] = '\0';
    for (int32_t i = 0; i < v->n_params && used < text_bytes; i++) {
        int n = snprintf(text + used, text_bytes - used, "%s%s=%d", i ? "," : "", v->params[i].name,
                         (int)c->value[i]);
        if (n < 0) break;
        used += (size_t)n;
    }
    return text;
}

static int32_t find_param(const kt_variant *v, const char *name, size_t size) {
    for (int32_t i = 0; i < v->n_params; i++)
        if (strlen(v->params[i].name) == size && memcmp(v->params[i].name, name, size) == 0)
            return i;
    return -1;
}

/* "name=value" up to end; seen has a bit per parameter met. */
static kt_status parse_one(const kt_variant *v, const char *item, const char *end, unsigned *seen,
                           kt_config *c, kt_err *err) {
    int size = (int)(end - item);
    const char *equals = memchr(item, '=', (size_t)size);
    const kt_param *p;
    char *stop;
    long value;
    int32_t i;

    if (!equals)
        return kt_fail(err, KT_E_FORMAT, "%s: '%.*s' is not name=value", v->name, size, item);
    i = find_param(v, item, (size_t)(equals - item));
    if (i < 0)
        return kt_fail(err, KT_E_FORMAT, "%s: has no parameter '%.*s'", v->name,
                       (int)(equals - item), item);
    if (*seen & (1u << i))
        return kt_fail(err, KT_E_FORMAT, "%s: parameter '%s' is given twice", v->name,
                       v->params[i].name);
    p = &v->params[i];
    errno = 0;
    value = strtol(equals + 1, &stop, 10);
    if (stop != end || stop == equals + 1 || errno)
        return kt_fail(err, KT_E_FORMAT, "%s: parameter '%s': '%.*s' is not an integer", v->name,
                       p->name, (int)(end - equals - 1), equals + 1);
    for (int32_t j = 0; j < p->count; j++) {
        if (p->values[j] != value) continue;
        c->value[i] = p->values[j];
        *seen |= 1u << i;
        return KT_OK;
    }
    return kt_fail(err, KT_E_FORMAT, "%s: parameter '%s' cannot be %ld", v->name, p->name, value);
}

kt_status kt_config_parse(const kt_variant *v, const char *text, kt_config *out, kt_err *err) {
    kt_config c = kt_config_initial(v);
    unsigned seen = 0;

    for (const char *item = text; *item;) {
        const char *end = item + strcspn(item, ",");
        KT_TRY(parse_one(v, item, end, &seen, &c, err));
        if (*end == ',' && end[1] == '\0')
            return kt_fail(err, KT_E_FORMAT, "%s: '%s' ends with a comma", v->name, text);
        item = *end ? end + 1 : end;
    }
    *out = c;
    return KT_OK;
}

int64_t kt_config_count(const kt_variant *v) {
    int64_t n = 1;
    for (int32_t i = 0; i < v->n_params; i++) n *= v->params[i].count;
    return n;
}

kt_config kt_config_at(const kt_variant *v, int64_t i) {
    kt_config c = {{0}};
    for (int32_t j = v->n_params - 1; j >= 0; j--) { /* the last parameter runs fastest */
        c.value[j] = v->params[j].values[i % v->params[j].count];
        i /= v->params[j].count;
    }
    return c;
}

kt_status kt_variant_keeps_bits(const kt_variant *v, kt_err *why) {
    if (kt_variant_is_stable(v)) return KT_OK;
    return kt_fail(
        why, KT_E_UNSUPPORTED,
        "not in deterministic plans: bits '%s', a row may change with the rows beside it",
        v->bits ? v->bits : "not named");
}

kt_status kt_variant_accepts(const kt_variant *v, const kt_problem *p, const kt_config *c,
                             kt_err *why) {
    kt_config initial;

    if (v->op != p->op)
        return kt_fail(why, KT_E_UNSUPPORTED, "%s is for %s, not %s", v->name, kt_op_name(v->op),
                       kt_op_name(p->op));
    if ((unsigned)p->weights >= KT_W_COUNT || (unsigned)p->acts >= KT_A_COUNT)
        return kt_fail(why, KT_E_INVALID, "%s: unknown format %d/%d", v->name, (int)p->weights,
                       (int)p->acts);
    if (v->weights && !(v->weights & KT_W_BIT(p->weights)))
        return kt_fail(why, KT_E_UNSUPPORTED, "%s does not read %s weights", v->name,
                       kt_weight_format_name(p->weights));
    if (v->acts && !(v->acts & (1u << p->acts)))
        return kt_fail(why, KT_E_UNSUPPORTED, "%s does not read %s activations", v->name,
                       kt_act_format_name(p->acts));
    if (p->op != KT_OP_PROBE && (p->m < 0 || p->n < 1 || p->k < 1))
        return kt_fail(why, KT_E_INVALID, "%s: m=%lld n=%lld k=%lld is no problem size", v->name,
                       (long long)p->m, (long long)p->n, (long long)p->k);
    if (!v->accepts) return KT_OK;
    initial = kt_config_initial(v);
    return v->accepts(p, c ? c : &initial, why);
}
