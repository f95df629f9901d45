/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/table_union.h"

#include <string.h>

#include "base/err.h"

int kt_row_is_current(const kt_table_row *row, const kt_registry *registry) {
    const kt_variant *v = kt_registry_find(registry, row->variant);
    kt_config config;
    return v && v->version == row->version &&
           kt_config_parse(v, row->config, &config, NULL) == KT_OK &&
           kt_variant_accepts(v, &row->problem, &config, NULL) == KT_OK;
}

kt_status kt_table_add_missing(kt_table *to, const kt_table *from, const kt_registry *registry,
                               size_t *n_added, kt_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < from->n_rows; i++) {
        const kt_table_row *row = &from->rows[i];
        const kt_table_row *have = kt_table_find(to, &row->problem, row->threads);
        if ((have && (!kt_row_is_undecided(have) || kt_row_is_undecided(row))) ||
            !kt_row_is_current(row, registry))
            continue;
        n += have == NULL;
        KT_TRY(kt_table_put(to, row, err));
    }
    for (size_t i = 0; i < from->n_plans; i++)
        if (!kt_table_find_plan(to, &from->plans[i]))
            KT_TRY(kt_table_put_plan(to, &from->plans[i], err));
    for (size_t i = 0; i < from->n_device_rows; i++)
        if (!kt_table_find_device_row(to, &from->device_rows[i]))
            KT_TRY(kt_table_put_device_row(to, &from->device_rows[i], err));
    if (n_added) *n_added = n;
    return KT_OK;
}

/* Negative: a stays. Equal rows have one value each, so any difference decides and the order is total. */
static int by_certainty(const kt_table_row *a, const kt_table_row *b) {
    double x = a->ci_high - a->ci_low, y = b->ci_high - b->ci_low;
    int names = strcmp(a->variant, b->variant);
    if (x != y) return x < y ? -1 : 1;
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns ? -1 : 1;
    return names ? names : strcmp(a->config, b->config);
}

kt_status kt_table_merge(kt_table *to, const kt_table *from, size_t *n_replaced, kt_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < from->n_rows; i++) {
        const kt_table_row *row = &from->rows[i];
        const kt_table_row *have = kt_table_find(to, &row->problem, row->threads);
        if (have && by_certainty(have, row) <= 0) continue;
        n += have != NULL;
        KT_TRY(kt_table_put(to, row, err));
    }
    for (size_t i = 0; i < from->n_plans; i++) {
        const kt_table_plan *have = kt_table_find_plan(to, &from->plans[i]);
        if (!have || by_certainty(&have->row, &from->plans[i].row) > 0)
            KT_TRY(kt_table_put_plan(to, &from->plans[i], err));
    }
    for (size_t i = 0; i < from->n_device_rows; i++) {
        const kt_table_device_row *have = kt_table_find_device_row(to, &from->device_rows[i]);
        if (!have || by_certainty(&have->row, &from->device_rows[i].row) > 0)
            KT_TRY(kt_table_put_device_row(to, &from->device_rows[i], err));
    }
    if (n_replaced) *n_replaced = n;
    return KT_OK;
}
