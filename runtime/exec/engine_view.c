/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/engine_view.h"

#include "runtime/exec/engine_impl.h"

static kt_kernel_view view_of_problem(const kt_problem_plan *p, int64_t most) {
    const bool has_format = p->problem.weights != KT_W_NONE;

    return (kt_kernel_view){.role = p->role,
                            .op = kt_op_name(p->problem.op),
                            .weights = has_format ? kt_weight_format_name(p->problem.weights) : "",
                            .one_row = kt_choice_for(&p->choices, 1)->variant->name,
                            .all_rows = kt_choice_for(&p->choices, most)->variant->name,
                            .is_tuned = p->source.tuned_cells > 0};
}

static kt_kernel_view view_of_simple(const kt_simple_plan *p) {
    const char *name = p->choice.variant->name, *op = kt_op_name(p->problem.op);

    return (kt_kernel_view){.role = op, .op = op, .weights = "", .one_row = name, .all_rows = name};
}

int kt_engine_kernels(const kt_engine *e, kt_kernel_view *out, int room) {
    const kt_model_plan *p = &e->plan;
    int n = 0;

    for (int i = 0; i < p->n_problems; i++, n++)
        if (n < room) out[n] = view_of_problem(&p->problems[i], p->max_rows);
    for (int i = 0; i < p->n_simple; i++, n++)
        if (n < room) out[n] = view_of_simple(&p->simple[i]);
    return n;
}

kt_expert_map *kt_engine_expert_map(const kt_engine *e) {
    return e->expert_map;
}
