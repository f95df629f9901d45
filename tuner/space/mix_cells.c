/* Cells weighted by what a serving mix does: the time of its steps goes to the matrices they
 * multiply, and of the experts' part to the row counts that the routing gives them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table.h"
#include "tuner/space/roles.h"
#include "tuner/space/workload.h"

/* Rows that take as long to multiply as their weights to read: a round figure between int4 and bf16
 * on machines of today. It only orders cells and weighs them against each other. */
static const double balance_rows = 8;

/* Small steps are drawn more often, until about this many tokens were. */
enum { DRAWN_TOKENS = 256, MAX_DRAWS = 64 };

/* Time shares of the roles of one step, by bucket. */
typedef struct step_time {
    double *bucket; /* [roles][kt_m_bucket_count] */
    double sum;
} step_time;

int64_t kt_bucket_of(int64_t m) {
    int64_t best = kt_m_buckets[0];
    for (int i = 0; i < kt_m_bucket_count; i++)
        if (fabs(log((double)kt_m_buckets[i] / (double)m)) <= fabs(log((double)best / (double)m)))
            best = kt_m_buckets[i];
    return best;
}

static int bucket_index(int64_t m) {
    int64_t bucket = kt_bucket_of(m);
    int i = 0;
    while (kt_m_buckets[i] != bucket) i++;
    return i;
}

static void add_time(step_time *t, int role, int64_t m, double bytes) {
    double time = bytes * (1 + (double)m / balance_rows);
    if (m < 1) return;
    t->bucket[role * kt_m_bucket_count + bucket_index(m)] += time;
    t->sum += time;
}

/* The experts of one layer, drawn often enough that few tokens do not decide by chance. */
static kt_status add_experts(const kt_workload *w, const kt_serving_role *r, int role,
                             int64_t tokens, step_time *t, kt_err *err) {
    int64_t experts = r->problem.experts, topk = r->problem.topk;
    int draws = tokens < DRAWN_TOKENS ? (int)(DRAWN_TOKENS / tokens) : 1;
    double expert_bytes = r->bytes / (double)(topk + r->shared);
    int32_t *counts = calloc((size_t)experts, sizeof *counts);
    kt_status st = counts ? KT_OK : kt_fail(err, KT_E_NOMEM, "mix: no memory");

    if (draws > MAX_DRAWS) draws = MAX_DRAWS;
    if (r->shared) add_time(t, role, tokens, expert_bytes * (double)r->shared);
    for (int d = 0; st == KT_OK && d < draws; d++) {
        st = kt_routing_counts(&w->routing, experts, topk, tokens, (uint64_t)d, counts, err);
        for (int64_t e = 0; st == KT_OK && e < experts; e++)
            add_time(t, role, counts[e], expert_bytes / draws);
    }
    free(counts);
    return st;
}

static kt_status add_step(const kt_workload *w, const kt_mix_step *step,
                          const kt_serving_role *roles, int n_roles, step_time *t, kt_err *err) {
    memset(t->bucket, 0, (size_t)(n_roles * kt_m_bucket_count) * sizeof *t->bucket);
    t->sum = 0;
    for (int i = 0; i < n_roles; i++) {
        /* Of a step that is larger than a matrix ever sees (logits) one row counts. */
        int64_t rows = step->tokens <= roles[i].most_rows ? step->tokens : 1;
        if (roles[i].problem.op == KT_OP_MOE_FFN && roles[i].problem.experts > 1)
            KT_TRY(add_experts(w, &roles[i], i, step->tokens, t, err));
        else
            add_time(t, i, rows, roles[i].bytes);
    }
    return KT_OK;
}

static kt_status add_cells(const kt_serving_role *roles, int n_roles, const step_time *t,
                           double share, int threads, kt_cell_list *out, kt_err *err) {
    for (int i = 0; i < n_roles; i++)
        for (int b = 0; b < kt_m_bucket_count; b++) {
            double time = t->bucket[i * kt_m_bucket_count + b];
            kt_tune_cell cell = {.problem = roles[i].problem, .threads = threads};
            if (time <= 0) continue;
            cell.problem.m = kt_m_buckets[b];
            cell.weight = cell.mix_weight = share * time / t->sum;
            memcpy(cell.role, roles[i].name, sizeof cell.role);
            KT_TRY(kt_cells_add_or_join(out, &cell, err));
        }
    return KT_OK;
}

kt_status kt_cells_of_workload(const kt_workload *w, kt_serving_format format, kt_profile profile,
                               const int *threads, int n_threads, kt_cell_list *out, kt_err *err) {
    kt_serving_role roles[KT_MAX_ROLES];
    int n_roles = kt_roles_list(&w->shapes, format, roles);
    step_time time = {.bucket = calloc((size_t)(n_roles * kt_m_bucket_count + 1), sizeof(double))};
    kt_status st = time.bucket ? KT_OK : kt_fail(err, KT_E_NOMEM, "mix: no memory");

    if (st == KT_OK)
        st = kt_cells_of_shapes(&w->shapes, format, profile, threads, n_threads, out, err);
    for (size_t i = 0; i < out->n; i++) out->cells[i].weight *= 1 - KT_MIX_SHARE;
    for (int s = 0; st == KT_OK && s < w->mix.n; s++) {
        st = add_step(w, &w->mix.step[s], roles, n_roles, &time, err);
        for (int t = 0; st == KT_OK && t < n_threads; t++)
            st = add_cells(roles, n_roles, &time,
                           KT_MIX_SHARE * w->mix.step[s].share * kt_thread_share(t, n_threads),
                           threads[t], out, err);
    }
    free(time.bucket);
    if (st != KT_OK) kt_cell_list_deinit(out);
    return st;
}
