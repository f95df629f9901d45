/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router_gate.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/router/router_ref.h"

/* Half the rows nearly cancel: neighbours have opposite signs and equal weights. */
static void fill(const kt_problem *p, float *x, void *w, uint64_t seed) {
    kt_rng rng;
    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < p->m * p->k; i++) {
        float n = kt_rng_normal(&rng);
        x[i] = i / p->k % 2 && i % p->k % 2 ? -x[i - 1] : n * n * n;
    }
    for (int64_t i = 0; i < p->n * p->k; i++) {
        float n = kt_rng_normal(&rng) * 0.05f;
        if (p->weights == KT_W_BF16)
            ((uint16_t *)w)[i] = kt_f32_to_bf16(n);
        else
            ((float *)w)[i] = i % 3 == 1 ? ((float *)w)[i - 1] : n;
    }
}

/* Rows one by one, experts in two shares, must repeat the bits of the whole. */
static kt_status check_shares(const kt_variant *v, const kt_router_call *whole, float *one,
                              uint64_t seed, kt_err *err) {
    const kt_problem *p = whole->problem;
    for (int64_t row = 0; row < p->m; row++) {
        kt_router_call part = *whole;
        part.logits = one - row * p->n;
        part.row_begin = row;
        part.row_end = row + 1;
        part.expert_end = p->n / 3;
        v->router(&part);
        part.expert_begin = p->n / 3;
        part.expert_end = p->n;
        v->router(&part);
        if (memcmp(one, whole->logits + row * p->n, (size_t)p->n * sizeof *one) != 0)
            return kt_fail(err, KT_E_MISMATCH,
                           "%s: n=%lld k=%lld seed=%llu: row %lld alone differs from the batch",
                           v->name, (long long)p->n, (long long)p->k, (unsigned long long)seed,
                           (long long)row);
    }
    return KT_OK;
}

static kt_status check(const kt_variant *v, const kt_problem *p, uint64_t seed, float *x, void *w,
                       float *got, double *want, double *bound, kt_gate_report *report,
                       kt_err *err) {
    kt_router_call call = {.problem = p,
                           .x = x,
                           .ldx = p->k,
                           .w = w,
                           .logits = got,
                           .ldl = p->n,
                           .row_begin = 0,
                           .row_end = p->m,
                           .expert_begin = 0,
                           .expert_end = p->n};
    fill(p, x, w, seed);
    for (int64_t row = 0; row < p->m; row++)
        kt_router_ref_row(&call, row, want + row * p->n, bound + row * p->n);
    v->router(&call);
    KT_TRY(kt_gate_compare(v, p, seed, got, want, bound, (size_t)(p->m * p->n), report, err));
    return check_shares(v, &call, got + p->m * p->n, seed, err);
}

kt_status kt_router_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                         uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t m = (size_t)problem->m, n = (size_t)problem->n, k = (size_t)problem->k;
    float *x = malloc(m * k * sizeof *x + 1), *w = malloc(n * k * sizeof *w + 1);
    float *got = malloc((m + 1) * n * sizeof *got);
    double *want = malloc(m * n * sizeof *want + 1), *bound = malloc(m * n * sizeof *bound + 1);
    kt_status st = KT_OK;

    if (v->accepts) st = v->accepts(problem, config, err);
    if (st == KT_OK && !(x && w && got && want && bound))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu weights", v->name, n * k);
    if (st == KT_OK) st = check(v, problem, seed, x, w, got, want, bound, report, err);
    free(x);
    free(w);
    free(got);
    free(want);
    free(bound);
    return st;
}
