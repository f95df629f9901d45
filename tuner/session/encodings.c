/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/encodings.h"

#include <string.h>

#include "base/err.h"
#include "kernels/formats/format.h"

kt_status kt_take_encodings(const kt_registry *registry, const kt_fingerprint *machine,
                            const kt_table *table, bool keeps_bits, kt_cell_list *cells,
                            kt_plan_cells *plans, kt_err *err) {
    kt_planner *planner;

    KT_TRY(kt_planner_create(registry, table, machine, NULL, &planner, err));
    if (keeps_bits) kt_planner_keep_bits(planner);
    for (size_t i = 0; cells && i < cells->n; i++) {
        kt_problem *p = &cells->cells[i].problem;
        if (kt_problem_is_packed(p)) p->acts = kt_plan_acts(planner, p);
    }
    for (int i = 0; plans && i < plans->n; i++) {
        kt_problem *p = &plans->list[i].problem;
        p->acts = kt_plan_acts(planner, p);
    }
    kt_planner_destroy(planner);
    return KT_OK;
}

bool kt_has_two_encodings(const kt_registry *registry, const kt_problem *p, kt_act_format *own,
                          kt_act_format *fast) {
    const kt_format *format = kt_format_find(p->weights);

    if (!format || !kt_problem_is_packed(p)) return false;
    *own = format->acts;
    *fast = kt_registry_acts(registry, p->op, p->weights);
    return *own != *fast;
}

kt_status kt_give_encoding(const kt_registry *registry, const char *name, kt_cell_list *cells,
                           kt_err *err) {
    const int acts = kt_act_format_parse(name);
    size_t n = 0;

    for (size_t i = 0; i < cells->n; i++) {
        kt_problem *p = &cells->cells[i].problem;
        kt_act_format own, fast;
        if (!kt_has_two_encodings(registry, p, &own, &fast)) continue;
        if (acts != (int)own && acts != (int)fast)
            return kt_fail(err, KT_E_INVALID, "--acts '%s': %s is read as %s or %s", name,
                           kt_weight_format_name(p->weights), kt_act_format_name(own),
                           kt_act_format_name(fast));
        p->acts = (kt_act_format)acts;
        n++;
    }
    if (n > 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "--acts '%s': none of %zu cells has two encodings", name,
                   cells->n);
}

/* The most valuable cell with problem p's operation and weights and few rows, or many; its
 * index, or -1. */
static int64_t best_cell(const kt_cell_list *cells, const kt_problem *p, bool is_few) {
    int64_t best = -1;

    for (size_t i = 0; i < cells->n; i++) {
        const kt_problem *q = &cells->cells[i].problem;
        if (q->op != p->op || q->weights != p->weights || (q->m <= KT_FEW_ROWS) != is_few) continue;
        if (best < 0 || cells->cells[i].weight > cells->cells[best].weight) best = (int64_t)i;
    }
    return best;
}

static kt_status add_both(const kt_tune_cell *cell, kt_act_format own, kt_act_format fast,
                          kt_cell_list *out, kt_err *err) {
    kt_tune_cell probe = *cell;

    probe.problem.acts = own;
    KT_TRY(kt_cell_list_add(out, &probe, err));
    probe.problem.acts = fast;
    return kt_cell_list_add(out, &probe, err);
}

kt_status kt_encoding_probes(const kt_registry *registry, const kt_cell_list *cells,
                             kt_cell_list *out, kt_err *err) {
    kt_cell_list probes = {0};
    kt_status st = KT_OK;

    memcpy(probes.workload, cells->workload, sizeof probes.workload);
    for (size_t i = 0; i < cells->n && st == KT_OK; i++) {
        const kt_problem *p = &cells->cells[i].problem;
        kt_act_format own, fast;

        if (best_cell(cells, p, p->m <= KT_FEW_ROWS) == (int64_t)i &&
            kt_has_two_encodings(registry, p, &own, &fast))
            st = add_both(&cells->cells[i], own, fast, &probes, err);
    }
    if (st == KT_OK)
        *out = probes;
    else
        kt_cell_list_deinit(&probes);
    return st;
}
