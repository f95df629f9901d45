/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm/norm_gate.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/norm/norm_ref.h"

static void fill(float *x, int64_t k, int kind, kt_rng *rng) {
    static const float size[] = {1.0f, 1.0f, 1e-22f, 1e15f, 0.0f};
    for (int64_t i = 0; i < k; i++) {
        float n = kt_rng_normal(rng);
        if (kind % 5 == 1) n = n * n * n * n * n;
        x[i] = n * size[kind % 5];
    }
}

/* Gates from shut to open; the steps past +-90 are where exp overflows and where it vanishes. */
static void fill_gates(float *z, size_t n, kt_rng *rng) {
    static const float size[] = {1.0f, 3.0f, 20.0f, 1e20f, 0.0f, 1e-30f};
    for (size_t i = 0; i < n; i++)
        z[i] =
            i % 11 == 10 ? kt_rng_uniform(rng, -110.0f, 110.0f) : kt_rng_normal(rng) * size[i % 6];
}

/* x is written to: the last pass is in place. */
static kt_status check_kind(const kt_variant *v, const kt_problem *p, uint64_t seed,
                            kt_norm_call *call, float *x, double *want, double *bound,
                            kt_gate_report *report, kt_err *err) {
    size_t n = (size_t)p->m * (size_t)p->k;
    float *y = call->y;

    for (int64_t row = 0; row < p->m; row++)
        kt_norm_ref_row(call, row, want + row * p->k, bound + row * p->k);
    v->norm(call);
    KT_TRY(kt_gate_compare(v, p, seed, y, want, bound, n, report, err));
    call->y = x;
    v->norm(call);
    call->y = y;
    if (memcmp(x, y, n * sizeof *x) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: kind %d k=%lld seed=%llu: in place differs from out of place", v->name,
                       (int)call->kind, (long long)p->k, (unsigned long long)seed);
    return KT_OK;
}

static kt_status check(const kt_variant *v, const kt_problem *p, uint64_t seed, float *x, float *w,
                       float *z, float *y, double *want, double *bound, kt_gate_report *report,
                       kt_err *err) {
    kt_norm_call call = {.x = x,
                         .ldx = p->k,
                         .w = w,
                         .eps = 1e-6f,
                         .y = y,
                         .ldy = p->k,
                         .k = p->k,
                         .row_begin = 0,
                         .row_end = p->m,
                         .z = z,
                         .ldz = p->k};
    kt_rng rng;

    for (int kind = KT_NORM_KIND_COUNT - 1; kind >= 0; kind--) { /* the report is RMSNorm's */
        kt_rng_seed(&rng, seed);
        for (int64_t row = 0; row < p->m; row++) fill(x + row * p->k, p->k, (int)row, &rng);
        for (int64_t i = 0; i < p->k; i++) w[i] = kt_rng_uniform(&rng, -2.0f, 2.0f);
        fill_gates(z, (size_t)(p->m * p->k), &rng);
        call.kind = (kt_norm_kind)kind;
        KT_TRY(check_kind(v, p, seed, &call, x, want, bound, report, err));
    }
    return KT_OK;
}

kt_status kt_norm_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t n = (size_t)problem->m * (size_t)problem->k;
    float *x = malloc(n * sizeof *x + 1), *y = malloc(n * sizeof *y + 1);
    float *w = malloc((size_t)problem->k * sizeof *w + 1), *z = malloc(n * sizeof *z + 1);
    double *want = malloc(n * sizeof *want + 1), *bound = malloc(n * sizeof *bound + 1);
    kt_status st = KT_OK;

    if (v->accepts) st = v->accepts(problem, config, err);
    if (st == KT_OK && !(x && y && w && z && want && bound))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu floats", v->name, n);
    if (st == KT_OK) st = check(v, problem, seed, x, w, z, y, want, bound, report, err);
    free(x);
    free(y);
    free(w);
    free(z);
    free(want);
    free(bound);
    return st;
}
