/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/plan/plan_device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/plan.h"
#include "kernels/cuda/device_weights.h"

static bool is_of_device(const kt_table_device_row *r, const kt_device_facts *f, const char *cell) {
    return strcmp(r->cell, cell) == 0 && strcmp(r->device, f->name) == 0 &&
           strcmp(r->target, f->target->name) == 0;
}

/* Rows are of a whole layer's experts; a device that has a part of them gets as many rows each. */
static bool is_of_job(const kt_problem *p, const kt_device_job *j) {
    const kt_weight_format down = kt_device_weight_format(kt_problem_down(p));

    return p->op == j->op && kt_device_weight_format(p->weights) == j->weights &&
           (p->op == KT_OP_GEMM || down == j->down) && p->n == j->n && p->k == j->k;
}

static kt_status choice_of(const kt_table_device_row *r, const kt_device_facts *f,
                           const kt_device_job *job, kt_device_choice *out, kt_err *why) {
    const bool is_default = kt_row_is_doubtful(&r->row);
    const char *refused;

    KT_TRY(kt_device_choice_parse(is_default ? r->row.default_variant : r->row.variant,
                                  is_default ? r->row.default_config : r->row.config, job, out,
                                  why));
    if (!is_default && out->kernel->version != r->row.version)
        return kt_fail(why, KT_E_UNSUPPORTED, "%s is of version %d, tuned was %d",
                       out->kernel->name, out->kernel->version, (int)r->row.version);
    refused = kt_device_choice_refuse(out, job, r->row.problem.m, f->target);
    return refused ? kt_fail(why, KT_E_UNSUPPORTED, "%s: %s", out->kernel->name, refused) : KT_OK;
}

/* A rung behind those that are there; a full ladder keeps what it has. */
static void add_rung(kt_device_ladder *l, const kt_device_choice *c, int64_t most) {
    if (l->n && most <= l->most[l->n - 1]) return;
    if (l->n && kt_device_choice_equal(&l->choice[l->n - 1], c)) {
        l->most[l->n - 1] = most;
        return;
    }
    if (l->n == KT_DEVICE_RUNGS) return;
    l->choice[l->n] = *c;
    l->most[l->n++] = most;
}

/* Choices with the m that they were raced at, ascending. */
typedef struct found {
    int n;
    kt_device_choice choice[KT_DEVICE_RUNGS];
    int64_t m[KT_DEVICE_RUNGS];
} found;

static void gather(const kt_table *t, const kt_device_facts *f, const kt_device_job *job,
                   found *out, kt_device_advice *advice) {
    out->n = 0;
    for (size_t i = 0; t && i < t->n_device_rows && out->n < KT_DEVICE_RUNGS; i++) {
        const kt_table_device_row *r = &t->device_rows[i];
        kt_err why = {KT_OK, ""};
        if (!is_of_device(r, f, "kernel") || !is_of_job(&r->row.problem, job)) continue;
        if (out->n && r->row.problem.m <= out->m[out->n - 1]) continue; /* of other experts */
        if (choice_of(r, f, job, &out->choice[out->n], &why) == KT_OK) {
            out->m[out->n++] = r->row.problem.m;
            advice->n_used++;
        } else if (advice->n_ignored++ == 0) {
            snprintf(advice->note, sizeof advice->note, "row of %lld rows is ignored: %.300s",
                     (long long)r->row.problem.m, why.message);
        }
    }
}

/* Up to which rows choice i stands before choice i + 1. */
static int64_t boundary(const found *f, int i) {
    return (int64_t)sqrt((double)f->m[i] * (double)f->m[i + 1]);
}

void kt_plan_device_ladder(const kt_table *t, const kt_device_facts *facts,
                           const kt_device_job *job, kt_device_ladder *out,
                           kt_device_advice *advice) {
    kt_device_ladder standard;
    found f;
    int n_few = 0;

    kt_device_ladder_default(job, facts->target, &standard);
    gather(t, facts, job, &f, advice);
    *out = (kt_device_ladder){.n = 0};
    while (n_few < f.n && f.m[n_few] <= KT_DEVICE_FEW) n_few++;
    for (int i = 0; i < n_few; i++)
        add_rung(out, &f.choice[i], i + 1 < n_few ? boundary(&f, i) : KT_DEVICE_FEW);
    if (n_few == 0) add_rung(out, &standard.choice[0], KT_DEVICE_FEW);
    for (int i = n_few; i < f.n; i++) {
        const int64_t most = kt_device_is_few(f.choice[i].kernel) ? KT_DEVICE_TURNS : INT64_MAX,
                      next = i + 1 < f.n ? boundary(&f, i) : INT64_MAX;
        add_rung(out, &f.choice[i], next < most ? next : most);
    }
    for (int i = 0; i < standard.n; i++) add_rung(out, &standard.choice[i], standard.most[i]);
    out->most[out->n - 1] = INT64_MAX;
}

/* ---- plan cells ---- */

static const kt_table_device_row *first_cell(const kt_table *t, const kt_device_facts *f,
                                             const kt_problem *experts, int threads,
                                             const char *cell) {
    for (size_t i = 0; t && i < t->n_device_rows; i++) {
        const kt_table_device_row *r = &t->device_rows[i];
        kt_problem p = *experts;
        p.acts = r->row.problem.acts;
        if (is_of_device(r, f, cell) && r->row.threads == threads &&
            kt_same_weights(&r->row.problem, &p))
            return r; /* in the order of m: that of the fewest tokens */
    }
    return NULL;
}

double kt_plan_device_share(const kt_table *t, const kt_device_facts *f, const kt_problem *experts,
                            int threads) {
    const kt_table_device_row *r = first_cell(t, f, experts, threads, "cpu_gpu_split");
    int64_t percent;

    if (!r || kt_plan_number_parse(r->row.config, "share", 0, 100, &percent, NULL) != KT_OK)
        return -1;
    return (double)percent / 100;
}

int64_t kt_plan_device_offload(const kt_table *t, const kt_device_facts *f,
                               const kt_problem *experts, int threads) {
    const kt_table_device_row *r = first_cell(t, f, experts, threads, "prefill_offload");
    int64_t rows;

    if (!r || kt_plan_number_parse(r->row.config, "rows", 0, INT32_MAX, &rows, NULL) != KT_OK)
        return -1;
    return rows ? rows : INT64_MAX;
}

int64_t kt_plan_device_crossover(const kt_table *t, const kt_device_facts *f,
                                 const kt_problem *experts, int threads) {
    const kt_table_device_row *r = first_cell(t, f, experts, threads, "prefill_offload");
    const int64_t rows = kt_plan_device_offload(t, f, experts, threads);
    double same;

    if (rows < 1 || rows == INT64_MAX) return rows;
    same = ceil((double)rows * r->row.time_ns / r->row.default_ns);
    return same >= 1 && same < (double)rows ? (int64_t)same : rows;
}
