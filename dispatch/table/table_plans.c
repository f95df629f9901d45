/* Plan cells of the table: put, find, read, write. There are few of them, so everything is linear.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table.h"
#include "dispatch/table/table_rows.h"

static const char *const cells[] = {"moe_layer", "threads", "spin", "layer_gain"};
enum { MAX_PLANS = 4096 };

static bool is_known(const char *cell) {
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        if (strcmp(cells[i], cell) == 0) return true;
    return false;
}

static int is_text(const char *s, size_t size) {
    if (!memchr(s, '\0', size)) return 0;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > '~') return 0;
    return 1;
}

static kt_status check_plan(const kt_table_plan *p, kt_err *err) {
    if (!is_text(p->cell, sizeof p->cell) || !is_text(p->routing, sizeof p->routing))
        return kt_fail(err, KT_E_INVALID, "'cell' or 'routing' is no plain text");
    if (!is_known(p->cell))
        return kt_fail(err, KT_E_INVALID,
                       "'cell' is '%s', expected moe_layer, threads, spin or layer_gain", p->cell);
    if (p->tokens < 1 || p->tokens != p->row.problem.m)
        return kt_fail(err, KT_E_INVALID, "'tokens' is %lld and 'm' %lld, expected the same >= 1",
                       (long long)p->tokens, (long long)p->row.problem.m);
    if (!(p->imbalance >= 0 && p->imbalance <= 1e6) || !(p->predicted >= 0 && p->predicted <= 1e6))
        return kt_fail(err, KT_E_INVALID,
                       "'imbalance' is %g and 'predicted' %g, expected 0 to 1000000", p->imbalance,
                       p->predicted);
    return kt_table_check_row(&p->row, err);
}

static int order(const kt_table_plan *a, const kt_table_plan *b) {
    int d = strcmp(a->cell, b->cell);
    if (d == 0)
        d = kt_table_key_order(&a->row.problem, a->row.threads, &b->row.problem, b->row.threads);
    return d ? d : strcmp(a->routing, b->routing);
}

const kt_table_plan *kt_table_find_plan(const kt_table *t, const kt_table_plan *key) {
    for (size_t i = 0; i < t->n_plans; i++)
        if (order(&t->plans[i], key) == 0) return &t->plans[i];
    return NULL;
}

static double round_to(double v) {
    return round(v * 1e4) / 1e4;
}

kt_status kt_table_put_plan(kt_table *t, const kt_table_plan *plan, kt_err *err) {
    kt_table_plan copy = *plan, *plans;
    size_t at = 0;

    KT_TRY(check_plan(plan, err));
    kt_table_round_row(&copy.row);
    copy.imbalance = round_to(copy.imbalance);
    copy.predicted = round_to(copy.predicted);
    while (at < t->n_plans && order(&t->plans[at], &copy) < 0) at++;
    if (at < t->n_plans && order(&t->plans[at], &copy) == 0) {
        t->plans[at] = copy;
        return KT_OK;
    }
    if (t->n_plans == MAX_PLANS)
        return kt_fail(err, KT_E_INVALID, "table: more than %d plan cells", MAX_PLANS);
    plans = realloc(t->plans, (t->n_plans + 1) * sizeof *plans);
    if (!plans) return kt_fail(err, KT_E_NOMEM, "table: no memory for %zu plans", t->n_plans + 1);
    t->plans = plans;
    memmove(&plans[at + 1], &plans[at], (t->n_plans - at) * sizeof *plans);
    plans[at] = copy;
    t->n_plans++;
    return KT_OK;
}

void kt_table_put_plan_value(kt_json_writer *w, const void *value) {
    const kt_table_plan *p = value;

    kt_json_begin_object(w);
    kt_json_add_string(w, "cell", p->cell);
    kt_json_add_int(w, "tokens", p->tokens);
    kt_json_add_string(w, "routing", p->routing);
    kt_json_add_fixed(w, "imbalance", p->imbalance, 4);
    if (p->predicted > 0) kt_json_add_fixed(w, "predicted", p->predicted, 4);
    kt_table_put_row_members(w, &p->row);
    kt_json_end_object(w);
}

static kt_status read_plan(const kt_json *o, const char *where, kt_table_plan *p, kt_err *err) {
    memset(p, 0, sizeof *p);
    KT_TRY(kt_table_read_text(o, "cell", where, p->cell, sizeof p->cell, err));
    KT_TRY(kt_table_read_text(o, "routing", where, p->routing, sizeof p->routing, err));
    KT_TRY(kt_json_need_int(o, "tokens", 1, INT64_MAX, where, &p->tokens, err));
    KT_TRY(kt_json_need_double(o, "imbalance", where, &p->imbalance, err));
    if (kt_json_get(o, "predicted"))
        KT_TRY(kt_json_need_double(o, "predicted", where, &p->predicted, err));
    return kt_table_read_row(o, where, &p->row, err);
}

static kt_status add_plan(const kt_json *o, const char *where, kt_table *t, kt_err *err) {
    kt_table_plan p;

    KT_TRY(read_plan(o, where, &p, err));
    if (kt_table_find_plan(t, &p))
        return kt_fail(err, KT_E_FORMAT, "%s: the same cell again", where);
    return kt_table_blame_file(kt_table_put_plan(t, &p, err), where, err);
}

kt_status kt_table_read_plans(const kt_json *root, const char *path, kt_table *t, kt_err *err) {
    return kt_table_read_list(
        root, path, &(kt_table_list){"plans", "plan", MAX_PLANS, is_known, add_plan}, t, err);
}
