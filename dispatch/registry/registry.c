/* Sorting variants into usable and refused. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/registry/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"

typedef struct refusal {
    const kt_variant *variant;
    char reason[KT_ERR_SIZE];
} refusal;

struct kt_registry {
    const kt_variant **usable; /* in name order */
    size_t n_usable;
    refusal *refused; /* in name order */
    size_t n_refused;
};

static int by_name(const void *a, const void *b) {
    const kt_variant *const *left = a;
    const kt_variant *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int lists(const kt_param *p, int32_t value) {
    for (int32_t i = 0; i < p->count; i++)
        if (p->values[i] == value) return 1;
    return 0;
}

/* Variants may come from outside the tree: a broken descriptor is refused, not trusted. */
static kt_status check_descriptor(const kt_variant *v, kt_err *why) {
    char initial[96];
    kt_config config;

    if ((unsigned)v->op >= KT_OP_COUNT)
        return kt_fail(why, KT_E_INVALID, "descriptor: op %d is unknown", (int)v->op);
    if (v->n_params < 0 || v->n_params > KT_MAX_PARAMS)
        return kt_fail(why, KT_E_INVALID, "descriptor: %d parameters, at most %d are possible",
                       (int)v->n_params, KT_MAX_PARAMS);
    for (int32_t i = 0; i < v->n_params; i++) {
        const kt_param *p = &v->params[i];
        if (!p->name || !p->name[0] || strpbrk(p->name, "=,"))
            return kt_fail(why, KT_E_INVALID, "descriptor: parameter %d has no usable name",
                           (int)i);
        if (p->count < 1 || !lists(p, p->initial))
            return kt_fail(why, KT_E_INVALID,
                           "descriptor: parameter '%s': its initial value %d is not in its list",
                           p->name, (int)p->initial);
    }
    config = kt_config_initial(v);
    kt_config_format(v, &config, initial, sizeof initial);
    if (strlen(initial) + 1 >= sizeof initial)
        return kt_fail(why, KT_E_INVALID, "descriptor: parameters take more than %zu characters",
                       sizeof initial - 2);
    return KT_OK;
}

/* Nothing of the variant may be called before its ISA bits are known to be here. */
static kt_status check_usable(const kt_variant *v, kt_isa isa, kt_err *why) {
    char needs[128], has[128];

    KT_TRY(check_descriptor(v, why));
    if (v->isa & ~isa)
        return kt_fail(why, KT_E_UNSUPPORTED, "needs %s; this machine has %s",
                       kt_isa_format(v->isa & ~isa, needs, sizeof needs),
                       kt_isa_format(isa, has, sizeof has));
    return v->usable ? v->usable(why) : KT_OK;
}

static kt_status check_names(const kt_variant *const *sorted, size_t count, kt_err *err) {
    for (size_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return kt_fail(err, KT_E_INVALID, "registry: two variants are called '%s'",
                           sorted[i]->name);
    return KT_OK;
}

kt_status kt_registry_create(const kt_variant *const *variants, size_t count, kt_isa isa,
                             kt_registry **out, kt_err *err) {
    kt_registry *r = NULL;
    const kt_variant **sorted = NULL;
    kt_status st;

    *out = NULL;
    for (size_t i = 0; i < count; i++)
        if (!variants[i] || !variants[i]->name || strlen(variants[i]->name) > 63)
            return kt_fail(err, KT_E_INVALID,
                           "registry: variant %zu of %zu has no name of at most 63 characters", i,
                           count);
    r = calloc(1, sizeof *r);
    sorted = calloc(count + 1, sizeof *sorted);
    if (!r || !sorted) goto no_memory;
    r->usable = calloc(count + 1, sizeof *r->usable);
    r->refused = calloc(count + 1, sizeof *r->refused);
    if (!r->usable || !r->refused) goto no_memory;

    for (size_t i = 0; i < count; i++) sorted[i] = variants[i];
    qsort(sorted, count, sizeof *sorted, by_name);
    st = check_names(sorted, count, err);
    if (st != KT_OK) goto done;
    for (size_t i = 0; i < count; i++) {
        kt_err why = {KT_OK, "its usable() check failed without a reason"};
        if (check_usable(sorted[i], isa, &why) == KT_OK) {
            r->usable[r->n_usable++] = sorted[i];
        } else {
            refusal *f = &r->refused[r->n_refused++];
            f->variant = sorted[i];
            memcpy(f->reason, why.message, sizeof f->reason);
        }
    }
    *out = r;
    r = NULL; /* now the caller's */
    st = KT_OK;
    goto done;
no_memory:
    st = kt_fail(err, KT_E_NOMEM, "registry: no memory for %zu variants", count);
done:
    free(sorted);
    kt_registry_destroy(r);
    return st;
}

void kt_registry_destroy(kt_registry *r) {
    if (!r) return;
    free(r->usable);
    free(r->refused);
    free(r);
}

size_t kt_registry_count(const kt_registry *r) {
    return r->n_usable;
}

const kt_variant *kt_registry_at(const kt_registry *r, size_t i) {
    return i < r->n_usable ? r->usable[i] : NULL;
}

const kt_variant *kt_registry_find(const kt_registry *r, const char *name) {
    size_t low = 0, high = r->n_usable;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, r->usable[middle]->name);
        if (order == 0) return r->usable[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

size_t kt_registry_refused_count(const kt_registry *r) {
    return r->n_refused;
}

const kt_variant *kt_registry_refused_at(const kt_registry *r, size_t i, const char **reason) {
    if (i >= r->n_refused) return NULL;
    if (reason) *reason = r->refused[i].reason;
    return r->refused[i].variant;
}
