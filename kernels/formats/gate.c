/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/gate.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"

static kt_status refuse(const kt_variant *v, const kt_problem *p, uint64_t seed, size_t i,
                        double got, double want, double bound, kt_err *err) {
    return kt_fail(err, KT_E_MISMATCH,
                   "%s: %s m=%lld n=%lld k=%lld kv_heads=%lld context=%lld seed=%llu result %zu: "
                   "got %.9g, want %.9g, bound %.3g",
                   v->name, kt_op_name(p->op), (long long)p->m, (long long)p->n, (long long)p->k,
                   (long long)p->kv_heads, (long long)p->context, (unsigned long long)seed, i, got,
                   want, bound);
}

kt_status kt_gate_compare(const kt_variant *v, const kt_problem *problem, uint64_t seed,
                          const float *got, const double *want, const double *bound, size_t n,
                          kt_gate_report *report, kt_err *err) {
    kt_status st = KT_OK;
    double error2 = 0.0, want2 = 0.0, worst = 0.0;

    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]);
        if (isnan(want[i]) ? !isnan(got[i]) : !(error <= bound[i])) {
            if (st == KT_OK) st = refuse(v, problem, seed, i, got[i], want[i], bound[i], err);
            continue;
        }
        if (isnan(want[i])) continue;
        error2 += error * error;
        want2 += want[i] * want[i];
        if (error > 0.0 && error / bound[i] > worst) worst = error / bound[i];
    }
    if (report) {
        report->rel_rms = want2 > 0.0 ? sqrt(error2 / want2) : 0.0;
        snprintf(report->detail, sizeof report->detail,
                 "%zu results, %s, largest error %.3g of its bound", n,
                 st == KT_OK ? "all within bounds" : "WRONG", worst);
    }
    return st;
}
