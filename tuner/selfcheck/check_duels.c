/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/selfcheck/check_duels.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/measure/cold.h"
#include "tuner/space/cell_filter.h"

static const char model_name[] = "Qwen3-30B-A3B";

kt_status kt_check_cells_make(const kt_check *c, const char *format, const char *filter,
                              size_t most, kt_check_cells *out, kt_err *err) {
    int threads[2] = {1, c->topology->usable_cores};
    kt_cell_list *l = &out->list;
    kt_shapes shapes;
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_shapes_find(model_name, &shapes, NULL, 0, err));
    st = kt_cells_of_shapes(&shapes, (kt_serving_format)kt_serving_format_parse(format),
                            KT_PROFILE_FULL, threads, threads[1] > 1 ? 2 : 1, l, err);
    if (st == KT_OK) st = kt_cells_filter(l, filter, err);
    if (st != KT_OK) {
        kt_cell_list_deinit(l);
        return st;
    }
    for (size_t i = 1; i < l->n; i++) { /* heaviest first */
        kt_tune_cell x = l->cells[i];
        size_t j = i;
        for (; j > 0 && l->cells[j - 1].weight < x.weight; j--) l->cells[j] = l->cells[j - 1];
        l->cells[j] = x;
    }
    for (size_t i = l->n; i-- > 0;) /* a sample of these takes as long as a cell of the others */
        if (strcmp(l->cells[i].role, "lm_head") == 0) {
            memmove(&l->cells[i], &l->cells[i + 1], (l->n - i - 1) * sizeof *l->cells);
            l->n--;
        }
    if (l->n > most) l->n = most;
    if (l->n > KT_CHECK_CELLS) l->n = KT_CHECK_CELLS;
    return KT_OK;
}

static size_t rotation_bytes(const kt_check *c) {
    return kt_cold_rotation_bytes(&c->machine->ceilings, c->topology->llc_bytes);
}

kt_session_setup kt_check_session(const kt_check *c, const kt_registry *registry,
                                  const kt_cell_list *cells, kt_ledger *ledger, uint64_t seed) {
    return (kt_session_setup){.registry = registry,
                              .machine = c->machine,
                              .cells = cells,
                              .strategy = kt_strategy_find("auto"),
                              .ledger = ledger,
                              .rotation_bytes = rotation_bytes(c),
                              .deadline_ns = INT64_MAX,
                              .seed = seed,
                              .stop = c->stop,
                              .stop_arg = c->stop_arg};
}

kt_status kt_check_tune(const kt_check *c, const kt_cell_list *cells, uint64_t seed,
                        kt_choice winners[KT_CHECK_CELLS], kt_err *err) {
    kt_session_setup setup = kt_check_session(c, c->registry, cells, NULL, seed);
    kt_session *s = NULL;
    kt_table *t = NULL;
    kt_status st = kt_session_create(&setup, &s, err);

    while (st == KT_OK) st = kt_session_step(s, err);
    if (st == KT_E_NOT_FOUND) st = kt_table_create(&t, err);
    if (st == KT_OK) st = kt_session_rows(s, t, err);
    for (size_t i = 0; st == KT_OK && i < cells->n; i++) {
        const kt_table_row *row =
            kt_table_find(t, &cells->cells[i].problem, cells->cells[i].threads);
        if (!row || !kt_check_choice(c, row->variant, row->config, &row->problem, &winners[i]))
            st = kt_fail(err, KT_E_NOT_FOUND, "selfcheck: a cell was skipped");
    }
    kt_table_destroy(t);
    kt_session_destroy(s);
    return st;
}

void kt_check_duels_init(const kt_check *c, kt_check_duels *d) {
    memset(d, 0, sizeof *d);
    d->duels = (kt_duels){.registry = c->registry,
                          .machine = c->machine,
                          .seed = c->seed,
                          .stop = c->stop,
                          .stop_arg = c->stop_arg,
                          .banks = {.rotation_bytes = rotation_bytes(c)}};
}

bool kt_check_choice(const kt_check *c, const char *variant, const char *config,
                     const kt_problem *problem, kt_choice *out) {
    memset(out, 0, sizeof *out);
    out->variant = kt_registry_find(c->registry, variant);
    return out->variant && kt_config_parse(out->variant, config, &out->config, NULL) == KT_OK &&
           kt_variant_accepts(out->variant, problem, &out->config, NULL) == KT_OK;
}

kt_status kt_check_filed_table(const kt_check *c, const char *model, char *name, size_t name_bytes,
                               kt_table **out) {
    char class_name[64], path[2 * KT_CHECK_PATH_BYTES];

    kt_check_class(c, class_name, sizeof class_name);
    snprintf(name, name_bytes, "%s/%s", class_name, model);
    snprintf(path, sizeof path, "%s/%s/%s.kttable.json", c->results, class_name, model);
    return kt_table_load(path, out, NULL);
}
