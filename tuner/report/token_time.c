/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/token_time.h"

#include "tuner/space/roles.h"

int kt_table_most_threads(const kt_table *t) {
    int n = 1;
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].threads > n) n = t->rows[i].threads;
    return n;
}

static const kt_table_row *row_of(const kt_table *t, const kt_problem *p, int threads) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_problem *q = &t->rows[i].problem;
        if (q->op == p->op && q->weights == p->weights && q->m == 1 && q->n == p->n &&
            q->k == p->k && q->experts == p->experts && t->rows[i].threads == threads)
            return &t->rows[i];
    }
    return NULL;
}

int kt_table_formats(const kt_table *t, kt_serving_format out[KT_SERVING_FORMATS]) {
    int n = 0, k;

    for (size_t i = 0; i < t->n_rows; i++) {
        kt_serving_format f = kt_serving_format_of(t->rows[i].problem.weights);
        if (t->rows[i].problem.op != KT_OP_MOE_FFN) continue;
        for (k = 0; k < n && out[k] != f;) k++;
        if (k == n && n < KT_SERVING_FORMATS) out[n++] = f;
    }
    return n;
}

static bool time_of(const kt_table *t, const kt_shapes *shapes, int threads, kt_token_time *out) {
    kt_serving_role roles[KT_MAX_ROLES];
    const int n = kt_roles_list(shapes, out->format, roles);

    for (int i = 0; i < n; i++) {
        const kt_table_row *r = row_of(t, &roles[i].problem, threads);
        double calls = (double)roles[i].times; /* moe rows are per active expert */
        if (!r) return false;
        if (roles[i].problem.op == KT_OP_MOE_FFN)
            calls *= (double)(roles[i].problem.topk + roles[i].shared);
        out->before += calls * r->default_ns * 1e-9;
        out->after += calls * r->time_ns * 1e-9;
        out->is_rough |= kt_row_is_undecided(r);
    }
    return n > 0 && out->after > 0;
}

kt_status kt_token_times_of(const kt_table *t, int threads, kt_token_times *out, kt_err *err) {
    kt_serving_format format[KT_SERVING_FORMATS];
    const int n = kt_table_formats(t, format);
    kt_shapes shapes;
    kt_status st;

    *out = (kt_token_times){0};
    st = kt_shapes_find(t->workload, &shapes, NULL, 0, err);
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    for (int i = 0; i < n; i++) {
        kt_token_time *time = &out->of[out->n];
        *time = (kt_token_time){.format = format[i]};
        out->n += time_of(t, &shapes, threads, time);
    }
    return KT_OK;
}

/* Less is noise. */
static const double clearly_slower = 1.02;

bool kt_row_wants_fewer_threads(const kt_table *t, const kt_table_row *row) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *other = &t->rows[i];
        if (other->threads < row->threads && other->problem.m == row->problem.m &&
            kt_same_weights(&other->problem, &row->problem) &&
            row->time_ns > clearly_slower * other->time_ns)
            return true;
    }
    return false;
}
