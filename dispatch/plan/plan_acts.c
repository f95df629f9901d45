/* The encoding of activations: by the table's rows, else by the machine.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/plan/planner.h"
#include "kernels/formats/format.h"

/* Usable rows of the op and format with one encoding. */
static int rows_with(const kt_planner *p, const kt_problem *problem, kt_act_format acts) {
    int n = 0;

    for (size_t i = 0; p->table && i < p->table->n_rows; i++) {
        const kt_problem *q = &p->table->rows[i].problem;
        n += p->row_choice[i].variant && q->op == problem->op && q->weights == problem->weights &&
             q->acts == acts;
    }
    return n;
}

/* Sum over cells that have rows with both of log(time with a / time with b). */
static double compare(const kt_planner *p, const kt_problem *problem, kt_act_format a,
                      kt_act_format b) {
    double sum = 0;

    for (size_t i = 0; i < p->table->n_rows; i++) {
        const kt_table_row *row = &p->table->rows[i], *other;
        kt_problem q = row->problem;
        if (!p->row_choice[i].variant || q.op != problem->op || q.weights != problem->weights ||
            q.acts != a)
            continue;
        q.acts = b;
        other = kt_table_find(p->table, &q, row->threads);
        if (other && p->row_choice[other - p->table->rows].variant)
            sum += log(row->time_ns / other->time_ns);
    }
    return sum;
}

kt_act_format kt_plan_acts(kt_planner *p, const kt_problem *problem) {
    const kt_format *format = kt_format_find(problem->weights);
    const kt_act_format own = format ? format->acts : KT_A_NONE;
    const kt_act_format fast = kt_registry_acts(p->registry, problem->op, problem->weights);
    int own_rows, fast_rows;

    if (fast == own || p->is_exact) return own;
    own_rows = rows_with(p, problem, own);
    fast_rows = rows_with(p, problem, fast);
    /* An estimate of one is not weighed against the times of the other. */
    if (p->keeps_bits && !own_rows == !fast_rows) return kt_bits_acts(p, problem, own, fast);
    if (own_rows && fast_rows) return compare(p, problem, own, fast) < 0 ? own : fast;
    if (own_rows || fast_rows) return own_rows ? own : fast;
    return kt_acts_default(p->registry, p->microarch, problem->op, problem->weights);
}

void kt_planner_prefer_exact(kt_planner *p) {
    p->is_exact = 1;
}
